"""The command `view`: TensorBoard on some of the runs, with nothing sampled away.

It gets a directory of its own: real directories, because XProf does not follow linked ones, with
links to the files in them. Hyperparameters and layouts are in these files, so that the tabs show
their union.

>>> python -m tracker.runs view --where "best.accuracy > 0.95" --port=6007 --logdir=logdir
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from tracker.runs import output
from tracker.runs.catalog import Catalog
from tracker.runs.listing import warn
from tracker.runs.run import Run
from tracker.runs.scan import is_event_file

_LEAST = 100_000  # points a tag, also of runs that go on
_PLUGINS = ("scalars", "histograms", "distributions", "images", "audio", "text", "pr_curves")


def view_command(args: argparse.Namespace) -> int:
    """Starts TensorBoard on the chosen runs, or prints how."""
    with Catalog(args.logdir) as catalog:
        warn(catalog)
        runs = catalog.select(args.runs, args.where, args.sort, args.limit)
        if not runs:
            raise ValueError(f"No run in {args.logdir} was chosen")
        samples = _samples(runs)
        directory = _directory(args.logdir, runs)
        for run in runs:
            _link(run, directory)
    command = [
        "--logdir",
        directory,
        "--samples_per_plugin",
        samples,
        "--window_title",
        args.logdir,
    ]
    if args.port is not None:
        command += ["--port", str(args.port)]
    shown = shlex.join(["tensorboard", *command])
    if args.json:
        names = [run.name for run in runs]
        output.print_json({"command": ["tensorboard", *command], "directory": directory,
                           "runs": names})  # fmt: skip
    else:
        print(output.safe(shown), flush=True)
    if args.print or args.json:
        return 0
    return _serve(command, directory)


def _samples(runs: Sequence[Run]) -> str:
    """How many points each plugin keeps: more than there are.

    Of 0, which should mean all, TensorBoard's scalars plugin makes none.
    """
    metrics = [metric for run in runs for metric in run.everything.values()]
    most = max([_LEAST, *(2 * metric.points for metric in metrics)])
    kinds = {*_PLUGINS, *(metric.kind for metric in metrics)} - {"", "hparams", "custom_scalars"}
    return ",".join(f"{kind}={most}" for kind in sorted(kinds))


def _serve(command: Sequence[str], directory: str) -> int:
    """Runs TensorBoard until it ends or we are told to; the directory goes with it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    server = subprocess.Popen([sys.executable, "-m", "tensorboard.main", *command])
    try:
        return server.wait()
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _directory(logdir: str, runs: Sequence[Run]) -> str:
    """An empty directory for a view; the same one for the same view."""
    chosen = [os.path.abspath(logdir), *(run.name for run in runs)]
    key = hashlib.sha256(os.fsencode("\0".join(chosen))).hexdigest()[:12]
    directory = os.path.join(tempfile.gettempdir(), f"tracker-view-{os.getuid()}-{key}")
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory, mode=0o700)
    return directory


def _link(run: Run, directory: str) -> None:
    top = os.path.join(directory, "" if run.name == "." else run.name)
    for source in _files(run):
        target = os.path.join(top, os.path.relpath(source, run.path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.path.abspath(source), target)


def _files(run: Run) -> Iterator[str]:
    """Event files and captures of a run, without those of runs below it."""
    yield from (file.path for file in run.files)
    for directory in dict.fromkeys(os.path.dirname(file.path) for file in run.files):
        yield from _captured(os.path.join(directory, "plugins"))
    if run.path not in {os.path.dirname(file.path) for file in run.files}:
        yield from _captured(os.path.join(run.path, "plugins"))


def _captured(directory: str) -> Iterator[str]:
    for parent, _, names in os.walk(directory):
        yield from (os.path.join(parent, name) for name in names if not is_event_file(name))
