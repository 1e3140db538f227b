"""One run as commands see it: its record, notes, flags and metrics.

>>> run.status, run.flags['learning_rate'], run.metric('accuracy').last, run.value('best.loss')
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import time
from typing import TYPE_CHECKING, Any

from etils import epath

from tracker import record as record_lib
from tracker.rundir import RunDir
from tracker.runs.metrics import Metric, lower_is_better, merged, resolve
from tracker.runs.scan import Found

if TYPE_CHECKING:
    from tracker.runs.bulk import Column
    from tracker.runs.catalog import Catalog

NOTES = "notes.json"
FIELDS = (
    *("name", "status", "step", "created", "age", "tags", "note", "attempts", "host"),
    *("commit", "branch", "dirty", "reason", "parameters"),
)


class Run:
    """One run.

    Args:
      found: it on disk.
      catalog: gives what the index knows of it.

    Attributes:
      name, path, ours, files: as in `scan.Found`.
      record: the content of run.json; empty for runs of others.
      problem: why run.json cannot be read, in one sentence.
    """

    def __init__(self, found: Found, catalog: Catalog):
        self.name, self.path, self.ours, self.files = vars(found).values()
        self._catalog = catalog
        self.record: dict[str, Any] = {}
        self.problem = ""
        if self.ours:
            try:
                self.record = record_lib.read(self.directory)
            except record_lib.RecordError as error:
                self.problem = str(error)

    @property
    def directory(self) -> RunDir:
        """The run's paths."""
        return RunDir(epath.Path(self.path), epath.Path(self._catalog.logdir))

    @functools.cached_property
    def status(self) -> str:
        """As `record.status`; 'unreadable' without a readable run.json, 'unknown' without one."""
        if self.record:
            try:
                return record_lib.status(self.record)
            except (LookupError, TypeError, AttributeError):
                return "unreadable"
        return "unreadable" if self.ours else "unknown"

    @functools.cached_property
    def notes(self) -> dict[str, Any]:
        """What people said about the run: {note, tags}."""
        if not os.path.exists(os.path.join(self.path, NOTES)):
            return {}
        try:
            with open(os.path.join(self.path, NOTES), "rb") as file:
                notes = json.load(file)
        except (OSError, ValueError):
            return {}
        return notes if isinstance(notes, dict) else {}

    @property
    def note(self) -> str | None:
        """The run's note."""
        note = self.notes.get("note")
        return note if isinstance(note, str) else None

    @property
    def tags(self) -> list[str]:
        """The run's tags."""
        tags = self.notes.get("tags")
        return [str(t) for t in tags] if isinstance(tags, list) else []

    @functools.cached_property
    def flags(self) -> dict[str, Any]:
        """The run's flags; of a run of others its hyperparameters, if it has any."""
        flags = self.record.get("flags")
        if isinstance(flags, dict):
            return flags
        from tracker.runs import hparams

        for entry in self.entries:
            if entry.hparams:
                return hparams.read(entry.hparams)
        return {}

    @property
    def entries(self) -> list[Any]:
        """What the index knows of the run's event files."""
        entries = [self._catalog.index.entry(file) for file in self.files]
        return [entry for entry in entries if entry is not None]

    @functools.cached_property
    def metrics(self) -> dict[str, Metric]:
        """The scalar tags, by `<split>/<tag>`, or the tag alone where there is no split."""
        return {n: m for n, m in self.everything.items() if m.kind == "scalars"}

    @functools.cached_property
    def everything(self) -> dict[str, Metric]:
        """All tags, whatever their plugin."""
        files = [(file.split, self._catalog.index.entry(file)) for file in self.files]
        known = [(split, self._catalog.series(entry.id)) for split, entry in files if entry]
        return merged(known, self._catalog.points)

    def metric(self, name: str) -> Metric | None:
        """A metric by what people call it; see `metrics.resolve`."""
        return resolve(self.metrics, name)

    @functools.cached_property
    def step(self) -> int | None:
        """The last step of any tag."""
        steps = (self._catalog.last_steps.get(entry.id) for entry in self.entries)
        return max((step for step in steps if step is not None), default=None)

    @functools.cached_property
    def created(self) -> float | None:
        """When the run began, seconds since 1970: by its record, else its first event."""
        try:
            return datetime.datetime.fromisoformat(str(self.record["created"])).timestamp()
        except (KeyError, ValueError):
            walls = [e.first_wall for e in self.entries if e.first_wall is not None]
            return min(walls, default=None)

    @property
    def age(self) -> float | None:
        """Seconds since the run began."""
        return None if self.created is None else time.time() - self.created

    def points(self, metric: Metric) -> Column:
        """Every point of a metric; see `tally.effective`."""
        return self._catalog.points(metric.series)

    def value(self, field: str) -> Any:
        """What a filter or a column calls `field`; None if the run does not have it."""
        if field in FIELDS:
            return self._own(field)
        head, _, rest = field.partition(".")
        if head in ("best", "last") and rest and (metric := self.metric(rest)) is not None:
            return metric.last if head == "last" else metric.best(lower_is_better(rest))
        if head == "flags" and rest:
            return self.flags.get(rest)
        if field in self.flags:
            return self.flags[field]
        return None

    def _own(self, field: str) -> Any:
        if field in ("commit", "branch", "dirty"):
            git = self.record.get("git")
            return git.get(field) if isinstance(git, dict) else None
        if field in ("host", "reason", "parameters"):
            return self.record.get(field)
        if field == "attempts":
            attempts = self.record.get("attempts")
            return len(attempts) if isinstance(attempts, list) else None
        if field == "created":
            return iso(self.created)
        if field == "tags":
            return ",".join(self.tags)
        return getattr(self, field)


def iso(seconds: float | None) -> str | None:
    """A time as ISO 8601 in UTC."""
    if seconds is None:
        return None
    try:
        moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="seconds")
