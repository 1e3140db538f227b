"""The command `export`: every point that was written, or one row a run, to a file.

>>> python -m tracker.runs export --logdir=logdir --output=scalars.parquet
>>> python -m tracker.runs export --what=runs --where "status = 'completed'" --logdir=logdir
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from tracker.runs import output
from tracker.runs.catalog import Catalog
from tracker.runs.listing import check_metrics, warn
from tracker.runs.metrics import Metric, lower_is_better
from tracker.runs.run import FIELDS, Run
from tracker.runs.where import text_of

SCALARS = ("run", "split", "tag", "step", "wall_time", "value")
_FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}

Rows = Iterable[Sequence[Any]]


def export_command(args: argparse.Namespace) -> int:
    """Writes scalars or runs."""
    form = args.format or _FORMATS.get(os.path.splitext(args.output or "")[1], "csv")
    if form == "parquet" and not args.output:
        raise ValueError("Parquet goes to a file; name it with --output")
    if args.json and not args.output:
        raise ValueError("--json reports on a file; name it with --output, or use --format=jsonl")
    with Catalog(args.logdir) as catalog:
        warn(catalog)
        runs = catalog.select(args.runs, args.where, args.sort, args.limit)
        names = [name.strip() for name in (args.metrics or "").split(",") if name.strip()]
        check_metrics(names, runs)
        if form == "parquet":
            count = _parquet(args.what, runs, names, args.output)
        else:
            scalars = args.what == "scalars"
            table = (SCALARS, _scalars(runs, names)) if scalars else _runs_table(runs, names)
            count = _write(*table, form, args.output)
    if args.json:
        output.print_json({"rows": count, "runs": len(runs), "output": args.output})
    elif args.output:
        what = f"{output.count(count, 'row')} of {output.count(len(runs), 'run')}"
        print(f"{what} in {output.safe(args.output)}")
    return 0


def _chosen(runs: Iterable[Run], names: Sequence[str]) -> Iterator[tuple[Run, Metric]]:
    """The metrics to export: those named, or all."""
    for run in runs:
        metrics = [run.metric(name) for name in names] if names else run.metrics.values()
        yield from ((run, metric) for metric in metrics if metric is not None)


def _scalars(runs: Iterable[Run], names: Sequence[str]) -> Rows:
    for run, metric in _chosen(runs, names):
        steps, walls, values = (part.tolist() for part in run.points(metric))
        for step, wall, value in zip(steps, walls, values, strict=True):
            yield run.name, metric.split, metric.tag, step, wall, value


def _runs_table(runs: Sequence[Run], names: Sequence[str]) -> tuple[Sequence[str], Rows]:
    """One row a run: its fields, flags, and of each metric the last and the best value."""
    flags = list(dict.fromkeys(flag for run in runs for flag in run.flags))
    metrics = names or list(dict.fromkeys(name for run in runs for name in run.metrics))
    titles = [*FIELDS, *(f"flags.{flag}" for flag in flags)]
    titles += [f"{kind}.{name}" for name in metrics for kind in ("last", "best")]
    return titles, (_row(run, flags, metrics) for run in runs)


def _row(run: Run, flags: Sequence[str], metrics: Sequence[str]) -> list[Any]:
    row = [run.value(field) for field in FIELDS]
    row += [_flag(run.flags.get(flag)) for flag in flags]
    for name in metrics:
        metric = run.metric(name)
        best = metric.best(lower_is_better(name)) if metric else None
        row += [metric.last if metric else None, best]
    return row


def _flag(value: Any) -> Any:
    return text_of(value) if isinstance(value, (list, tuple, dict)) else value


def _write(titles: Sequence[str], rows: Rows, form: str, path: str | None) -> int:
    writer = {"csv": _csv, "jsonl": _jsonl}[form]
    if path is None:
        return writer(titles, rows, sys.stdout)
    with (
        replaced(path) as temporary,
        open(temporary, "w", encoding="utf-8", newline="", errors="backslashreplace") as file,
    ):
        return writer(titles, rows, file)


@contextlib.contextmanager
def replaced(path: str) -> Iterator[str]:
    """A file beside `path` that takes its place if all went well."""
    if os.path.isdir(path):
        raise ValueError(f"--output={path} is a directory; name a file in it")
    directory = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=".export-")
    os.close(handle)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _csv(titles: Sequence[str], rows: Rows, file: IO[str]) -> int:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(titles)
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        writer.writerow(row)
    return count


def _jsonl(titles: Sequence[str], rows: Rows, file: IO[str]) -> int:
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        file.write(json.dumps(output.plain(dict(zip(titles, row, strict=True)))) + "\n")
    return count


def _parquet(what: str, runs: Sequence[Run], names: Sequence[str], path: str) -> int:
    from tracker.runs import sql

    with replaced(path) as temporary, sql.connection() as database:
        if what == "scalars":
            count = sql.fill_scalars(database, list(_chosen(runs, names)))
            query = (
                "SELECT run, split, tag, step, wall_time, value FROM points "
                "JOIN series ON points.series = series.id ORDER BY series.id, step"
            )
        else:
            count, query = sql.load(database, "exported", *_runs_table(runs, names)), "exported"
        target = temporary.replace("'", "''")
        source = query if query == "exported" else f"({query})"
        database.execute(f"COPY {source} TO '{target}' (FORMAT parquet)")
    return count
