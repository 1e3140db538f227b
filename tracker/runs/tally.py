"""What the index keeps of one event file: every point of its scalars, and figures about each tag.

>>> Tally(connection, file=7).read('logdir/run/train/events...', position=0)
120345
>>> column = columns(index.chunks(series.id))
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tracker.runs.bulk import Block, Column

SCALARS = "scalars"
_FULL = 4096  # points from which a chunk is left as it is
_POINT = 24  # bytes of one


class Series(NamedTuple):
    """One tag of one event file.

    Attributes:
      id, file: keys in the index.
      tag, kind: the tag and its plugin, such as 'scalars' or 'histograms'.
      points: how many values it has.
      first_step, last_step, last_wall, last_value: of its first and last record; the last value
        is None if it is NaN, as are the following without finite values, and of other kinds.
      low, low_step, high, high_step: the least and the greatest finite value, where first reached.
      ordered: whether its steps rise all the way.
    """

    id: int
    file: int
    tag: str
    kind: str
    points: int
    first_step: int
    last_step: int
    last_wall: float | None
    last_value: float | None
    low: float | None
    low_step: int | None
    high: float | None
    high_step: int | None
    ordered: int


class Tally:
    """Adds the records of a file to the index.

    Args:
      connection: the index, in a transaction.
      file: the id of the file's entry.

    Attributes:
      file: as given.
      read_bytes: how many bytes of complete records were read.
    """

    def __init__(self, connection: sqlite3.Connection, file: int):
        self._connection = connection
        self.file = file
        self.read_bytes = 0

    def read(self, path: str, position: int) -> int:
        """Reads a file on from a position; returns the end of its last complete record."""
        from tracker.runs import bulk  # only commands that find something new pay for NumPy

        query = f"SELECT {', '.join(Series._fields)} FROM series WHERE file = ?"
        rows = [Series(*row) for row in self._connection.execute(query, (self.file,))]
        known = {row.tag: row for row in rows}
        plugins = {row.tag: row.kind for row in rows}
        for block in bulk.read(path, position, plugins):
            for tag, column in block.scalars.items():
                known[tag] = self._scalars(known.get(tag), tag, column)
            for tag, other in block.others.items():
                known[tag] = self._other(known.get(tag), tag, *other)
            self._whole(block)
            self.read_bytes += block.end - position
            position = block.end
        return position

    def _whole(self, block: Block) -> None:
        first, last = block.walls or (None, None)
        hparams = block.hparams[0] if block.hparams else None
        self._connection.execute(
            "UPDATE files SET first_wall = coalesce(first_wall, ?), last_wall = coalesce(?, "
            "last_wall), corrupt = corrupt + ?, dead = ?, hparams = coalesce(hparams, ?) "
            "WHERE id = ?",
            (first, last, block.corrupt, block.dead, hparams, self.file),
        )

    def _other(self, old: Series | None, tag: str, kind: str, count: int, step: int) -> Series:
        total = count + (old.points if old else 0)
        first = old.first_step if old else step
        nothing = (None,) * 6
        return self._put(old, (tag, kind, total, first, step, *nothing, 1))

    def _scalars(self, old: Series | None, tag: str, column: Column) -> Series:
        series = self._put(old, (tag, *figures(column, old)))
        self._append(series.id, column)
        return series

    def _put(self, old: Series | None, values: tuple) -> Series:
        columns = Series._fields[2:]
        if old is None:
            marks = ", ".join("?" * (len(columns) + 1))
            cursor = self._connection.execute(
                f"INSERT INTO series (file, {', '.join(columns)}) VALUES ({marks})",
                (self.file, *values),
            )
            return Series(cursor.lastrowid or 0, self.file, *values)
        sets = ", ".join(f"{column} = ?" for column in columns)
        self._connection.execute(f"UPDATE series SET {sets} WHERE id = ?", (*values, old.id))
        return Series(old.id, self.file, *values)

    def _append(self, series: int, column: Column) -> None:
        query = "SELECT number, points FROM chunks WHERE series = ? ORDER BY number DESC LIMIT 1"
        number, blob = self._connection.execute(query, (series,)).fetchone() or (-1, b"")
        if blob and len(blob) < _FULL * _POINT:
            column = concatenated([columns([blob]), column])
        else:
            number += 1
        points = b"".join(part.tobytes() for part in column)
        self._connection.execute(
            "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?)",
            (series, number, len(column.steps), points),
        )


def figures(column: Column, old: Series | None = None) -> tuple:
    """The fields of `Series` from kind on, of a column that follows what is known already."""
    import numpy as np

    steps, walls, values = column
    count, first, last = len(steps), int(steps[0]), int(steps[-1])
    ordered = bool((steps[1:] > steps[:-1]).all())
    low = low_step = high = high_step = None
    finite = np.isfinite(values)
    if not finite.all():
        steps, values = steps[finite], values[finite]
    if len(values):
        at, top = int(values.argmin()), int(values.argmax())
        low, low_step, high, high_step = (
            *(float(values[at]), int(steps[at]), float(values[top]), int(steps[top])),
        )
    if old is not None:
        count, ordered = count + old.points, bool(ordered and old.ordered and first > old.last_step)
        first = old.first_step
        if low is None or (old.low is not None and old.low <= low):
            low, low_step = old.low, old.low_step
        if high is None or (old.high is not None and old.high >= high):
            high, high_step = old.high, old.high_step
    value = float(column.values[-1])
    shown = None if math.isnan(value) else value
    return (
        *(SCALARS, count, first, last, float(walls[-1]), shown),
        *(low, low_step, high, high_step, int(ordered)),
    )


def columns(chunks: Iterable[bytes]) -> Column:
    """The points in chunks of the index."""
    import numpy as np

    from tracker.runs.bulk import Column

    parts = []
    for blob in chunks:
        count = len(blob) // _POINT
        steps, walls, values = (blob[i * count * 8 : (i + 1) * count * 8] for i in range(3))
        parts.append(
            Column(np.frombuffer(steps, "<i8"), np.frombuffer(walls), np.frombuffer(values))
        )
    return concatenated(parts)


def concatenated(parts: list[Column]) -> Column:
    """Columns of the same tag, one after the other."""
    import numpy as np

    from tracker.runs.bulk import Column

    return (
        parts[0]
        if len(parts) == 1
        else Column(*(np.concatenate(p) for p in zip(*parts, strict=True)))
    )


def effective(column: Column) -> Column:
    """The points that count, as in TensorBoard: a step that comes back replaces it and all later.

    Args:
      column: the points of a tag in the order in which they were written.

    Returns:
      Those that no later point of the same or a lower step replaced; their steps rise.
    """
    import numpy as np

    from tracker.runs.bulk import Column

    steps = column.steps
    if len(steps) < 2 or (steps[1:] > steps[:-1]).all():
        return column
    following = np.minimum.accumulate(steps[::-1])[::-1][1:]
    keep = np.append(steps[:-1] < following, True)
    return Column(*(part[keep] for part in column))
