"""Reads every record of an event file and says what is wrong with it, with the cure.

>>> for finding in check(run, file, series):
...     print(finding.problem, finding.cure)
"""

from __future__ import annotations

import collections
import math
import os
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tracker import events
from tracker.runs.index import Series
from tracker.runs.scan import EventFile

_QUIET_SECONDS = 60  # in which a torn record may still be completed


class Finding(NamedTuple):
    """Something wrong.

    Attributes:
      check: its kind, one word or two with `_`.
      run: the name of the run; '' for the installation.
      problem: what is wrong, in one sentence.
      cure: what to do about it, in one sentence.
    """

    check: str
    run: str
    problem: str
    cure: str


def check(run: str, file: EventFile, series: Sequence[Series]) -> Iterator[Finding]:
    """What is wrong with one event file.

    Args:
      run: the name of its run.
      file: the file.
      series: what the index knows of it.
    """
    reader = _Reader()
    try:
        reader.read(file.path)
    except OSError as error:
        yield Finding(
            "unreadable",
            run,
            f"{file.path} cannot be read: {error.strerror}",
            "Make it readable for you, or move it away",
        )
        return
    yield from _damage(run, file, reader)
    for tag, (first, second) in reader.two_kinds.items():
        yield Finding(
            "two_kinds",
            run,
            f"The tag {tag} in {file.path} is used for {first} and for {second}; TensorBoard shows "
            f"the {first} alone",
            "Give one of the two another tag",
        )
    for tag, step in reader.poisoned.items():
        yield Finding(
            "nan_histogram",
            run,
            f"The histogram {tag} has buckets that are not finite from step {step} on, which "
            "spoils its chart",
            "Leave out what is not finite before writing a histogram, and count it in a scalar",
        )
    yield from _disagreement(run, file, reader, series)


def _disagreement(
    run: str, file: EventFile, reader: _Reader, series: Sequence[Series]
) -> Iterator[Finding]:
    known = {one.tag: one.points for one in series if one.kind == "scalars"}
    if known != dict(reader.counts):
        wrong = sorted(t for t in {*known, *reader.counts} if known.get(t) != reader.counts.get(t))
        yield Finding(
            "index",
            run,
            f"The index says something else than {file.path} about {', '.join(wrong[:5])}",
            "Delete the directory .tracker in the logdir; it is built again",
        )


def _damage(run: str, file: EventFile, reader: _Reader) -> Iterator[Finding]:
    for fault in reader.faults:
        rest = " All that follows is out of reach" if fault.end is None else ""
        yield Finding(
            "corrupt",
            run,
            f"{file.path} is corrupt at byte {fault.offset}: {fault.reason}.{rest}",
            "Restore the file from a copy; TensorBoard stops reading it at that place",
        )
    size = os.path.getsize(file.path)
    quiet = time.time() - file.stamp.modified / 1e9 > _QUIET_SECONDS
    if not reader.faults and reader.end < size and quiet:
        yield Finding(
            "truncated",
            run,
            f"{file.path} ends with a torn record at byte {reader.end}, {size - reader.end} bytes "
            "long, as a crash or a full disk leaves it",
            "Nothing before it is lost; a resume of the run trims it",
        )


class _Reader:
    """Reads a file and remembers what is odd about it."""

    def __init__(self) -> None:
        self.faults: list[events.CorruptRecordError] = []
        self.two_kinds: dict[str, tuple[str, str]] = {}
        self.poisoned: dict[str, int] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        self.end = 0
        self._kinds = events.Kinds()

    def read(self, path: str) -> None:
        for end, event in events.read(path, 0, self.faults.append):
            self.end = end
            for value in event.summary.value:
                self._value(event.step, value)
            for tag, _ in events.scalars(event, self._kinds):
                self.counts[tag] += 1

    def _value(self, step: int, value: Any) -> None:
        kind, first = events.Kinds().of(value), self._kinds.of(value)
        if kind and kind != first:
            self.two_kinds.setdefault(value.tag, (first, kind))
        if first == "histograms" and not all(map(math.isfinite, _edges(value))):
            self.poisoned.setdefault(value.tag, step)


def _edges(value: Any) -> Sequence[float]:
    """The numbers that a histogram is drawn from."""
    if value.HasField("histo"):
        return [value.histo.min, value.histo.max, value.histo.sum, *value.histo.bucket]
    if value.tensor.tensor_content:
        content = value.tensor.tensor_content
        return struct.unpack(f"<{len(content) // 8}d", content[: len(content) // 8 * 8])
    return value.tensor.double_val
