"""Profiler captures as numbers: how long a step takes, where its time goes, which ops ran.

A capture is a directory `plugins/profile/<time>/` with one `<host>.xplane.pb` for each host. XProf
splits a step's time into parts; which ops ran is read from the file itself, because XProf's pages
sum them up. Nothing here imports TensorFlow, and XProf's log lines do not reach the terminal.

XProf has a trap: where a compiled function contains a loop (`tf.while_loop`, an LSTM) it takes the
loop's iterations for the steps and then finds no step at all. `numbers` reads a copy without the
iterations; `show_steps` takes them out of the file, for TensorBoard's Profile tab.

    >>> for capture in find('logdir/run'):
    ...     print(capture.name, numbers(capture).step_ms_mean)
    ...     print(executed_ops(capture.path).most_common(3))
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import re
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from etils import epath
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_SUFFIX = ".xplane.pb"
_OP = re.compile(r"([A-Za-z0-9.][\w.\\/>-]*):([A-Za-z_]\w*)")  # XProf's own rule for an op's name
_LOG_LINE = re.compile(rb"[IWEF]\d{4} |WARNING: All log messages before absl::InitializeLog")
_STDERR = threading.Lock()

# Columns of XProf's step table, by the part of the step that they are.
_PARTS = {
    "input": ("infeedTimeMs",),
    "host": ("hostComputeTimeMs",),
    "launch": ("kernelLaunchTimeMs",),
    "device": ("deviceComputeTimeMs",),
    "communication": ("deviceToDeviceTimeMs", "deviceCollectivesTimeMs"),
    "output": ("outfeedTimeMs",),
    "compile": ("compileTimeMs",),
    "other": ("otherTimeMs",),
}

# The part of XLA's xplane.proto that is read here. Only TensorFlow ships the generated module;
# fields that are not named here are kept when a message is written again.
_XPLANE = {
    "XSpace": {"planes": (1, "XPlane*")},
    "XPlane": {
        "name": (2, "string"),
        "lines": (3, "XLine*"),
        "event_metadata": (4, "Names*"),
        "stat_metadata": (5, "Names*"),
    },
    "Names": {"key": (1, "int64"), "value": (2, "Name")},
    "Name": {"name": (2, "string")},
    "XLine": {"name": (2, "string"), "timestamp_ns": (3, "int64"), "events": (4, "XEvent*")},
    "XEvent": {
        "metadata_id": (1, "int64"),
        "offset_ps": (2, "int64"),
        "duration_ps": (3, "int64"),
        "stats": (4, "XStat*"),
    },
    "XStat": {
        "metadata_id": (1, "int64"),
        "uint64_value": (3, "uint64"),
        "int64_value": (4, "int64"),
        "str_value": (5, "string"),
        "ref_value": (7, "uint64"),
    },
}


class CaptureError(ValueError):
    """A capture that cannot be read."""


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


class Event(NamedTuple):
    """One execution of an op on the host, or of a kernel or copy on a device.

    Attributes:
      name: as in the trace: on the host `<op>:<type>` with the op's scopes in front, such as
        'while/body/_1/while/noise/add:AddV2'; on a device the kernel's own name.
      op: the TensorFlow op in that form, also for a kernel that one launched; else ''.
      plane: '/host:CPU', or a device such as '/device:GPU:0'.
      line: the thread or the device's stream.
      start_us: when it began, microseconds on the clock of the capture.
      duration_us: how long it took, microseconds. On the host an op that calls a function spans
        the ops of that function.
    """

    name: str
    op: str
    plane: str
    line: str
    start_us: float
    duration_us: float


@dataclasses.dataclass(frozen=True)
class Op:
    """All executions of one op or kernel: how many, and their time in microseconds."""

    count: int
    total_us: float


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
      ops: the executions by name: kernels where a device has any, else ops of the host.
      busy: percent of the time between its first and last event that each device computes, for
        devices with events.
    """

    device_type: str
    steps: tuple[int, ...]
    step_ms: tuple[float, ...]
    parts: dict[str, float]
    ops: dict[str, Op]
    busy: dict[str, float]

    @property
    def step_ms_mean(self) -> float | None:
        """Mean time of a step, milliseconds; None without steps."""
        return statistics.fmean(self.step_ms) if self.step_ms else None

    @property
    def input_percent(self) -> float | None:
        """Percent of a step's time spent waiting for input; None without steps."""
        return self.parts.get("input")

    @property
    def device_percent(self) -> float | None:
        """Percent of a step's time in which the device computes; None without steps."""
        return self.parts.get("device")


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
            names = sorted(name for name in files if name.endswith(_SUFFIX))
            found.append(Capture(path, tuple(path / name for name in names)))
            children.clear()
    return sorted(found, key=lambda capture: capture.path)


def numbers(capture: Capture) -> Numbers:
    """Turns a capture into numbers.

    Args:
      capture: a capture, as from `find`.

    Returns:
      Its numbers. The files are left as they are, and nothing is written beside them.

    Raises:
      CaptureError: with one sentence, if a file is empty, truncated or otherwise unreadable, or
        there is none.
    """
    spaces = {path.name: _read(path) for path in _files(capture.path)}
    overview = _overview(spaces, capture.path)
    [table] = [t for t in overview if _columns(t)[:1] == ["stepnum"]]
    [about] = [t["p"] for t in overview if "device_type" in t.get("p", {})]
    rows = [dict(zip(_columns(table), _cells(row), strict=True)) for row in table["rows"]]
    rows = [row for row in rows if row["stepTimeMs"] > 0]
    spent = {
        part: sum(row[column] for row in rows for column in columns)
        for part, columns in _PARTS.items()
    }
    total = sum(spent.values())
    step_ms = {_step_number(row["stepnum"], n): row["stepTimeMs"] for n, row in enumerate(rows)}
    if about["device_type"] == "CPU":  # of more than five XProf leaves out the first and the last
        step_ms = _markers(spaces) or step_ms
    events = [event for space in spaces.values() for event in _events(space)]
    return Numbers(
        device_type=about["device_type"],
        steps=tuple(step_ms),
        step_ms=tuple(step_ms.values()),
        parts={part: 100 * ms / total for part, ms in spent.items()} if rows else {},
        ops=_ops(events),
        busy=_busy(events),
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
      CaptureError: as for `numbers`.
    """
    return collections.Counter(
        event.name for event in executions(path) if _on_host(event) == host_tracer
    )


def executions(path: epath.PathLike) -> Iterator[Event]:
    """Every execution in a capture, so that time can be summed over any part of the names.

    Args:
      path: a capture's directory, or one `.xplane.pb`.

    Yields:
      The executions, thread by thread and stream by stream.

    Raises:
      CaptureError: as for `numbers`.
    """
    for file in _files(epath.Path(path)):
        yield from _events(_read(file))


def show_steps(path: epath.PathLike) -> bool:
    """Makes XProf, and so TensorBoard's Profile tab, see the steps of a capture with loops.

    Sets the iteration that each executor names to 0; nothing else changes. To be called once the
    profiler has written the file, before anyone opens it.

    Args:
      path: a capture's directory, or one local `.xplane.pb`.

    Returns:
      Whether a file was changed: not if there is no loop in it or no step marker.

    Raises:
      CaptureError: as for `numbers`.
    """
    changed = False
    for file in _files(epath.Path(path)):
        space = _read(file)
        if not (_markers({file.name: space}) and _without_iterations(space)):
            continue
        temporary = file.parent / f".{file.name}.part"
        temporary.write_bytes(space.SerializeToString())
        os.replace(temporary, file)
        changed = True
    return changed


def _files(path: epath.Path) -> list[epath.Path]:
    if path.name.endswith(_SUFFIX):
        return [path]
    files = sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else []
    if not files:
        raise CaptureError(f"The capture {path} holds no {_SUFFIX} file.")
    return files


def _message_class() -> type[Any]:
    field_type = descriptor_pb2.FieldDescriptorProto
    scalars = {"int64": 3, "uint64": 4, "string": 9}  # numbers in descriptor.proto
    # As proto2, so that a zero that the file spells out is written out again.
    file = descriptor_pb2.FileDescriptorProto(name="xplane", package="tracker", syntax="proto2")
    for message_name, fields in _XPLANE.items():
        message = file.message_type.add(name=message_name)
        for name, (number, kind) in fields.items():
            bare = kind.rstrip("*")
            message.field.add(
                name=name,
                number=number,
                label=field_type.LABEL_REPEATED if bare != kind else field_type.LABEL_OPTIONAL,
                type=scalars.get(bare, field_type.TYPE_MESSAGE),
                type_name=None if bare in scalars else f".tracker.{bare}",
            )
    pool = descriptor_pool.DescriptorPool()  # our own: TensorFlow's may hold the whole xplane.proto
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tracker.XSpace"))


_XSpace = _message_class()


def _read(path: epath.Path) -> Any:
    try:
        data = path.read_bytes()
        if not data:
            raise CaptureError(f"The capture {path} is empty.")
        space = _XSpace.FromString(data)
    except OSError as error:
        raise CaptureError(f"The capture {path} cannot be read: {error.strerror}.") from error
    except DecodeError as error:
        raise CaptureError(f"The capture {path} is truncated or not a capture.") from error
    if not space.planes:
        raise CaptureError(f"The capture {path} is not a capture: it has no planes.")
    return space


def _names(entries: Any) -> dict[int, str]:
    return {entry.key: entry.value.name for entry in entries}


def _events(space: Any) -> Iterator[Event]:
    for plane in space.planes:
        host, device = plane.name.startswith("/host:"), plane.name.startswith("/device:")
        names, stats = _names(plane.event_metadata), _names(plane.stat_metadata)
        for line in plane.lines:
            # A device's other lines (steps, scopes, ops) are made up from its streams.
            if not host and not (device and line.name.startswith("Stream #")):
                continue
            for event in line.events:
                name = names.get(event.metadata_id, "")
                op = name if host else _launcher(event, stats)
                if host and not _OP.fullmatch(name):
                    continue
                start = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
                yield Event(name, op, plane.name, line.name, start, event.duration_ps / 1e6)


def _launcher(event: Any, stats: dict[int, str]) -> str:
    """The op that launched a kernel, which the profiler notes as an annotation of it."""
    for stat in event.stats:
        if stats.get(stat.metadata_id) in ("annotation", "tf_op", "level 0"):
            text = stat.str_value or stats.get(stat.ref_value, "")
            for part in reversed(text.split("::")):  # nested annotations: the innermost op
                op = part.partition("#")[0]
                if _OP.fullmatch(op):
                    return op
    return ""


def _on_host(event: Event) -> bool:
    return event.plane.startswith("/host:")


def _ops(events: list[Event]) -> dict[str, Op]:
    on_device = [event for event in events if not _on_host(event)]
    totals: dict[str, list[float]] = collections.defaultdict(list)
    for event in on_device or events:
        totals[event.name].append(event.duration_us)
    return {name: Op(len(spans), sum(spans)) for name, spans in totals.items()}


def _busy(events: list[Event]) -> dict[str, float]:
    spans: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    for event in events:
        if not _on_host(event):
            spans[event.plane].append((event.start_us, event.start_us + event.duration_us))
    return {plane: _covered(sorted(found)) for plane, found in spans.items()}


def _covered(spans: list[tuple[float, float]]) -> float:
    """Percent of the time from the first start to the last end that the sorted spans cover."""
    busy, until = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return 100 * busy / (until - spans[0][0]) if until > spans[0][0] else 0.0


def _markers(spaces: dict[str, Any]) -> dict[int, float]:
    """The step markers: for each step its time in milliseconds, on the slowest host."""
    found: dict[int, float] = {}
    for plane in (plane for space in spaces.values() for plane in space.planes):
        ids = {key for key, name in _names(plane.stat_metadata).items() if name == "step_num"}
        for event in (event for line in plane.lines for event in line.events if ids):
            for stat in event.stats:
                if stat.metadata_id in ids:
                    step = stat.int64_value or stat.uint64_value
                    found[step] = max(found.get(step, 0.0), event.duration_ps / 1e9)
    return dict(sorted(found.items()))


def _without_iterations(space: Any) -> bool:
    """Sets the iteration of each executor to 0; whether any was another.

    Not the stat itself is taken out, because XProf joins threads by it: without it the wait for
    input inside a compiled function would count as computing.
    """
    changed = False
    for plane in space.planes:
        ids = {key for key, name in _names(plane.stat_metadata).items() if name == "iter_num"}
        for stat in (s for line in plane.lines for event in line.events for s in event.stats):
            if stat.metadata_id in ids and (stat.int64_value or stat.uint64_value):
                stat.ClearField("uint64_value")
                stat.int64_value = 0
                changed = True
    return changed


def _overview(spaces: dict[str, Any], path: epath.Path) -> list[dict[str, Any]]:
    """XProf's overview page, of copies: XProf leaves its cache beside what it reads."""
    with tempfile.TemporaryDirectory() as directory:
        copies = []
        for name, space in spaces.items():
            copy = _XSpace.FromString(space.SerializeToString())
            if _markers({name: copy}):
                _without_iterations(copy)
            copies.append(os.path.join(directory, name))
            epath.Path(copies[-1]).write_bytes(copy.SerializeToString())
        with _quiet():
            from xprof.convert import raw_to_tool_data

            try:
                options = {"use_saved_result": False}
                page, _ = raw_to_tool_data.xspace_to_tool_data(copies, "overview_page", options)
            except Exception as error:  # whatever the C++ behind it raises
                raise CaptureError(f"XProf cannot read the capture {path}: {error}.") from error
    if not page:
        raise CaptureError(f"XProf cannot read the capture {path}.")
    return json.loads(page)


def _columns(table: dict[str, Any]) -> list[str]:
    return [column["id"] for column in table.get("cols", [])]


def _cells(row: dict[str, Any]) -> list[Any]:
    return [cell.get("v") for cell in row["c"]]


def _step_number(label: str, position: int) -> int:
    digits = re.search(r"\d+$", str(label))  # 'train 20'
    return int(digits.group()) if digits else position


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps XProf's log lines, written in C++, off stderr; lines of other threads arrive later."""
    with _STDERR, tempfile.TemporaryFile() as caught:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            caught.seek(0)
            for line in caught:
                if not _LOG_LINE.match(line):
                    os.write(kept, line)
            os.close(kept)
