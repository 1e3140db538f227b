"""Event files without TensorFlow: read them, write them whole, and trim them for a resume.

TensorBoard's own reader and writer import TensorFlow, seconds before the first byte. An event
file is a TFRecord file: for each record its length, a checksum of that, the payload (an Event),
and a checksum of the payload. A crash leaves a torn last record, which is no error: readers stop
before it and go on from the same offset when there is more.

    >>> kinds = Kinds()
    >>> for end, event in read('logdir/run/train/events.out.tfevents.1.host.2.0001.v2'):
    ...     for tag, value in scalars(event, kinds):
    ...         print(event.step, tag, value)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import google_crc32c
from etils import epath
from google.protobuf.message import DecodeError
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

Event = event_pb2.Event

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_BUFFER = 2**20
_LONGEST = 2**31  # protobuf's own bound

# Of each type of number: its layout in tensor_content, and the field that may hold it instead.
_NUMBERS = {
    types_pb2.DT_FLOAT: ("<f", "float_val"),
    types_pb2.DT_DOUBLE: ("<d", "double_val"),
    types_pb2.DT_HALF: ("<H", "half_val"),
    types_pb2.DT_BFLOAT16: ("<H", "half_val"),
    types_pb2.DT_INT8: ("<b", "int_val"),
    types_pb2.DT_INT16: ("<h", "int_val"),
    types_pb2.DT_INT32: ("<i", "int_val"),
    types_pb2.DT_INT64: ("<q", "int64_val"),
    types_pb2.DT_UINT8: ("<B", "int_val"),
    types_pb2.DT_UINT16: ("<H", "int_val"),
    types_pb2.DT_UINT32: ("<I", "uint32_val"),
    types_pb2.DT_UINT64: ("<Q", "uint64_val"),
    types_pb2.DT_BOOL: ("<?", "bool_val"),
}
_FIELDS = {
    "simple_value": "scalars",
    "histo": "histograms",
    "image": "images",
    "audio": "audio",
}


class CorruptRecordError(ValueError):
    """A record whose checksum or content is wrong.

    Attributes:
      path: the file.
      offset: where the record begins, in bytes.
      end: where the next record begins; None where the length itself cannot be trusted.
      reason: what is wrong.
    """

    def __init__(self, path: epath.PathLike, offset: int, end: int | None, reason: str):
        super().__init__(f"The event file {os.fspath(path)} is corrupt at byte {offset}: {reason}.")
        self.path = path
        self.offset = offset
        self.end = end
        self.reason = reason


class _Record(NamedTuple):
    data: bytes  # as in the file, with its frame
    end: int | None
    event: event_pb2.Event | None  # None where there is a fault
    fault: str


def event_files(directory: epath.PathLike) -> list[epath.Path]:
    """The event files of one directory, in the order in which TensorBoard reads them.

    Args:
      directory: a directory; sub-directories are not looked into.

    Returns:
      The files with `tfevents` in their name, but for the placeholders that end in
      `.profile-empty`; none if the directory does not exist.
    """
    path = epath.Path(directory)
    if not path.is_dir():
        return []
    return sorted(
        child
        for child in path.iterdir()
        if "tfevents" in child.name and not child.name.endswith(".profile-empty")
        if not child.is_dir()
    )


def read(
    path: epath.PathLike,
    offset: int = 0,
    on_corrupt: Callable[[CorruptRecordError], None] | None = None,
) -> Iterator[tuple[int, event_pb2.Event]]:
    """Reads the complete records of an event file.

    Args:
      path: the file.
      offset: where to begin: 0, or an end offset that an earlier read gave.
      on_corrupt: called with each corrupt record, which is then skipped; the rest of the file is
        given up where its length cannot be trusted. Without it a corrupt record is raised.

    Yields:
      (offset of the end of the record, event), up to the end of the file or a torn last record.

    Raises:
      CorruptRecordError: for a corrupt record, without on_corrupt.
      OSError: if the file cannot be read.
    """
    with _open(path) as file:
        start = offset
        for record in _records(file, offset):
            if record.event is not None and record.end is not None:
                start = record.end
                yield record.end, record.event
                continue
            error = CorruptRecordError(path, start, record.end, record.fault)
            if on_corrupt is None:
                raise error
            on_corrupt(error)
            start = record.end or start


def _open(path: epath.PathLike) -> IO[bytes]:
    if "://" in os.fspath(path):
        return epath.Path(path).open("rb")
    return open(path, "rb", buffering=_BUFFER)


def _records(file: IO[bytes], offset: int) -> Iterator[_Record]:
    """The records from an offset on, good or not; ends before a torn one."""
    file.seek(offset)
    while len(header := file.read(_HEADER.size)) == _HEADER.size:
        length, checksum = _HEADER.unpack(header)
        if checksum != _masked(header[:8]):
            yield _Record(header, None, None, "the checksum of a record's length is wrong")
            return
        if length >= _LONGEST:
            yield _Record(header, None, None, "a record claims to be longer than an Event can be")
            return
        body = file.read(length + _CHECKSUM.size)
        if len(body) < length + _CHECKSUM.size:
            return
        offset += len(header) + len(body)
        payload = body[:length]
        if body[length:] != _CHECKSUM.pack(_masked(payload)):
            yield _Record(header + body, offset, None, "the checksum of a record is wrong")
            continue
        try:
            yield _Record(header + body, offset, Event.FromString(payload), "")
        except DecodeError:
            yield _Record(header + body, offset, None, "a record is not an Event")


def _masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class Kinds:
    """The plugin of each value, such as 'scalars', 'histograms', 'images', 'text' or 'hparams'.

    Writers name the plugin on the first value of a tag in a file only, so it is remembered; as in
    TensorBoard the first one that a tag had counts for all its values.

    Args:
      plugins: what an earlier reader of the same files remembered.

    Attributes:
      plugins: the plugin of each tag seen so far.
    """

    def __init__(self, plugins: dict[str, str] | None = None):
        self.plugins: dict[str, str] = dict(plugins or {})

    def of(self, value: summary_pb2.Summary.Value) -> str:
        """The plugin of a value; '' for a tensor whose tag never named one (TensorBoard drops it).

        Args:
          value: one value of an event's summary, in the order of the file.

        Returns:
          The plugin's name.
        """
        named = value.metadata.plugin_data.plugin_name or _FIELDS.get(value.WhichOneof("value"), "")
        if not named:
            return self.plugins.get(value.tag, "")
        return self.plugins.setdefault(value.tag, named)


def scalars(event: event_pb2.Event, kinds: Kinds | None = None) -> Iterator[tuple[str, float]]:
    """The scalars of an event, in the old form (simple_value) and in the new (a tensor).

    Args:
      event: an event.
      kinds: gives the plugins of the file's tags. Without it a tensor of one number counts as a
        scalar unless it names another plugin.

    Yields:
      (tag, value): a float, NaN and infinities included, or an int for whole-number tensors.
    """
    for value in event.summary.value:
        kind = kinds.of(value) if kinds else value.metadata.plugin_data.plugin_name or "scalars"
        if kind != "scalars":
            continue
        if value.HasField("simple_value"):
            yield value.tag, value.simple_value
        elif value.HasField("tensor"):
            number = _number(value.tensor)
            if number is not None:
                yield value.tag, number


def _number(tensor: tensor_pb2.TensorProto) -> float | None:
    """The number in a tensor of one element; None for any other tensor."""
    layout, field = _NUMBERS.get(tensor.dtype, ("", ""))
    if not layout or any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    number: Any
    if tensor.tensor_content:
        if len(tensor.tensor_content) != struct.calcsize(layout):
            return None
        [number] = struct.unpack(layout, tensor.tensor_content)
    else:
        values = getattr(tensor, field)
        number = values[0] if values else 0  # a zero may be left out
    if tensor.dtype == types_pb2.DT_HALF:
        return struct.unpack("<e", struct.pack("<H", number))[0]
    if tensor.dtype == types_pb2.DT_BFLOAT16:  # the upper half of a float32
        return struct.unpack("<f", struct.pack("<I", number << 16))[0]
    return number


def frame(payload: bytes) -> bytes:
    """A record as it stands in the file.

    Args:
      payload: a serialised Event.

    Returns:
      The payload with its length and checksums.
    """
    length = len(payload).to_bytes(8, "little")
    checksums = (_CHECKSUM.pack(_masked(part)) for part in (length, payload))
    return b"".join((length, next(checksums), payload, next(checksums)))


def start_records(step: int) -> list[event_pb2.Event]:
    """The records that begin each of our files, so that TensorBoard shows a resumed run once.

    TensorBoard's Python loader forgets what it holds from the step of a START on, but only if the
    run had one before; hence one in the first file as well. (The other loader needs no START.)

    Args:
      step: 0 in the first file of a directory; after a resume from the checkpoint of step S the
        first step that will be written, S + 1.

    Returns:
      The file's version, and the start of a session at the step.
    """
    now = time.time()
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    return [
        Event(wall_time=now, file_version="brain.Event:2"),
        Event(wall_time=now, step=step, session_log=start),
    ]


def file_name(
    now: float, host: str, pid: int, counter: int, existing: Sequence[epath.PathLike] = ()
) -> str:
    """The name of a new event file; names sort by time, as TensorBoard reads them in that order.

    Args:
      now: the time, seconds since 1970.
      host: the name of the host.
      pid: the number of the process.
      counter: tells apart the files that the process makes within a second, 0 to 9999.
      existing: files in the directory. The name comes after theirs though the clock went back or
        their process began in this very second.

    Returns:
      `events.out.tfevents.<seconds, 10 digits>.<host>.<pid>.<counter, 4 digits>.v2`.
    """
    seconds = int(now)
    rest = f"{host.replace('/', '_')}.{pid}.{counter:04d}.v2"
    last = max((os.path.basename(os.fspath(path)) for path in existing), default="")
    if last >= f"events.out.tfevents.{seconds:010d}.{rest}":
        digits = last.removeprefix("events.out.tfevents.")[:10]
        seconds = int(digits) + 1 if digits.isdigit() else seconds
    return f"events.out.tfevents.{seconds:010d}.{rest}"


def write(path: epath.PathLike, events: Iterable[event_pb2.Event]) -> None:
    """Writes a whole event file, or none: a reader never finds a part of it.

    Args:
      path: the file, replaced if it exists; its directory must exist.
      events: its events, `start_records` first.

    Raises:
      OSError: if it cannot be written.
    """
    path = epath.Path(path)
    temporary = _temporary(path)
    with _replacing(temporary, path) as file:
        for event in events:
            file.write(frame(event.SerializeToString()))


def trim(directory: epath.PathLike, step: int, orphaned: epath.PathLike) -> int:
    """Takes the records past a step out of the event files of a directory, for a resume from it.

    A checkpoint of step S has the effects of the steps 1 to S, so their records stay and those of
    greater steps go, whatever they hold: values, graphs, or the start of a later attempt. Also
    taken out is what no reader can read: a torn last record, corrupt records, and all that stands
    behind a corrupt length. Nothing is lost: what goes is kept byte for byte in `orphaned`, which
    is on the disk before the event file changes. Killed at any moment it can be called again.
    No process may be writing to the files.

    Args:
      directory: whose event files to trim; local.
      step: the last step that stays.
      orphaned: where the records go, made if needed: for each file that loses some, one readable
        by `read`, `<directory's name>.<rest of the file's name>.after-<step>`. TensorBoard does
        not take it for an event file.

    Returns:
      How many complete records were moved.

    Raises:
      OSError: if a file cannot be read or written.
    """
    moved = 0
    for path in event_files(directory):
        moved += _trim_file(path, step, epath.Path(orphaned))
    return moved


def _trim_file(path: epath.Path, step: int, orphaned: epath.Path) -> int:
    moved = 0
    if not _needs_trim(path, step):
        return moved
    orphaned.mkdir(parents=True, exist_ok=True)
    label = f"{path.parent.name}.{path.name.removeprefix('events.out.tfevents.')}.after-{step}"
    orphan = orphaned / label.replace("tfevents", "events")
    part = orphaned / f".{orphan.name}.part"
    with _open(path) as source, _replacing(_temporary(path), path) as keep:
        shutil.copymode(path, keep.name)
        with open(part, "wb") as cut:
            end = 0
            for record in _records(source, 0):
                end = record.end or end
                if record.event is not None and record.event.step <= step:
                    keep.write(record.data)
                elif record.end is not None:
                    cut.write(record.data)
                    moved += 1
            source.seek(end)
            shutil.copyfileobj(source, cut)  # what cannot be read: torn, or behind a bad length
            _sync(cut)
        os.replace(part, _free(orphan, part))
        _sync_directory(orphaned)
    return moved


def _needs_trim(path: epath.Path, step: int) -> bool:
    with _open(path) as file:
        end = 0
        for record in _records(file, 0):
            if record.event is None or record.event.step > step:
                return True
            end = record.end or end
        return end < os.path.getsize(path)


def _free(orphan: epath.Path, part: epath.Path) -> epath.Path:
    """A name that is free, or held by the same bytes, left by a trim that was killed."""
    content = part.read_bytes()
    candidate, n = orphan, 1
    while candidate.exists() and candidate.read_bytes() != content:
        n += 1
        candidate = orphan.parent / f"{orphan.name}-{n}"
    return candidate


def _temporary(path: epath.Path) -> epath.Path:
    # No `tfevents` in it; always the same, so that what a killed process left is overwritten.
    return path.parent / f".{path.name.replace('tfevents', 'events')}.part"


@contextlib.contextmanager
def _replacing(temporary: epath.Path, path: epath.Path) -> Iterator[IO[bytes]]:
    try:
        with open(temporary, "wb") as file:
            yield file
            _sync(file)
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: epath.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
