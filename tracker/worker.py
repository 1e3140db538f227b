"""What a worker other than the chief does: the same calls of the same steps, and no writing.

The chief decides how far each call goes and when the run ends, and says so before every call. A
worker leaves a log and, until the chief has gathered them, its captures.

    >>> work(experiment, run, console, Start())
    'completed'
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable

from tracker import profiling
from tracker.console import Console
from tracker.distribution import LOST
from tracker.experiment import Experiment
from tracker.record import STATUSES
from tracker.resume import BEGINNING, Start
from tracker.rundir import RunDir
from tracker.train import decide, signals


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
    with signals() as signalled:
        try:
            step = _follow(experiment, run, console, start, signalled)
            code = experiment.replicas.agree([0.0]).chief[0]
        except LOST as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            console.warn(f"The run failed: another worker is gone: {reason[0]}.")
            return "failed"
    status = STATUSES[int(code)]
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
    functions, schedule = experiment.functions, experiment.schedule
    cluster = experiment.replicas.cluster
    assert cluster is not None
    profiler = profiling.Profiler(run.workers(cluster.number), console.warn)
    iterator, step = iter(experiment.batches(start.batches)), start.step
    while decision := decide(experiment.replicas, None, signalled()):
        if decision.signal is not None:
            console.warn(f"The run ends: a worker got {signal.Signals(decision.signal).name}.")
            break
        schedule = dataclasses.replace(schedule, summary_every=decision.summary_every)
        window = schedule.window(step + 1)
        if window and window.start == step + 1:
            profiler.start()
        call = schedule.call(step, decision.most)
        with profiling.step_marker(step + 1):
            if call.intervals:
                result = functions.tracked(iterator, step, call.intervals, call.plain)
            else:
                result = functions.plain(iterator, step, call.plain)
        step += result.steps
        if profiler.active and not schedule.window(step + 1):
            profiler.stop()
    profiler.stop()
    return step
