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
from typing import Any

from etils import epath

from tracker import xplane
from tracker.xplane import CaptureError

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
