"""Metrics of a run: the scalar tags of its event files, joined over the files of a directory.

>>> metric = resolve(run.metrics, 'accuracy')
>>> metric.name, metric.last, metric.best(lower=False)
('validation/accuracy', 0.97, 0.98)
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tracker.runs.scan import SPLITS

if TYPE_CHECKING:
    from tracker.runs.bulk import Column
    from tracker.runs.index import Series

_LOWER = {"loss", "error", "mae", "mse", "rmse", "mape", "perplexity", "nll", "regret"}


@dataclasses.dataclass
class Metric:
    """One tag of a run.

    Attributes:
      name: `<split>/<tag>`, or the tag alone where there is no split.
      split, tag, kind: its directory, its tag, and its plugin ('scalars' for metrics).
      points: how many values it has.
      first_step, last_step: of its first and last.
      last: the last value; NaN is possible.
      low, low_step, high, high_step: the least and the greatest finite value and their steps.
      series: keys of its points in the index, in order of its files.
    """

    name: str
    split: str
    tag: str
    kind: str
    points: int
    first_step: int
    last_step: int
    last: float | None
    low: float | None
    low_step: int | None
    high: float | None
    high_step: int | None
    series: list[int]
    ordered: bool

    def best(self, lower: bool) -> float | None:
        """The least or the greatest finite value."""
        return self.low if lower else self.high

    def best_step(self, lower: bool) -> int | None:
        """The step of that."""
        return self.low_step if lower else self.high_step


def lower_is_better(name: str) -> bool:
    """Whether the best value of a metric of this name is the least: losses and errors."""
    words = re.split(r"[^a-z]+", name.lower().rpartition("/")[2])
    return any(word in _LOWER or word.endswith(("loss", "error")) for word in words)


def resolve(metrics: Mapping[str, Metric], name: str) -> Metric | None:
    """A metric by what people call it.

    Args:
      metrics: by their names.
      name: the whole name, or a tag: of several splits validation comes first, then training. The
        `epoch_` that Keras puts in front may be left out.
    """
    for tag in (name, f"epoch_{name}"):
        for split in ("", *reversed(SPLITS)):
            found = metrics.get(f"{split}/{tag}" if split else tag)
            if found is not None:
                return found
    return next((metric for metric in metrics.values() if metric.tag == name), None)


def merged(
    files: Iterable[tuple[str, list[Series]]], points: Callable[[list[int]], Column]
) -> dict[str, Metric]:
    """The metrics of a run.

    Args:
      files: of each event file, in order, its split and what the index knows of its tags.
      points: gives the points of series that follow each other, for tags whose steps go back.
    """
    metrics: dict[str, Metric] = {}
    for split, series in files:
        for one in series:
            name = f"{split}/{one.tag}" if split else one.tag
            known = metrics.get(name)
            if known is None:
                metrics[name] = _metric(name, split, one)
            elif known.kind == one.kind:
                _join(known, one)
    for metric in metrics.values():
        if not metric.ordered and metric.kind == "scalars":
            _recount(metric, points(metric.series))
    return metrics


def _metric(name: str, split: str, one: Series) -> Metric:
    last = float("nan") if one.last_value is None and one.kind == "scalars" else one.last_value
    return Metric(
        *(name, split, one.tag, one.kind, one.points, one.first_step, one.last_step, last),
        *(one.low, one.low_step, one.high, one.high_step, [one.id], bool(one.ordered)),
    )


def _join(metric: Metric, one: Series) -> None:
    """Adds what a later file has of the same tag."""
    later = _metric(metric.name, metric.split, one)
    metric.ordered = metric.ordered and later.ordered and later.first_step > metric.last_step
    metric.points += later.points
    metric.last_step = max(later.last_step, metric.last_step)
    metric.last = later.last
    metric.series += later.series
    if later.low is not None and (metric.low is None or later.low < metric.low):
        metric.low, metric.low_step = later.low, later.low_step
    if later.high is not None and (metric.high is None or later.high > metric.high):
        metric.high, metric.high_step = later.high, later.high_step


def _recount(metric: Metric, column: Column) -> None:
    """The figures of a tag whose steps go back, from the points that count."""
    from tracker.runs import tally

    _, points, first, last, _, value, *bounds, _ = tally.figures(column)
    metric.points, metric.first_step, metric.last_step = points, first, last
    metric.last = float("nan") if value is None else value
    metric.low, metric.low_step, metric.high, metric.high_step = bounds
