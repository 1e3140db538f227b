"""kill -9 at any moment loses nothing of what a process had reported as done."""

import os
import pathlib
import random
import subprocess
import sys
import time

from tensorboard.backend.event_processing import event_accumulator

from tests.main_test import record, values
from tracker import tags

KILLS = 20


def reporting(step):
    """A selector that says, before it plans a step, that the one before is done and written."""
    path = os.environ.get("REPORT_TO")
    if path and step > 1:
        with open(path, "a") as file:
            file.write(f"{step - 1}\n")
    return step % 2


def killed(logdir, number, draw):
    """Starts a run, kills it at a random moment, and returns the last step it had reported."""
    report = logdir / f"report{number}"
    command = [
        sys.executable, "-m", "tracker.main", f"--logdir={logdir}", f"--run=r{number}",
        "--steps=1000000", "--model=linear", "--stddevs=0,1e-3", "--steps_per_call=1",
        "--selector=tests.durability_test:reporting", "--summary_every=2", "--profile_steps=",
        "--checkpoint_every=50", "--validate_every=40",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, env={**os.environ, "REPORT_TO": str(report)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while not report.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(draw.uniform(0, 1.5))
    process.kill()
    assert process.wait(timeout=30) == -9
    return int(report.read_text().splitlines()[-1])


def test_twenty_kills_lose_nothing_that_was_reported(tmp_path):
    draw = random.Random(0)
    logdir = pathlib.Path(tmp_path)
    for number in range(KILLS):
        reported = killed(logdir, number, draw)
        run = logdir / f"r{number}"
        found = values(run / "train")
        assert sorted(found[tags.LOSS])[:reported] == list(range(1, reported + 1))
        summaries = [k for k in range(1, reported + 1) if k == 1 or k % 2 == 0]
        assert sorted(found[tags.WUR_ALL_RATIO])[: len(summaries)] == summaries
        theirs = event_accumulator.EventAccumulator(str(run / "train"), {"tensors": 0})
        theirs.Reload()
        assert len(theirs.Tensors(tags.LOSS)) >= reported
        assert record(run)["status"] == "running"
