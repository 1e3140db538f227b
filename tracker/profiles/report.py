"""The command `show`: where the time of a step goes.

>>> python -m tracker.profiles show latest --logdir=logdir
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from tracker import captures, scopes, xprof_pages
from tracker.captures import Numbers
from tracker.profiles import advice, catalog
from tracker.profiles.listing import span
from tracker.runs import output

_WIDTH = 58
_SMALL = 0.5  # percent; scopes of other programs below it are shown as one


def show_command(args: argparse.Namespace) -> int:
    """Shows one capture."""
    entry = catalog.find(args.logdir, args.run)
    spaces = captures.read(entry.capture.path)
    numbers = captures.measure(spaces, entry.capture.path)
    memory = memory_peaks(spaces, entry)
    if args.json:
        output.print_json(_fields(entry, numbers, memory, args.top))
        return 0
    _print(entry, numbers, memory, args.top)
    return 0


def memory_peaks(spaces: dict[str, Any], entry: catalog.Entry) -> dict[str, float]:
    """The most memory that each allocator of a device had in use, megabytes (10^6 bytes)."""
    peaks: dict[str, float] = {}
    for host, space in spaces.items():
        try:
            page = xprof_pages.page("memory_profile", {host: space}, entry.capture.path)
        except captures.CaptureError:  # it has no such page for this kind of capture
            continue
        for allocator, found in page.get("memoryProfilePerAllocator", {}).items():
            used = float(found["profileSummary"]["peakStats"]["peakBytesInUse"]) / 1e6
            peaks[allocator] = max(peaks.get(allocator, 0.0), used)
    return dict(sorted(peaks.items()))


def top(numbers: Numbers, most: int) -> list[tuple[str, captures.Op]]:
    """The ops or kernels that take the most time, most first."""
    return sorted(numbers.ops.items(), key=lambda item: -item[1].total_us)[:most]


def _fields(
    entry: catalog.Entry, numbers: Numbers, memory: dict[str, float], most: int
) -> dict[str, Any]:
    return {
        "run": entry.run,
        "capture": entry.capture.name,
        "path": str(entry.capture.path),
        "megabytes": entry.capture.megabytes,
        **{k: v for k, v in vars(numbers).items() if k != "ops"},
        "step_ms_median": numbers.step_ms_median,
        "step_ms_p95": numbers.step_ms_p95,
        "ms": _milliseconds(numbers),
        "ops": {name: dataclasses.asdict(op) for name, op in top(numbers, most)},
        "memory_peak_mb": memory,
        "advice": advice.advise(numbers),
    }


def _milliseconds(numbers: Numbers) -> dict[str, float]:
    """The parts of the mean step, milliseconds."""
    mean = numbers.step_ms_mean or 0.0
    return {part: mean * percent / 100 for part, percent in numbers.parts.items()}


def _print(entry: catalog.Entry, numbers: Numbers, memory: dict[str, float], most: int) -> None:
    print(f"{output.safe(entry.name)}: {_hardware(numbers)}, {entry.capture.megabytes:.1f} MB")
    if numbers.steps:
        shown = f"step {span(numbers.steps)}" if len(numbers.steps) == 1 else (
            f"{len(numbers.steps)} steps ({span(numbers.steps)})"
        )  # fmt: skip
        print(
            f"{shown}: median {output.number(numbers.step_ms_median)} ms, "
            f"p95 {output.number(numbers.step_ms_p95)} ms"
        )
        _parts(numbers)
        _scopes(numbers)
    else:
        print("no steps: nothing marked them")
    _devices(numbers, memory)
    _ops(numbers, most)
    if sentence := advice.advise(numbers):
        print(f"\n{sentence}")


def _hardware(numbers: Numbers) -> str:
    if not numbers.devices:
        return numbers.device_type
    return f"{numbers.device_type}, {len(numbers.busy)} of {numbers.devices} busy"


def _parts(numbers: Numbers) -> None:
    print("\nwhere a step's time goes")
    times = _milliseconds(numbers)
    rows = [
        [part, output.number(times[part]), output.number(percent)]
        for part, percent in numbers.parts.items()
        if percent > 0
    ]
    output.table(["part", "ms", "%"], rows, right=(1, 2))


def _scopes(numbers: Numbers) -> None:
    print("\nby scope of the code")
    mean = numbers.step_ms_mean or 0.0
    large, small = {}, 0.0
    for scope, percent in numbers.scopes.items():
        if percent < _SMALL and scopes.top(scope) not in scopes.ORDER:
            small += percent
        else:
            large[scope] = percent
    if small:
        large["smaller ones"] = small
    if "noise" in {scopes.top(scope) for scope in large}:
        large = _with_total(large, numbers)
    rows = [
        [f"  {s}" if s.startswith("noise/") else s, output.number(mean * p / 100), output.number(p)]
        for s, p in large.items()
    ]
    output.table(["scope", "ms", "%"], rows, right=(1, 2))


def _with_total(large: dict[str, float], numbers: Numbers) -> dict[str, float]:
    """The routes of the noise stand below all of the noise, and are in it."""
    found: dict[str, float] = {}
    for scope, percent in large.items():
        if scopes.top(scope) == "noise" and "noise" not in found:
            found["noise"] = numbers.noise_percent or 0.0
        if scope != "noise":
            found[scope] = percent
    return found


def _devices(numbers: Numbers, memory: dict[str, float]) -> None:
    if numbers.busy:
        print()
        rows = [[plane, output.number(percent)] for plane, percent in sorted(numbers.busy.items())]
        output.table(["device", "busy %"], rows, right=(1,))
    if memory:
        print()
        rows = [[allocator, output.number(peak)] for allocator, peak in memory.items()]
        output.table(["memory", "peak MB"], rows, right=(1,))


def _ops(numbers: Numbers, most: int) -> None:
    found = top(numbers, most)
    if not found:
        return
    total = sum(op.total_us for op in numbers.ops.values())
    print()
    rows = [
        [
            scopes.readable(name),
            str(op.count),
            f"{op.total_us:,.0f}",
            output.number(100 * op.total_us / total if total else 0.0),
            _end(op.op) if numbers.busy else op.scope,
        ]
        for name, op in found
    ]
    titles = ["top kernels", "launched by"] if numbers.busy else ["top ops", "scope"]
    output.table([titles[0], "count", "total µs", "%", titles[1]], rows, right=(1, 2, 3))


def _end(text: str) -> str:
    """The last signs of an op's name, which tell more than the first."""
    return text if len(text) <= _WIDTH else f"…{text[1 - _WIDTH :]}"
