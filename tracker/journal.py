"""The run of training code that is not the app's: its directory, and what its steps write there.

A `Run` is what `model.fit` (`tracker.keras`) and hand-written loops (`tracker.loop`) have in common
on the host: when to measure, the run directory with its record, events, captures and graph, and the
values that users log themselves. The directory is made when the first step is about to be taken, so
that whatever is wrong before leaves nothing behind.

    >>> with Run('logdir', 'mine', noise=(0.0, 1e-3)) as run:
    ...     step = TrainStep(run, train_step, model.trainable_variables, optimizer)
    ...     for batch in batches:
    ...         step(batch)
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracker import config as config_lib
from tracker import graphs, profiling, record, recorder, report, rundir, settings, summaries, tags
from tracker import instrument as instrument_lib
from tracker import logbook as logbook_lib
from tracker import resume as resume_lib
from tracker.console import Console
from tracker.record import Record
from tracker.schedule import Call, Schedule
from tracker.settings import Noise
from tracker.steps import Instrumented, Plain, Result
from tracker.watch import Watch
from tracker.windows import Windows

FLUSH_SECONDS = 0.5  # how long what a step returned may wait, unread, to be written
_UNKNOWN_LAST = 2**62  # of a run whose number of steps is not known


class Run:
    """One run directory.

    Args:
      logdir: the directory of all runs.
      name: of the run; None for one made of the time.
      summary_every: steps 1, every multiple of it and the last are summary steps; 0 for none.
      noise: `Noise`, or just its stddevs; None for no noise.
      wur: what to write of each ratio, of 'update' and 'norm_change'.
      wur_variables: regular expression of the variables to measure; '' for all trainable ones.
      profile_steps: windows such as '20:25' (steps 20 to 24); '' for none.
      log_every: how often to write loss and stddev.
      steps: how many there will be, where that is known; `anneal` needs it.
      hparams: what the HParams tab shows, by name.
      resume: go on with the run of this name, which has ended or whose process died.
      verbose: whether to print the name of the run, and the TensorBoard command at its end.

    Raises:
      ValueError: in one sentence: a setting that cannot be, a name that is taken.

    Attributes:
      run_dir: its paths; None before the first step.
      step: updates applied so far.
      names: canonical paths of the variables that it measures; none before the first step.
      status: 'ready', 'running', or as in run.json.
    """

    def __init__(
        self,
        logdir: Any,
        name: str | None = None,
        *,
        summary_every: int = 100,
        noise: Noise | Sequence[float] | None = None,
        wur: Sequence[str] = ("update",),
        wur_variables: str = "",
        profile_steps: str = "",
        log_every: int = 1,
        steps: int | None = None,
        hparams: Mapping[str, Any] | None = None,
        resume: bool = False,
        verbose: bool = True,
    ):
        self.noise = noise if isinstance(noise, Noise) or noise is None else Noise(tuple(noise))
        written = {"summary_every": summary_every, "wur": tuple(wur), "log_every": log_every}
        written |= {"wur_variables": wur_variables, "profile_steps": profile_steps}
        self.config = settings.configuration(self.noise, written)
        self._written = written
        self._windows = config_lib.windows(profile_steps, steps)
        self._logdir, self._name = logdir, name
        self._hparams = dict(hparams or {})
        self._resume, self._verbose = resume, verbose
        self._steps = steps
        self._check_place()
        self.run_dir: rundir.RunDir | None = None
        self.status = "ready"
        self.step = 0
        self.names: list[str] = []
        self.validations: list[tuple[int, dict[str, float]]] = []
        self._pending: list[tuple[Any, Any, int, float, float]] = []
        self._described = False
        self._settings: dict[str, Any] = {}

    def _check_place(self) -> None:
        rundir.check_logdir(self._logdir)
        if self._name is not None:
            rundir.check_name(self._name)
            path = _path(self._logdir) / self._name
            if (path / "run.json").exists() and not self._resume:
                raise ValueError(
                    f"The run {self._name} exists in {self._logdir}; continue it with resume=True, "
                    "or choose another name."
                )
        elif self._resume:
            raise ValueError("resume=True: should come with the name of the run to go on with.")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if kind is None:
            self.end("completed")
        elif issubclass(kind, KeyboardInterrupt):
            self.end("interrupted", "ended by Ctrl-C")
        else:
            self.end("failed", f"{kind.__name__}: {_first_line(error)}")

    def instrument(
        self, trainable: Sequence[Any], paths: Sequence[str]
    ) -> instrument_lib.Instrument:
        """The noise and measurement that were asked for, around updates of these variables.

        Raises:
          ValueError: in one sentence: no variables, not floats, patterns that match nothing.
        """
        if not trainable:
            raise ValueError("There are no trainable variables: is the model built?")
        for path, variable in zip(paths, trainable, strict=True):
            if "float" not in (kind := _dtype(variable)):
                raise ValueError(f"The variable {path} is of type {kind}; should be of floats.")
        selector = self.config.selector
        if selector == "anneal" and self.config.anneal_schedule == "linear" and not self._steps:
            raise ValueError("selector=anneal: needs to know the number of steps; give steps=.")
        try:
            made = instrument_lib.build(
                self.config, trainable, paths, self._steps or _UNKNOWN_LAST, self.noise is not None
            )
        except ValueError as error:
            raise ValueError(settings.without_dashes(error)) from error
        return made if self.noise else made._replace(adder=None, selector=None)

    def begin(
        self,
        instrument: instrument_lib.Instrument,
        step: int,
        batch_size: float,
        last_step: int | None = None,
        parameters: int = 0,
        with_loss: bool = True,
    ) -> None:
        """Opens the run, at its first step or to go on with it in the same process.

        Args:
          instrument: around the updates.
          step: updates applied before.
          batch_size: examples a batch.
          last_step: where it is known.
          parameters: number of trainable parameters.
          with_loss: whether the loss of a step is known.
        """
        if self.status == "running":
            return
        self._open(step, parameters)
        assert self.run_dir is not None
        names, stddevs = instrument.names, self.config.stddevs if self.noise else ()
        last = last_step or self._steps
        self._schedule = Schedule(
            last or _UNKNOWN_LAST, self.config.summary_every, windows=self._windows
        )
        place = {name: f"{i + 1} of {len(names)}" for i, name in enumerate(names)}
        first = step + 1 if step else 0
        self._train = summaries.EventWriter(
            self.run_dir.train,
            first,
            lambda t: place.get(t.partition("/")[2], ""),
            self._watch.said,
        )
        self._validation: summaries.EventWriter | None = None
        self.recorder = recorder.Recorder(
            self._train, names, [], stddevs, self.config.wur, batch_size, self.config.log_every,
            last or 0, with_loss,
        )  # fmt: skip
        self.names, self._noised = list(names), instrument.noised
        self._captures = Windows(
            self.run_dir.train, self._train, self._record, self._console, self._watch
        )
        self._book = logbook_lib.Logbook(self._train, lambda: self.step)
        logbook_lib.opened(self._book)
        self.step, self.status = step, "running"
        self._mark = time.time()
        if not self._described:
            self._train.summary(0, summaries.layout(names))
            self.recorder.constants(last or step + 1, step)
            for sentence in instrument.adder.warnings() if instrument.adder else ():
                self.warn(sentence)
        atexit.register(self._abandoned)

    def _open(self, step: int, parameters: int) -> None:
        """Claims the directory, or takes it up again."""
        moved = 0
        if self.run_dir is not None:
            self._record = Record.resume(self.run_dir, step + 1)
        elif self._resume and self._name is not None:
            self.run_dir = rundir.find(self._logdir, self._name)
            self._record = Record.resume(self.run_dir, step + 1)
            moved, validations = resume_lib.trim(self.run_dir, step)
            self.validations = list(validations)
            self._described = True
        else:
            self.run_dir = rundir.claim(self._logdir, self._name, adopt=True)
            asked = settings.shown(self.config, self.noise, self._written)
            extra = {"parameters": parameters, "made_by": "tracker.Run"}
            flags = {**asked, **self._hparams}
            self._record = Record.create(self.run_dir, sys.argv, flags, extra)
        self._console = Console(self.run_dir.console_log, quiet=not self._verbose)
        self._watch = Watch(self._console.warn)
        aside = f"; {moved:,} records after it are kept aside" if moved else ""
        went = f", goes on after step {step:,}{aside}" if step else ""
        self._console.say(f"Run {self.run_dir.name}{went}.")

    def describe(self, function: Any, more: Mapping[str, Any]) -> None:
        """Writes what describes a run as a whole, once: its graph and its settings.

        Args:
          function: a `ConcreteFunction` of one plain step, for the Graphs tab; None for none.
          more: further rows of the text and columns of the HParams tab.
        """
        if self._described:
            return
        self._described = True
        if function is not None:
            self._train.graph(graphs.step_graph(function).SerializeToString())
        asked = settings.shown(self.config, self.noise, self._written)
        self._settings = asked | dict(more) | self._hparams
        self._train.summary(0, summaries.text(tags.RUN, report.table(self._settings)))
        self._train.flush()

    def due(self, number: int) -> bool:
        """Whether step `number` is a summary step."""
        return self._schedule.is_summary(number)

    def in_window(self, first: int, last: int) -> bool:
        """Whether a step from `first` to `last` is to be profiled, or the profiler is to stop."""
        windows = self._windows
        return self._captures.active or any(w.start <= last and first < w.stop for w in windows)

    @contextlib.contextmanager
    def taking(self, number: int):
        """Around the call that takes step `number`: in a profile window it is marked, and captured.

        Args:
          number: of the (first) step that the call takes.
        """
        window = self._schedule.window(number)
        self._captures.after(number - 1, window)
        if window and not self._captures.active:
            self._read_pending()
            self._captures.before(number, window)
        with profiling.step_marker(number) if self._captures.active else contextlib.nullcontext():
            yield

    def plain(self, loss: Any, choice: Any, began: float, skipped: int = 0) -> None:
        """Notes a plain step; its tensors are read later, so that a device need not be waited for.

        Args:
          loss: scalar tensor; None where it is not known.
          choice: int32 scalar tensor.
          began: seconds since the epoch, when its call began.
          skipped: batches without an update before it.
        """
        self.step += 1
        self._pending.append((loss, choice, skipped, began, time.time()))
        if len(self._pending) == 1 and not self.recorder.steps:
            self._read_pending()  # the first call compiles, and counts alone
        elif time.time() - self._pending[0][3] > FLUSH_SECONDS:
            self._read_pending()

    def unseen(self, steps: int) -> None:
        """Notes plain steps of which nothing is known but their number."""
        now = time.time()
        if steps:
            self.step += steps
            self.recorder.unseen(steps, now - self._mark)
        self._mark = now

    def summary(
        self,
        loss: Any,
        choice: Any,
        rows: Any,
        began: float,
        rate: float = np.nan,
        waited: float = np.nan,
        skipped: int = 0,
    ) -> None:
        """Records an instrumented step.

        Args:
          loss: scalar, NaN where it is not known.
          choice: index of the stddev.
          rows: as of `Instrument.step`.
          began: when its call began, seconds since the epoch.
          rate: the learning rate; NaN for none.
          waited: seconds that the step waited for its batch.
          skipped: batches without an update before it.
        """
        self._read_pending()
        now = time.time()
        plain = _plain([float(loss)], [int(choice)], [skipped])
        row = Instrumented(
            np.asarray(rows)[np.newaxis],
            np.zeros([1, 0]),
            np.array([rate]),
            np.array([waited]),
            np.array([now - began]),
        )
        self.recorder.call(self.step, Call(1, 0), Result(1, plain, row, False), began, now)
        self.step += 1
        self._mark = time.time()
        self._watch.measured(
            self.recorder.measured, self.names, self._noised, self.config.noise_scale == "relative"
        )

    def read(self) -> None:
        """Writes all that was noted."""
        self._read_pending()
        self._train.flush()

    def _read_pending(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        losses = [np.nan if p[0] is None else float(p[0]) for p in pending]
        plain = _plain(losses, [int(p[1]) for p in pending], [p[2] for p in pending])
        result = Result(len(pending), plain, None, False)
        before = self.step - len(pending)
        self.recorder.call(before, Call(0, len(pending)), result, pending[0][3], pending[-1][4])
        self._mark = time.time()

    def validation(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Writes what a validation found, at the step that the run is at.

        Args:
          values: by name, such as 'loss' and 'accuracy'.
          step: another step.
        """
        assert self.run_dir is not None, "the run has not begun"
        if self._validation is None:
            self._validation = summaries.EventWriter(
                self.run_dir.validation, self.step + 1 if self.step else 0, warn=self._watch.said
            )
            self._write_hparams(self._validation)
        number = self.step if step is None else step
        found = {k: float(v) for k, v in values.items()}
        self.validations.append((number, found))
        self._validation.scalars(number, found)
        self._validation.flush()

    def _write_hparams(self, writer: summaries.EventWriter) -> None:
        shown, self._settings = self._settings, {}
        if shown:
            assert self.run_dir is not None
            writer.summary(0, summaries.hparams(shown, self.run_dir.name, time.time()))

    def log(self, step: Any, values: Mapping[str, Any]) -> None:
        """Writes values of one's own; see `tracker.logbook.Logbook.log`."""
        if self.status != "running":
            raise RuntimeError("The run has not begun, or has ended: there is nowhere to log to.")
        self._book.log(step, values)

    def warn(self, sentence: str) -> None:
        """Says on stderr and in the run's console.log what people would want to know, once."""
        self._watch.once(sentence, sentence)

    def scalars(self, values: Mapping[str, float]) -> None:
        """Writes further scalars of the step that the run is at."""
        self._train.scalars(self.step, {k: float(v) for k, v in values.items()})
        self._train.flush()

    def end(self, status: str, reason: str = "") -> None:
        """Leaves everything on disk. The run can begin again in the same process.

        Args:
          status: one of `record.STATUSES`.
          reason: one sentence, for runs that did not complete.
        """
        if self.status != "running":
            return
        assert self.run_dir is not None
        self._read_pending()
        self._captures.close(self.step)
        self._write_hparams(self._validation or self._train)
        self._train.close()
        if self._validation is not None:
            self._validation.close()
        logbook_lib.closed(self._book)
        atexit.unregister(self._abandoned)
        self.status = status
        results = report.results(self.validations, self.recorder)
        with contextlib.suppress(record.RunVanishedError):
            self._record.finish(status, self.step, results=results, reason=reason)
        if reason:
            self._console.warn(f"The run {status} after step {self.step}: {reason}.")
        self._console.say(f"tensorboard --logdir {shlex.quote(os.fspath(self.run_dir.logdir))}")
        self._console.__exit__()

    def _abandoned(self) -> None:
        self.end("failed", "the process ended before the training did")


def _plain(loss: Sequence[float], choice: Sequence[int], skipped: Sequence[int]) -> Plain:
    return Plain(
        np.array(loss, np.float32), np.array(choice, np.int32), np.array(skipped, np.int64)
    )


def _dtype(variable: Any) -> str:
    dtype = variable.dtype
    return getattr(dtype, "name", str(dtype))


def _path(logdir: Any) -> Any:
    from etils import epath

    return epath.Path(logdir).expanduser()


def _first_line(error: Any) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else ""
