"""Trains a model with noise of a stddev chosen at every step, and writes what TensorBoard shows.

  python -m tracker.main --logdir=logdir

trains a small network on the embedded digits with six stddevs, and ends by printing the command
that shows the run. Every experiment of `flags/` is one flagfile:

  python -m tracker.main --flagfile=flags/quickstart.flags --logdir=logdir

A run repeats with the flags that it recorded:

  python -m tracker.main --flagfile=logdir/RUN/flags.txt --logdir=logdir

and one that was stopped, or killed, goes on with

  python -m tracker.main --resume=RUN --logdir=logdir

Exit status: 0 completed; 1 failed or diverged; 2 a mistake in the command, nothing was made;
130 and 143 ended by Ctrl-C and SIGTERM, everything was saved.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from absl import app, flags

from tracker import app_flags, cluster, quiet, record, rundir
from tracker import config as config_lib
from tracker.console import Console
from tracker.record import Record

flags.adopt_module_key_flags(app_flags)


class _Ready(NamedTuple):
    """A run that can be trained: nothing that a user can get wrong comes after it."""

    experiment: Any
    run: rundir.RunDir
    record: Record | None  # None at a worker that is not the chief
    start: tuple = ()  # of a resumed run
    warnings: Sequence[str] = ()
    line: str = ""
    worker: int = 0  # 0: this process is the chief, or alone


def main(argv: Sequence[str]) -> int:
    """Runs one experiment; returns the exit status."""
    del argv
    try:
        app_flags.check_logdir_given()
        sys.path.insert(0, os.getcwd())  # module:function is looked for here first
        ready = _resumed() if app_flags.RESUME.value else _begun()
    except ValueError as error:
        return app_flags.fail(str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # nothing had begun
    log = ready.run.console_log
    if ready.worker:
        log = ready.run.workers(ready.worker) / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
    with Console(log) as console:
        for warning in ready.warnings:
            console.warn(warning)
        console.say(ready.line)
        return _train(ready, console)


def _begun() -> _Ready:
    config = config_lib.validate(app_flags.config_from_flags())
    rundir.check_logdir(app_flags.LOGDIR.value)
    if app_flags.RUN.value:
        rundir.check_name(app_flags.RUN.value)
    replicas = _import_tensorflow(config.distribute, config.logical_cpus, config.worker_timeout)
    experiment = _traced(_assembled(config, replicas))
    return _shared(replicas, experiment, lambda: _claimed(config, experiment))


def _claimed(config: config_lib.Config, experiment: Any) -> _Ready:
    default = f"{_word(config.dataset)}-{_word(config.model)}"
    run = rundir.claim(app_flags.LOGDIR.value, app_flags.RUN.value, default)
    run.flags_txt.write_text(app_flags.flags_text(config))
    extra = {"steps": experiment.steps, "parameters": experiment.parameters}
    created = Record.create(run, sys.argv, dataclasses.asdict(config), extra)
    line = (
        f"Run {run.name}: {config.model} ({experiment.parameters:,} parameters) on "
        f"{config.dataset}, {experiment.steps:,} steps, {len(config.stddevs)} stddevs by "
        f"{config.strategy}."
    )
    return _Ready(experiment, run, created, warnings=_of_noise(experiment), line=line)


def _of_noise(experiment: Any) -> list[str]:
    adder = experiment.instrument.adder
    return [] if adder is None or experiment.rule.perturbs else adder.warnings()


def _import_tensorflow(distribute: str, logical_cpus: int, timeout: float) -> Any:
    """Imports TensorFlow; with several workers, meets them and returns the replicas of all."""
    if distribute != "multi_worker":
        quiet.import_tensorflow(logical_cpus)
        return None
    workers = cluster.read()
    cluster.check_port(workers)
    # What TensorFlow says of a lost connection is said in one sentence by us.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if workers.chief:
        cluster.wait_for_others(workers, timeout, lambda line: print(line, file=sys.stderr))

    def join():
        from tracker import distribution

        return distribution.join(workers, timeout)

    return quiet.import_tensorflow(first=join)


def _shared(replicas: Any, experiment: Any, begin: Callable[[], _Ready]) -> _Ready:
    """Has the chief alone begin the run, and tells the other workers its name."""
    if replicas is None:
        return begin()
    from tracker.distribution import LOST

    try:
        if replicas.chief:
            try:
                ready = begin()
            except Exception:
                with contextlib.suppress(*LOST):
                    replicas.share("")
                raise
            replicas.share(ready.run.name)
            return ready
        name = replicas.share()
    except LOST as error:
        raise ValueError("Another worker ended before the run began") from error
    if not name:
        raise ValueError("The chief could not begin the run; it says why")
    number = replicas.cluster.number
    line = f"Worker {number} of run {name}, with the chief at {replicas.cluster.addresses[0]}."
    run = rundir.find(app_flags.LOGDIR.value, name)
    return _Ready(experiment, run, None, line=line, worker=number)


def _assembled(config: config_lib.Config, replicas: Any) -> Any:
    """The experiment, of compiled functions or of a session."""
    if config.graph == "v1":
        from tracker import session

        return session.assemble(config)
    from tracker import experiment

    return experiment.assemble(config, replicas=replicas)


def _traced(experiment: Any) -> Any:
    """Traces a step, so that what models and optimizers refuse is found before a run exists."""
    try:
        experiment.functions.plain_function.get_concrete_function()
        if experiment.instrument.selector.planned is not None:
            experiment.instrument.selector.planned(1)
    except Exception as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        last = text[-1] if text[0].startswith("in user code") else text[0]
        sentence = last.strip()
        where = "" if sentence.startswith("--") else "No step can be built: "
        raise ValueError(f"{where}{sentence}") from error
    return experiment


def _resumed() -> _Ready:
    if app_flags.RUN.value:
        raise ValueError(f"--run={app_flags.RUN.value} with --resume: a resumed run has its name")
    run = rundir.find(app_flags.LOGDIR.value or "", app_flags.RESUME.value or "")
    given = app_flags.given()
    devices = {
        **dataclasses.asdict(config_lib.Config()),
        **record.read(run).get("flags", {}),
        **given,
    }
    replicas = _import_tensorflow(
        *(devices[name] for name in ("distribute", "logical_cpus", "worker_timeout"))
    )
    from tracker import experiment as experiment_lib
    from tracker import resume

    config = resume.merged(resume.settings(run), given)
    if config.graph == "v1":
        raise ValueError(f"--resume={run.name}: runs with --graph=v1 cannot go on; start a new one")
    experiment = experiment_lib.assemble(config_lib.validate(config), replicas=replicas)
    warnings: list[str] = []
    checkpoints = experiment.checkpoints(run.checkpoints)
    step, batches = resume.restore(checkpoints, run, experiment.steps, warnings.append)

    def begin():
        ready = _continued(config, experiment, run, step, batches)
        return ready._replace(warnings=[*warnings, *_of_noise(experiment)])

    ready = _shared(replicas, experiment, begin)
    return ready if ready.start else ready._replace(start=(resume.Start(step, batches),))


def _continued(config, experiment, run: rundir.RunDir, step: int, batches: int) -> _Ready:
    from tracker import resume

    resumed = Record.resume(run, step + 1)  # from here on the run is ours
    moved, validation = resume.trim(run, step)
    run.flags_txt.write_text(app_flags.flags_text(config))
    resumed.update(flags=dataclasses.asdict(config), steps=experiment.steps)
    aside = f"; {moved:,} records after it are kept in {run.orphaned.name}" if moved else ""
    line = f"Run {run.name}: resumed at step {step:,} of {experiment.steps:,}{aside}."
    start = (resume.Start(step, batches, validation),)
    return _Ready(experiment, run, resumed, start, line=line)


def _train(ready: _Ready, console: Console) -> int:
    from tracker.selectors import ChoiceError
    from tracker.train import train
    from tracker.worker import work

    if ready.record is None:
        status = work(ready.experiment, ready.run, console, *ready.start)
        return 0 if status == "completed" else 1
    try:
        outcome = train(ready.experiment, ready.run, ready.record, console, *ready.start)
    except ChoiceError as error:
        console.warn(f"The run failed: {error}.")
        return 1
    if outcome.reason:
        console.warn(f"The run {outcome.status} after step {outcome.step}: {outcome.reason}.")
    console.show(outcome.table)
    console.say(f"tensorboard --logdir {shlex.quote(os.fspath(ready.run.logdir))}")
    if outcome.signal is not None:
        return 128 + outcome.signal
    return 0 if outcome.status == "completed" else 1


def _word(name: str) -> str:
    """The part of a data set's or model's name that fits into the name of a run."""
    base = os.path.basename(name.partition(":")[2] or name)
    kept = "".join(c if c.isalnum() or c in "_-" else "-" for c in os.path.splitext(base)[0])
    return kept.strip("-_") or "run"


def run_app() -> None:
    """Entry point of `python -m tracker.main`."""
    app.run(main, flags_parser=app_flags.parse)


if __name__ == "__main__":
    run_app()
