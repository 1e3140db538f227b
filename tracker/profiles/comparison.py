"""The command `diff`: what takes longer or shorter in one capture than in another.

>>> python -m tracker.profiles diff first again --logdir=logdir
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from tracker import captures, scopes
from tracker.captures import Numbers
from tracker.profiles import catalog
from tracker.runs import output

Pair = tuple[float, float]


def diff_command(args: argparse.Namespace) -> int:
    """Shows how two captures differ, by the milliseconds of a step."""
    a, b = (catalog.find(args.logdir, name) for name in (args.a, args.b))
    first, second = captures.numbers(a.capture), captures.numbers(b.capture)
    for entry, found in ((a, first), (b, second)):
        if not found.steps:
            raise ValueError(f"The capture {entry.name} holds no steps to compare")
    step = (first.step_ms_median or 0.0, second.step_ms_median or 0.0)
    by_scope = largest_first(_scope_ms(first), _scope_ms(second))
    by_op = largest_first(_op_ms(first), _op_ms(second))
    if args.json:
        output.print_json(_fields(a, b, step, by_scope, by_op))
        return 0
    print(
        f"A: {output.safe(a.name)}, {first.device_type}, {output.count(len(first.steps), 'step')}"
    )
    print(f"B: {output.safe(b.name)}, {second.device_type}, "
          f"{output.count(len(second.steps), 'step')}\n")  # fmt: skip
    _table("milliseconds a step", {"step (median)": step, **by_scope})
    print()
    _table("top ops, milliseconds a step", dict(list(by_op.items())[: args.top]))
    return 0


def largest_first(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, Pair]:
    """Pairs of figures by name, 0 where one lacks it, largest difference first."""
    pairs = {name: (a.get(name, 0.0), b.get(name, 0.0)) for name in dict.fromkeys([*a, *b])}
    return dict(sorted(pairs.items(), key=lambda item: -abs(item[1][1] - item[1][0])))


def _scope_ms(numbers: Numbers) -> dict[str, float]:
    """Milliseconds of a step by scope; those of routes are in those of the noise as well."""
    mean, found = numbers.step_ms_mean or 0.0, dict(numbers.scopes)
    if numbers.noise_percent:
        found["noise"] = numbers.noise_percent
    return {scope: mean * percent / 100 for scope, percent in found.items()}


def _op_ms(numbers: Numbers) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, op in numbers.ops.items():
        shown = scopes.readable(name)
        found[shown] = found.get(shown, 0.0) + op.total_us / 1e3 / len(numbers.steps)
    return found


def _fields(a: Any, b: Any, step: Pair, *tables: dict[str, Pair]) -> dict[str, Any]:
    by_scope, by_op = ({n: {"a": p[0], "b": p[1]} for n, p in t.items()} for t in tables)
    return {
        "a": a.name,
        "b": b.name,
        "step_ms": {"a": step[0], "b": step[1]},
        "scopes_ms": by_scope,
        "ops_ms": by_op,
    }


def _table(title: str, pairs: Mapping[str, Pair]) -> None:
    rows = [
        [name, output.number(a), output.number(b), f"{b - a:+.4g}", _ratio(a, b)]
        for name, (a, b) in pairs.items()
    ]
    output.table([title, "A", "B", "B - A", "B / A"], rows, right=(1, 2, 3, 4))


def _ratio(a: float, b: float) -> str:
    return f"{b / a:.2f}" if a else "new" if b else "-"
