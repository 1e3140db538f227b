"""Finds the runs on disk, whoever wrote them, and the event files that belong to each.

A directory with a run.json is a run, with everything below it. Elsewhere a run is a directory that
holds event files; those in `train/` and `validation/` belong to the directory around them. Links to
runs count; other linked directories are not followed, so that loops end.

    >>> for found in scan('logdir').runs:
    ...     print(found.name, [file.split for file in found.files])
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import NamedTuple

GROUP = "group.json"  # marks what `group` wrote, which is no run
SPLITS = ("train", "validation")
_NO_EVENTS = ("checkpoints", "orphaned", "plugins")


class Stamp(NamedTuple):
    """What tells whether a file is the one of before, and unchanged.

    Attributes:
      device, inode: which file it is, wherever it was moved.
      size: bytes.
      modified, changed: nanoseconds, of its content and of its content or state.
    """

    device: int
    inode: int
    size: int
    modified: int
    changed: int


class EventFile(NamedTuple):
    """One event file of a run.

    Attributes:
      path: where it is.
      split: its directory below the run's, such as 'train'; '' for the run's own.
      stamp: its state when it was found.
    """

    path: str
    split: str
    stamp: Stamp


@dataclasses.dataclass
class Found:
    """One run on disk.

    Attributes:
      name: its path below the logdir; '.' for the logdir itself.
      path: its directory.
      ours: whether it has a run.json.
      files: its event files, in the order in which TensorBoard reads those of a directory.
    """

    name: str
    path: str
    ours: bool = False
    files: list[EventFile] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Scan:
    """The runs of a logdir.

    Attributes:
      runs: by name.
      unreadable: the directories that could not be looked into.
      began: when the look began, nanoseconds since 1970.
    """

    runs: list[Found]
    unreadable: list[str]
    began: int


def scan(logdir: str) -> Scan:
    """Finds all runs below a logdir.

    Args:
      logdir: the directory of all runs.

    Returns:
      What there is at this moment; what vanishes meanwhile is left out.
    """
    began, scanner = time.time_ns(), _Scanner()
    scanner.visit(logdir, ".", None, linked=False)
    for found in scanner.runs.values():
        found.files.sort(key=lambda file: (file.split, os.path.basename(file.path)))
    return Scan(sorted(scanner.runs.values(), key=lambda f: f.name), scanner.unreadable, began)


class _Scanner:
    def __init__(self) -> None:
        self.runs: dict[str, Found] = {}
        self.unreadable: list[str] = []

    def visit(self, path: str, name: str, run: Found | None, linked: bool) -> None:
        entries = self._entries(path)
        if any(e.name == GROUP for e in entries):
            return
        if run is None and any(e.name == "run.json" and e.is_file() for e in entries):
            run = self.runs[name] = Found(name, path, ours=True)
        for entry in entries:
            if is_event_file(entry.name):
                self._add(entry, path, name, run)
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _NO_EVENTS or not _is_directory(entry):
                continue
            child = entry.name if name == "." else f"{name}/{entry.name}"
            if not entry.is_symlink():
                if run is not None or not linked or entry.name in SPLITS:
                    self.visit(entry.path, child, run, linked)
            elif run is None and not linked and self._is_run(entry.path):
                self.visit(entry.path, child, None, linked=True)

    def _entries(self, path: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(path) as listing:
                return sorted(listing, key=lambda e: e.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError:
            self.unreadable.append(path)
            return []

    def _is_run(self, path: str) -> bool:
        entries = self._entries(path)
        if any(e.name == "run.json" or is_event_file(e.name) for e in entries):
            return True
        splits = [e.path for e in entries if e.name in SPLITS and _is_directory(e)]
        return any(is_event_file(e.name) for split in splits for e in self._entries(split))

    def _add(self, entry: os.DirEntry[str], path: str, name: str, run: Found | None) -> None:
        try:
            status = entry.stat()
            if not entry.is_file():
                return
        except OSError:
            return
        parent, _, last = name.rpartition("/")
        if run is not None:
            split = name.removeprefix("" if run.name == "." else run.name).lstrip("./")
        elif last in SPLITS:
            run_path, split = os.path.dirname(path), last
            run = self.runs.setdefault(parent or ".", Found(parent or ".", run_path))
        else:
            split = ""
            run = self.runs.setdefault(name, Found(name, path))
        run.files.append(EventFile(entry.path, split, stamp_of(status)))


def stamp_of(status: os.stat_result) -> Stamp:
    """The stamp of a file from its state."""
    return Stamp(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def is_event_file(name: str) -> bool:
    """Whether TensorBoard takes a file of this name for an event file."""
    return "tfevents" in name and not name.endswith(".profile-empty")


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that loops
        return False
