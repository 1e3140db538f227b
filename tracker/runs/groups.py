"""The command `group`: mean and standard deviation over runs that share flags, such as all seeds.

What it finds is shown and written as a directory of runs, one a group, with a margin chart that
plain TensorBoard shows in its Custom Scalars tab.

>>> python -m tracker.runs group --by=stddevs --metric=validation/accuracy --logdir=logdir
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2, types_pb2
from tensorboard.plugins.custom_scalar import layout_pb2

from tracker import events, rundir
from tracker.runs import output
from tracker.runs.catalog import Catalog
from tracker.runs.listing import check_metrics, usual, warn
from tracker.runs.run import Run
from tracker.runs.scan import GROUP
from tracker.runs.where import text_of

_LAYOUT_TAG = "custom_scalars__config__"


class Group(NamedTuple):
    """Runs that share the values of some flags.

    Attributes:
      values: of the flags, in the order of `--by`, as text.
      runs: their names.
      steps: at which any of them has a finite value, rising.
      mean, stddev, counts: at each step, over the runs with a finite value there; stddev is of the
        sample (n - 1), 0 for a single run.
    """

    values: tuple[str, ...]
    runs: tuple[str, ...]
    steps: np.ndarray
    mean: np.ndarray
    stddev: np.ndarray
    counts: np.ndarray


def group_command(args: argparse.Namespace) -> int:
    """Groups runs and shows mean and standard deviation of a metric."""
    by = [name.strip() for name in args.by.split(",") if name.strip()]
    with Catalog(args.logdir) as catalog:
        warn(catalog)
        runs = catalog.select(args.runs, args.where, args.sort, args.limit)
        catalog.check_fields(by, runs)
        metric = args.metric or next(iter(usual(runs)), "")
        check_metrics([metric], runs)
        found = groups(runs, by, metric)
    name = f"group_{'_'.join(by)}" if args.write is None else args.write
    if name:
        write(os.path.join(args.logdir, name), name, by, metric, found)
    if args.json:
        shown = [
            {
                "by": dict(zip(by, one.values, strict=True)),
                "runs": one.runs,
                **{k: getattr(one, k).tolist() for k in ("steps", "mean", "stddev", "counts")},
            }
            for one in found
        ]
        output.print_json({"metric": metric, "written": name or None, "groups": shown})
        return 0
    titles = [*by, "runs", "step", f"mean of {metric}", "stddev", "count", ""]
    output.table(titles, [_row(one) for one in found], right=range(len(by), len(by) + 5))
    if name:
        print(f"Written as {output.safe(name)}, for the Custom Scalars tab")
    return 0


def groups(runs: Sequence[Run], by: Sequence[str], metric: str) -> list[Group]:
    """Groups the runs that have a metric by the values of some fields."""
    members: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        found = run.metric(metric)
        if found is not None and found.low is not None:
            values = (run.value(field) for field in by)
            key = tuple("-" if value is None else text_of(value) for value in values)
            members.setdefault(key, []).append(run)
    return [_group(key, chosen, metric) for key, chosen in sorted(members.items())]


def _group(key: tuple[str, ...], runs: Sequence[Run], metric: str) -> Group:
    steps, values = [], []
    for run in runs:
        found = run.metric(metric)
        assert found is not None
        column = run.points(found)
        finite = np.isfinite(column.values)
        steps.append(column.steps[finite])
        values.append(column.values[finite])
    axis, place = np.unique(np.concatenate(steps), return_inverse=True)
    flat = np.concatenate(values)
    count = np.bincount(place)
    mean = np.bincount(place, flat) / count
    squares = np.bincount(place, (flat - mean[place]) ** 2)
    stddev = np.sqrt(squares / np.maximum(count - 1, 1))
    return Group(key, tuple(run.name for run in runs), axis, mean, stddev, count)


def _row(one: Group) -> list[str]:
    last = [output.number(float(column[-1])) for column in (one.mean, one.stddev)]
    course = output.sparkline(one.mean.tolist())
    return [*one.values, str(len(one.runs)), str(one.steps[-1]), *last, str(one.counts[-1]), course]


def write(path: str, name: str, by: Sequence[str], metric: str, found: Sequence[Group]) -> None:
    """Writes groups as runs of margin charts; replaces what an earlier call wrote there."""
    rundir.check_name(name)
    if os.path.lexists(path) and not os.path.exists(os.path.join(path, GROUP)):
        raise ValueError(f"There is already {path}, which is no group; choose another with --write")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = tempfile.mkdtemp(dir=os.path.dirname(path), prefix=".group-")
    try:
        with open(os.path.join(temporary, GROUP), "w") as file:
            json.dump({"by": by, "metric": metric}, file)
        for n, one in enumerate(found):
            directory = os.path.join(temporary, _label(by, one))
            os.makedirs(directory)
            target = os.path.join(directory, events.file_name(time.time(), "group", os.getpid(), n))
            events.write(target, [*events.start_records(0), *_events(metric, by, one)])
        os.chmod(temporary, 0o755)
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _label(by: Sequence[str], one: Group) -> str:
    """The directory of a group: what it has in common, without signs that break paths."""
    text = ",".join(f"{field}={value}" for field, value in zip(by, one.values, strict=True))
    return "".join(c if c.isprintable() and c not in '/\\:?*<>|"' else "_" for c in text)[:200]


def _events(metric: str, by: Sequence[str], one: Group) -> list[event_pb2.Event]:
    bounds = {
        "mean": one.mean,
        "lower": one.mean - one.stddev,
        "upper": one.mean + one.stddev,
        "stddev": one.stddev,
        "count": one.counts,
    }
    now, written = time.time(), [_layout(metric, by)]
    for i, step in enumerate(one.steps.tolist()):
        summary = summary_pb2.Summary()
        for part, column in bounds.items():
            value = summary.value.add(tag=f"{metric}/{part}")
            value.tensor.dtype = types_pb2.DT_FLOAT
            value.tensor.float_val.append(float(column[i]))
            if i == 0:
                value.metadata.plugin_data.plugin_name = "scalars"
                value.metadata.data_class = summary_pb2.DATA_CLASS_SCALAR
                value.metadata.summary_description = f"{part} of {metric} over the runs"
        written.append(event_pb2.Event(wall_time=now, step=step, summary=summary))
    return written


def _layout(metric: str, by: Sequence[str]) -> event_pb2.Event:
    names = {part: f"{metric}/{part}" for part in ("lower", "upper")}
    series = layout_pb2.MarginChartContent.Series(value=f"{metric}/mean", **names)
    chart = layout_pb2.Chart(
        title=f"{metric} by {', '.join(by)}: mean and one standard deviation",
        margin=layout_pb2.MarginChartContent(series=[series]),
    )
    layout = layout_pb2.Layout(category=[layout_pb2.Category(title="Groups", chart=[chart])])
    summary = summary_pb2.Summary()
    value = summary.value.add(tag=_LAYOUT_TAG)
    value.tensor.dtype = types_pb2.DT_STRING
    value.tensor.string_val.append(layout.SerializeToString())
    value.metadata.plugin_data.plugin_name = "custom_scalars"
    value.metadata.data_class = summary_pb2.DATA_CLASS_TENSOR
    return event_pb2.Event(wall_time=time.time(), step=0, summary=summary)
