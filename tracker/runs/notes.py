"""The commands `note` and `tag`: what people say about a run, kept beside it in notes.json.

Not in run.json, which belongs to the process that trains, and which runs of others do not have.

>>> python -m tracker.runs note RUN "the one with the bug" --logdir=logdir
>>> python -m tracker.runs tag RUN paper --remove=draft --logdir=logdir
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from tracker.runs import output
from tracker.runs.catalog import Catalog
from tracker.runs.run import NOTES, Run


def note_command(args: argparse.Namespace) -> int:
    """Shows or sets the note of a run."""
    with Catalog(args.logdir) as catalog:
        run = catalog.find(args.run)
    note = run.note
    if args.text is not None:
        note = args.text or None
        _change(run, note=note)
    if args.json:
        output.print_json({"name": run.name, "note": note})
    elif args.text is None:
        print(output.safe(note or ""))
    return 0


def tag_command(args: argparse.Namespace) -> int:
    """Shows, adds or removes the tags of a run."""
    for tag in args.tags:
        if not tag.strip() or "," in tag or not tag.isprintable():
            raise ValueError(f"A tag is a printable word without commas, not {tag!r}")
    with Catalog(args.logdir) as catalog:
        run = catalog.find(args.run)
    tags = run.tags
    if args.tags or args.remove:
        tags = _change(run, add=args.tags, remove=args.remove)["tags"]
    if args.json:
        output.print_json({"name": run.name, "tags": tags})
    else:
        print(output.safe(" ".join(tags)))
    return 0


def _change(run: Run, add: Any = (), remove: Any = (), **fields: Any) -> dict[str, Any]:
    """Changes notes.json; of two commands at once none undoes the other."""
    with _locked(run.path):
        run.__dict__.pop("notes", None)  # as it is now
        kept = [tag for tag in run.tags if tag not in remove]
        notes = {**run.notes, "tags": list(dict.fromkeys([*kept, *add])), **fields}
        _write(os.path.join(run.path, NOTES), json.dumps(notes, indent=2) + "\n")
    return notes


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    handle = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(path: str, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".notes-")
    try:
        with os.fdopen(handle, "w") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
