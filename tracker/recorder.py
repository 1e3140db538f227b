"""Turns what steps returned into tags and values, and keeps the figures a run ends with.

>>> recorder = Recorder(writer, experiment)
>>> recorder.call(step=0, call=call, result=result, began=t0, ended=t1)
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psutil

from tracker import gpu, summaries, tags, wur
from tracker.overhead import Overhead
from tracker.schedule import Call
from tracker.steps import Instrumented, Plain, Result


class Recorder:
    """Writes the training side of a run.

    Args:
      writer: of the directory `train`.
      names: canonical paths of the measured variables.
      metric_names: of the metrics of a batch.
      stddevs: those chosen from; none without noise.
      kinds: what to write of the ratios, from `config.WUR_KINDS`.
      batch_size: examples a batch, on average.
      log_every: of the scalars that every step has.
      last_step: of the run; it is logged in any case.
      with_loss: whether the loss of a step is known.
      judged: whether a step can be taken back; the share that is kept is reported then.

    Attributes:
      log_every: may be changed while the run goes on.
      overhead: what recording and measuring cost.
      measured: of the last summary step, or None.
      counts: how many steps used each stddev.
      skipped: batches without an update, in all.
      seconds, steps: of all calls but the first of each function, which compiles.
    """

    def __init__(
        self,
        writer: summaries.EventWriter,
        names: Sequence[str],
        metric_names: Sequence[str],
        stddevs: Sequence[float],
        kinds: Sequence[str],
        batch_size: float,
        log_every: int = 1,
        last_step: int = 0,
        with_loss: bool = True,
        judged: bool = False,
    ):
        self._judged = judged
        self._accepted = np.zeros([2, 2], np.int64)  # kept and all: in the run, since a summary
        self._with_loss = with_loss
        self._writer = writer
        self._names = list(names)
        self._metric_names = list(metric_names)
        self._stddevs = list(stddevs)
        self._kinds = set(kinds)
        self._batch_size = batch_size
        self._last_step = last_step
        self.log_every = log_every
        self.overhead = Overhead()
        self._process = psutil.Process()
        self._changes = np.zeros([2, len(self._stddevs)])  # sums and counts since the last summary
        self._stddev_array = np.asarray(self._stddevs)
        self._last_loss, self._last_choice = np.nan, 0  # of the step before
        self._bad_losses = 0
        self._span = [0.0, 0, 0]  # seconds, steps and batches since the last summary step
        self._worst: tuple[int, ...] = ()
        self._warm: set[bool] = set()
        self.measured: wur.Measured | None = None
        self.counts = np.zeros(len(self._stddevs), np.int64)
        self.skipped = 0
        self.seconds = 0.0
        self.steps = 0

    def call(self, step: int, call: Call, result: Result, began: float, ended: float) -> None:
        """Records one call of the step functions.

        Args:
          step: steps done before it.
          call: what was asked for.
          result: what it returned.
          began, ended: seconds since the epoch.
        """
        if not result.steps:
            return
        started = time.perf_counter()
        each = (ended - began) / result.steps
        rows = self._rows(call, result)
        warm = bool(call.intervals) in self._warm
        summaries_took, logged, done = 0.0, 0, 0
        for i in (*rows, result.steps):
            logged += self._plain(step, result, range(done, i), began, each)
            if warm:
                batches = i + (i in rows) - done + int(result.plain.skipped[done : i + 1].sum())
                self._lap(each, i + (i in rows) - done, batches)
            if i in rows:
                at = time.perf_counter()
                self._summary(step + i + 1, result, i, rows[i], began, each)
                summaries_took += time.perf_counter() - at
            done = i + 1
        self._writer.flush()
        host = time.perf_counter() - started
        self._pace(call, result, ended - began, logged, host - summaries_took, summaries_took)

    def _plain(self, step: int, result: Result, span: range, began: float, each: float) -> int:
        """Writes the scalars of plain steps; returns of how many."""
        plain = result.plain
        self._count(plain, slice(span.start, span.stop))
        index = np.arange(span.start, span.stop)
        number = step + index + 1
        index = index[(number % self.log_every == 0) | np.isin(number, (1, self._last_step))]
        columns = self._columns(plain, index)
        if len(index) and columns:
            wall_times = (began + (index + 1) * each).tolist()
            self._writer.series((step + index + 1).tolist(), columns, wall_times)
        for i in np.flatnonzero(plain.skipped[span.start : span.stop]) + span.start:
            skipped = {tags.WUR_ALL_SKIPPED: float(plain.skipped[i])}
            self._writer.scalars(step + int(i) + 1, skipped, began + (i + 1) * each)
        return len(index)

    def _columns(self, plain: Plain, index: np.ndarray | list[int]) -> dict[str, np.ndarray]:
        choice = plain.choice[index]
        columns = {tags.LOSS: plain.loss[index]} if self._with_loss else {}
        if self._stddevs:
            columns |= {tags.NOISE_STDDEV: self._stddev_array[choice], tags.NOISE_CHOICE: choice}
        return columns

    def _summary(
        self, number: int, result: Result, i: int, row: Instrumented, began: float, each: float
    ) -> None:
        plain, wall_time = result.plain, began + (i + 1) * each
        span = slice(i, i + 1)
        self._count(plain, span)
        values = {tag: float(column[0]) for tag, column in self._columns(plain, [i]).items()}
        if number % self.log_every and number not in (1, self._last_step):
            values = {}
        values[tags.WUR_ALL_SKIPPED] = float(plain.skipped[i])
        values |= self._summary_step(row, float(plain.loss[i]), int(plain.choice[i]))
        self._writer.scalars(number, values, wall_time)
        self._compact(number, wall_time)

    def unseen(self, steps: int, seconds: float) -> None:
        """Counts plain steps of which nothing is known but how many they were.

        Args:
          steps: one or more.
          seconds: that they took.
        """
        if self._warm:
            self._lap(seconds / steps, steps, steps)
            self.seconds += seconds
            self.steps += steps
            nothing = Plain(*(np.zeros(0) for _ in Plain._fields))
            self.overhead.add(Result(steps, nothing, None, False), 0, seconds, 0.0, 0.0)

    def constants(self, steps: int, behind: int = 0) -> None:
        """Writes the healthy band, two points of it, which is what a chart needs to draw a line."""
        band = {
            tags.WUR_ALL_BAND_LOW: tags.HEALTHY_LOW,
            tags.WUR_ALL_BAND_HIGH: tags.HEALTHY_HIGH,
        }
        for step in sorted({1, steps} - set(range(behind + 1))):
            self._writer.scalars(step, band)

    def _rows(self, call: Call, result: Result) -> dict[int, Instrumented]:
        if result.instrumented is None:
            return {}
        count = len(result.instrumented.measured)
        return {
            n * (call.plain + 1): Instrumented(*(field[n] for field in result.instrumented))
            for n in range(count)
        }

    def _pace(self, call: Call, result: Result, seconds: float, logged: int, *host: float) -> None:
        """Keeps speed figures; the first call of each function compiles it and does not count."""
        kind = bool(call.intervals)
        if kind in self._warm:
            self.seconds += seconds
            self.steps += result.steps
            self.overhead.add(result, logged, seconds, *host)
        self._warm.add(kind)

    def accepted_fraction(self) -> float | None:
        """Share of all steps that were kept; None where every step is."""
        kept, steps = self._accepted[0]
        return float(kept / steps) if self._judged and steps else None

    def _count(self, plain: Plain, span: slice) -> None:
        """Adds up, over steps in order, what is reported on summary steps and at the end."""
        loss, choice, skipped = plain.loss[span], plain.choice[span], plain.skipped[span]
        if not len(loss):
            return
        if self._judged:
            kept = plain.accepted[span]
            self._accepted += np.array([np.count_nonzero(kept), len(kept)])
        if self._stddevs:
            self.counts += np.bincount(choice, minlength=len(self.counts))
        self.skipped += int(skipped.sum())
        self._bad_losses += int(np.count_nonzero(~np.isfinite(loss)))
        if not self._stddevs:
            return
        # The change from a step to the next belongs to the stddev that the first one used.
        losses = np.append(self._last_loss, loss.astype(np.float64))
        choices = np.append(self._last_choice, choice)
        with np.errstate(invalid="ignore"):
            changes = np.diff(losses)
        known = np.isfinite(changes)
        np.add.at(self._changes[0], choices[:-1][known], changes[known])
        np.add.at(self._changes[1], choices[:-1][known], 1)
        self._last_loss, self._last_choice = losses[-1], choices[-1]

    def _summary_step(self, row: Instrumented, loss: float, choice: int) -> dict[str, float]:
        self.measured = wur.Measured.from_rows(row.measured)
        ratios, overall = wur.ratios(self.measured), wur.overall(self.measured)
        values = dict(zip(self._metric_names, map(float, row.metrics), strict=True))
        values |= _finite({tags.LEARNING_RATE: row.learning_rate})
        if self._stddevs:
            values[tags.WUR_ALL_STDDEV] = self._stddevs[choice]
        if self._with_loss:
            values |= {tags.WUR_ALL_LOSS: loss, tags.NONFINITE_LOSS: self._bad_losses}
        values |= {
            tags.WUR_ALL_OUT_OF_BAND: overall.out_of_band,
            tags.WUR_ALL_UNDEFINED: overall.undefined,
        }
        values |= _finite({
            tags.WUR_ALL_RATIO: overall.ratio,
            tags.WUR_ALL_UNCHANGED: overall.unchanged_fraction,
            tags.WUR_ALL_UNCHANGED_BY_NOISE: overall.unchanged_by_noise,
        })  # fmt: skip
        for i, name in enumerate(self._names):
            values |= self._variable(i, name, ratios)
        values |= self._loss_changes()
        if self._judged:
            values[tags.NOISE_ACCEPTED] = self._accepted[1, 0] / self._accepted[1, 1]
            self._accepted[1] = 0
        values |= self._performance(row)
        self._bad_losses = 0
        return values

    def _variable(self, i: int, name: str, ratios: wur.Ratios) -> dict[str, float]:
        measured = self.measured
        assert measured is not None
        values: dict[str, float] = {}
        if "update" in self._kinds:
            values |= {
                tags.wur(name): ratios.total[i],
                tags.wur_gradient(name): ratios.gradient[i],
                tags.wur_noise(name): ratios.noise[i] if self._stddevs else np.nan,
                tags.wur_touched(name): ratios.touched[i],
                tags.wur_proposed(name): ratios.proposed[i],
            }
        if "norm_change" in self._kinds:
            values[tags.norm_change(name)] = ratios.norm_change[i]
        values |= {
            tags.weight_norm(name): measured.before[i],
            tags.update_norm(name): measured.update[i],
        }
        values = _finite(values)
        if measured.nonfinite[i]:
            values[tags.nonfinite(name)] = measured.nonfinite[i]
        return values

    def _loss_changes(self) -> dict[str, float]:
        sums, counts = self._changes
        found = {
            tags.loss_change(self._stddevs[i]): sums[i] / counts[i] for i in np.flatnonzero(counts)
        }
        self._changes = np.zeros_like(self._changes)
        return found

    def _lap(self, each: float, steps: int, batches: int) -> None:
        """Adds steps to the span since the last summary step."""
        self._span = [self._span[0] + each * steps, self._span[1] + steps, self._span[2] + batches]

    def _performance(self, row: Instrumented) -> dict[str, float]:
        seconds, steps, batches = self._span
        self._span = [0.0, 0, 0]
        values = {}
        if steps and seconds > 0:
            values = _finite({
                tags.PERF_STEP_MS: 1e3 * seconds / steps,
                tags.PERF_STEPS_PER_SECOND: steps / seconds,
                tags.PERF_EXAMPLES_PER_SECOND: batches * self._batch_size / seconds,
            })  # fmt: skip
        values |= _finite({tags.PERF_INPUT_WAIT_MS: row.input_wait * 1e3})
        values[tags.PERF_HOST_MEMORY_MB] = self._process.memory_info().rss / 1e6
        values.update(gpu.usage())
        overhead = self.overhead.percent()
        if overhead is not None:
            values[tags.OVERHEAD] = overhead
        return values

    def _compact(self, number: int, wall_time: float) -> None:
        """The histogram over variables, and the worst of them when they are others than before."""
        assert self.measured is not None
        overall = wur.overall(self.measured)
        if len(overall.log10):
            histogram = summaries.histogram(tags.WUR_ALL_LOG10, overall.log10)
            self._writer.summary(number, histogram, wall_time)
        if overall.worst != self._worst:
            self._worst = overall.worst
            ratio = wur.ratios(self.measured).total
            lines = [f"| {self._names[i]} | {ratio[i]:.1e} |" for i in overall.worst]
            table = "\n".join(["| variable | WUR |", "|---|---|", *lines])
            self._writer.summary(number, summaries.text(tags.WUR_ALL_WORST, table), wall_time)


def _finite(values: dict[str, Any]) -> dict[str, float]:
    return {tag: number for tag, v in values.items() if math.isfinite(number := float(v))}


def iterate_histograms(
    names: Sequence[str], before: Sequence[np.ndarray], after: Sequence[np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Tags and data of the histograms of a step: every variable, and what its update was."""
    for name, old, new in zip(names, before, after, strict=True):
        yield tags.weights(name), new
        yield tags.updates(name), new.astype(np.float64) - old.astype(np.float64)
