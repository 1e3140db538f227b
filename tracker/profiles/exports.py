"""The command `export`: a capture as a Chrome trace, which Perfetto opens, or as a table.

>>> python -m tracker.profiles export latest --logdir=logdir --output=trace.json.gz
>>> python -m tracker.profiles export latest --logdir=logdir --output=ops.parquet
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Sequence
from typing import Any

from tracker import captures, xprof_pages
from tracker.profiles import catalog
from tracker.profiles.report import top
from tracker.runs import output
from tracker.runs.exports import replaced

TITLES = ("name", "count", "total_us", "mean_us", "percent", "scope", "op")
_ENDINGS = {".json.gz": "trace", ".csv": "ops", ".parquet": "ops"}


def export_command(args: argparse.Namespace) -> int:
    """Writes a file, whole or not at all."""
    ending = next((end for end in _ENDINGS if args.output.endswith(end)), None)
    if ending is None or args.what not in (None, _ENDINGS[ending]):
        wanted = [end for end, what in _ENDINGS.items() if args.what in (None, what)]
        raise ValueError(
            f"--output={args.output}: should end in {' or '.join(wanted)}"
            + (f" for --what={args.what}" if args.what else "")
        )
    entry = catalog.find(args.logdir, args.run)
    with replaced(args.output) as temporary:
        if ending == ".json.gz":
            count = _trace(entry, temporary)
        else:
            rows = table(captures.numbers(entry.capture))
            count = len(rows)
            (_csv if ending == ".csv" else _parquet)(rows, temporary)
    what = "event" if ending == ".json.gz" else "row"
    if args.json:
        output.print_json({"capture": entry.name, f"{what}s": count, "output": args.output})
    else:
        shown = f"{output.count(count, what)} of {entry.name} in {args.output}"
        print(output.safe(shown) + (" (open it at ui.perfetto.dev)" if what == "event" else ""))
    return 0


def table(numbers: captures.Numbers) -> list[Sequence[Any]]:
    """One row for each op or kernel, as in `TITLES`, most time first."""
    found = top(numbers, len(numbers.ops))
    total = sum(op.total_us for _, op in found)
    return [
        (
            name,
            op.count,
            op.total_us,
            op.total_us / op.count,
            100 * op.total_us / total if total else 0.0,
            op.scope,
            op.op,
        )
        for name, op in found
    ]


def _trace(entry: catalog.Entry, path: str) -> int:
    """Writes XProf's own trace, all hosts in one; the number of its events."""
    spaces = captures.read(entry.capture.path)
    trace = xprof_pages.page("trace_viewer", spaces, entry.capture.path)
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event]  # the last is empty
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(trace, file)
    return sum(event["ph"] == "X" for event in trace["traceEvents"])


def _csv(rows: Sequence[Sequence[Any]], path: str) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([TITLES, *rows])


def _parquet(rows: Sequence[Sequence[Any]], path: str) -> None:
    from tracker.runs import sql

    with sql.connection() as database:
        sql.load(database, "ops", TITLES, rows)
        target = path.replace("'", "''")
        database.execute(f"COPY ops TO '{target}' (FORMAT parquet)")
