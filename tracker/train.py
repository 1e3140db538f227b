"""The training loop: runs calls of compiled steps, and between them does what is due.

>>> outcome = train(assemble(config), run, record, console)
>>> outcome.status
'completed'
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tracker import calls, graphs, logbook, profiling, recorder, report, scopes, summaries, tags
from tracker.checkpoints import Checkpoints
from tracker.config import checkpoint_interval, steps_per_call
from tracker.console import Console
from tracker.distribution import LOST
from tracker.evaluation import Evaluation
from tracker.experiment import Experiment
from tracker.overhead import Intervals
from tracker.record import STATUSES, Record, RunVanishedError
from tracker.report import Outcome
from tracker.resume import BEGINNING, Start
from tracker.rundir import RunDir
from tracker.schedule import Call
from tracker.steps import Result
from tracker.watch import Watch
from tracker.windows import Windows

CALL_SECONDS = 0.5  # how long one call may run, so that Ctrl-C and the progress bar stay lively
VALIDATION_BATCH = 512


def train(
    experiment: Experiment, run: RunDir, record: Record, console: Console, start: Start = BEGINNING
) -> Outcome:
    """Trains to the last step, or until something ends the run; always leaves it whole on disk.

    Args:
      experiment: what to train.
      run: its directory, claimed.
      record: its run.json, which is kept up to date.
      console: what people see.
      start: where the run goes on from, with the experiment's variables in that state.

    Returns:
      How it ended. An exception ends the run as failed, and is passed on.
    """
    replicas = experiment.replicas
    with calls.signals() as signalled:
        try:
            training = _Training(experiment, run, record, console, start)
        except BaseException as error:
            record.finish("failed", last_step=start.step, reason=calls.sentence(error))
            raise
        try:
            training.open()
            training.loop(signalled)
        except BaseException as error:
            outcome = training.outcome
            if replicas.cluster is not None and isinstance(error, LOST):
                outcome.status, outcome.reason = (
                    "failed",
                    f"a worker is gone: {calls.sentence(error)}",
                )
                return outcome
            outcome.status, outcome.reason = "failed", calls.sentence(error)
            raise
        finally:
            training.close()
        with contextlib.suppress(*LOST):
            replicas.agree([STATUSES.index(training.outcome.status)])
            training.gather()
        return training.outcome


class _Training:
    """One run of the loop. Each method is one concern; `loop` is the order they come in."""

    def __init__(self, experiment, run, record, console, start):
        self._experiment: Experiment = experiment
        self._run: RunDir = run
        self._record: Record = record
        self._console: Console = console
        self._watch = Watch(console.warn)
        config = experiment.config
        place = _place(experiment.instrument.names)
        first = start.step + 1 if start.step else 0
        self._train = summaries.EventWriter(run.train, first, place, self._watch.said)
        self._validation = summaries.EventWriter(run.validation, first, warn=self._watch.said)
        self.recorder = recorder.Recorder(
            self._train, experiment.instrument.names, experiment.functions.metric_names,
            config.stddevs, config.wur, experiment.examples_a_batch, config.log_every,
            experiment.steps, judged=experiment.rule.judges,
        )  # fmt: skip
        self._evaluate = Evaluation(
            experiment.model,
            experiment.data.validation_batches(VALIDATION_BATCH),
            len(experiment.data.validation_x),
        )
        self._windows = Windows(run.train, self._train, record, console, self._watch)
        if config.profiler_port:
            profiling.serve(config.profiler_port, console.warn)
        self._given = steps_per_call(config.steps_per_call)
        self._most = self._given or 1
        self._batches = start.batches
        self._checkpoints: Checkpoints | None = None
        kind, every = checkpoint_interval(config.checkpoint_every)
        self._checkpoint_seconds = every if kind == "seconds" else 0
        if every:
            self._checkpoints = experiment.checkpoints(run.checkpoints)
        self._checkpoint_due = time.monotonic() + (self._checkpoint_seconds or math.inf)
        self._schedule = experiment.schedule
        self.outcome = Outcome(step=start.step, validation=list(start.validation))
        self._book = logbook.Logbook(self._train, lambda: self.outcome.step)

    def open(self) -> None:
        """Writes what describes the run as a whole, when it begins."""
        logbook.opened(self._book)
        experiment = self._experiment
        self.recorder.constants(experiment.steps, self.outcome.step)
        if self.outcome.step:
            return
        fields = report.settings(experiment)
        self._train.summary(0, summaries.text(tags.RUN, report.configuration(experiment)))
        self._train.summary(0, summaries.layout(experiment.instrument.names))
        with_validation = self._validation if self._schedule.validate_every else self._train
        with_validation.summary(0, summaries.hparams(fields, self._run.name, time.time()))
        function = experiment.functions.plain_function.get_concrete_function()
        self._train.graph(graphs.step_graph(function).SerializeToString())
        self._train.flush()

    def loop(self, signalled: Callable[[], int | None]) -> None:
        """Runs the steps."""
        experiment, outcome = self._experiment, self.outcome
        iterator = iter(experiment.batches(self._batches))
        self._validate()
        with self._console.progress(experiment.steps, outcome.step) as show:
            while decision := self._decide(signalled()):
                call = self._schedule.call(outcome.step, decision.most)
                result = self._call(iterator, call)
                self._windows.after(outcome.step, self._schedule.window(outcome.step + 1))
                self._check(result)
                self._validate()
                self._checkpoint()
                self._stretch()
                show(outcome.step, self._progress(result))
                self._interrupt(signalled())
        if outcome.status == "running":
            outcome.status = "completed"

    def _decide(self, signalled: int | None) -> calls.Decision | None:
        """What is done next, by all workers; None where the run ends."""
        outcome, decision = self.outcome, None
        if outcome.step < self._experiment.steps and outcome.status == "running":
            following = outcome.step + 1
            self._windows.before(following, self._schedule.window(following))
            most = 1 if profiling.tracing() else self._most  # so that each has its marker
            decision = calls.Decision(most, self._schedule.summary_every)
        decision = calls.decide(self._experiment.replicas, decision, signalled)
        self.gather()
        if decision is not None:
            self._interrupt(decision.signal)
        return decision if outcome.status == "running" else None

    def gather(self) -> None:
        """Puts the captures of other workers beside the chief's, once all are written."""
        cluster = self._experiment.replicas.cluster
        if cluster is not None:
            others = range(1, len(cluster.addresses))
            self._windows.gather({n: self._run.workers(n) for n in others})

    def close(self) -> None:
        """Leaves everything on disk: events, capture, checkpoint, model, status."""
        logbook.closed(self._book)
        if self._run.path.exists():
            try:
                self._windows.close(self.outcome.step)
            finally:
                self._finish()
        outcome = self.outcome
        outcome.table = report.closing_table(self._experiment, self.recorder, outcome)

    def _finish(self) -> None:
        outcome = self.outcome
        self._train.flush()
        self._validation.flush()
        if outcome.status in ("completed", "interrupted"):
            if math.isfinite(self._loss):
                self._save(at_end=True)
            elif outcome.step:
                self._console.warn(
                    "The last loss is not a number: the state at the end was not saved."
                )
        self._train.close()
        self._validation.close()
        lost = sorted({*self._train.lost, *self._validation.lost})
        outcome.missing = report.ranges(lost) if lost else ""
        if lost and outcome.status == "completed":
            outcome.status = "failed"
            outcome.reason = f"the events of {outcome.missing} could not be written"
        results = report.results(outcome.validation, self.recorder, outcome.missing)
        with contextlib.suppress(RunVanishedError):
            self._record.finish(
                outcome.status, last_step=outcome.step, results=results, reason=outcome.reason
            )

    _loss = math.nan  # of the last step

    def _call(self, iterator: Any, call: Call) -> Result:
        step = self.outcome.step
        before = self._weights(step + 1)
        began = time.time()
        result = calls.make(self._experiment.functions, iterator, step, call)
        ended = time.time()
        self._notice_deletion()
        with profiling.span(scopes.SUMMARIES):
            self.recorder.call(step, call, result, began, ended)
        self._batches += result.steps + int(result.plain.skipped.sum())
        self.outcome.step += result.steps
        self._histograms(before)
        self._pace(result.steps, ended - began)
        return result

    def _pace(self, steps: int, seconds: float) -> None:
        """Lets the next call run about `CALL_SECONDS`, feeling its way up from one step."""
        if not self._given and steps:
            self._most = max(1, min(2 * self._most, int(CALL_SECONDS * steps / max(seconds, 1e-9))))

    def _weights(self, step: int) -> list[np.ndarray] | None:
        """Copies of the measured variables, if the step is one whose histograms are written."""
        if not self._schedule.is_histogram(step):
            return None
        return [v.value.numpy() for v in self._experiment.instrument.measured]

    def _histograms(self, before: list[np.ndarray] | None) -> None:
        if before is None:
            return
        place = _place(self._experiment.instrument.names)
        after = [v.value.numpy() for v in self._experiment.instrument.measured]
        found = recorder.iterate_histograms(self._experiment.instrument.names, before, after)
        for tag, data in found:
            summary = summaries.histogram(tag, data, place(tag))
            self._train.summary(self.outcome.step, summary)

    def _check(self, result: Result) -> None:
        """Ends the run, or warns, if the loss is not a number or nothing is updated any more."""
        outcome, loss = self.outcome, result.plain.loss
        if result.stuck:
            outcome.status = "failed"
            most = self._experiment.rule.most_skipped
            outcome.reason = (
                f"{most} batches in a row after step {outcome.step} made no update: the loss "
                "overflows at every loss scale, or accumulation never completes"
            )
            return
        self._loss = float(loss[-1])
        bad = np.flatnonzero(~np.isfinite(loss))
        if len(bad):
            first = outcome.step - result.steps + int(bad[0]) + 1
            sentence = f"The loss is {loss[bad[0]]:g} at step {first}"
            if self._experiment.config.on_nonfinite == "stop":
                outcome.status, outcome.reason = "diverged", sentence
            else:
                self._watch.once(
                    "nonfinite", f"{sentence}; training goes on (--on_nonfinite=warn)."
                )
        self._watch.skipped(
            int(result.plain.skipped.max(initial=0)) - self._experiment.rule.accumulates + 1
        )
        config = self._experiment.config
        self._watch.measured(
            self.recorder.measured,
            self._experiment.instrument.names,
            self._experiment.instrument.noised,
            config.noise_scale == "relative",
        )

    def _validate(self) -> None:
        step = self.outcome.step
        if self.outcome.status != "running" or not self._schedule.is_validation(step):
            return
        if self.outcome.validation and self.outcome.validation[-1][0] == step:
            return
        found = self._evaluate()
        self.outcome.validation.append((step, found))
        self._validation.scalars(step, found)
        self._validation.flush()

    def _notice_deletion(self) -> None:
        """Ends the run if its directory is gone: nothing that it writes would be kept."""
        if not self._run.path.exists() and self.outcome.status == "running":
            self.outcome.status = "failed"
            self.outcome.reason = f"{self._run.path} was deleted while the run was going on"

    def _stretch(self) -> None:
        """Puts summaries further apart where they cost more than the budget allows."""
        budget = self._experiment.config.overhead_budget
        if not budget:
            return
        now = Intervals(self._schedule.summary_every, self.recorder.log_every)
        to = self.recorder.overhead.within(budget, now)
        if to != now:
            self._schedule = dataclasses.replace(self._schedule, summary_every=to.summary_every)
            self.recorder.log_every = to.log_every
            self._console.say(
                f"After step {self.outcome.step}: summaries every {to.summary_every} steps (was "
                f"{now.summary_every}), loss and stddev every {to.log_every} (was "
                f"{now.log_every}), to keep their cost within {budget:g} % of the time."
            )

    def _checkpoint(self) -> None:
        by_step = self._schedule.is_checkpoint(self.outcome.step)
        if self.outcome.status != "running" or not math.isfinite(self._loss):
            return
        if by_step or time.monotonic() >= self._checkpoint_due:
            self._save(at_end=False)
            self._checkpoint_due = time.monotonic() + (self._checkpoint_seconds or math.inf)
            self._record.update(last_step=self.outcome.step)

    def _save(self, at_end: bool) -> None:
        outcome = self.outcome
        try:
            if self._checkpoints is not None and self._checkpoints.last_step != outcome.step:
                self._checkpoints.save(outcome.step, self._batches)
            if at_end:
                self._save_model()
        except (tf.errors.OpError, OSError) as error:
            outcome.status = "failed"
            outcome.reason = f"the state after step {outcome.step} could not be saved: {error}"

    def _save_model(self) -> None:
        """Writes model.keras whole or not at all; averaged weights are put in as `fit` does."""
        model, path = self._experiment.model, self._run.model_keras
        temporary = path.parent / f".{path.name}.part.keras"
        if self._experiment.rule.optimizer is not None:
            self._experiment.rule.optimizer.finalize_variable_values(model.trainable_variables)
        try:
            model.save(os.fspath(temporary))
            os.replace(temporary, path)
        except (NotImplementedError, TypeError, ValueError) as error:
            self._console.warn(
                f"model.keras was not written, the weights are in {self._run.checkpoints.name}/: "
                f"{calls.sentence(error)}"
            )
        finally:
            temporary.unlink(missing_ok=True)

    def _interrupt(self, number: int | None) -> None:
        if number is not None and self.outcome.status == "running":
            self.outcome.status, self.outcome.signal = "interrupted", number
            self.outcome.reason = f"ended by {signal.Signals(number).name}"

    def _progress(self, result: Result) -> str:
        if not result.steps:
            return ""
        stddev = self._experiment.config.stddevs[int(result.plain.choice[-1])]
        rate = self.recorder.steps / self.recorder.seconds if self.recorder.seconds else 0.0
        return f"loss {self._loss:.4g}  stddev {stddev:g}  {rate:,.0f} steps/s"


def _place(names: Sequence[str]) -> Callable[[str], str]:
    """Where the variable of a tag stands in the model: '12 of 80'; '' for other tags."""
    places = {name: f"{i + 1} of {len(names)}" for i, name in enumerate(names)}
    return lambda tag: places.get(tag.partition("/")[2], "")
