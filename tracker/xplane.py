"""The file format of a profiler's capture, XPlane, read without TensorFlow.

Only TensorFlow ships the generated module of XLA's xplane.proto, so the part of it that is read is
declared here; fields that are not named are kept when a message is written again.

    >>> space = read(epath.Path('worker0.xplane.pb'))
    >>> [step.number for step in steps(space)]
    [201, 202, 203, 204, 205]
    >>> collections.Counter(event.op for event in events(space)).most_common(1)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from etils import epath
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

SUFFIX = ".xplane.pb"
HOST = "/host:"
DEVICE = "/device:"
STREAM = "Stream #"  # a device's other lines (steps, scopes, ops) are made up from its streams

_OP = re.compile(r"([A-Za-z0-9.][\w.\\/>-]*):([A-Za-z_]\w*)")  # XProf's own rule for an op's name
_WAIT = re.compile(r"IteratorGetNext\w*(Op::DoCompute)?|EagerKernelExecute: IteratorGetNext\w*")
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

    @property
    def on_host(self) -> bool:
        """Whether a thread of the host ran it, not a device."""
        return self.plane.startswith(HOST)

    @property
    def is_copy(self) -> bool:
        """Whether it moves or fills memory of a device, and computes nothing."""
        return not self.on_host and self.name.startswith(("Memcpy", "Memset", "MEMCPY", "MEMSET"))


class Step(NamedTuple):
    """One step: from its marker on the host, or as a device's own line of steps tells it.

    Attributes:
      number: of the step.
      plane: of the host that marked it, or of the device.
      start_us, end_us: microseconds on the clock of the capture.
    """

    number: int
    plane: str
    start_us: float
    end_us: float

    @property
    def ms(self) -> float:
        """Milliseconds."""
        return (self.end_us - self.start_us) / 1e3


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


XSpace = _message_class()


def read(path: epath.Path) -> Any:
    """Reads one file.

    Args:
      path: an `.xplane.pb`.

    Returns:
      The XSpace message.

    Raises:
      CaptureError: with one sentence, if it is empty, truncated or otherwise unreadable.
    """
    try:
        data = path.read_bytes()
        if not data:
            raise CaptureError(f"The capture {path} is empty.")
        space = XSpace.FromString(data)
    except OSError as error:
        raise CaptureError(f"The capture {path} cannot be read: {error.strerror}.") from error
    except DecodeError as error:
        raise CaptureError(f"The capture {path} is truncated or not a capture.") from error
    if not space.planes:
        raise CaptureError(f"The capture {path} is not a capture: it has no planes.")
    return space


def events(space: Any) -> Iterator[Event]:
    """The executions of ops, kernels and copies, thread by thread and stream by stream."""
    for plane, line, names, stats in _lines(space):
        host = plane.name.startswith(HOST)
        if not host and not line.name.startswith(STREAM):
            continue
        for event in line.events:
            name = names.get(event.metadata_id, "")
            if host and not _OP.fullmatch(name):
                continue
            op = name if host else _launcher(event, stats)
            yield _made(event, name, op, plane, line)


def waits(space: Any) -> Iterator[Event]:
    """The times in which a host asked for the next batch and did not have it yet."""
    for plane, line, names, _ in _lines(space):
        if not plane.name.startswith(HOST):
            continue
        for event in line.events:
            name = names.get(event.metadata_id, "")
            if _WAIT.fullmatch(name):
                yield _made(event, name, "", plane, line)


def spans(space: Any) -> Iterator[Event]:
    """Everything that threads and streams did, also what is no op: Python calls, executors."""
    for plane, line, names, stats in _lines(space):
        if plane.name.startswith(DEVICE) and not line.name.startswith(STREAM):
            continue
        for event in line.events:
            name = names.get(event.metadata_id, "")
            op = name if _OP.fullmatch(name) else ""
            if plane.name.startswith(DEVICE):
                op = _launcher(event, stats)
            yield _made(event, name, op, plane, line)


def steps(space: Any) -> list[Step]:
    """The steps in order of time: those marked on the host, else those that devices name."""
    found = list(_marked(space)) or list(_on_devices(space))
    return sorted(found, key=lambda step: (step.start_us, step.plane))


def marked(space: Any) -> bool:
    """Whether the host marked any step."""
    return next(_marked(space), None) is not None


def devices(space: Any) -> int:
    """How many accelerators the capture knows, whether anything ran on them or not."""
    return sum(plane.name.startswith(DEVICE) for plane in space.planes)


def without_iterations(space: Any) -> bool:
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


def is_op(name: str) -> bool:
    """Whether a name is that of an execution of an op, `<op>:<type>`."""
    return _OP.fullmatch(name) is not None


def _names(entries: Any) -> dict[int, str]:
    return {entry.key: entry.value.name for entry in entries}


def _lines(space: Any) -> Iterator[tuple[Any, Any, dict[int, str], dict[int, str]]]:
    for plane in space.planes:
        if plane.name.startswith((HOST, DEVICE)):
            names, stats = _names(plane.event_metadata), _names(plane.stat_metadata)
            for line in plane.lines:
                yield plane, line, names, stats


def _made(event: Any, name: str, op: str, plane: Any, line: Any) -> Event:
    start = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
    return Event(name, op, plane.name, line.name, start, event.duration_ps / 1e6)


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


def _marked(space: Any) -> Iterator[Step]:
    for plane in space.planes:
        ids = {key for key, name in _names(plane.stat_metadata).items() if name == "step_num"}
        for line, event in ((one, event) for one in plane.lines for event in one.events if ids):
            numbers = [s.int64_value or s.uint64_value for s in event.stats if s.metadata_id in ids]
            yield from _spanned(numbers, plane, line, event)


def _on_devices(space: Any) -> Iterator[Step]:
    for plane, line, names, _ in _lines(space):
        if plane.name.startswith(DEVICE) and line.name == "Steps":
            for event in line.events:
                name = names.get(event.metadata_id, "")
                yield from _spanned([int(name)] if name.isdecimal() else [], plane, line, event)


def _spanned(numbers: Iterable[int], plane: Any, line: Any, event: Any) -> Iterator[Step]:
    start = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
    for number in numbers:
        yield Step(number, plane.name, start, start + event.duration_ps / 1e6)
