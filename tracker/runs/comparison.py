"""The command `diff`: what two runs have not in common.

>>> python -m tracker.runs diff RUN latest --logdir=logdir
"""

from __future__ import annotations

import argparse
import difflib
import os
from typing import Any

from tracker.runs import output
from tracker.runs.catalog import Catalog
from tracker.runs.listing import warn
from tracker.runs.metrics import lower_is_better
from tracker.runs.run import Run
from tracker.runs.where import text_of

_PATCH_BYTES = 10**6  # of each patch that is compared
_PATCH_LINES = 200  # shown


def diff_command(args: argparse.Namespace) -> int:
    """Shows how two runs differ."""
    with Catalog(args.logdir) as catalog:
        warn(catalog)
        a, b = catalog.find(args.a), catalog.find(args.b)
        if args.json:
            output.print_json(_difference(a, b))
            return 0
        _print(a, b)
    return 0


def _difference(a: Run, b: Run) -> dict[str, Any]:
    return {
        "a": a.name,
        "b": b.name,
        "status": [a.status, b.status],
        "flags": _unequal(a.flags, b.flags),
        "packages": _unequal(_packages(a), _packages(b)),
        "git": _unequal(_git(a), _git(b)),
        "patch": _patch(a, b),
        "metrics": {
            name: {side: _ends(run, name) for side, run in (("a", a), ("b", b))}
            for name in _metrics(a, b)
        },
    }


def _unequal(a: dict[str, Any], b: dict[str, Any]) -> dict[str, list[Any]]:
    """What has another value, or is on one side only: {key: [of a, of b]}."""
    keys = dict.fromkeys([*a, *b])
    return {key: [a.get(key), b.get(key)] for key in keys if a.get(key) != b.get(key)}


def _packages(run: Run) -> dict[str, Any]:
    packages = run.record.get("packages")
    found = dict(packages) if isinstance(packages, dict) else {}
    return {**found, **{key: run.record.get(key) for key in ("python", "platform", "host")}}


def _git(run: Run) -> dict[str, Any]:
    git = run.record.get("git")
    return {k: v for k, v in git.items() if k != "diff"} if isinstance(git, dict) else {}


def _metrics(a: Run, b: Run) -> list[str]:
    return list(dict.fromkeys([*a.metrics, *b.metrics]))


def _ends(run: Run, name: str) -> dict[str, Any] | None:
    metric = run.metrics.get(name)
    if metric is None:
        return None
    lower = lower_is_better(name)
    return {
        "last": metric.last,
        "last_step": metric.last_step,
        "best": metric.best(lower),
        "best_step": metric.best_step(lower),
    }


def _patch(a: Run, b: Run) -> list[str]:
    """How the uncommitted changes differ, as a diff of the two diffs."""
    of_a, of_b = _source(a), _source(b)
    if of_a == of_b:
        return []
    names = f"{a.name}/source.diff", f"{b.name}/source.diff"
    return list(difflib.unified_diff(of_a, of_b, *names, lineterm="", n=1))


def _source(run: Run) -> list[str]:
    path = os.path.join(run.path, "source.diff")
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        return file.read(_PATCH_BYTES).decode("utf-8", "replace").splitlines()


def _print(a: Run, b: Run) -> None:
    found = _difference(a, b)
    titles = ["", a.name, b.name]
    for title in ("flags", "packages", "git"):
        rows = [[key, *map(_cell, pair)] for key, pair in found[title].items()]
        if rows:
            print(f"{title} that differ")
            output.table(titles, rows)
            print()
        else:
            print(f"{title}: the same\n")
    for line in found["patch"][:_PATCH_LINES]:
        print(output.safe(line))
    if len(found["patch"]) > _PATCH_LINES:
        print(f"... and {len(found['patch']) - _PATCH_LINES} more lines; all are in --json")
    rows = [[name, *_side(a, name), *_side(b, name)] for name in found["metrics"]]
    output.table(["metric, last value", a.name, "", b.name, ""], rows, right=(1, 3))


def _cell(value: Any) -> str:
    return "-" if value is None else text_of(value)


def _side(run: Run, name: str) -> list[str]:
    metric = run.metrics.get(name)
    if metric is None:
        return ["-", ""]
    return [output.number(metric.last), output.sparkline(run.points(metric).values.tolist())]
