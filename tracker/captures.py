"""Profiler captures as numbers: how long a step takes, where its time goes, which ops ran.

A capture is a directory `plugins/profile/<time>/` with one `<host>.xplane.pb` for each host. XProf
splits a step's time into parts; which ops ran, and for which scope of the code, is read from the
files themselves (`xplane`, `scopes`), because XProf's pages sum them up. Nothing here imports
TensorFlow, and XProf's log lines do not reach the terminal.

XProf has a trap: where a compiled function contains a loop (`tf.while_loop`, an LSTM) it takes the
loop's iterations for the steps and then finds no step at all. `numbers` reads a copy without the
iterations; `show_steps` takes them out of the file, for TensorBoard's Profile tab.

    >>> for capture in find('logdir/run'):
    ...     print(capture.name, numbers(capture).step_ms_mean)
    ...     print(executed_ops(capture.path).most_common(3))
"""

from __future__ import annotations

import collections
import dataclasses
import os
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from etils import epath

from tracker import scopes, xplane, xprof_pages
from tracker.xplane import CaptureError, Event

__all__ = ["Capture", "CaptureError", "Event", "Numbers", "Op", "executed_ops", "executions",
           "find", "measure", "numbers", "read", "show_steps"]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Capture:
    """One capture.

    Attributes:
      path: its directory.
      files: its `.xplane.pb` files, one a host; none if the profiler wrote none.
    """

    path: epath.Path
    files: tuple[epath.Path, ...]

    @property
    def name(self) -> str:
        """The time of the capture, as in the directory's name."""
        return self.path.name

    @property
    def megabytes(self) -> float:
        """Size of its files, 10^6 bytes."""
        return sum(file.stat().length for file in self.files) / 1e6


@dataclasses.dataclass(frozen=True)
class Op:
    """All executions of one op or kernel.

    Attributes:
      count: how many.
      total_us: their time, microseconds.
      scope: of the code that it belongs to, see `scopes`; for a kernel that of its op.
      op: the op itself; for a kernel the one that launched it, of several the one for which it
        worked longest; '' if the capture does not tell.
    """

    count: int
    total_us: float
    scope: str
    op: str


@dataclasses.dataclass(frozen=True)
class Numbers:
    """What a capture says.

    Attributes:
      device_type: 'CPU', 'GPU' or 'TPU'.
      steps: the numbers of the steps, from their markers; empty if the capture has none.
      step_ms: the time of each of these steps, milliseconds: without a device that of its marker;
        with one XProf's, which leaves out the first and the last of many steps.
      parts: percent of the time of XProf's steps for 'input', 'host', 'launch', 'device',
        'communication', 'output', 'compile' and 'other', 100 in all; empty without steps. Without
        a device the ops run in 'host', and 'device' is 0.
      scopes: percent of the time of the steps for each scope of the code, 100 in all; see
        `scopes.shares`.
      ops: the executions by name: kernels where a device has any, else ops of the host.
      busy: percent of the steps' time in which a device computes, for devices that do; without
        steps, of the time from its first to its last kernel.
      devices: how many accelerators the capture knows, busy or not.
    """

    device_type: str
    steps: tuple[int, ...]
    step_ms: tuple[float, ...]
    parts: dict[str, float]
    scopes: dict[str, float]
    ops: dict[str, Op]
    busy: dict[str, float]
    devices: int

    @property
    def step_ms_mean(self) -> float | None:
        """Mean time of a step, milliseconds; None without steps."""
        return statistics.fmean(self.step_ms) if self.step_ms else None

    @property
    def step_ms_median(self) -> float | None:
        """Median time of a step, milliseconds; None without steps."""
        return statistics.median(self.step_ms) if self.step_ms else None

    @property
    def step_ms_p95(self) -> float | None:
        """95th percentile of the time of a step, milliseconds, interpolated; None without steps."""
        if len(self.step_ms) < 2:
            return self.step_ms_mean
        return statistics.quantiles(self.step_ms, n=20, method="inclusive")[-1]

    @property
    def input_percent(self) -> float | None:
        """Percent of a step's time spent waiting for input; None without steps."""
        return self.parts.get("input")

    @property
    def device_percent(self) -> float | None:
        """Percent of a step's time in which the device computes; None without steps."""
        return self.parts.get("device")

    @property
    def noise_percent(self) -> float | None:
        """Percent of a step's time for noise: choosing, making and adding; None without steps."""
        return scopes.total(self.scopes, "noise")

    @property
    def diagnostics_percent(self) -> float | None:
        """Percent of a step's time for diagnostics; None without steps."""
        return scopes.total(self.scopes, "diagnostics")


def find(run_path: epath.PathLike) -> list[Capture]:
    """The captures anywhere below a run's directory.

    Args:
      run_path: the directory of a run, or of several.

    Returns:
      The captures, in order of their paths; also those without files. Links are not followed, as
      XProf follows none.
    """
    found = []
    for directory, children, files in os.walk(os.fspath(run_path)):
        children.sort()
        path = epath.Path(directory)
        if path.parts[-3:-1] == ("plugins", "profile"):
            names = sorted(name for name in files if name.endswith(xplane.SUFFIX))
            found.append(Capture(path, tuple(path / name for name in names)))
            children.clear()
    return sorted(found, key=lambda capture: capture.path)


def read(path: epath.PathLike) -> dict[str, Any]:
    """The files of a capture.

    Args:
      path: a capture's directory, or one `.xplane.pb`.

    Returns:
      An XSpace message for each host, by the name of its file.

    Raises:
      CaptureError: with one sentence, if a file is empty, truncated or otherwise unreadable, or
        there is none.
    """
    return {file.name: xplane.read(file) for file in _files(epath.Path(path))}


def numbers(capture: Capture) -> Numbers:
    """Turns a capture into numbers.

    Args:
      capture: a capture, as from `find`.

    Returns:
      Its numbers. The files are left as they are, and nothing is written beside them.

    Raises:
      CaptureError: as for `read`, or if XProf cannot make anything of it.
    """
    return measure(read(capture.path), capture.path)


def measure(spaces: dict[str, Any], path: epath.Path) -> Numbers:
    """The numbers of a capture whose files have been read.

    Args:
      spaces: as from `read`.
      path: of the capture, for messages.

    Raises:
      CaptureError: if XProf cannot make anything of it.
    """
    table = xprof_pages.steps(spaces, path)
    step_ms = table.step_ms
    if table.device_type == "CPU":  # of more than five XProf leaves out the first and the last
        step_ms = _marked_ms(spaces.values()) or step_ms
    events = [event for space in spaces.values() for event in xplane.events(space)]
    return Numbers(
        device_type=table.device_type,
        steps=tuple(step_ms),
        step_ms=tuple(step_ms.values()),
        parts=table.parts,
        scopes=scopes.shares(spaces.values()),
        ops=_ops(events),
        busy=_busy(spaces.values()),
        devices=sum(map(xplane.devices, spaces.values())),
    )


def executed_ops(path: epath.PathLike, host_tracer: bool = True) -> collections.Counter[str]:
    """Counts what was executed: one for each execution, also inside loops and branches.

    TensorFlow stops naming a cheap op (under some 2 µs) once it has run about 100 times in its
    compiled function, at any tracer level: count in the first calls of a freshly traced function.
    Ops that run eagerly are not named either.

    Args:
      path: a capture's directory, or one `.xplane.pb`. The profiler must have run with
        `host_tracer_level` 1 or more.
      host_tracer: True for the ops on the host, by `<op>:<type>`; False for the kernels and
        copies on devices, by their own names.

    Returns:
      The number of executions of each name.

    Raises:
      CaptureError: as for `read`.
    """
    return collections.Counter(
        event.name for event in executions(path) if event.on_host == host_tracer
    )


def executions(path: epath.PathLike) -> Iterator[Event]:
    """Every execution in a capture, so that time can be summed over any part of the names.

    Args:
      path: a capture's directory, or one `.xplane.pb`.

    Yields:
      The executions, thread by thread and stream by stream.

    Raises:
      CaptureError: as for `read`.
    """
    for space in read(path).values():
        yield from xplane.events(space)


def show_steps(path: epath.PathLike) -> bool:
    """Makes XProf, and so TensorBoard's Profile tab, see the steps of a capture with loops.

    Sets the iteration that each executor names to 0; nothing else changes. To be called once the
    profiler has written the file, before anyone opens it.

    Args:
      path: a capture's directory, or one local `.xplane.pb`.

    Returns:
      Whether a file was changed: not if there is no loop in it or no step marker.

    Raises:
      CaptureError: as for `read`.
    """
    changed = False
    for file in _files(epath.Path(path)):
        space = xplane.read(file)
        if not (xplane.marked(space) and xplane.without_iterations(space)):
            continue
        temporary = file.parent / f".{file.name}.part"
        temporary.write_bytes(space.SerializeToString())
        os.replace(temporary, file)
        changed = True
    return changed


def _files(path: epath.Path) -> list[epath.Path]:
    if path.name.endswith(xplane.SUFFIX):
        return [path]
    inside = sorted(path.iterdir()) if path.is_dir() else []
    files = [file for file in inside if file.name.endswith(xplane.SUFFIX)]
    if files:
        return files
    others = sorted({"".join(f.suffixes[-2:]) for f in inside if ".xplane." in f.name})
    if others:
        raise CaptureError(
            f"The capture {path} holds {', '.join(others)}, the form of a newer XProf than "
            f"{xprof_pages.version()}; update XProf, or capture with {xplane.SUFFIX} files."
        )
    raise CaptureError(f"The capture {path} holds no {xplane.SUFFIX} file.")


def _ops(events: list[Event]) -> dict[str, Op]:
    on_device = [event for event in events if not event.on_host]
    spans: dict[str, list[float]] = collections.defaultdict(list)
    by_op: dict[str, dict[str, float]] = collections.defaultdict(
        lambda: collections.defaultdict(float)
    )
    for event in on_device or events:
        spans[event.name].append(event.duration_us)
        by_op[event.name][event.op] += event.duration_us
    ops = {name: max(times, key=times.__getitem__) for name, times in by_op.items()}
    return {
        name: Op(len(found), sum(found), scopes.of(ops[name]), ops[name])
        for name, found in spans.items()
    }


def _busy(spaces: Iterable[Any]) -> dict[str, float]:
    """Percent of their steps' time that the devices compute, or of all their time without steps."""
    found: dict[str, float] = {}
    for space in spaces:
        kernels: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
        for event in xplane.events(space):
            if not event.on_host and not event.is_copy:
                kernels[event.plane].append((event.start_us, event.start_us + event.duration_us))
        steps = xplane.steps(space)
        for plane, times in kernels.items():
            own = [s for s in steps if s.plane == plane or s.plane.startswith(xplane.HOST)]
            laps = [(s.start_us, s.end_us) for s in own]
            found[plane] = _covered(sorted(times), laps or [(min(times)[0], max(times)[1])])
    return found


def _covered(spans: list[tuple[float, float]], laps: list[tuple[float, float]]) -> float:
    """Percent of laps that the sorted spans cover."""
    apart: list[list[float]] = []
    for start, end in spans:
        if apart and start <= apart[-1][1]:
            apart[-1][1] = max(apart[-1][1], end)
        else:
            apart.append([start, end])
    starts, ends = np.array(apart).T
    busy = sum(
        float(np.clip(np.minimum(ends, last) - np.maximum(starts, first), 0, None).sum())
        for first, last in laps
    )
    total = sum(last - first for first, last in laps)
    return 100 * busy / total if total else 0.0


def _marked_ms(spaces: Iterable[Any]) -> dict[int, float]:
    """For each marked step its time in milliseconds, on the slowest host."""
    found: dict[int, float] = {}
    for step in (step for space in spaces for step in xplane.steps(space)):
        found[step.number] = max(found.get(step.number, 0.0), step.ms)
    return dict(sorted(found.items()))
