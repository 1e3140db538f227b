import time

import pytest
import tensorflow as tf
from etils import epath

from tests import experiments
from tests.main_test import record
from tracker import captures, profiling


@pytest.fixture
def profiler(tmp_path):
    warnings = []
    made = profiling.Profiler(epath.Path(tmp_path), warnings.append)
    yield made, warnings
    made.stop()


def work():
    with profiling.step_marker(1):
        tf.linalg.matmul(tf.ones([50, 50]), tf.ones([50, 50]))


def test_two_captures_of_one_second_are_two(profiler, tmp_path):
    made, warnings = profiler
    for _ in range(2):
        made.start()
        work()
        assert made.stop() is not None
    assert len(captures.find(tmp_path)) == 2
    assert warnings == []


def test_another_profiler_is_a_warning_with_the_cause(profiler, tmp_path):
    made, warnings = profiler
    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        made.start()
        assert not made.active
        assert made.stop() is None
    finally:
        tf.profiler.experimental.stop()
    assert len(warnings) == 1
    assert "another profiler is running" in warnings[0]
    time.sleep(1)
    made.start()
    assert made.active


def test_a_capture_that_someone_else_stopped_is_a_warning(profiler):
    made, warnings = profiler
    made.start()
    tf.profiler.experimental.stop()
    assert made.stop() is None
    assert len(warnings) == 1
    assert "lost" in warnings[0]


def test_stopping_without_starting_is_nothing(profiler):
    assert profiler[0].stop() is None


def test_the_steps_of_a_window_are_numbered_from_the_runs_own(tmp_path):
    """Case D4: ten steps of a run of fifty, with a nested function, on the CPU."""
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", "--steps=50", "--profile_steps=20:30",
        "--model=tests.architectures:recurrent",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (capture,) = captures.find(tmp_path / "r")
    numbers = captures.numbers(capture)
    assert numbers.steps == tuple(range(20, 30))
    assert min(numbers.step_ms) > 0
    assert "Profiled steps 20 to 29" in done.stdout
    assert record(tmp_path / "r")["captures"] == [capture.name]


def test_a_capture_is_closed_when_the_run_ends_inside_its_window(tmp_path):
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", "--steps=30", "--profile_steps=2:31", "--model=mlp",
        "--optimizer=sgd", "--learning_rate=1e30",
    )  # fmt: skip
    assert done.returncode == 1
    assert record(tmp_path / "r")["status"] == "diverged"
    (capture,) = captures.find(tmp_path / "r")
    assert captures.numbers(capture).steps
