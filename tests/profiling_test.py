import gzip
import pathlib
import time

import pytest
import tensorflow as tf
from etils import epath

from tests import experiments
from tests.main_test import record, values
from tracker import captures, config, profiling, scopes, tags, xplane

DATA = pathlib.Path(__file__).parent / "data"


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
    assert [one["name"] for one in record(tmp_path / "r")["captures"]] == [capture.name]


def test_a_capture_is_closed_when_the_run_ends_inside_its_window(tmp_path):
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", "--steps=30", "--profile_steps=2:31", "--model=mlp",
        "--optimizer=sgd", "--learning_rate=1e30",
    )  # fmt: skip
    assert done.returncode == 1
    assert record(tmp_path / "r")["status"] == "diverged"
    (capture,) = captures.find(tmp_path / "r")
    assert captures.numbers(capture).steps


def test_every_so_many_steps_within_the_budget_with_numbers_as_scalars_and_in_the_record(tmp_path):
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", "--steps=200", "--profile_every=30",
        "--profile_captures=3", "--profile_steps=88:92", "--model=linear", "--summary_every=30",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = captures.find(tmp_path / "r")
    numbers = [captures.numbers(capture) for capture in found]
    # 90 to 94 would overlap the window that was asked for.
    windows = [tuple(range(30, 35)), tuple(range(60, 65)), tuple(range(88, 92))]
    assert [n.steps for n in numbers] == windows
    scalars = values(tmp_path / "r/train")
    kept = record(tmp_path / "r")["captures"]
    assert [one["name"] for one in kept] == [capture.name for capture in found]
    for one, n, capture in zip(kept, numbers, found, strict=True):
        wanted = profiling.figures(n)
        assert set(wanted) == {t for t in scalars if t.startswith("profile/")}
        for tag, value in wanted.items():
            assert scalars[tag][n.steps[-1]] == pytest.approx(value, rel=1e-6), tag
        assert one["step_ms"] == pytest.approx(n.step_ms_median)
        assert one["scopes"] == pytest.approx(n.scopes) and one["parts"] == pytest.approx(n.parts)
        assert one["megabytes"] == pytest.approx(capture.megabytes, abs=1e-3)
        assert sum(one["scopes"].values()) == pytest.approx(100)
    # Steps 30, 60 and 90 are summary steps: diagnostics ran, and their writing has a span.
    assert all(v > 0 for v in scalars[tags.PROFILE_DIAGNOSTICS].values())
    space = next(iter(captures.read(found[0].path).values()))
    names = [event.name for event in xplane.spans(space)]
    assert names.count(scopes.SUMMARIES) == 5


def test_windows_every_so_many_steps():
    def windows(**settings):
        found = config.profile_windows(config.Config(**settings), 100)
        return [(w.start, w.stop) for w in found]

    assert windows(profile_every=40) == [(40, 45), (80, 85)]  # auto stands back
    assert windows(profile_every=20, profile_captures=2) == [(20, 25), (40, 45)]
    assert windows(profile_every=98) == [(98, 101)]
    assert windows(profile_every=30, profile_steps="1:3,33:34") == [(1, 3), (33, 34), (60, 65),
                                                                     (90, 95)]  # fmt: skip
    assert windows() == [(51, 56)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--profile_every=5", "--profile_every=5: should be 0, or more than 5"),
        ("--profile_steps=1:2000 --steps=3000", "holds 1999 steps; should be 1000 at most"),
        ("--profiler_port=70000", "--profiler_port"),
    ],
)
def test_a_mistake_is_one_sentence_and_makes_nothing(arguments, words, tmp_path):
    done = experiments.command(f"--logdir={tmp_path}/new", *arguments.split())
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_capture_that_is_empty_is_said_with_the_cure(tmp_path):
    path = epath.Path(tmp_path) / "cpu"
    profiler = profiling.Profiler(path, pytest.fail)
    profiler.start()
    work()
    whole = captures.numbers(captures.Capture(profiler.stop(), ()))
    profiler.start()
    empty = captures.numbers(captures.Capture(profiler.stop(), ()))
    assert whole.steps == (1,) and empty.steps == ()
    assert profiling.emptiness(whole, gpus=0) == ""
    assert "no step" in profiling.emptiness(empty, gpus=0)
    assert profiling.figures(empty) == {}
    # A GPU whose counters the driver keeps for itself leaves a capture like one of a CPU.
    said = profiling.emptiness(whole, gpus=1)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in said and "CUPTI" in said
    content = gzip.decompress((DATA / "gpu.xplane.pb.gz").read_bytes())
    (tmp_path / "host.xplane.pb").write_bytes(content)
    gpu = captures.numbers(captures.Capture(epath.Path(tmp_path), ()))
    assert profiling.emptiness(gpu, gpus=2) == ""


def test_tracing_is_known_whoever_started_it(tmp_path):
    assert profiling.tracing() is False
    tf.profiler.experimental.start(str(tmp_path))
    try:
        assert profiling.tracing() is True
    finally:
        tf.profiler.experimental.stop()
    assert profiling.tracing() is False
