"""What a profile costs a run, and how long it takes to look at one.

    python -m benchmarks.profiles_cost --repeats=5

Runs the default training with and without its profile of five steps, in turn, as whole processes,
and compares wall time and the time of a step outside the window; then times `show` on the capture
of a job on GPUs as a whole process.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from tracker import events, tags

GPU = pathlib.Path(__file__).parent.parent / "tests" / "data" / "gpu.xplane.pb.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        pairs = [_pair(root, n, args.steps) for n in range(args.repeats)]
        for title, unit, position in (("whole run", "s", 0), ("step outside the window", "ms", 1)):
            without = [one[position] for one, _ in pairs]
            with_ = [other[position] for _, other in pairs]
            added = [b - a for a, b in zip(without, with_, strict=True)]
            ratio = [b / a for a, b in zip(without, with_, strict=True)]
            print(
                f"{title}: without {statistics.median(without):.3g} {unit}, with "
                f"{statistics.median(with_):.3g} {unit}; added {statistics.median(added):+.3g} "
                f"{unit} ({min(added):+.3g} to {max(added):+.3g}), ratio "
                f"{statistics.median(ratio):.3f}"
            )
        shown = [_show(root) for _ in range(args.repeats)]
        print(
            f"show, 3 MB of a GPU job: {statistics.median(shown):.2f} s (most {max(shown):.2f} s)"
        )


def _pair(root: pathlib.Path, number: int, steps: int) -> list[tuple[float, float]]:
    """(seconds, milliseconds a step) without and with a profile; the order alternates."""
    found = {}
    for kind in (("", "auto"), ("auto", ""))[number % 2]:
        found[kind] = _train(root, f"{number}-{kind or 'none'}", kind, steps)
    return [found[""], found["auto"]]


def _train(root: pathlib.Path, name: str, windows: str, steps: int) -> tuple[float, float]:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "tracker.main", f"--logdir={root}", f"--run={name}",
         f"--steps={steps}", f"--profile_steps={windows}"],
        check=True, capture_output=True,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    kinds, found = events.Kinds(), {}
    for file in events.event_files(root / name / "train"):
        for _, event in events.read(file):
            with contextlib.suppress(KeyError):
                found[event.step] = dict(events.scalars(event, kinds))[tags.PERF_STEP_MS]
    return seconds, statistics.median(ms for step, ms in found.items() if step > 300)


def _show(root: pathlib.Path) -> float:
    path = root / "worker0.xplane.pb"
    path.write_bytes(gzip.decompress(GPU.read_bytes()))
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "tracker.profiles", "show", str(path)],
        check=True, capture_output=True,
    )  # fmt: skip
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
