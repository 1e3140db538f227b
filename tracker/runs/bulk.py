"""Reads the scalars of event files in bulk: columns of numbers, decoded many records at a time.

Nearly all records of an event file look the same but for a step, a time and a few numbers. One of
each look is taken apart byte by byte; the others are compared with it and decoded by NumPy, tens of
times faster than one by one. What looks like nothing known (histograms, text, the first record of
a tag) is decoded one by one, by `events`.

Checksums are checked as well: CRC-32C is linear, so that the checksum of the XOR of records of one
length is the XOR of theirs, and one computation does for all. If it is wrong, the block is read
again record by record, which finds the culprit.

    >>> for block in read('logdir/run/train/events.out.tfevents.1.host.2.0001.v2'):
    ...     for tag, column in block.scalars.items():
    ...         print(tag, column.steps, column.values)
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError

from tracker import events
from tracker.runs import frames, looks

BLOCK = 2**23  # bytes of a file decoded at a time
_NEVER = 2**62
_SESSION = "_hparams_/session_start_info"


class Column(NamedTuple):
    """The points of one tag, in the order of the file.

    Attributes:
      steps: int64.
      walls: float64, seconds since 1970.
      values: float64.
    """

    steps: np.ndarray
    walls: np.ndarray
    values: np.ndarray


@dataclasses.dataclass
class Block:
    """What a stretch of an event file says.

    Attributes:
      end: offset of the end of its last complete record.
      scalars: the points of each scalar tag.
      others: for each other tag (its plugin, how many values, the last step).
      hparams: plugin data of the HParams record of the session.
      walls: times of the first and the last record; None if there is no record.
      corrupt: how many records had to be left out.
      dead: whether the rest of the file is out of reach, behind a corrupt length.
    """

    end: int
    scalars: dict[str, Column] = dataclasses.field(default_factory=dict)
    others: dict[str, tuple[str, int, int]] = dataclasses.field(default_factory=dict)
    hparams: list[bytes] = dataclasses.field(default_factory=list)
    walls: tuple[float, float] | None = None
    corrupt: int = 0
    dead: bool = False


def read(path: str, offset: int = 0, plugins: dict[str, str] | None = None) -> Iterator[Block]:
    """Reads the complete records of an event file.

    Args:
      path: the file.
      offset: where to begin: 0, or the end of a block that an earlier read gave.
      plugins: the plugin of each tag so far; what is learned is added.

    Yields:
      The blocks, in order, up to the end of the file, a torn record, or a corrupt length.

    Raises:
      OSError: if the file cannot be read.
    """
    kinds = events.Kinds()
    kinds.plugins = plugins if plugins is not None else {}
    with open(path, "rb", buffering=0) as file:
        size = BLOCK
        while True:
            file.seek(offset)
            data = file.read(size)
            walk = frames.find(data)
            if walk is not None and not len(walk.starts) and len(data) == size:
                size *= 4  # a record larger than a block
                continue
            block = None if walk is None else _decode(data, walk, offset, kinds)
            if block is None:
                yield from _one_by_one(path, offset, kinds)
                return
            if block.end > offset:
                yield block
            if len(data) < size:
                return
            offset, size = block.end, BLOCK


class _Points:
    """Gathers points out of order; `columns` puts them in order."""

    def __init__(self) -> None:
        self.parts: dict[str, list[tuple[Any, Any, Any, Any]]] = collections.defaultdict(list)
        self.simple: dict[str, int] = {}  # tags with a `simple_value`: the order of the first

    def add(self, tag: str, order: Any, steps: Any, walls: Any, values: Any) -> None:
        self.parts[tag].append((order, steps, walls, values))

    def columns(self) -> dict[str, Column]:
        columns = {}
        for tag, parts in self.parts.items():
            order, steps, walls, values = (
                parts[0]
                if len(parts) == 1
                else (np.concatenate([part[i] for part in parts]) for i in range(4))
            )
            if len(parts) > 1:
                right = np.argsort(order, kind="stable")
                steps, walls, values = steps[right], walls[right], values[right]
            columns[tag] = Column(
                np.asarray(steps, np.int64), np.asarray(walls), np.asarray(values, np.float64)
            )
        return columns


def _decode(data: bytes, walk: frames.Frames, offset: int, kinds: events.Kinds) -> Block | None:
    """Decodes the records of a block; None if a checksum is wrong or a record is not an Event."""
    block = Block(offset + walk.end)
    if not len(walk.starts):
        return block
    array = np.frombuffer(data, np.uint8)
    starts, lengths = walk.starts, walk.lengths
    quick, slow, singles = _Points(), _Points(), []
    times: list[tuple[int, float]] = []
    for length in np.unique(lengths):
        order = np.flatnonzero(lengths == length)
        rows = _rows(array, starts[order], int(length) + 4)
        if not _checksums_right(rows):
            return None
        rows = rows[:, :-4]
        singles += _alike(rows, order, quick, times)
    try:
        for n in sorted(singles):
            event = events.Event.FromString(data[starts[n] : starts[n] + lengths[n]])
            times.append((n, event.wall_time))
            _single(event, n, slow, quick, kinds, block)
    except DecodeError:
        return None
    for tag, parts in quick.parts.items():
        if tag in quick.simple:
            kinds.plugins.setdefault(tag, "scalars")
        if kinds.plugins.get(tag) == "scalars":
            slow.parts[tag] += parts
    block.scalars = slow.columns()
    block.walls = min(times)[1], max(times)[1]
    return block


def _rows(array: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(array, length)
    return windows[starts]


def _checksums_right(rows: np.ndarray) -> bool:
    """Whether payloads of one length have their checksums, all at once; see the module."""
    masked = np.ascontiguousarray(rows[:, -4:]).view("<u4").ravel() - np.uint32(0xA282EAD8)
    stated = int(np.bitwise_xor.reduce(masked >> np.uint32(17) | masked << np.uint32(15)))
    folded = np.bitwise_xor.reduce(rows[:, :-4], axis=0).tobytes()
    if len(rows) % 2 == 0:  # the affine part cancels in pairs
        stated ^= google_crc32c.value(bytes(len(folded)))
    return google_crc32c.value(folded) == stated


def _alike(
    rows: np.ndarray, order: np.ndarray, points: _Points, times: list[tuple[int, float]]
) -> list[int]:
    """Decodes the records of one length that are mere scalars; gives the orders of the others."""
    singles: list[int] = []
    while len(rows):
        look = looks.of(rows[0].tobytes())
        if look is None:
            singles.append(int(order[0]))
            rows, order = rows[1:], order[1:]
            if len(singles) >= 64:  # a file of something else
                return singles + order.tolist()
            continue
        same = looks.matches(look, rows)
        found, where = rows[same], order[same]
        steps, walls = looks.steps(look, found), looks.walls(look, found)
        times += [(int(where[0]), float(walls[0])), (int(where[-1]), float(walls[-1]))]
        for tag, simple, chosen, values in looks.values(look, found):
            points.add(tag, where[chosen], steps[chosen], walls[chosen], values)
            if simple:
                points.simple[tag] = min(int(where[chosen[0]]), points.simple.get(tag, _NEVER))
        rows, order = rows[~same], order[~same]
    return singles


def _single(
    event: Any, order: int, slow: _Points, quick: _Points, kinds: events.Kinds, block: Block
) -> None:
    for value in event.summary.value:
        tag = value.tag
        if quick.simple.get(tag, _NEVER) < order:
            kinds.plugins.setdefault(tag, "scalars")  # the first kind of a tag in a file counts
        kind = kinds.of(value)
        if kind and kind != "scalars":
            _, count, step = block.others.get(tag, (kind, 0, event.step))
            block.others[tag] = kind, count + 1, max(step, event.step)
        if tag == _SESSION:
            block.hparams.append(value.metadata.plugin_data.content)
    for tag, number in events.scalars(event, kinds):
        slow.add(tag, [order], [event.step], [event.wall_time], [float(number)])


def _one_by_one(path: str, offset: int, kinds: events.Kinds) -> Iterator[Block]:
    """Reads the rest of a file that has corrupt records, leaving them out."""
    block, points, order = Block(offset), _Points(), 0
    faults: list[events.CorruptRecordError] = []
    walls: list[float] = []
    for end, event in events.read(path, offset, faults.append):
        _single(event, order, points, _Points(), kinds, block)
        walls.append(event.wall_time)
        block.end, order = end, order + 1
    ends = [fault.end for fault in faults if fault.end is not None]
    block.end = max([block.end, *ends])
    block.scalars, block.corrupt, block.dead = points.columns(), len(ends), len(ends) < len(faults)
    block.walls = (walls[0], walls[-1]) if walls else None
    yield block
