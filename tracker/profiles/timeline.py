"""The command `plot`: one step as an SVG, by thread and stream, coloured by scope.

A picture of lines and rectangles needs no library: any browser shows it, and the text in it can be
searched. What is open at the same time on a thread is drawn below what it is inside of.

>>> python -m tracker.profiles plot latest --logdir=logdir --output=step.svg
"""

from __future__ import annotations

import argparse
import collections
import html
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tracker import captures, scopes, xplane
from tracker.profiles import catalog
from tracker.runs import output
from tracker.runs.exports import replaced

COLOURS = {
    "data": "#e8a33d",
    "forward": "#3b7dd8",
    "gradients": "#7a4fbf",
    "update": "#2f9e63",
    "noise": "#d64550",
    "diagnostics": "#b0639a",
    scopes.COPIES: "#8c8c8c",
    scopes.OTHER: "#5d7f8c",
    scopes.RUNTIME: "#c9ccd1",
}
_MORE = ("#3b7dd8", "#2f9e63", "#b0639a", "#7f6a3f", "#1f9aa8", "#a3402b")  # other programs' scopes
MOST_BARS = 20_000  # of one picture; the shortest are left out, and the picture says so

_WIDTH, _LEFT, _ROW, _GAP, _TOP = 1400, 250, 14, 8, 62
_DEEPEST = 6  # rows of one thread


class Bar(NamedTuple):
    """Something that went on in the step.

    Attributes:
      start_us, end_us: microseconds from the start of the step, within it.
      row: 0 is the outermost of a thread.
      scope: see `scopes`; `runtime` for what is no op.
      name: of the op, kernel or call.
    """

    start_us: float
    end_us: float
    row: int
    scope: str
    name: str


def plot_command(args: argparse.Namespace) -> int:
    """Draws a step."""
    if not args.output.endswith(".svg"):
        raise ValueError(f"--output={args.output}: should end in .svg")
    entry = catalog.find(args.logdir, args.run)
    spaces = captures.read(entry.capture.path)
    steps = [step for space in spaces.values() for step in xplane.steps(space)]
    step = _chosen(steps, args.step, entry.name)
    lanes = {}
    for host, space in spaces.items():
        for (plane, line), bars in lanes_of(space, step).items():
            shown = plane if len(spaces) == 1 else f"{host.removesuffix(xplane.SUFFIX)} {plane}"
            lanes[shown, line] = bars
    title = f"{entry.name}, step {step.number}, {step.ms:.4g} ms"
    picture = draw(title, lanes, step.end_us - step.start_us)
    with replaced(args.output) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(picture)
    drawn = sum(len(bars) for bars in lanes.values())
    if args.json:
        fields = {"capture": entry.name, "step": step.number, "lanes": len(lanes), "bars": drawn}
        output.print_json({**fields, "output": args.output})
    else:
        what = f"{output.count(len(lanes), 'lane')}, {output.count(drawn, 'bar')}"
        print(output.safe(f"step {step.number} of {entry.name}: {what} in {args.output}"))
    return 0


def _chosen(steps: Sequence[xplane.Step], number: int | None, name: str) -> xplane.Step:
    """The step of a number, or the one of median time."""
    if not steps:
        raise ValueError(f"The capture {name} holds no steps to draw")
    if number is None:
        return sorted(steps, key=lambda step: step.ms)[len(steps) // 2]
    found = [step for step in steps if step.number == number]
    if not found:
        numbers = sorted({step.number for step in steps})
        raise ValueError(
            f"--step={number}: the capture {name} has the steps {numbers[0]} to {numbers[-1]}"
        )
    return max(found, key=lambda step: step.ms)


def lanes_of(space: Any, step: xplane.Step) -> dict[tuple[str, str], list[Bar]]:
    """What went on in a step, by (plane, thread or stream); threads that did nothing are left out.

    Args:
      space: an XSpace message.
      step: the step.
    """
    spans: dict[tuple[str, str], list[xplane.Event]] = collections.defaultdict(list)
    for event in xplane.spans(space):
        if event.start_us < step.end_us and event.start_us + event.duration_us > step.start_us:
            spans[event.plane, event.line].append(event)
    found = {key: _stacked(events, step) for key, events in spans.items()}
    first_devices = sorted(found, key=lambda key: (key[0].startswith(xplane.HOST), *key))
    return {key: found[key] for key in first_devices if found[key]}


def _stacked(events: list[xplane.Event], step: xplane.Step) -> list[Bar]:
    bars: list[Bar] = []
    open_: list[float] = []  # ends of what is going on
    for event in sorted(events, key=lambda e: (e.start_us, -e.duration_us)):
        while open_ and open_[-1] <= event.start_us:
            open_.pop()
        if event.duration_us > 0 and len(open_) < _DEEPEST:
            start = max(event.start_us, step.start_us) - step.start_us
            end = min(event.start_us + event.duration_us, step.end_us) - step.start_us
            bars.append(Bar(start, end, len(open_), _scope(event), event.name))
        open_.append(event.start_us + event.duration_us)
    return bars


def _scope(event: xplane.Event) -> str:
    if event.op:
        return scopes.of(event.op)
    if event.on_host:
        return scopes.DATA if "Iterator" in event.name else scopes.RUNTIME
    return scopes.COPIES if event.is_copy else scopes.OTHER


def draw(title: str, lanes: dict[tuple[str, str], list[Bar]], length_us: float) -> str:
    """The picture.

    Args:
      title: of the picture.
      lanes: from `lanes_of`.
      length_us: of the step, microseconds.

    Returns:
      The text of an SVG file.
    """
    scale = (_WIDTH - _LEFT - 20) / length_us
    kept = sorted((b for bars in lanes.values() for b in bars), key=lambda b: b.start_us - b.end_us)
    shortest = 0.0
    if len(kept) > MOST_BARS:
        shortest = kept[MOST_BARS].end_us - kept[MOST_BARS].start_us
        title += f" (without {len(kept) - MOST_BARS:,} bars of at most {shortest:.3g} µs)"
    colours, body, y = _colours(kept), [], float(_TOP)
    for (plane, line), bars in lanes.items():
        rows = 1 + max(bar.row for bar in bars)
        body.append(_label(f"{plane} {line}", y))
        shown = (bar for bar in bars if bar.end_us - bar.start_us > shortest)
        body += [_bar(bar, y, scale, colours[_part(bar.scope, colours)]) for bar in shown]
        y += rows * _ROW + _GAP
    parts = {_part(bar.scope, colours) for bar in kept}
    height = y + 20
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
            f'width="{_WIDTH}" height="{height:.0f}" font-family="sans-serif" font-size="11">',
            f'<rect width="{_WIDTH}" height="{height:.0f}" fill="white"/>',
            f'<text x="10" y="20" font-size="14">{html.escape(title)}</text>',
            *_legend({part: c for part, c in colours.items() if part in parts}),
            *_axis(length_us, scale, height),
            *body,
            "</svg>\n",
        ]
    )


def _colours(bars: Iterable[Bar]) -> dict[str, str]:
    """The colour of each part; the scopes of another program that take most time have one too."""
    spent: dict[str, float] = collections.defaultdict(float)
    for bar in bars:
        if scopes.top(bar.scope) not in COLOURS:
            spent[bar.scope] += bar.end_us - bar.start_us
    most = sorted(spent, key=lambda scope: -spent[scope])[: len(_MORE)]
    return {**dict(zip(most, _MORE, strict=False)), **COLOURS}


def _part(scope: str, colours: dict[str, str]) -> str:
    part = scopes.top(scope)
    return part if part in colours else scopes.OTHER


def _label(text: str, y: float) -> str:
    shown = text if len(text) <= 36 else f"{text[:35]}…"
    return f'<text x="10" y="{y + _ROW - 3:.0f}">{html.escape(shown)}</text>'


def _bar(bar: Bar, y: float, scale: float, colour: str) -> str:
    width = max((bar.end_us - bar.start_us) * scale, 0.2)
    tip = html.escape(f"{bar.name}\n{bar.scope}, {bar.end_us - bar.start_us:.4g} µs")
    return (
        f'<rect x="{_LEFT + bar.start_us * scale:.2f}" y="{y + bar.row * _ROW:.0f}" '
        f'width="{width:.2f}" height="{_ROW - 1}" fill="{colour}" '
        f'data-scope="{html.escape(bar.scope)}"><title>{tip}</title></rect>'
    )


def _legend(colours: dict[str, str]) -> list[str]:
    found, x, y = [], _LEFT, 26
    for part, colour in colours.items():
        if x + 15 + 7 * len(part) > _WIDTH:  # there is room for a second row
            x, y = _LEFT, y + 15
        found.append(f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"/>')
        found.append(f'<text x="{x + 15}" y="{y + 10}">{html.escape(part)}</text>')
        x += 40 + 7 * len(part)
    return found


def _axis(length_us: float, scale: float, height: float) -> list[str]:
    """Lines at round times, some ten of them."""
    unit = 10.0 ** len(str(int(length_us))) / 100
    every = next(unit * n for n in (1, 2, 5, 10, 20, 50, 100) if length_us / (unit * n) <= 12)
    found, at = [], 0.0
    while at <= length_us:
        x = _LEFT + at * scale
        found.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height - 14:.0f}" '
            f'stroke="#e3e5e8"/><text x="{x:.1f}" y="{height - 3:.0f}">{at / 1e3:g} ms</text>'
        )
        at += every
    return found
