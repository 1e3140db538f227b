"""When things happen: which steps are summary steps, and how far the next call may run.

Pure functions of step numbers. What describes an update (loss, stddev, WUR) has the update's
number; what describes a state (validation) has the number of updates behind it.

    >>> schedule = Schedule(steps=10, summary_every=4)
    >>> [k for k in range(1, 11) if schedule.is_summary(k)]
    [1, 4, 8, 10]
"""

from __future__ import annotations

import dataclasses
import math

from tracker.config import Window


@dataclasses.dataclass(frozen=True)
class Call:
    """The next call: `intervals` times one instrumented step and `plain` plain ones.

    With `intervals` 0 it is `plain` plain steps.
    """

    intervals: int
    plain: int

    @property
    def steps(self) -> int:
        """Steps of the whole call."""
        return self.intervals * (self.plain + 1) if self.intervals else self.plain


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The intervals of a run; 0 switches one off.

    An interval of n means step 1, every multiple of n, and the last step. Validation also comes
    before step 1.
    """

    steps: int
    summary_every: int = 0
    validate_every: int = 0
    histogram_every: int = 0
    checkpoint_every: int = 0
    windows: tuple[Window, ...] = ()

    def is_summary(self, step: int) -> bool:
        """Whether the step is instrumented."""
        return self._due(self.summary_every, step)

    def is_histogram(self, step: int) -> bool:
        """Whether weights and updates of the step are written as histograms."""
        return self._due(self.histogram_every, step) and self.is_summary(step)

    def is_validation(self, step: int) -> bool:
        """Whether the state after so many steps is validated."""
        return bool(self.validate_every) and (step == 0 or self._due(self.validate_every, step))

    def is_checkpoint(self, step: int) -> bool:
        """Whether the state after so many steps is saved, by steps (not by the clock)."""
        return bool(self.checkpoint_every) and step > 0 and step % self.checkpoint_every == 0

    def window(self, step: int) -> Window | None:
        """The profile window that the step belongs to."""
        return next((w for w in self.windows if w.start <= step < w.stop), None)

    def call(self, step: int, most: int) -> Call:
        """What to run after step `step`, in one call of at most `most` steps (at least 1).

        A call ends where the host has something to do: at a validation, a checkpoint, around a
        histogram step, and around each step of a profile window.
        """
        limit = min(self._stop(step), step + max(most, 1))
        first = step + 1
        if not self.is_summary(first):
            return Call(0, min(limit, self._next_summary(first) - 1) - step)
        every = self.summary_every
        gap = self._next_summary(first) - first
        whole = (min(limit, self.steps - 1) - step) // every if gap == every else 0
        if whole:
            return Call(whole, every - 1)
        return Call(1, min(limit, first + gap - 1) - first)

    def _due(self, every: int, step: int) -> bool:
        return every > 0 and (step in (1, self.steps) or (step > 0 and step % every == 0))

    def _next_summary(self, step: int) -> int:
        """The first summary step after `step`; beyond the run if there is none."""
        if not self.summary_every:
            return self.steps + 1
        after = (step // self.summary_every + 1) * self.summary_every
        if step < 1:
            return 1
        return min(after, self.steps) if step < self.steps else self.steps + 1

    def _stop(self, step: int) -> int:
        """The first step after `step` after which the host must act."""
        stops = [self.steps]
        if self.validate_every:
            stops.append((step // self.validate_every + 1) * self.validate_every)
            stops.append(1 if step < 1 else self.steps)
        if self.checkpoint_every:
            stops.append((step // self.checkpoint_every + 1) * self.checkpoint_every)
        if self.histogram_every:
            every = math.lcm(self.histogram_every, self.summary_every)
            after = min((step // every + 1) * every, self.steps) if step else 1
            stops.append(after if after == step + 1 else after - 1)
        for window in self.windows:
            if step + 1 < window.start:
                stops.append(window.start - 1)
            elif step + 1 < window.stop:
                stops.append(step + 1)
        return min(stops)
