"""The index: what the event files of a logdir say, so that no byte of them is read twice.

It is an SQLite file in `logdir/.tracker/`, and a cache: safe to delete at any time, built again
when it is missing, damaged or of another version, kept in memory where the logdir cannot be
written. A file is known by its device and inode, so that moved runs keep their entry; its last
known bytes are compared before only what follows them is read, so that a replaced file is noticed.

    >>> with Index('logdir') as index:
    ...     with index.reading(files, began):
    ...         index.series()[index.entry(files[0]).id]
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tracker.runs.scan import EventFile, Stamp, stamp_of
from tracker.runs.tally import Series, Tally

VERSION = "2"
BUSY_SECONDS = 60.0
_PORTION_SECONDS = 2.0  # how long one transaction reads, so that others get their turn
_PRINT = 256  # bytes compared at the head of a file and before the offset
_RECENT = 2 * 10**9  # nanoseconds in which a clock might not tell two changes apart

_SCHEMA = """
CREATE TABLE meta (version TEXT);
CREATE TABLE files (
  id INTEGER PRIMARY KEY, device INTEGER, inode INTEGER, size INTEGER, modified INTEGER,
  changed INTEGER, read_at INTEGER, position INTEGER, head INTEGER, tail INTEGER,
  first_wall REAL, last_wall REAL, corrupt INTEGER, dead INTEGER, hparams BLOB,
  UNIQUE (device, inode));
CREATE TABLE series (
  id INTEGER PRIMARY KEY, file INTEGER REFERENCES files (id) ON DELETE CASCADE, tag TEXT,
  kind TEXT, points INTEGER, first_step INTEGER, last_step INTEGER, last_wall REAL,
  last_value REAL, low REAL, low_step INTEGER, high REAL, high_step INTEGER, ordered INTEGER,
  UNIQUE (file, tag));
CREATE TABLE chunks (
  series INTEGER REFERENCES series (id) ON DELETE CASCADE, number INTEGER, count INTEGER,
  points BLOB, UNIQUE (series, number));
"""


class Entry(NamedTuple):
    """What the index knows of a file as a whole."""

    id: int
    stamp: Stamp
    read_at: int
    position: int
    head: int
    tail: int
    first_wall: float | None
    last_wall: float | None
    corrupt: int
    dead: int
    hparams: bytes | None


class Index:
    """The index of one logdir.

    Args:
      logdir: the directory of all runs.

    Attributes:
      problem: why the index is in memory alone, in one sentence; '' if it is on disk.
      read_bytes: how many bytes of event files were read.
    """

    def __init__(self, logdir: str):
        self._path = os.path.join(logdir, ".tracker", "index.sqlite3")
        self.problem = ""
        self.read_bytes = 0
        self._entries: dict[tuple[int, ...], Entry] = {}
        self._keys: dict[str, tuple[int, ...]] = {}  # of files replaced since they were found
        self._began = 0
        try:
            self._connection = _on_disk(self._path)
        except (OSError, sqlite3.Error) as error:
            self._connection = self._in_memory(error)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def reading(self, files: Sequence[EventFile], began: int) -> Iterator[None]:
        """Brings the index up to date with files, and holds it still while it is read.

        Args:
          files: all event files there are; entries of others are dropped.
          began: when the look for files began, nanoseconds since 1970. Entries that are younger
            are another process' and stay.
        """
        self._began = began
        try:
            self._update(files)
        except sqlite3.Error as error:  # a full disk, a lock held for too long, a damaged file
            with contextlib.suppress(sqlite3.Error):
                self._connection.rollback()
            self._connection.close()
            if isinstance(error, sqlite3.DatabaseError) and "malformed" in str(error):
                _remove(self._path)
            self._connection = self._in_memory(error)
            self._update(files)
        try:
            yield
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._connection.commit()

    def entry(self, file: EventFile) -> Entry | None:
        """What is known of a file; None if it vanished before it was read."""
        return self._entries.get(self._keys.get(file.path, file.stamp[:2]))

    def series(self, tags: Iterable[str] | None = None) -> dict[int, list[Series]]:
        """The tags of all files.

        Args:
          tags: only these; None for all.

        Returns:
          By the id of a file's entry.
        """
        query, chosen = f"SELECT {', '.join(Series._fields)} FROM series", tuple(tags or ())
        if tags is not None:
            query += f" WHERE tag IN ({', '.join('?' * len(chosen))})"
        found: dict[int, list[Series]] = {}
        for row in self._connection.execute(query, chosen):
            found.setdefault(row[1], []).append(Series(*row))
        return found

    def steps(self) -> dict[int, int]:
        """The last step of each file, by the id of its entry."""
        return dict(self._connection.execute("SELECT file, max(last_step) FROM series GROUP BY 1"))

    def chunks(self, series: int) -> list[bytes]:
        """The points of a series as `tally.columns` takes them, in the order of the file."""
        query = "SELECT points FROM chunks WHERE series = ? ORDER BY number"
        return [blob for (blob,) in self._connection.execute(query, (series,))]

    def _in_memory(self, error: Exception) -> sqlite3.Connection:
        self.problem = (
            f"The index {self._path} cannot be written ({error}); event files are read anew"
        )
        memory = sqlite3.connect(":memory:", isolation_level=None)
        try:
            address = "file:" + _quoted(self._path) + "?mode=ro&immutable=1"
            with contextlib.closing(sqlite3.connect(address, uri=True)) as disk:
                if disk.execute("SELECT version FROM meta").fetchall() == [(VERSION,)]:
                    disk.backup(memory)
        except sqlite3.Error:
            memory.close()
            memory = sqlite3.connect(":memory:", isolation_level=None)
        if not memory.execute("SELECT 1 FROM sqlite_master").fetchall():
            memory.executescript(_SCHEMA)
            memory.execute("INSERT INTO meta VALUES (?)", (VERSION,))
        memory.execute("PRAGMA foreign_keys = ON")
        return memory

    def _update(self, files: Sequence[EventFile]) -> None:
        """Reads what is new, a portion to a transaction; leaves one open that sees the result."""
        self._connection.execute("BEGIN")
        self._load()
        there = {file.stamp[:2]: file for file in files}
        gone = [
            entry.id
            for key, entry in self._entries.items()
            if key not in there and entry.read_at < self._began
        ]
        unsure = [file for file in there.values() if not self._current(file)]
        if not gone and not unsure:
            return
        self._connection.commit()
        while True:
            self._connection.execute("BEGIN IMMEDIATE")
            self._load()
            self._connection.executemany("DELETE FROM files WHERE id = ?", [(i,) for i in gone])
            unsure = self._portion(unsure)
            if not unsure:
                self._load()
                return  # the caller reads, then commits
            self._connection.commit()

    def _load(self) -> None:
        columns = "id, device, inode, size, modified, changed, read_at, position, head, tail"
        rows = self._connection.execute(
            f"SELECT {columns}, first_wall, last_wall, corrupt, dead, hparams FROM files"
        )
        entries = (Entry(row[0], Stamp(*row[1:6]), *row[6:]) for row in rows)
        self._entries = {entry.stamp[:2]: entry for entry in entries}

    def _current(self, file: EventFile) -> bool:
        entry = self.entry(file)
        if entry is None or entry.stamp != file.stamp:
            return False
        # Changed again within a tick of the clock it would look the same: look again later.
        return abs(entry.read_at - file.stamp.modified) > _RECENT

    def _portion(self, unsure: Sequence[EventFile]) -> list[EventFile]:
        end = time.monotonic() + _PORTION_SECONDS
        for n, file in enumerate(unsure):
            self._connection.execute("SAVEPOINT file")
            try:
                self._refresh(file)
            except OSError:  # vanished, or not for us to read
                self._connection.execute("ROLLBACK TO file")
            self._connection.execute("RELEASE file")
            if time.monotonic() > end:
                return list(unsure[n + 1 :])
        return []

    def _refresh(self, file: EventFile) -> None:
        now = time.time_ns()
        with open(file.path, "rb", buffering=0) as opened:
            stamp = stamp_of(os.fstat(opened.fileno()))
            self._keys[file.path] = stamp[:2]
            entry = self._entries.get(stamp[:2])
            if entry is not None and not self._same(entry, stamp, opened):
                self._connection.execute("DELETE FROM files WHERE id = ?", (entry.id,))
                entry = None
            position = 0 if entry is None else entry.position
            if entry is None or stamp.size != entry.stamp.size:
                tally = self._tally(entry, stamp)
                # By its descriptor: what the path leads to may be another file by now, or none.
                position = tally.read(f"/dev/fd/{opened.fileno()}", position)
                self.read_bytes += tally.read_bytes
                identity = tally.file
            else:
                identity = entry.id
            head, tail = _prints(opened, position)
        self._connection.execute(
            "UPDATE files SET size = ?, modified = ?, changed = ?, read_at = ?, position = ?, "
            "head = ?, tail = ? WHERE id = ?",
            (*stamp[2:], now, position, head, tail, identity),
        )

    def _tally(self, entry: Entry | None, stamp: Stamp) -> Tally:
        if entry is not None:
            return Tally(self._connection, entry.id)
        self._connection.execute("DELETE FROM files WHERE (device, inode) = (?, ?)", stamp[:2])
        cursor = self._connection.execute(
            "INSERT INTO files (device, inode, read_at, corrupt, dead) VALUES (?, ?, 0, 0, 0)",
            stamp[:2],
        )
        assert cursor.lastrowid is not None
        return Tally(self._connection, cursor.lastrowid)

    def _same(self, entry: Entry, stamp: Stamp, opened: Any) -> bool:
        """Whether the file begins with what was read of it."""
        if stamp.size < entry.stamp.size:
            return False
        if stamp.size == entry.stamp.size and stamp.modified != entry.stamp.modified:
            return False
        return _prints(opened, entry.position) == (entry.head, entry.tail)


def _prints(opened: Any, position: int) -> tuple[int, int]:
    """Checksums of a file's first bytes, and of the last ones before a position."""
    head = os.pread(opened.fileno(), min(_PRINT, position), 0)
    begin = max(position - _PRINT, 0)
    return zlib.crc32(head), zlib.crc32(os.pread(opened.fileno(), position - begin, begin))


def _on_disk(path: str) -> sqlite3.Connection:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        return _opened(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        _remove(path)  # not a database
        return _opened(path)


def _opened(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        if "meta" not in tables or _version(connection) != VERSION:
            for name in ("chunks", "series", "files", "meta"):
                connection.execute(f"DROP TABLE IF EXISTS {name}")
            for statement in _SCHEMA.strip().split(";\n"):
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES (?)", (VERSION,))
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> str | None:
    row = connection.execute("SELECT * FROM meta").fetchone()
    return row and row[0]


def _remove(path: str) -> None:
    for ending in ("", "-wal", "-shm"):
        with contextlib.suppress(OSError):
            os.unlink(path + ending)


def _quoted(path: str) -> str:
    return "".join(f"%{b:02x}" if b in b"%?#" else chr(b) for b in os.fsencode(path))
