"""The look of a record: where in an Event's bytes stand its step, its time and its numbers.

Only records that are nothing but scalars have a look: `simple_value`, or a tensor of one float32.
Records of the same length and look differ in these places alone, so that NumPy can decode them
together. A record of one value may differ in its tag as well, as long as the tag is as long.

Fields are numbered as in TensorBoard's event.proto, summary.proto and tensor.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DT_FLOAT = 1


class Place(NamedTuple):
    """One value of a record.

    Attributes:
      tag: first byte of the tag and the one behind its last.
      number: first byte of the number.
      simple: whether it is a `simple_value`, which says by itself that it is a scalar.
    """

    tag: tuple[int, int]
    number: int
    simple: bool


class Look(NamedTuple):
    """See the module.

    Attributes:
      wall: first byte of the time; -1 if there is none.
      step: first byte of the step and the one behind its last; equal if there is none (step 0).
      values: of each value its places.
      fixed: for each byte whether it is the same in all records of this look.
      example: the bytes of one of them.
    """

    wall: int
    step: tuple[int, int]
    values: tuple[Place, ...]
    fixed: np.ndarray
    example: np.ndarray


class _StrangeError(Exception):
    """The record is not of the known kind."""


def of(record: bytes) -> Look | None:
    """The look of a record; None if it is more than scalars, or damaged.

    Args:
      record: a serialised Event.
    """
    wall, step = -1, (0, 0)
    places: list[Place] = []
    try:
        for number, wire, begin, end in _fields(record, 0, len(record)):
            if (number, wire) == (1, _FIXED64) and wall < 0:
                wall = begin
            elif (number, wire) == (2, _VARINT) and step == (0, 0):
                step = begin, end
            elif (number, wire) == (5, _BYTES) and not places:
                places = [_value(record, *v) for v in _only(record, begin, end, (1, _BYTES))]
            else:
                return None
    except (_StrangeError, IndexError):
        return None
    if not places:
        return None
    return _look(record, wall, step, tuple(places))


def _look(
    record: bytes, wall: int, step: tuple[int, int], places: tuple[Place, ...]
) -> Look | None:
    fixed = np.ones(len(record), bool)
    if wall >= 0:
        fixed[wall : wall + 8] = False
    fixed[slice(*step)] = False
    for place in places:
        fixed[place.number : place.number + 4] = False
    if len(places) == 1:
        fixed[slice(*places[0].tag)] = False
    return Look(wall, step, places, fixed, np.frombuffer(record, np.uint8))


def matches(look: Look, rows: np.ndarray) -> np.ndarray:
    """Which records have a look.

    Args:
      look: the look.
      rows: uint8 [records, length], of the length of the look's example.

    Returns:
      bool [records].
    """
    columns = np.flatnonzero(look.fixed)
    same = (rows[:, columns] == look.example[columns]).all(axis=1)
    begin, end = look.step
    if end > begin:  # a number of as many bytes: all but the last have their highest bit set
        same &= (rows[:, begin : end - 1] >= 128).all(axis=1) & (rows[:, end - 1] < 128)
    return same


def steps(look: Look, rows: np.ndarray) -> np.ndarray:
    """The steps of records, int64."""
    begin, end = look.step
    total = np.zeros(len(rows), np.uint64)
    for i, column in enumerate(range(begin, end)):
        total |= (rows[:, column].astype(np.uint64) & np.uint64(127)) << np.uint64(7 * i)
    return total.view(np.int64)


def walls(look: Look, rows: np.ndarray) -> np.ndarray:
    """The times of records, float64 seconds since 1970."""
    if look.wall < 0:
        return np.zeros(len(rows))
    return np.ascontiguousarray(rows[:, look.wall : look.wall + 8]).view("<f8").ravel()


def values(look: Look, rows: np.ndarray) -> Iterator[tuple[str, bool, np.ndarray, np.ndarray]]:
    """The scalars of records.

    Yields:
      (tag, whether it is a `simple_value`, indices of the records that have it, its values as
      float64).
    """
    for place in look.values:
        numbers = np.ascontiguousarray(rows[:, place.number : place.number + 4])
        floats = numbers.view("<f4").ravel().astype(np.float64)
        begin, end = place.tag
        if len(look.values) > 1 or (rows[:, begin:end] == rows[0, begin:end]).all():
            yield _text(rows[0, begin:end]), place.simple, np.arange(len(rows)), floats
            continue
        tags = np.ascontiguousarray(rows[:, begin:end]).view(f"V{end - begin}").ravel()
        found, first, inverse = np.unique(tags, return_index=True, return_inverse=True)
        ranks = np.argsort(inverse, kind="stable")
        bounds = np.searchsorted(inverse[ranks], np.arange(len(found) + 1))
        for i, row in enumerate(first):
            chosen = ranks[bounds[i] : bounds[i + 1]]
            yield _text(rows[row, begin:end]), place.simple, chosen, floats[chosen]


def _text(row: np.ndarray) -> str:
    return row.tobytes().decode("utf-8", "replace")


def _fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, wire type, first byte, the one behind the last."""
    while position < end:
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            _, after = _varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            after = position + (8 if wire == _FIXED64 else 4)
        elif wire == _BYTES:
            size, position = _varint(data, position)
            after = position + size
        else:
            raise _StrangeError
        if after > end:
            raise _StrangeError
        yield number, wire, position, after
        position = after


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
        if shift > 63:
            raise _StrangeError


def _only(data: bytes, begin: int, end: int, kind: tuple[int, int]) -> list[tuple[int, int]]:
    """The fields of a message all of whose fields are of one kind."""
    found = []
    for number, wire, first, after in _fields(data, begin, end):
        if (number, wire) != kind:
            raise _StrangeError
        found.append((first, after))
    return found


def _value(data: bytes, begin: int, end: int) -> Place:
    """The places of a Summary.Value of a tag and one float32, without metadata."""
    tag, number, simple = None, None, False
    for field, wire, first, after in _fields(data, begin, end):
        if (field, wire) == (1, _BYTES) and tag is None:
            tag = first, after
        elif (field, wire) == (2, _FIXED32) and number is None:
            number, simple = first, True
        elif (field, wire) == (8, _BYTES) and number is None:
            number = _tensor(data, first, after)
        else:
            raise _StrangeError
    if tag is None or number is None or tag[0] == tag[1]:
        raise _StrangeError
    return Place(tag, number, simple)


def _tensor(data: bytes, begin: int, end: int) -> int:
    """Where the number stands in a TensorProto of one float32."""
    number, kind = None, 0
    for field, wire, first, after in _fields(data, begin, end):
        if (field, wire) == (1, _VARINT):
            kind, _ = _varint(data, first)
        elif (field, wire, after - first) == (2, _BYTES, 0):
            pass  # the shape of a scalar
        elif (field, after - first) in ((4, 4), (5, 4)) and wire != _VARINT and number is None:
            number = first  # tensor_content, or float_val packed or not
        else:
            raise _StrangeError
    if number is None or kind != _DT_FLOAT:
        raise _StrangeError
    return number
