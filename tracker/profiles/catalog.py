"""The captures of a logdir, by the names that people type.

>>> [entry.name for entry in entries('logdir')]
['first/2026_01_31_12_00_00', 'again/2026_01_31_12_10_00']
>>> find('logdir', 'latest').run
'again'
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import time
from collections.abc import Sequence

from etils import epath

from tracker import captures, rundir, xplane
from tracker.captures import Capture

_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Entry:
    """A capture of a logdir.

    Attributes:
      run: name of the run that it is of: its path below logdir, `.` for the logdir itself.
      capture: the capture.
    """

    run: str
    capture: Capture

    @property
    def name(self) -> str:
        """What names this capture alone, `<run>/<time>`."""
        return f"{self.run}/{self.capture.name}"

    @property
    def made(self) -> str:
        """When it was made: by the directory's name, else by the age of its files."""
        name = self.capture.name
        if name.count("_") == 5 and name.replace("_", "").isdecimal():
            return name
        files = self.capture.files
        newest = max((file.stat().mtime for file in files), default=0.0)
        return time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(newest))


def entries(logdir: str) -> list[Entry]:
    """The captures of a logdir in order of their runs and times."""
    root = epath.Path(logdir)
    found = []
    for capture in captures.find(root):
        parts = capture.path.relative_to(root).parts[:-3]  # without plugins/profile/<time>
        if parts[-1:] == ("train",):
            parts = parts[:-1]
        found.append(Entry("/".join(parts) or ".", capture))
    return sorted(found, key=lambda entry: (entry.run, entry.made))


def find(logdir: str | None, name: str) -> Entry:
    """One capture by what a person types.

    Args:
      logdir: the directory of all runs; None if `name` must be a path.
      name: a run's name for its newest capture, a capture's `<run>/<time>`, the beginning of one of
        these only, 'latest', or the path of an `.xplane.pb` or of a directory of some.

    Raises:
      ValueError: with one sentence, if there is none or more than one.
    """
    if (entry := _at(name)) is not None:
        return entry
    if logdir is None:
        if name.endswith(xplane.SUFFIX):
            raise ValueError(f"There is no file {name}")
        raise ValueError("Missing: --logdir, the directory of all runs")
    known = entries(logdir)
    runs = sorted({entry.run for entry in known} | {run.name for run in rundir.runs(logdir)})
    if name == "latest":
        if not known:
            raise ValueError(f"There is no capture in {logdir}; make one with --profile_steps")
        return max(known, key=lambda entry: entry.made)
    if name not in runs:
        if (one := _one([entry.name for entry in known], name)) is not None:
            return next(entry for entry in known if entry.name == one)
        name = _run(runs, name, logdir)
    of_run = [entry for entry in known if entry.run == name]
    if not of_run:
        raise ValueError(f"The run {name!r} has no capture; make one with --profile_steps")
    return of_run[-1]


def select(logdir: str | None, names: Sequence[str]) -> list[Entry]:
    """The captures of some runs; without names those of all."""
    if logdir is None:
        raise ValueError("Missing: --logdir, the directory of all runs")
    known = entries(logdir)
    if not names:
        return known
    runs = sorted({entry.run for entry in known} | {run.name for run in rundir.runs(logdir)})
    wanted = {name if name in runs else _run(runs, name, logdir) for name in names}
    return [entry for entry in known if entry.run in wanted]


def _at(name: str) -> Entry | None:
    """A capture by its path."""
    path = epath.Path(name)
    if name.endswith(xplane.SUFFIX) and path.is_file():
        return Entry(os.fspath(path.parent), Capture(path, (path,)))
    if os.sep in name and path.is_dir() and (files := sorted(path.glob(f"*{xplane.SUFFIX}"))):
        return Entry(os.fspath(path.parent), Capture(path, tuple(files)))
    return None


def _one(names: Sequence[str], name: str) -> str | None:
    """The only one of names that begins so, where more than the run's name is given."""
    found = [one for one in names if one.startswith(name) and name.startswith(_run_of(one))]
    return name if name in found else found[0] if len(found) == 1 else None


def _run_of(name: str) -> str:
    return name.rpartition("/")[0] + "/"


def _run(runs: Sequence[str], name: str, logdir: str) -> str:
    found = [run for run in runs if name and run.startswith(name)]
    if len(found) == 1:
        return found[0]
    listed = found or runs
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    shown = ", ".join(listed[:_SHOWN]) + more
    if found:
        raise ValueError(f"{name!r} begins the names of several runs: {shown}")
    close = difflib.get_close_matches(name, runs, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {shown or 'none'}"
    raise ValueError(f"There is no run {name!r} in {logdir}; {hint}")
