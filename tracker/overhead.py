"""What the diagnostics cost, measured while they run, and intervals that keep it within a budget.

The cost is the extra time of instrumented steps against plain ones (both timed inside the compiled
calls), and the time the host spends on turning results into records and writing them.

    >>> overhead = Overhead()
    >>> overhead.add(result, logged=100, seconds=0.5, host_seconds=0.01)
    >>> overhead.percent()
    2.4
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tracker.steps import Result

_LEAST_SUMMARIES = 3  # before the cost of a summary step is known well enough to act on


class Intervals(NamedTuple):
    """How often to compute summaries, and to log the scalars of every step."""

    summary_every: int
    log_every: int


class Overhead:
    """Adds up wall time and cost of the calls of a run.

    Attributes:
      wall: seconds of all that was added, calls and host.
    """

    def __init__(self) -> None:
        self.wall = 0.0
        self._plain_seconds = 0.0
        self._plain_steps = 0
        self._summary_seconds = 0.0  # of whole instrumented steps
        self._summaries = 0
        self._summary_host = 0.0
        self._log_host = 0.0
        self._logged = 0

    def add(
        self,
        result: Result,
        logged: int,
        seconds: float,
        log_seconds: float,
        summary_seconds: float,
    ) -> None:
        """Adds one call that did not compile anything.

        Args:
          result: what the call returned.
          logged: steps whose every-step scalars were written.
          seconds: wall time of the call.
          log_seconds: what the host spent on the scalars of every step.
          summary_seconds: what the host spent on summary steps.
        """
        rows = np.zeros(0) if result.instrumented is None else result.instrumented.seconds
        self.wall += seconds + log_seconds + summary_seconds
        self._summary_seconds += float(np.sum(rows))
        self._summaries += len(rows)
        if result.steps > len(rows):
            self._plain_seconds += max(seconds - float(np.sum(rows)), 0.0)
            self._plain_steps += result.steps - len(rows)
        self._log_host += log_seconds
        self._summary_host += summary_seconds
        self._logged += logged

    @property
    def _plain(self) -> float:
        """Seconds of a plain step."""
        return self._plain_seconds / self._plain_steps

    def percent(self) -> float | None:
        """Share of the wall time, percent; None before any plain step, to compare with."""
        if not self._plain_steps or not self.wall:
            return None
        extra = max(self._summary_seconds - self._summaries * self._plain, 0.0)
        return 100 * (extra + self._summary_host + self._log_host) / self.wall

    def within(self, budget: float, now: Intervals) -> Intervals:
        """Intervals that keep the cost within a budget; never shorter than they are.

        Args:
          budget: percent of the wall time.
          now: the intervals in force.

        Returns:
          The same intervals, or longer ones: summaries further apart, and where the scalars of
          every step alone take more than half of the budget, these too.
        """
        if self._summaries < _LEAST_SUMMARIES or not self._plain_steps or not now.summary_every:
            return now
        share = budget / 100
        log_cost = self._log_host / max(self._logged, 1)
        log_every = now.log_every
        if log_cost / log_every > share / 2 * self._plain:
            log_every = _power_of_two(log_cost / (share / 2 * self._plain))
        left = share * self._plain - log_cost / log_every
        extra = max(self._summary_seconds / self._summaries - self._plain, 0.0)
        summary_cost = extra + self._summary_host / self._summaries
        if summary_cost / now.summary_every <= left:
            return now._replace(log_every=log_every)
        times = _power_of_two(summary_cost / left / now.summary_every)
        return Intervals(now.summary_every * times, log_every)


def _power_of_two(least: float) -> int:
    """The smallest power of two that is no less: intervals change seldom, and stay multiples."""
    return 2 ** max(0, math.ceil(math.log2(least)))
