"""Captures the profile windows of a run, and keeps what they show: scalars, and run.json.

>>> windows = Windows(run.train, writer, record, console, watch)
>>> windows.before(step=20, window=schedule.window(20))     # starts at a window's first step
>>> ...                                                     # step 20 is taken
>>> windows.after(step=20, following=schedule.window(21))   # stops after its last
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tracker import captures, profiling, summaries, xplane
from tracker.config import Window
from tracker.console import Console
from tracker.record import Record
from tracker.watch import Watch


class Windows:
    """The captures of one run.

    Args:
      directory: of the run's training events; captures go below it.
      writer: of the same directory.
      record: the run's; it lists the captures.
      console: told how large each is.
      watch: warned of what makes a capture useless.
    """

    def __init__(
        self,
        directory: Any,
        writer: summaries.EventWriter,
        record: Record,
        console: Console,
        watch: Watch,
    ):
        self._writer, self._record = writer, record
        self._console, self._watch = console, watch
        self._profiler = profiling.Profiler(directory, lambda said: watch.once(said, said))
        self._first = 0
        self._closed: Any = None  # the last capture, until those of other workers are beside it

    @property
    def active(self) -> bool:
        """Whether a capture is going on."""
        return self._profiler.active

    def before(self, step: int, window: Window | None) -> None:
        """Starts a capture, if the step that is about to be taken is the first of its window."""
        if window and window.start == step:
            self._first = step
            self._profiler.start()

    def after(self, step: int, following: Window | None) -> None:
        """Ends the capture that is going on, if the step after `step` is in no window."""
        if self.active and not following:
            self.close(step)

    def close(self, step: int) -> None:
        """Ends the capture that is going on, if any; `step` was the last one."""
        capture = self._profiler.stop()
        if capture is None:
            return
        self._closed = capture
        size = sum(f.stat().length for f in capture.iterdir()) / 1e6
        if step >= self._first:
            self._console.say(
                f"Profiled steps {self._first} to {step}: {size:.1f} MB (Profile tab)."
            )
        kept: dict[str, Any] = {"name": capture.name, "megabytes": round(size, 3)}
        if size > profiling.LARGE_MB:
            self._watch.once(
                "large capture",
                "XProf shows about a million events of a capture and leaves out the rest; profile "
                "fewer steps at a time.",
            )
        else:
            kept.update(self._measure(capture, step))
        self._record.update(captures=[*self._record.fields.get("captures", []), kept])

    def gather(self, others: Mapping[int, Any]) -> None:
        """Moves what other workers captured of the last window beside it, for XProf to see as one.

        Args:
          others: their directories, by number; they have written what they have to write.
        """
        capture, self._closed = self._closed, None
        if capture is None:
            return
        for number, directory in others.items():
            for file in directory.glob(f"plugins/profile/*/*{xplane.SUFFIX}"):
                host = file.name.removesuffix(xplane.SUFFIX)
                file.replace(capture / f"{host}-worker{number}{xplane.SUFFIX}")
            (directory / "plugins").rmtree(missing_ok=True)

    def _measure(self, capture: Any, step: int) -> dict[str, Any]:
        """Writes the numbers of a capture; what run.json keeps of it."""
        try:
            numbers = captures.numbers(captures.Capture(capture, ()))
        except captures.CaptureError as error:
            self._watch.once(str(error), str(error))
            return {}
        gpus = len(tf.config.list_logical_devices("GPU"))
        if empty := profiling.emptiness(numbers, gpus):
            self._watch.once("empty capture", empty)
        self._writer.scalars(step, profiling.figures(numbers))
        self._writer.flush()
        return profiling.described(numbers)
