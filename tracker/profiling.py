"""Captures profiler traces of chosen steps, each with a step marker that XProf recognises.

A profiler that cannot start is a warning, never the end of training; a capture is closed whatever
happens. TensorFlow 2.21 ignores the tracer levels that `tf.profiler.experimental.start` is given
(the capture's own note of its options says so), so there is nothing to choose here; captures from
outside, through `serve`, have theirs.

    >>> profiler = Profiler(run.train, warn=print)
    >>> profiler.start()
    >>> with step_marker(20):
    ...     functions.plain(iterator, 19, 1)
    >>> capture = profiler.stop()
    >>> figures(captures.numbers(capture))
    {'profile/step_ms': 3.1, 'profile/input_percent': 0.4, ...}
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tracker import captures, scopes, tags

LARGE_MB = 40.0  # about what a million events take, which is where XProf's conversion stops


def step_marker(step: int) -> Any:
    """A context manager that marks one step in the trace; `_r=1` is what makes it a root event."""
    return tf.profiler.experimental.Trace("train", step_num=step, _r=1)


def span(name: str) -> Any:
    """A context manager that names a span of the host's time in the trace."""
    return tf.profiler.experimental.Trace(name)


def tracing() -> bool:
    """Whether a profiler is tracing this process, also one that someone else started."""
    enabled = getattr(sys.modules[tf.profiler.experimental.Trace.__module__], "enabled", False)
    return bool(enabled() if callable(enabled) else enabled)


def serve(port: int, warn: Callable[[str], None]) -> None:
    """Lets others capture this process: TensorBoard's button, `python -m tracker.profiles capture`.

    Args:
      port: to listen on.
      warn: called with one sentence if that is impossible.
    """
    try:
        tf.profiler.experimental.server.start(port)
    except (tf.errors.OpError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        warn(f"--profiler_port={port}: nobody can capture this run: {reason[0]}")


def figures(numbers: captures.Numbers) -> dict[str, float]:
    """What a run writes of a capture, by tag; empty for one without steps."""
    if not numbers.steps:
        return {}
    values = {
        tags.PROFILE_STEP_MS: numbers.step_ms_median,
        tags.PROFILE_INPUT: numbers.input_percent,
        tags.PROFILE_HOST: numbers.parts.get("host"),
        tags.PROFILE_DEVICE: numbers.device_percent,
        tags.PROFILE_NOISE: numbers.noise_percent,
        tags.PROFILE_DIAGNOSTICS: numbers.diagnostics_percent,
        tags.PROFILE_RUNTIME: scopes.total(numbers.scopes, scopes.RUNTIME),
    }
    return {tag: value for tag, value in values.items() if value is not None}


def described(numbers: captures.Numbers) -> dict[str, Any]:
    """What run.json keeps of a capture."""
    return {
        "device_type": numbers.device_type,
        "steps": list(numbers.steps),
        "step_ms": numbers.step_ms_median,
        "parts": numbers.parts,
        "scopes": numbers.scopes,
        "busy": numbers.busy,
    }


def emptiness(numbers: captures.Numbers, gpus: int) -> str:
    """What a capture lacks, with the cure, in one sentence; '' if nothing.

    Args:
      numbers: of the capture.
      gpus: how many GPUs the process uses.
    """
    if gpus and not numbers.busy:
        return (
            f"The profile holds nothing of the {gpus} GPU(s) of this run: either the driver does "
            "not let users count (start the container with --cap-add=SYS_ADMIN, or load the driver "
            "with NVreg_RestrictProfilingToAdminUsers=0), or libcupti is not found (install "
            "tf-tracker[gpu], or put CUDA's extras/CUPTI/lib64 into LD_LIBRARY_PATH)."
        )
    if not numbers.steps:
        return (
            "The profile holds no step, so that nothing can be said of its time; give the window "
            "more steps, such as --profile_steps=20:25."
        )
    return ""


class Profiler:
    """Starts and stops captures into one directory.

    Args:
      directory: captures go to `plugins/profile/<time>/` below it.
      warn: called with one sentence when a capture cannot start or be written.
    """

    _last_second = ""  # of all profilers of the process: they share the clock that names captures

    def __init__(self, directory: Any, warn: Callable[[str], None]):
        self._directory = directory
        self._warn = warn
        self._before: set[str] = set()
        self.active = False

    def start(self) -> None:
        """Starts a capture; a failure is warned about."""
        self._wait_for_a_new_second()
        self._before = self._captures()
        try:
            tf.profiler.experimental.start(os.fspath(self._directory))
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
