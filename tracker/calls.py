"""One call of compiled steps, as all workers of a run make it: decided together, then made.

>>> with signals() as signalled:
...     while decision := decide(replicas, Decision(most=100, summary_every=50), signalled()):
...         result = make(functions, iterator, step, schedule.call(step, decision.most))
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tracker import profiling
from tracker.distribution import Replicas
from tracker.schedule import Call
from tracker.steps import Result

_SIGNALS = signal.SIGINT, signal.SIGTERM


class Decision(NamedTuple):
    """What all workers do next.

    Attributes:
      most: steps of the next call at most.
      summary_every: steps between summary steps.
      signal: that one of them got, which ends the run; None to go on.
    """

    most: int
    summary_every: int
    signal: int | None = None


def decide(replicas: Replicas, decision: Decision | None, signalled: int | None) -> Decision | None:
    """Has all workers do what the chief decides.

    Args:
      replicas: that hold the model.
      decision: the chief's; None to end the run, and at other workers.
      signalled: the signal that this process got, if any.

    Returns:
      The decision; None to end the run.
    """
    if replicas.cluster is None:
        return decision
    mine = [0] * 3 if decision is None else [1, decision.most, decision.summary_every]
    agreed = replicas.agree(mine, [int(signalled == s) for s in _SIGNALS])
    goes_on, most, summary_every = agreed.chief
    if not goes_on:
        return None
    number = next((s for s, n in zip(_SIGNALS, agreed.sums, strict=True) if n), None)
    return Decision(most, summary_every, number)


def make(functions: Any, iterator: Any, step: int, call: Call) -> Result:
    """Makes a call after `step`, under the marker of its first step."""
    with profiling.step_marker(step + 1):
        if call.intervals:
            return functions.tracked(iterator, step, call.intervals, call.plain)
        return functions.plain(iterator, step, call.plain)


def sentence(error: BaseException) -> str:
    """An error on one line; those of graphs are followed by pages of where."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


@contextlib.contextmanager
def signals() -> Iterator[Callable[[], int | None]]:
    """Notes SIGINT and SIGTERM instead of dying of them; a second one of a kind is final.

    Off the main thread, where Python does not allow it, signals stay as they are.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def note(number, frame):
        received.append(number)
        signal.signal(number, before[number])

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
