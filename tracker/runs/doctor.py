"""The command `doctor`: what is wrong in a logdir, and what to do about it.

>>> python -m tracker.runs doctor --logdir=logdir
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from tracker import captures
from tracker.runs import hparams, output
from tracker.runs.catalog import Catalog
from tracker.runs.checkup import Finding, check
from tracker.runs.run import Run

_CUPTI = (
    "Let the profiler count on the GPU: start the container with --cap-add=SYS_ADMIN, or load the "
    "driver with NVreg_RestrictProfilingToAdminUsers=0"
)
_IMPORT_SECONDS = 60


def doctor_command(args: argparse.Namespace) -> int:
    """Finds what is wrong; status 1 if anything is."""
    with Catalog(args.logdir) as catalog:
        runs = catalog.select(args.runs, args.where, args.sort, args.limit)
        findings = [*_logdir(catalog), *(f for run in runs for f in _run(run, catalog))]
        findings += [*_hparams(runs), *_installation()]
    if args.json:
        output.print_json([finding._asdict() for finding in findings])
    for finding in () if args.json else findings:
        where = f"{finding.run}: " if finding.run else ""
        print(output.safe(f"{where}{finding.problem}. {finding.cure}."))
    if not args.json:
        print(f"{output.count(len(findings), 'finding')} in {output.count(len(runs), 'run')}")
    return 1 if findings else 0


def _logdir(catalog: Catalog) -> Iterator[Finding]:
    for path in catalog.scan.unreadable:
        problem = f"The directory {path} cannot be looked into"
        yield Finding("unreadable", "", problem, "Make it readable for you, or move it away")


def _run(run: Run, catalog: Catalog) -> Iterator[Finding]:
    if run.problem:
        cure = "Update tracker, or restore run.json from a copy; the event files are read anyway"
        yield Finding("record", run.name, run.problem.rstrip("."), cure)
    if run.status == "stale":
        yield Finding(
            "stale",
            run.name,
            f"It says running, but its process {run.record['owner']['pid']} is dead",
            f"Continue it with --resume={run.name}, or move it to the trash",
        )
    yield from _writers(run, catalog)
    yield from _order(run)
    for file in run.files:
        entry = catalog.index.entry(file)
        yield from check(run.name, file, catalog.series(entry.id) if entry else ())
    yield from _captures(run)


def _writers(run: Run, catalog: Catalog) -> Iterator[Finding]:
    """Files of one directory that were written to at the same time."""
    for split, group in itertools.groupby(run.files, key=lambda file: file.split):
        spans = []
        for file in group:
            entry = catalog.index.entry(file)
            if entry is not None and entry.first_wall is not None:
                spans.append((entry.first_wall, entry.last_wall or 0.0, file.path))
        for (_, end, a), (begin, _, b) in itertools.pairwise(sorted(spans)):
            if begin < end:
                yield Finding(
                    "two_writers",
                    run.name,
                    f"{a} and {os.path.basename(b)} were written at the same time, of which "
                    "TensorBoard follows the later one only",
                    f"Give each process its own directory in place of {split or 'the run itself'}",
                )
                break


def _order(run: Run) -> Iterator[Finding]:
    back = [metric.name for metric in run.metrics.values() if not metric.ordered]
    if back:
        shown = ", ".join(back[:5]) + (f" and {len(back) - 5} more" if len(back) > 5 else "")
        yield Finding(
            "steps_back",
            run.name,
            f"The steps of {shown} go back, so that charts zig-zag or lose the points before",
            "Resume with --resume, which trims what the resume repeats, or start a new run",
        )


def _captures(run: Run) -> Iterator[Finding]:
    for capture in captures.find(run.path):
        try:
            kernels = captures.executed_ops(capture.path, host_tracer=False)
        except captures.CaptureError as error:
            cure = "Profile again; a capture is complete when the profiler has stopped"
            yield Finding("capture", run.name, str(error).rstrip("."), cure)
            continue
        content = b"".join(file.read_bytes() for file in capture.files)
        refused = b"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in content
        if refused or (b"/device:GPU:" in content and not kernels):
            problem = f"The capture {capture.path} is of a GPU but holds no event of it"
            yield Finding("no_device_events", run.name, problem, _CUPTI)


def _hparams(runs: Sequence[Run]) -> Iterator[Finding]:
    """Hyperparameters of two types, which make TensorBoard's filters drop runs."""
    kinds: dict[str, dict[str, str]] = {}
    for run in runs:
        for entry in run.entries:
            for name, value in hparams.read(entry.hparams or b"").items():
                kind = {bool: "bool", str: "text"}.get(type(value), "number")
                kinds.setdefault(name, {}).setdefault(kind, run.name)
    for name, found in kinds.items():
        if len(found) > 1:
            (a, first), (b, second) = sorted(found.items())[:2]
            yield Finding(
                "hparams_types",
                second,
                f"The hyperparameter {name} is {b} here and {a} in {first}, so that TensorBoard "
                "filters it as text and loses runs",
                "Write it with one type in all runs, and leave it out where it is None",
            )


def _installation() -> Iterator[Finding]:
    """Plugins that stop TensorBoard from starting, or that do not fit to TensorFlow."""
    for plugin in importlib.metadata.entry_points(group="tensorboard_plugins"):
        code = f"import importlib; importlib.import_module({plugin.module!r})"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            timeout=_IMPORT_SECONDS,
        )
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            package = plugin.dist.name if plugin.dist else plugin.module
            problem = f"TensorBoard's plugin {plugin.name} cannot be imported: {why}"
            yield Finding("plugin", "", problem, f"Install a version of {package} that fits")
    for a, b, digits in (
        ("tensorboard", "tensorflow", 2),
        ("xprof", "tensorboard-plugin-profile", 3),
    ):
        versions = {name: _version(name) for name in (a, b)}
        if len({".".join((v or "").split(".")[:digits]) for v in versions.values()}) > 1:
            shown = " but ".join(f"{name} is {v or 'missing'}" for name, v in versions.items())
            yield Finding("versions", "", shown, f"Install {a} and {b} of the same version")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
