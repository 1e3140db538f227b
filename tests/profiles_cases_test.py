"""Situations that break profiling, each with the right answer, in whole training processes."""

import subprocess
import sys

import pytest

from tests.main_test import record, values
from tracker import captures, events, tags

SMALL = ("--model=linear", "--batch_size=96", "--steps=30", "--summary_every=10")


def train(before, *arguments):
    """Runs the app in a process in which something was done before."""
    code = (
        f"import runpy, sys, tensorflow as tf\nfrom tracker import profiling\n{before}\n"
        "runpy.run_module('tracker.main', run_name='__main__', alter_sys=True)\n"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_d1_a_profiler_of_someone_else_costs_the_capture_and_not_the_run(tmp_path):
    done = train(
        f"tf.profiler.experimental.start('{tmp_path}/theirs')",
        f"--logdir={tmp_path}", "--run=r", *SMALL, "--profile_steps=5:8,15:18",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert record(tmp_path / "r")["status"] == "completed"
    assert done.stderr.count("another profiler is running in this process") == 1
    assert captures.find(tmp_path / "r") == []
    assert list(values(tmp_path / "r/train")[tags.LOSS]) == list(range(1, 31))


def test_d3_a_large_capture_is_said_with_its_size(tmp_path):
    done = train(
        "profiling.LARGE_MB = 0.005",
        f"--logdir={tmp_path}", "--run=r", *SMALL, "--profile_steps=5:15",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Profiled steps 5 to 14: 0." in done.stdout and " MB" in done.stdout
    assert done.stderr.count("profile fewer steps at a time") == 1
    (kept,) = record(tmp_path / "r")["captures"]
    assert kept["megabytes"] > 0 and "step_ms" not in kept
    assert tags.PROFILE_STEP_MS not in values(tmp_path / "r/train")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A run with a smaller last batch and validation: several traced functions."""
    logdir = tmp_path_factory.mktemp("logdir")
    done = train("", f"--logdir={logdir}", "--run=r", *SMALL, "--validate_every=10")
    assert done.returncode == 0, done.stderr
    return logdir / "r"


def test_c2_one_graph_of_one_function_is_written_whatever_else_is_traced(compiled):
    found = [e for f in events.event_files(compiled / "train") for _, e in events.read(f)]
    graphs = [event for event in found if event.graph_def]
    assert len(graphs) == 1 and b"noise/route/route_5_0.01" in graphs[0].graph_def
    assert not any(event.HasField("tagged_run_metadata") for event in found)


def test_d5_a_run_with_a_profile_has_an_event_file_beside_it(compiled):
    (capture,) = captures.find(compiled)
    assert list(events.event_files(capture.path.parent.parent.parent))
