"""Captures profiler traces of chosen steps, each with a step marker that XProf recognises.

A profiler that cannot start is a warning, never the end of training; a capture is closed whatever
happens.

    >>> profiler = Profiler(run.train, warn=print)
    >>> profiler.start()
    >>> with step_marker(20):
    ...     functions.plain(iterator, 19, 1)
    >>> capture = profiler.stop()
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tracker import captures

LARGE_MB = 40.0  # about what a million events take, which is where XProf's conversion stops


def step_marker(step: int) -> Any:
    """A context manager that marks one step in the trace; `_r=1` is what makes it a root event."""
    return tf.profiler.experimental.Trace("train", step_num=step, _r=1)


class Profiler:
    """Starts and stops captures into one directory.

    Args:
      directory: captures go to `plugins/profile/<time>/` below it.
      warn: called with one sentence when a capture cannot start or be written.
      host_level: of TensorFlow's host tracer; 2 names every op that runs.
      python: whether to trace Python calls.
    """

    _last_second = ""  # of all profilers of the process: they share the clock that names captures

    def __init__(
        self,
        directory: Any,
        warn: Callable[[str], None],
        host_level: int = 2,
        python: bool = False,
    ):
        self._directory = directory
        self._warn = warn
        self._options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=host_level, python_tracer_level=int(python), device_tracer_level=1
        )
        self._before: set[str] = set()
        self.active = False

    def start(self) -> None:
        """Starts a capture; a failure is warned about."""
        self._wait_for_a_new_second()
        self._before = self._captures()
        try:
            tf.profiler.experimental.start(os.fspath(self._directory), self._options)
        except tf.errors.AlreadyExistsError:
            self._warn(
                "No profile was captured: another profiler is running in this process; stop it, or "
                "choose other --profile_steps."
            )
            return
        except tf.errors.OpError as error:
            self._warn(f"No profile was captured: the profiler cannot start: {error.message}")
            return
        self.active = True

    def stop(self) -> Any:
        """Ends the capture, if there is one.

        Returns:
          The directory of the new capture, or None.
        """
        if not self.active:
            return None
        self.active = False
        try:
            tf.profiler.experimental.stop()
        except tf.errors.OpError as error:
            self._warn(f"The profile was lost: {error.message}")
            return None
        Profiler._last_second = time.strftime("%Y%m%d%H%M%S")
        new = sorted(self._captures() - self._before)
        if not new:
            return None
        capture = self._parent() / new[-1]
        try:
            captures.show_steps(capture)
        except captures.CaptureError as error:
            self._warn(f"The profile is of no use: {error}")
            return None
        return capture

    def _parent(self) -> Any:
        return self._directory / "plugins" / "profile"

    def _captures(self) -> set[str]:
        with contextlib.suppress(OSError):
            return {p.name for p in self._parent().iterdir()}
        return set()

    def _wait_for_a_new_second(self) -> None:
        """Captures are named for their second; a second one in it would overwrite the first."""
        while time.strftime("%Y%m%d%H%M%S") == Profiler._last_second:
            time.sleep(0.02)
