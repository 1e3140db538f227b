"""The command `capture`: captures a run that goes on, through its `--profiler_port`.

XProf's own client asks the run's profiler, so nothing here loads TensorFlow.

>>> python -m tracker.profiles capture latest --logdir=logdir --port=6009
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from collections.abc import Iterator

from etils import epath

from tracker import captures, rundir
from tracker.profiles import listing
from tracker.profiles.catalog import Entry
from tracker.runs import output
from tracker.runs.commands import FAILURE, fail


def capture_command(args: argparse.Namespace) -> int:
    """Captures, and says what came of it."""
    if args.logdir is None:
        raise ValueError("Missing: --logdir, the directory of all runs")
    run = rundir.find(args.logdir, args.run)
    _check_listening(args.port)
    before = {capture.path for capture in captures.find(run.train)}
    if problem := _trace(args, run.train):
        return fail(f"No capture from {args.port}: {problem}", FAILURE)
    new = [capture for capture in captures.find(run.train) if capture.path not in before]
    if not new:
        return fail(f"No capture from {args.port}: its profiler sent nothing", FAILURE)
    captures.show_steps(new[-1].path)
    found = listing.summary(Entry(run.name, new[-1]))
    if args.json:
        output.print_json(found)
        return 0
    if "problem" in found:
        return fail(found["problem"], FAILURE)
    what = f"steps {listing.span(found['steps'])}" if found["steps"] else "no steps"
    print(f"{output.safe(run.name)}/{new[-1].name}: {what}, {found['megabytes']:.1f} MB")
    return 0


def _trace(args: argparse.Namespace, directory: epath.Path) -> str:
    """Lets XProf's client write a capture below a directory; what went wrong, '' if nothing."""
    levels = {
        "host_tracer_level": args.host_level,
        "python_tracer_level": args.python_level,
        "device_tracer_level": args.device_level,
        "delay_ms": 0,
    }
    with _silent():
        from xprof.convert import _pywrap_profiler_plugin as client

        try:
            milliseconds = round(args.seconds * 1000)
            client.trace(args.port, os.fspath(directory), "", True, milliseconds, 1, levels)
        except Exception as error:  # whatever the C++ behind it raises
            return " ".join(str(error).split()) or type(error).__name__
    return ""


def _check_listening(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ValueError(
            f"--port={address}: nothing listens there ({error.strerror or error}); start the run "
            f"with --profiler_port={port}"
        ) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keeps what the client prints and logs, from C++, off the terminal."""
    sys.stdout.flush()
    kept = os.dup(1), os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)
