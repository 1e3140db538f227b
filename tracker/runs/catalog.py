"""The runs of a logdir as commands see them: record, notes, flags and metrics in one place.

>>> with Catalog('logdir') as catalog:
...     for run in catalog.select(where="best.accuracy > 0.95", sort='-best.accuracy'):
...         print(run.name, run.status, run.metric('accuracy').last)
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tracker.runs import where as where_lib
from tracker.runs.index import Index
from tracker.runs.run import FIELDS, Run
from tracker.runs.scan import scan

if TYPE_CHECKING:
    from tracker.runs.bulk import Column


class NoRunError(ValueError):
    """There is no such run, or more than one."""


class Catalog:
    """All runs of a logdir, with the index brought up to date.

    Args:
      logdir: the directory of all runs.

    Attributes:
      logdir: as given.
      runs: by name.
      warnings: what went wrong but did not stop the catalog, each in one sentence.
    """

    def __init__(self, logdir: str):
        self.logdir = logdir
        self.scan = scan(logdir)
        self.index = Index(logdir)
        files = [file for found in self.scan.runs for file in found.files]
        self._reading = self.index.reading(files, self.scan.began)
        self._reading.__enter__()
        self.runs = [Run(found, self) for found in self.scan.runs]
        self.warnings = [self.index.problem] if self.index.problem else []
        self.warnings += [f"The directory {p} cannot be looked into" for p in self.scan.unreadable]

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *error: object) -> None:
        self._reading.__exit__(None, None, None)
        self.index.__exit__()

    @functools.cached_property
    def _series(self) -> dict[int, list[Any]]:
        return self.index.series()

    def series(self, file: int) -> list[Any]:
        """The tags of a file, by the id of its entry in the index."""
        return self._series.get(file, [])

    @functools.cached_property
    def last_steps(self) -> dict[int, int]:
        """The last step of each file."""
        return self.index.steps()

    def points(self, series: Iterable[int]) -> Column:
        """The points of series that follow each other."""
        from tracker.runs import tally

        blobs = [blob for one in series for blob in self.index.chunks(one)]
        return tally.effective(tally.columns(blobs))

    def find(self, name: str) -> Run:
        """One run by its name, a prefix of one name only, or 'latest'.

        Raises:
          NoRunError: with one sentence.
        """
        if not self.runs:
            raise NoRunError(f"There is no run in {self.logdir}")
        exact = [run for run in self.runs if run.name == name]
        if exact:
            return exact[0]
        if name == "latest":
            return max(self.runs, key=lambda run: run.created or 0)
        found = [run for run in self.runs if name and run.name.startswith(name)]
        if len(found) == 1:
            return found[0]
        names = [run.name for run in found or self.runs]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        shown = ", ".join(names[:8]) + more
        if found:
            raise NoRunError(f"{name!r} begins the names of several runs: {shown}")
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {shown}"
        raise NoRunError(f"There is no run {name!r} in {self.logdir}; {hint}")

    def select(
        self,
        names: Sequence[str] = (),
        where: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> list[Run]:
        """Some of the runs.

        Args:
          names: names or prefixes; all runs if there are none.
          where: a filter; see `where`.
          sort: a field, with `-` in front for the greatest first; runs without it come last.
          limit: how many at most.

        Raises:
          ValueError: with one sentence, for a name, a filter or a field that does not exist.
        """
        chosen = list(dict.fromkeys(self.find(name) for name in names)) if names else self.runs
        if where:
            condition = where_lib.parse(where)
            self.check_fields(condition.fields, chosen)
            chosen = [run for run in chosen if condition.matches(run.value)]
        if sort:
            self.check_fields([sort.lstrip("-")], chosen)
            chosen = _sorted(chosen, sort)
        return chosen[:limit]

    def check_fields(self, fields: Iterable[str], runs: Sequence[Run]) -> None:
        """Refuses a field that no run has."""
        for field in fields:
            if field in FIELDS or any(run.value(field) is not None for run in runs) or not runs:
                continue
            known = sorted(set(self._fields()))
            if field in known:
                continue
            close = difflib.get_close_matches(field, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise where_lib.WhereError(f"No run has the field {field!r}{hint}")

    def _fields(self) -> Iterator[str]:
        yield from FIELDS
        for run in self.runs:
            yield from run.flags
            yield from (f"flags.{flag}" for flag in run.flags)
            for metric in run.metrics.values():
                for name in (metric.name, metric.tag):
                    yield from (f"best.{name}", f"last.{name}")


def _sorted(runs: Sequence[Run], sort: str) -> list[Run]:
    field, down = sort.lstrip("-"), sort.startswith("-")
    having = [(run, run.value(field)) for run in runs]
    there = [(run, value) for run, value in having if value is not None]
    key = functools.cmp_to_key(_order)
    there.sort(key=lambda pair: key(pair[1]), reverse=down)
    return [run for run, _ in there] + [run for run, value in having if value is None]


def _order(a: Any, b: Any) -> int:
    x, y = where_lib.compare(a, b) or (0, 0)
    return (x > y) - (x < y)
