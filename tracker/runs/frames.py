"""Finds the records in the bytes of an event file.

Each record begins with its length, so that one leads to the next, which is slow for millions of
them. But writers repeat themselves: the lengths of the records come in cycles, such as one record
for each of ten tags. Once a cycle is seen, NumPy looks how often it repeats.

    >>> frames = find(data)
    >>> payloads = [data[s : s + n] for s, n in zip(frames.starts, frames.lengths)]
"""

from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

import google_crc32c
import numpy as np

_HEADER = struct.Struct("<QI")
_FRAME = 16  # bytes around a payload: length, its checksum, the payload's checksum
_STROLL = 64  # records looked at one by one before their pattern is tried on the following ones


class Frames(NamedTuple):
    """Where records are.

    Attributes:
      starts: of each record's payload.
      lengths: of the payloads.
      end: of the last record.
    """

    starts: np.ndarray
    lengths: np.ndarray
    end: int


def find(data: bytes) -> Frames | None:
    """Where the complete records are; None if the length of one is corrupt.

    Args:
      data: the bytes of an event file from the beginning of a record on.
    """
    array = np.frombuffer(data, np.uint8)
    parts, position = [np.zeros(0, np.int64)], 0
    known: dict[bytes, int] = {}
    while True:
        starts, end = _stroll(data, position, known)
        if starts is None:
            return None
        parts.append(np.array(starts, np.int64))
        if len(starts) < _STROLL:
            break
        cycle = _cycle([*starts, end])
        jumped = _leap(array, starts[len(starts) - cycle :], end) if cycle else parts[0]
        parts.append(jumped)
        position = end + (len(jumped) // cycle) * (end - starts[-cycle]) if cycle else end
        end = position
    all_starts = np.concatenate(parts)
    lengths = np.diff(all_starts, append=end) - _FRAME
    return Frames(all_starts + 12, lengths, end)


def _stroll(data: bytes, position: int, known: dict[bytes, int]) -> tuple[list[int] | None, int]:
    """Where the next records start, one after the other, some `_STROLL` of them at most."""
    starts: list[int] = []
    size = len(data)
    while position + _FRAME <= size and len(starts) < _STROLL:
        header = data[position : position + 12]
        stride = known.get(header)
        if stride is None:
            length, checksum = _HEADER.unpack(header)
            if checksum != _masked(google_crc32c.value(header[:8])):
                return None, position
            stride = known[header] = length + _FRAME
        if position + stride > size:
            break
        starts.append(position)
        position += stride
    return starts, position


def _cycle(bounds: list[int]) -> int:
    """After how many records their lengths repeat, such as the number of tags; 0 if they do not."""
    strides = [b - a for a, b in itertools.pairwise(bounds)]
    for cycle in range(1, len(strides) // 2 + 1):
        if strides[-cycle:] == strides[-2 * cycle : -cycle]:
            return cycle
    return 0


def _leap(array: np.ndarray, starts: list[int], end: int) -> np.ndarray:
    """Where the records start that have, over and over, the lengths of those at `starts`."""
    span = end - starts[0]
    count = (len(array) - end) // span
    rounds = array[end : end + count * span].reshape(count, span)
    offsets = np.array(starts) - starts[0]
    columns = (offsets[:, None] + np.arange(12)).ravel()
    same = (rounds[:, columns] == array[starts[0] + columns]).all(axis=1)
    count = count if same.all() else int(same.argmin())
    return (end + span * np.arange(count)[:, None] + offsets).ravel()


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
