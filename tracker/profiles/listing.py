"""The command `list`: the captures of a logdir.

>>> python -m tracker.profiles list --logdir=logdir
"""

from __future__ import annotations

import argparse
from typing import Any

from tracker import captures
from tracker.profiles import catalog
from tracker.runs import output


def list_command(args: argparse.Namespace) -> int:
    """Lists captures; one that cannot be read is listed with what is wrong with it."""
    found = [summary(entry) for entry in catalog.select(args.logdir, args.runs)]
    if args.json:
        output.print_json(found)
        return 0
    titles = ["run", "capture", "device", "MB", "steps", "step ms", "input %", "noise %"]
    output.table(titles, [_row(one) for one in found], right=range(3, 8))
    print(output.count(len(found), "capture"))
    return 0


def summary(entry: catalog.Entry) -> dict[str, Any]:
    """What is said of a capture in one line."""
    about = {"run": entry.run, "capture": entry.capture.name, "path": str(entry.capture.path)}
    try:
        found = captures.numbers(entry.capture)
    except captures.CaptureError as error:
        return {**about, "problem": str(error)}
    return {
        **about,
        "device_type": found.device_type,
        "megabytes": entry.capture.megabytes,
        "steps": list(found.steps),
        "step_ms": found.step_ms_median,
        "input_percent": found.input_percent,
        "noise_percent": found.noise_percent,
    }


def span(steps: list[int] | tuple[int, ...]) -> str:
    """Which steps: '201-205', or their numbers where some are missing."""
    if len(steps) > 1 and list(steps) == list(range(steps[0], steps[-1] + 1)):
        return f"{steps[0]}-{steps[-1]}"
    return ",".join(map(str, steps)) or "none"


def _row(one: dict[str, Any]) -> list[str]:
    if "problem" in one:
        return [one["run"], one["capture"], f"unreadable: {one['problem']}", *[""] * 5]
    numbers = [one[key] for key in ("step_ms", "input_percent", "noise_percent")]
    return [
        one["run"],
        one["capture"],
        one["device_type"],
        f"{one['megabytes']:.1f}",
        span(one["steps"]),
        *(output.number(number) for number in numbers),
    ]
