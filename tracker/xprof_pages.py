"""XProf's pages, made by its own converters without TensorBoard, TensorFlow or its log lines.

XProf leaves its cache beside what it reads, so it is given copies; and in copies the iterations of
loops are taken out, which it would take for steps (see `captures`).

    >>> page('overview_page', {'host.xplane.pb': space}, path)
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from etils import epath

from tracker import xplane
from tracker.xplane import CaptureError

# Columns of XProf's step table, by the part of the step that they are.
_PARTS = {
    "input": ("infeedTimeMs",),
    "host": ("hostComputeTimeMs",),
    "launch": ("kernelLaunchTimeMs",),
    "device": ("deviceComputeTimeMs",),
    "communication": ("deviceToDeviceTimeMs", "deviceCollectivesTimeMs"),
    "output": ("outfeedTimeMs",),
    "compile": ("compileTimeMs",),
    "other": ("otherTimeMs",),
}

_LOG_LINE = re.compile(rb"[IWEF]\d{4} |WARNING: All log messages before absl::InitializeLog")
_STDERR = threading.Lock()


def version() -> str:
    """The version of XProf that is installed."""
    return importlib.metadata.version("xprof")


def page(tool: str, spaces: dict[str, Any], path: epath.Path, **options: Any) -> Any:
    """One of XProf's pages, as the JSON behind it.

    Args:
      tool: XProf's name of the page, such as 'overview_page', 'memory_profile' (of one host),
        'trace_viewer'.
      spaces: an XSpace message for each host, by the name of its file; they are not changed.
      path: of the capture, for messages.
      **options: of the tool.

    Raises:
      CaptureError: with one sentence, if XProf makes nothing of the capture.
    """
    with tempfile.TemporaryDirectory() as directory:
        copies = []
        for name, space in spaces.items():
            copy = xplane.XSpace.FromString(space.SerializeToString())
            if xplane.marked(copy):
                xplane.without_iterations(copy)
            copies.append(os.path.join(directory, name))
            epath.Path(copies[-1]).write_bytes(copy.SerializeToString())
        with quiet():
            from xprof.convert import raw_to_tool_data

            try:
                options["use_saved_result"] = False
                found, _ = raw_to_tool_data.xspace_to_tool_data(copies, tool, options)
            except Exception as error:  # whatever the C++ behind it raises
                reason = " ".join(str(error).split()).rstrip(".")
                raise CaptureError(
                    f"XProf {version()} cannot read the capture {path}: {reason}."
                ) from error
    if not found:
        raise CaptureError(f"XProf {version()} cannot read the capture {path}.")
    return json.loads(found)


class Table(NamedTuple):
    """What XProf says of steps.

    Attributes:
      device_type: 'CPU', 'GPU' or 'TPU'.
      step_ms: milliseconds of each step by its number; without the first and the last of many.
      parts: percent of the steps' time by the names of `_PARTS`, 100 in all; empty without steps.
    """

    device_type: str
    step_ms: dict[int, float]
    parts: dict[str, float]


def steps(spaces: dict[str, Any], path: epath.Path) -> Table:
    """XProf's table of steps, from its overview page.

    Args:
      spaces: as for `page`.
      path: of the capture, for messages.

    Raises:
      CaptureError: with one sentence, if XProf makes nothing of the capture, or something else
        than is known here.
    """
    device_type, rows = _rows(page("overview_page", spaces, path), path)
    spent = {
        part: sum(row[column] for row in rows for column in columns)
        for part, columns in _PARTS.items()
    }
    total = sum(spent.values())
    return Table(
        device_type,
        {_step_number(row["stepnum"], n): row["stepTimeMs"] for n, row in enumerate(rows)},
        {part: 100 * ms / total for part, ms in spent.items()} if rows else {},
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps XProf's log lines, written in C++, off stderr; lines of other threads arrive later."""
    with _STDERR, tempfile.TemporaryFile() as caught:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            caught.seek(0)
            for line in caught:
                if not _LOG_LINE.match(line):
                    os.write(kept, line)
            os.close(kept)


def _rows(overview: Any, path: epath.Path) -> tuple[str, list[dict[str, Any]]]:
    """The kind of device, and the rows of the table of steps."""
    try:
        [table] = [t for t in overview if _columns(t)[:1] == ["stepnum"]]
        [about] = [t["p"] for t in overview if "device_type" in t.get("p", {})]
        rows = [dict(zip(_columns(table), _cells(row), strict=True)) for row in table["rows"]]
        rows = [row for row in rows if row["stepTimeMs"] > 0]
        missing = [c for columns in _PARTS.values() for c in columns if rows and c not in rows[0]]
        if missing:
            raise KeyError(*missing)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CaptureError(
            f"The capture {path} cannot be read with XProf {version()}: its overview "
            f"page is of another form than known here ({error})."
        ) from error
    return about["device_type"], rows


def _columns(table: dict[str, Any]) -> list[str]:
    return [column["id"] for column in table.get("cols", [])]


def _cells(row: dict[str, Any]) -> list[Any]:
    return [cell.get("v") for cell in row["c"]]


def _step_number(label: str, position: int) -> int:
    digits = re.search(r"\d+$", str(label))  # 'train 20'
    return int(digits.group()) if digits else position
