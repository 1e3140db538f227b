r"""What commands print: tables that hold still in any terminal, and JSON.

Names, notes and tags come from files that anyone may have written: control characters, which a
terminal obeys, and signs that turn the direction of text are shown as escapes. JSON is ASCII.

    >>> print(safe('a\x1b[2Jb'))
    a\x1b[2Jb
"""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

_WIDEST = 60
_SPARKS = "▁▂▃▄▅▆▇█"
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def safe(text: str) -> str:
    """A text as it can be printed on one line of a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) for c in text)


def _escaped(c: str) -> str:
    if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return c
    return c.encode("unicode_escape").decode()


def number(value: Any) -> str:
    """A number with four figures; `-` for none."""
    if value is None:
        return "-"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    return f"{value:g}" if isinstance(value, float) and abs(value) > 1e6 else f"{value:.0f}"


def age(seconds: float | None) -> str:
    """A span of time in its largest unit, such as 3h; `-` for none."""
    if seconds is None:
        return "-"
    seconds = max(seconds, 0)
    return next((f"{seconds / n:.0f}{u}" for u, n in _UNITS if seconds >= n), f"{seconds:.0f}s")


def size(count: float) -> str:
    """A number of bytes, such as 1.2 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def count(number: int, noun: str) -> str:
    """A number of things: 1 run, 2 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The course of a series, as one line of blocks; what is not finite is a gap."""
    groups = [
        [v for v in values[len(values) * i // width : len(values) * (i + 1) // width] or ()]
        for i in range(width)
    ]
    if len(values) < width:
        groups = [[v] for v in values]
    means = [_mean([v for v in group if math.isfinite(v)]) for group in groups]
    finite = [m for m in means if m is not None]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    top = len(_SPARKS) - 1
    return "".join(" " if m is None else _SPARKS[round((m - low) / span * top)] for m in means)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(v / len(values) for v in values) if values else None


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Prints rows under titles.

    Args:
      titles: of the columns.
      rows: their cells; long ones are cut.
      right: the columns that are aligned at the right.
    """
    shown = [[_cut(safe(cell)) for cell in row] for row in (titles, *rows)]
    widths = [max(map(_width, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = [
            " " * (w - _width(c)) + c if i in right else c + " " * (w - _width(c))
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def print_json(value: Any) -> None:
    """Prints a value as JSON in ASCII; NaN and infinities become the texts NaN, Infinity."""
    json.dump(plain(value), sys.stdout, indent=2, allow_nan=False)
    print()


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, (str, int, float, type(None))) else str(value)
