"""The commands `trash`, `restore`, `purge` and `rename`.

A trashed run lies whole in `logdir/.tracker-trash/`, its event files under names that TensorBoard,
which looks into hidden directories too, does not take for event files. `restore` undoes both.
Nothing leaves the disk but by `purge`, which asks. A run that is going on is refused.

>>> python -m tracker.runs trash --where "status = 'failed'" --logdir=logdir
>>> python -m tracker.runs restore RUN --logdir=logdir
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

from tracker import record as record_lib
from tracker import rundir
from tracker.runs import output
from tracker.runs.catalog import Catalog
from tracker.runs.run import Run

TRASH = ".tracker-trash"
_LABEL = "trash.json"
_QUIET_SECONDS = 60  # after which a run of others counts as ended
_SHOWN, _HIDDEN = "tfevents", "tf-trashed-events"


def trash_command(args: argparse.Namespace) -> int:
    """Moves runs to the trash, or lists it."""
    if args.list:
        return _list(args)
    if not (args.runs or args.where):
        raise ValueError("Name the runs to trash, or choose them with --where")
    with Catalog(args.logdir) as catalog:
        runs = catalog.select(args.runs, args.where, args.sort, args.limit)
        for run in runs:
            _check_movable(run, catalog, args.force)
    moved = [{"name": run.name, "trashed": _trash(run, args.logdir)} for run in runs]
    if args.json:
        output.print_json(moved)
        return 0
    for one in moved:
        print(f"{output.safe(one['name'])} is in the trash")
    if not moved:
        print("No run was chosen.")
    return 0


def restore_command(args: argparse.Namespace) -> int:
    """Brings runs back from the trash."""
    if args.name and len(args.runs) > 1:
        raise ValueError("--name goes with one run")
    found = [_find(args.logdir, name) for name in args.runs]
    names = [args.name or name for _, name in found]
    for name in names:
        _check_free(args.logdir, name)
    for (path, _), name in zip(found, names, strict=True):
        _restore(args.logdir, path, name)
    if args.json:
        output.print_json([{"name": name} for name in names])
    else:
        for name in names:
            print(f"{output.safe(name)} is back")
    return 0


def purge_command(args: argparse.Namespace) -> int:
    """Deletes what is in the trash for good."""
    chosen = [_find(args.logdir, name) for name in args.runs] or list(_trashed(args.logdir))
    sizes = [_size(path) for path, _ in chosen]
    if chosen and not args.yes:
        if args.json or not sys.stdin.isatty():
            raise ValueError("purge asks before it deletes; say --yes to go without")
        for (_, name), size in zip(chosen, sizes, strict=True):
            print(f"{output.safe(name)}  {output.size(size)}")
        what = f"{output.count(len(chosen), 'run')}, {output.size(sum(sizes))}"
        print(f"Delete {what}, for good? Type yes: ", end="", flush=True)
        if input().strip() != "yes":
            print("Nothing was deleted.")
            return 1
    for path, _ in chosen:
        shutil.rmtree(path)
        _prune(os.path.dirname(path), os.path.join(args.logdir, TRASH))
    if args.json:
        output.print_json({"deleted": [name for _, name in chosen], "bytes": sum(sizes)})
    else:
        print(f"{output.count(len(chosen), 'run')} deleted, {output.size(sum(sizes))}")
    return 0


def rename_command(args: argparse.Namespace) -> int:
    """Renames a run."""
    with Catalog(args.logdir) as catalog:
        run = catalog.find(args.run)
        _check_movable(run, catalog, args.force)
    _check_free(args.logdir, args.name)
    target = os.path.join(args.logdir, args.name)
    if (target + "/").startswith(run.path + "/"):
        raise ValueError(f"The run {run.name} cannot move into itself")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.rename(run.path, target)
    _prune(os.path.dirname(run.path), args.logdir)
    if run.record:
        logdir = run.directory.logdir
        record_lib.amend(rundir.RunDir(logdir / args.name, logdir), name=args.name)
    if args.json:
        output.print_json({"name": args.name, "was": run.name})
    else:
        print(f"{output.safe(run.name)} is now {output.safe(args.name)}")
    return 0


def _check_movable(run: Run, catalog: Catalog, force: bool) -> None:
    """Refuses a run that is going on, or whose directory is not its own."""
    inside = [other.name for other in catalog.runs if other.name.startswith(f"{run.name}/")]
    if run.name == ".":
        raise ValueError("The run . is the logdir itself, which stays where it is")
    if inside and not run.ours:
        raise ValueError(f"The directory of the run {run.name} holds the run {inside[0]} too")
    if os.path.islink(run.path):
        raise ValueError(f"The run {run.name} is a link to {os.path.realpath(run.path)}; move that")
    if run.status == "running":
        owner = run.record["owner"]
        alive = record_lib.alive(owner)
        who = f"process {owner['pid']} on {owner['host']}"
        if alive:
            raise ValueError(f"The run {run.name} is still running, as {who}; stop that first")
        if not force:
            raise ValueError(f"The run {run.name} may be running, as {who}; if not, say --force")
    if run.status in ("unknown", "unreadable") and not force:
        modified = max((file.stamp.modified for file in run.files), default=0) / 1e9
        if time.time() - modified < _QUIET_SECONDS:
            raise ValueError(
                f"The run {run.name} was written to {time.time() - modified:.0f} s ago and may be "
                "going on; wait a minute, or say --force"
            )


def _check_free(logdir: str, name: str) -> None:
    rundir.check_name(name)
    target = os.path.join(logdir, name)
    if os.path.lexists(target):
        raise ValueError(f"There is already {target}; choose another name with --name")
    parts = name.split("/")
    for n in range(1, len(parts)):
        outer = "/".join(parts[:n])
        if os.path.exists(os.path.join(logdir, outer, "run.json")):
            raise ValueError(f"The name {name} would lie inside the run {outer}")


def _trash(run: Run, logdir: str) -> str:
    """Moves a run to the trash; returns its name there."""
    root, name, n = os.path.join(logdir, TRASH), run.name, 1
    while os.path.lexists(os.path.join(root, name)):
        n += 1
        name = f"{run.name}~{n}"
    target = os.path.join(root, name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    label = os.path.join(run.path, _LABEL)
    try:
        with open(label, "w") as file:
            json.dump({"name": run.name, "trashed": now}, file)
        os.rename(run.path, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(label)
        raise
    _rename_events(target, _SHOWN, _HIDDEN)
    _prune(os.path.dirname(run.path), logdir)
    return name


def _restore(logdir: str, path: str, name: str) -> None:
    target = os.path.join(logdir, name)
    _rename_events(path, _HIDDEN, _SHOWN)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.rename(path, target)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(target, _LABEL))
    _prune(os.path.dirname(path), os.path.join(logdir, TRASH))


def _rename_events(path: str, old: str, new: str) -> None:
    """Renames event files below a directory; does no harm when done twice."""
    for directory, _, files in os.walk(path):
        for file in files:
            if old in file:
                source = os.path.join(directory, file)
                os.rename(source, os.path.join(directory, file.replace(old, new)))


def _prune(directory: str, top: str) -> None:
    """Removes directories that are empty now, up to but not including `top`."""
    with contextlib.suppress(OSError):
        while os.path.abspath(directory) != os.path.abspath(top):
            os.rmdir(directory)
            directory = os.path.dirname(directory)


def _trashed(logdir: str) -> Iterator[tuple[str, str]]:
    """The runs in the trash: directory, and the name that the run had."""
    root = os.path.join(logdir, TRASH)
    for directory, children, files in os.walk(root):
        children.sort()
        if _LABEL in files:
            children.clear()
            yield directory, _label(directory).get("name") or os.path.relpath(directory, root)


def _label(directory: str) -> dict[str, Any]:
    try:
        with open(os.path.join(directory, _LABEL), "rb") as file:
            label = json.load(file)
    except (OSError, ValueError):
        return {}
    return label if isinstance(label, dict) else {}


def _find(logdir: str, name: str) -> tuple[str, str]:
    root = os.path.join(logdir, TRASH)
    there = [(path, was, os.path.relpath(path, root)) for path, was in _trashed(logdir)]
    exact = [(path, was) for path, was, now in there if now == name]
    found = exact or [(path, was) for path, was, now in there if name and now.startswith(name)]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(now for _, _, now in there[:8]) or "nothing"
    if found:
        raise ValueError(f"{name!r} begins several names in the trash, which holds {shown}")
    raise ValueError(f"There is no run {name!r} in the trash, which holds {shown}")


def _list(args: argparse.Namespace) -> int:
    root = os.path.join(args.logdir, TRASH)
    rows: list[dict[str, Any]] = [
        {
            "trash": os.path.relpath(path, root),
            "name": name,
            "trashed": _label(path).get("trashed"),
            "bytes": _size(path),
        }
        for path, name in _trashed(args.logdir)
    ]
    if args.json:
        output.print_json(rows)
        return 0
    cells = [[r["trash"], r["trashed"] or "-", output.size(r["bytes"])] for r in rows]
    output.table(["in the trash", "since", "size"], cells, right=(2,))
    return 0


def _size(path: str) -> int:
    return sum(
        os.lstat(os.path.join(directory, file)).st_size
        for directory, _, files in os.walk(path)
        for file in files
    )
