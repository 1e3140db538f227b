"""The commands `list`, `show` and `best`.

>>> python -m tracker.runs list --logdir=logdir --where "status = 'completed'" --limit=20
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Sequence
from typing import Any

from tracker.runs import output
from tracker.runs.catalog import Catalog
from tracker.runs.metrics import Metric, lower_is_better
from tracker.runs.run import FIELDS, Run
from tracker.runs.where import text_of

_COMMON = ("accuracy", "loss")


def list_command(args: argparse.Namespace) -> int:
    """Lists runs."""
    with Catalog(args.logdir) as catalog:
        warn(catalog)
        runs = catalog.select(args.runs, args.where, args.sort, args.limit)
        if args.fields:
            return _print_fields(runs, args.json)
        names = _names(args.metrics) or usual(runs)
        if args.metrics and runs:
            check_metrics(names, runs)
        if args.json:
            output.print_json([summary(run, names) for run in runs])
            return 0
        titles = ["run", "status", "step", "age"]
        titles += [f"{kind}{name}" for name in names for kind in ("", "best ")] + ["tags"]
        rows = [_row(run, names) for run in runs]
        output.table(titles, rows, right=range(2, 4 + 2 * len(names)))
        print(f"{len(runs)} of {output.count(len(catalog.runs), 'run')}")
    return 0


def warn(catalog: Catalog) -> None:
    """Says on stderr what went wrong while the runs were looked for."""
    for warning in catalog.warnings:
        print(f"Warning: {output.safe(warning)}.", file=sys.stderr)


def check_metrics(names: Sequence[str], runs: Sequence[Run]) -> None:
    """Refuses the name of a metric that none of the runs has."""
    for name in names:
        if not any(run.metric(name) for run in runs):
            known = sorted({metric.name for run in runs for metric in run.metrics.values()})
            shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
            raise ValueError(f"No run has the metric {name!r}; there are {shown or 'none'}")


def summary(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """What `list --json` says of a run."""
    metrics = {name: run.metric(name) for name in names}
    return {
        "name": run.name,
        "status": run.status,
        "step": run.step,
        "created": run.value("created"),
        "age": run.age,
        "tags": run.tags,
        "note": run.note,
        "problem": run.problem or None,
        "metrics": {name: _figures(name, metric) for name, metric in metrics.items() if metric},
    }


def _figures(name: str, metric: Metric) -> dict[str, Any]:
    lower = lower_is_better(name)
    return {
        "metric": metric.name,
        "points": metric.points,
        "last": metric.last,
        "last_step": metric.last_step,
        "best": metric.best(lower),
        "best_step": metric.best_step(lower),
    }


def _row(run: Run, names: Sequence[str]) -> list[str]:
    cells = [run.name, run.status, output.number(run.step), output.age(run.age)]
    for name in names:
        metric = run.metric(name)
        cells += [
            output.number(metric.last if metric else None),
            output.number(metric.best(lower_is_better(name)) if metric else None),
        ]
    return [*cells, " ".join(run.tags)]


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def usual(runs: Sequence[Run]) -> list[str]:
    """The metrics shown when none are asked for: accuracy and loss, else what most runs have."""
    usual = [name for name in _COMMON if any(run.metric(name) for run in runs)]
    if usual:
        return usual
    counts = collections.Counter(metric for run in runs for metric in run.metrics)
    return [name for name, _ in sorted(counts.items(), key=lambda c: (-c[1], c[0]))[:2]]


def _print_fields(runs: Sequence[Run], as_json: bool) -> int:
    flags = sorted({flag for run in runs for flag in run.flags})
    metrics = sorted({metric.name for run in runs for metric in run.metrics.values()})
    if as_json:
        output.print_json({"fields": FIELDS, "flags": flags, "metrics": metrics})
        return 0
    for title, names in (("fields", FIELDS), ("flags", flags), ("last. and best.", metrics)):
        print(f"{title}: {output.safe(', '.join(names))}")
    return 0


def show_command(args: argparse.Namespace) -> int:
    """Shows one run."""
    with Catalog(args.logdir) as catalog:
        warn(catalog)
        run = catalog.find(args.run)
        if args.json:
            output.print_json(_everything(run))
            return 0
        for title, value in _facts(run).items():
            if value not in (None, "", []):
                print(f"{title + ':':12}{output.safe(text_of(value))}")
        _print_flags(run, args.all)
        print()
        output.table(
            ["metric", "points", "last", "best", "at step", ""],
            [_metric_row(run, metric) for metric in run.metrics.values()],
            right=range(1, 5),
        )
        others = [m for m in run.everything.values() if m.kind != "scalars"]
        if others:
            print(f"\nalso: {output.safe(', '.join(f'{m.name} ({m.kind})' for m in others))}")
    return 0


def _facts(run: Run) -> dict[str, Any]:
    record = run.record
    argv, git = record.get("argv"), record.get("git")
    return {
        "run": run.name,
        "status": run.status,
        "reason": record.get("reason"),
        "problem": run.problem,
        "created": run.value("created"),
        "step": run.step,
        "attempts": run.value("attempts"),
        "note": run.note,
        "tags": run.tags,
        "host": record.get("host"),
        "commit": run.value("commit"),
        "changes": git.get("diff") if isinstance(git, dict) else None,
        "command": " ".join(map(str, argv)) if isinstance(argv, list) else argv,
        "directory": run.path,
        "corrupt": sum(entry.corrupt + entry.dead for entry in run.entries) or None,
    }


def _everything(run: Run) -> dict[str, Any]:
    metrics = [
        {**vars(m), "last": m.last, "best": m.best(lower_is_better(m.tag))}
        for m in run.everything.values()
    ]
    for metric in metrics:
        metric.pop("series")
    return {
        **{key: value for key, value in _facts(run).items() if key not in ("run", "command")},
        "name": run.name,
        "flags": run.flags,
        "record": run.record,
        "metrics": metrics,
        "files": [file.path for file in run.files],
    }


def _print_flags(run: Run, everything: bool) -> None:
    shown = run.flags if everything else _chosen(run.flags)
    if shown:
        print("flags:      " + output.safe(" ".join(f"{k}={text_of(v)}" for k, v in shown.items())))


def _chosen(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags that say something: neither empty nor unset."""
    return {name: value for name, value in flags.items() if value not in (None, "", [])}


def _metric_row(run: Run, metric: Metric) -> list[str]:
    lower = lower_is_better(metric.tag)
    return [
        metric.name,
        str(metric.points),
        output.number(metric.last),
        output.number(metric.best(lower)),
        output.number(metric.best_step(lower)),
        output.sparkline(run.points(metric).values.tolist()),
    ]


def best_command(args: argparse.Namespace) -> int:
    """Names the best runs by a metric."""
    lower = args.mode == "min" if args.mode else lower_is_better(args.metric)
    with Catalog(args.logdir) as catalog:
        warn(catalog)
        runs = catalog.select(args.runs, args.where)
        check_metrics([args.metric], runs)
        having = [(run, metric) for run in runs if (metric := run.metric(args.metric))]
        bests = [(run, m, m.best(lower)) for run, m in having]
        found = [(run, m, value) for run, m, value in bests if value is not None]
        found.sort(key=lambda one: one[2], reverse=not lower)
        if args.sort:
            raise ValueError("--sort does not go with best, which sorts by --metric")
        found = found[: 10 if args.limit is None else args.limit]
        if args.json:
            rows = [{**summary(run, [args.metric]), "best": value} for run, _, value in found]
            output.print_json(rows)
            return 0
        cells = [
            [run.name, run.status, output.number(value), output.number(m.best_step(lower)), m.name]
            for run, m, value in found
        ]
        output.table(["run", "status", "best", "at step", "metric"], cells, right=(2, 3))
    return 0
