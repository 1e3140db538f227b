"""The command `assert`: limits that scripts hold captures to.

>>> python -m tracker.profiles assert latest --logdir=logdir --max_input_percent=10
"""

from __future__ import annotations

import argparse

from tracker import captures, scopes
from tracker.captures import Numbers
from tracker.profiles import catalog
from tracker.runs import output
from tracker.runs.commands import FAILURE, fail


def assert_command(args: argparse.Namespace) -> int:
    """Checks the limits that are given; status 1, with the figure, if one is not kept."""
    limits = {
        name: limit
        for name, limit in vars(args).items()
        if name.startswith(("max_", "min_")) and limit is not None
    }
    if not limits:
        raise ValueError("Nothing to check: give a limit, such as --max_step_ms=20")
    entry = catalog.find(args.logdir, args.run)
    numbers = captures.numbers(entry.capture)
    if not numbers.steps:
        return fail(f"The capture {entry.name} holds no steps to check", FAILURE)
    figures = {name: figure(numbers, name[len("max_") :]) for name in limits}
    broken = [name for name in limits if not _kept(name, figures[name], limits[name])]
    if args.json:
        output.print_json({"capture": entry.name, "figures": figures, "broken": broken})
    for name in broken:
        side = "above" if name.startswith("max_") else "below"
        what = f"{name[len('max_') :]} of {entry.name} is {figures[name]:.4g}"
        fail(f"{what}, {side} --{name}={limits[name]:g}")
    if not broken and not args.json:
        shown = ", ".join(f"{name[len('max_') :]} {value:.4g}" for name, value in figures.items())
        print(f"{output.safe(entry.name)}: {shown}")
    return FAILURE if broken else 0


def figure(numbers: Numbers, name: str) -> float:
    """A figure by the name of its limit, such as 'step_ms' or 'input_percent'."""
    if name == "step_ms":
        value = numbers.step_ms_median
    else:
        part = name.removesuffix("_percent")
        inside = part in numbers.parts
        value = numbers.parts[part] if inside else scopes.total(numbers.scopes, part)
    return value or 0.0


def _kept(name: str, value: float, limit: float) -> bool:
    return value <= limit if name.startswith("max_") else value >= limit
