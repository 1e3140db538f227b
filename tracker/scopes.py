"""Which scope of the code an op belongs to, and how a step's time divides among scopes.

A step of ours has the scopes `data`, `forward`, `gradients`, `update`, `noise` and `diagnostics`;
gradients are the ops under `gradient_tape/`, wherever that stands in a name. Ops of other programs
are grouped by the first two scopes of their names.

At each moment of a step its time goes to what matters most among all that goes on: kernels before
copies, these before ops on the host, these before waiting for the next batch, that before ops that
only call functions (a loop waits for its body). What goes on side by side shares the moment. So the
parts add up to the whole, which sums of durations of parallel ops do not.

    >>> of("while/body/_1/gradient_tape/while/forward/dense/MatMul:_MklMatMul")
    'gradients'
    >>> shares([xplane.read(path)])
    {'data': 3.1, 'forward': 20.4, ..., 'noise/route/route_3_0.001': 2.0, 'runtime': 41.2}
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracker import graphs, xplane

DATA = "data"
COPIES = "copies"  # on a device, of no known op
OTHER = "other"  # ops that belong to no scope
RUNTIME = "runtime"  # no op: TensorFlow between ops, ops too short to be named, Python
SUMMARIES = "summaries"  # the span of writing, between steps
ORDER = (*graphs.PARTS, COPIES, OTHER, RUNTIME)

_OURS = ("forward", "update", "noise")
_KERNEL, _COPY, _OP, _WAIT, _LOOSE, _CALLER = range(6)  # what matters more comes first
_CALLERS = re.compile(r".*(While|If|Case|PartitionedCall|Function|RemoteCall|SymbolicGradient)")
_ROUTE = re.compile(r"noise/route/route_[^/:]+")
_PREFIX = re.compile(r"(.*/(body|cond|then|else|branch\d+)/_\d+/)|(replica_\d+/)")


class _Span(NamedTuple):
    start: float
    end: float
    rank: int
    scope: str


def of(op: str) -> str:
    """The scope of an op: one of `graphs.PARTS`, or the first two of another program's.

    Args:
      op: `<op>:<type>`, as profiles name it, or ''.

    Returns:
      The scope; of a noise route the route's own, `noise/route/<route>`; `other` without any.
    """
    part = graphs.part(op)
    if part == "noise":
        route = _ROUTE.match(graphs.node_name(op))
        return route[0] if route else part
    if part is not None:
        return part
    if "gradient_tape/" in op:
        return "gradients"
    return "/".join(_PREFIX.sub("", op.partition(":")[0]).split("/")[:-1][:2]) or OTHER


def readable(name: str) -> str:
    """The name of an op of ours as the Graphs tab has it; any other name as it is.

    Args:
      name: of an execution, as profiles have it.
    """
    ours = xplane.is_op(name) and graphs.part(name) is not None
    return graphs.node_name(name) if ours else name


def top(scope: str) -> str:
    """The part that a scope of ours lies in; another program's scope as it is."""
    first = scope.partition("/")[0]
    return first if first in graphs.PARTS else scope


def order(scopes: Iterable[str]) -> list[str]:
    """Scopes in the order of a step; those of other programs before what has no scope."""
    place = {scope: n for n, scope in enumerate(ORDER)}
    return sorted(scopes, key=lambda s: (place.get(top(s), len(graphs.PARTS) - 0.5), s))


def shares(spaces: Iterable[Any]) -> dict[str, float]:
    """How the time of the steps divides among scopes.

    Args:
      spaces: XSpace messages, one a host.

    Returns:
      Percent by scope, 100 in all, in the order of a step; a noise route is beside `noise`, not in
      it. Empty without steps. With devices, the mean over those that did anything in the step.
    """
    spent: dict[str, float] = collections.defaultdict(float)
    for space in spaces:
        for step, spans in _laps(space):
            for scope, time in _divided(spans, step.start_us, step.end_us).items():
                spent[scope] += time
    if any(top(scope) in _OURS for scope in spent):  # then what has no part is around the step
        for scope in [scope for scope in spent if top(scope) not in ORDER]:
            spent[OTHER] += spent.pop(scope)
    total = sum(spent.values())
    return {scope: 100 * spent[scope] / total for scope in order(spent)} if total else {}


def total(shares_: dict[str, float], part: str) -> float | None:
    """Percent of a part of ours, what lies in it included; None without any steps."""
    if not shares_:
        return None
    return sum((p for scope, p in shares_.items() if top(scope) == part), 0.0)


def _laps(space: Any) -> Iterator[tuple[xplane.Step, list[_Span]]]:
    """Each step, once for each device that did anything in it, with what went on."""
    steps = xplane.steps(space)
    if not steps:
        return
    by_plane = _spans(space)
    host = [p for p in by_plane if p.startswith(xplane.HOST)]
    devices = [p for p in by_plane if not p.startswith(xplane.HOST)]
    arrays = {p: np.array([s[:2] for s in spans]) for p, spans in by_plane.items()}

    def within(step: xplane.Step, planes: Sequence[str]) -> list[_Span]:
        found = []
        for plane in planes:
            times = arrays[plane]
            index = np.flatnonzero((times[:, 0] < step.end_us) & (times[:, 1] > step.start_us))
            found += [by_plane[plane][i] for i in index]
        return found

    for step in steps:
        on_host = within(step, host)
        own = [step.plane] if step.plane in devices else devices
        busy = [found for device in own if (found := within(step, [device]))]
        for found in busy or [[]]:
            yield step, [*found, *on_host]


def _spans(space: Any) -> dict[str, list[_Span]]:
    """What went on, by plane; of events inside each other on a thread only the innermost."""
    lines: dict[tuple[str, str], list[_Span]] = collections.defaultdict(list)
    known: dict[tuple[str, str, bool], tuple[int, str] | None] = {}
    for event in (*xplane.events(space), *xplane.waits(space)):
        pipeline = event.line.startswith("tf_data_")
        key = (event.name, event.op, pipeline)
        if key not in known:
            known[key] = _kind(event, pipeline)
        if (kind := known[key]) is not None:
            end = event.start_us + event.duration_us
            lines[event.plane, event.line].append(_Span(event.start_us, end, *kind))
    found: dict[str, list[_Span]] = collections.defaultdict(list)
    for (plane, _), spans in lines.items():
        found[plane] += _innermost(sorted(spans, key=lambda s: (s[0], -s[1])))
    return dict(found)


def _kind(event: xplane.Event, pipeline: bool) -> tuple[int, str] | None:
    """What an event is, and its scope; None for ops of the input pipeline, which run beside."""
    if not event.on_host:
        scope = of(event.op) if event.op else COPIES if event.is_copy else OTHER
        return (_COPY if event.is_copy else _KERNEL), scope
    if not event.op or "IteratorGetNext" in event.name:
        return _WAIT, DATA
    scope = of(event.op)
    if graphs.part(event.op) is None and "gradient_tape/" not in event.op:
        if pipeline:
            return None
        rank = _LOOSE
    else:
        rank = _OP
    return (_CALLER if _CALLERS.fullmatch(event.op.rpartition(":")[2]) else rank), scope


def _innermost(spans: Sequence[_Span]) -> Iterator[_Span]:
    """The spans of one thread, sorted by their starts, without the time of those inside them."""
    open_: list[list[Any]] = []  # [where its own time goes on, end, rank, scope]

    def close(until: float) -> Iterator[_Span]:
        while open_ and open_[-1][1] <= until:
            since, end, rank, scope = open_.pop()
            if end > since:
                yield _Span(since, end, rank, scope)
            if open_:
                open_[-1][0] = max(open_[-1][0], end)

    for start, end, rank, scope in spans:
        yield from close(start)
        if open_:
            if start > open_[-1][0]:
                yield _Span(open_[-1][0], start, *open_[-1][2:])
            open_[-1][0] = start
        open_.append([start, end, rank, scope])
    yield from close(float("inf"))


def _divided(spans: Sequence[_Span], start: float, end: float) -> dict[str, float]:
    """How the time from `start` to `end` divides among the scopes of spans, microseconds."""
    changes = []
    for span in spans:
        changes.append((max(span.start, start), 1, span.rank, span.scope))
        changes.append((min(span.end, end), -1, span.rank, span.scope))
    spent: dict[str, float] = collections.defaultdict(float)
    active: list[dict[str, int]] = [{} for _ in range(_CALLER + 1)]
    at = start
    for time, change, rank, scope in sorted(changes):
        if time > at:
            _credit(spent, next(filter(None, active), {RUNTIME: 1}), time - at)
            at = time
        count = active[rank].pop(scope, 0) + change
        if count:
            active[rank][scope] = count
    if end > at:
        spent[RUNTIME] += end - at
    return spent


def _credit(spent: dict[str, float], active: dict[str, int], time: float) -> None:
    share = time / sum(active.values())
    for scope, count in active.items():
        spent[scope] += count * share
