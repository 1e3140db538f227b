"""What a worker other than the chief does: the same calls of the same steps, and no writing.

The chief decides how far each call goes and when the run ends, and says so before every call. A
worker leaves a log and, until the chief has gathered them, the captures it was asked for. They have
to be asked for, as TensorFlow 2.21 can crash while it ends one: in `SplitEventTracker`, which joins
the two ends of operations that begin on one thread and end on another, such as collectives. A
quarter of the captures of a busy machine ended the worker so, and none of the chief's.

    >>> work(experiment, run, console, Start())
    'completed'
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable

from tracker import calls, profiling
from tracker.console import Console
from tracker.distribution import LOST
from tracker.experiment import Experiment
from tracker.record import STATUSES
from tracker.resume import BEGINNING, Start
from tracker.rundir import RunDir


def work(experiment: Experiment, run: RunDir, console: Console, start: Start = BEGINNING) -> str:
    """Takes part in a run to its end.

    Args:
      experiment: the same as the chief's.
      run: the chief's.
      console: of this worker.
      start: where the run goes on from.

    Returns:
      How the run ended, as the chief says; 'failed' if another worker was lost.
    """
    step = start.step
    with calls.signals() as signalled:
        try:
            step = _follow(experiment, run, console, start, signalled)
            code = experiment.replicas.agree([0]).chief[0]
        except LOST as error:
            console.warn(f"The run failed: another worker is gone: {calls.sentence(error)}.")
            return "failed"
    status = STATUSES[code]
    console.say(f"Run {run.name} {status} after step {step:,}.")
    return status


def _follow(
    experiment: Experiment,
    run: RunDir,
    console: Console,
    start: Start,
    signalled: Callable[[], int | None],
) -> int:
    """Makes the chief's calls; returns the last step."""
    schedule, cluster = experiment.schedule, experiment.replicas.cluster
    assert cluster is not None
    profiler = profiling.Profiler(run.workers(cluster.number), console.warn)
    iterator, step = iter(experiment.batches(start.batches)), start.step
    while decision := calls.decide(experiment.replicas, None, signalled()):
        if decision.signal is not None:
            console.warn(f"The run ends: a worker got {signal.Signals(decision.signal).name}.")
            break
        schedule = dataclasses.replace(schedule, summary_every=decision.summary_every)
        window = schedule.window(step + 1) if experiment.config.profile_workers else None
        if window and window.start == step + 1:
            profiler.start()
        call = schedule.call(step, decision.most)
        step += calls.make(experiment.functions, iterator, step, call).steps
        if profiler.active and not schedule.window(step + 1):
            profiler.stop()
    profiler.stop()
    return step
