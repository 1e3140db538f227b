"""Several processes that train together: real ones, on the loopback address."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.distribution_test import BASE, STILL, apart, train
from tests.main_test import record, values
from tracker import captures, cluster, events

SCRIPT = """
import json, sys, hashlib
from tracker import cluster, quiet
workers, several = cluster.read(), json.loads(sys.argv[1])
if workers.chief:
    cluster.wait_for_others(workers, 60, print)
def join():
    from tracker import distribution
    return distribution.join(workers, 60)
replicas = quiet.import_tensorflow(first=join)
import keras
import numpy as np
from tests import experiments
from tracker import config, experiment, wur

def train(given):
    keras.backend.clear_session()
    given = {**experiments.QUICK, **given, "stddevs": tuple(given["stddevs"])}
    made = experiment.assemble(config.validate(config.Config(**given)), replicas=replicas)
    done = experiments.run_steps(made, 7)
    measured = [r.instrumented for _, _, r in done if r.instrumented is not None]
    rows = [row for m in measured for row in m.measured]
    weights = experiments.weights(made)
    digest = hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()
    return {
        "weights": [w.tolist() for w in weights] if workers.chief else [],
        "digest": digest,
        "loss": np.concatenate([r.plain.loss for _, _, r in done]).tolist(),
        "ratios": [wur.ratios(wur.Measured.from_rows(r)).total.tolist() for r in rows],
        "touched": [wur.ratios(wur.Measured.from_rows(r)).touched.tolist() for r in rows],
        "metrics": [m.tolist() for one in measured for m in one.metrics],
    }

found = [train(given) for given in several]
assert replicas.share("Größe" if workers.chief else "") == "Größe"
print("FOUND" + json.dumps(found), flush=True)
"""
SPARSE = {"model": "tests.architectures:embedding", "optimizer": "sgd", "steps": 10}
SEVERAL = [
    {"steps": 100},
    {"strategy": "scalar"},
    {"strategy": "buffered", "noise_source": "table", "selector": "bandit"},
    STILL,
    SPARSE,
    {"model": "tests.architectures:batch_norm", "steps": 12},
    {"update": "hill_climb", "model": "linear", "steps": 12},
    {"update": "evolution", "model": "linear", "stddevs": (0.01,), "population": 3, "steps": 12},
]


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def environment(ports, index, jobs=("worker",)):
    addresses = [f"127.0.0.1:{p}" for p in ports]
    found = {"worker": addresses}
    if "chief" in jobs:
        found = {"chief": addresses[:1], "worker": addresses[1:]}
    kind = "chief" if "chief" in jobs and not index else "worker"
    task = {"type": kind, "index": index - (kind == "worker" and "chief" in jobs)}
    return {**os.environ, "TF_CONFIG": json.dumps({"cluster": found, "task": task}),
            "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "100"}  # fmt: skip


@contextlib.contextmanager
def started(count, *command, **options):
    """So many processes with the same command; killed at the end if they still run."""
    ports = free_ports(count)
    made = [
        subprocess.Popen(
            [sys.executable, *command], env=environment(ports, i, **options),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(count)
    ]  # fmt: skip
    try:
        yield made
    finally:
        for process in made:
            process.kill()
            process.communicate()


def finished(processes, seconds=200):
    """(exit status, stdout, stderr) of each."""
    return [(p.returncode, *said) for p, said in ((p, p.communicate(timeout=seconds))
                                                  for p in processes)]  # fmt: skip


def app(tmp_path, *flags):
    return ("-m", "tracker.main", f"--logdir={tmp_path}", "--distribute=multi_worker",
            "--worker_timeout=40", "--model=linear", *flags)  # fmt: skip


def together(count, several):
    given = [{**BASE, "distribute": "multi_worker", **s} for s in several]
    with started(count, "-c", SCRIPT, json.dumps(given)) as processes:
        ended = finished(processes)
    assert [code for code, _, _ in ended] == [0] * count, ended[0][2][-3000:] + ended[1][2][-3000:]
    return [json.loads(out.partition("FOUND")[2]) for _, out, _ in ended]


@pytest.fixture(scope="module")
def single():
    return train(1, *SEVERAL[:1], SEVERAL[3], SPARSE)


@pytest.fixture(scope="module")
def double():
    return together(2, SEVERAL)


def agree(found, single):
    assert apart(found, single) < 1e-5
    np.testing.assert_allclose(found["loss"], single["loss"], rtol=1e-4)
    np.testing.assert_allclose(found["ratios"], single["ratios"], rtol=1e-3)
    np.testing.assert_allclose(found["metrics"], single["metrics"], rtol=1e-5)


def test_two_workers_have_the_weights_of_a_single_device_after_a_hundred_steps(double, single):
    agree(double[0][0], single[0])


def test_three_workers_too(single):
    found = together(3, SEVERAL[:1])
    agree(found[0][0], single[0])
    assert len({f[0]["digest"] for f in found}) == 1


@pytest.mark.parametrize("which", range(len(SEVERAL)))
def test_g1_all_workers_hold_the_same_bits_and_see_the_same(double, which):
    one, other = (d[which] for d in double)
    assert one["digest"] == other["digest"]
    assert one["loss"] == other["loss"]
    assert str(one["ratios"]) == str(other["ratios"])  # NaN where there is none


def test_g2_noise_has_its_stddev_and_not_a_share_of_it(double, single):
    assert double[0][3]["weights"] == single[1]["weights"]


def test_touched_rows_are_those_of_all_workers(double, single):
    assert apart(double[0][4], single[2]) < 1e-5
    assert np.isfinite(double[0][4]["touched"][0][0])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    logdir = tmp_path_factory.mktemp("logdir")
    flags = ("--run=r", "--steps=60", "--summary_every=10", "--profile_steps=20:25")
    with started(2, *app(logdir, *flags), jobs=("chief", "worker")) as processes:
        return logdir, finished(processes)


class TestTheRun:
    """Case G3: one event stream, one capture, no deadlock."""

    def test_both_end_well(self, made):
        logdir, ((code, out, err), (other, said, warned)) = made
        assert (code, other) == (0, 0), err + warned
        assert out.rstrip().endswith(f"tensorboard --logdir {logdir}")
        assert "Run r completed after step 60." in said
        assert warned == ""
        assert record(logdir / "r")["status"] == "completed"

    def test_the_chief_alone_writes(self, made):
        run = made[0] / "r"
        found = values(run / "train")
        assert sorted(found["loss"]) == list(range(1, 61))
        assert len(list(run.rglob("*tfevents*"))) == 2  # train and validation
        assert [p.name for p in (run / "workers").rglob("*")] == ["1", "log.txt"]
        assert "completed" in (run / "workers/1/log.txt").read_text()

    def test_the_chief_alone_is_profiled(self, made):
        (capture,) = captures.find(made[0] / "r")
        assert len(capture.files) == 1
        assert captures.numbers(capture).steps == tuple(range(20, 25))


def test_with_profile_workers_the_captures_of_both_stand_side_by_side(tmp_path):
    flags = ("--steps=30", "--summary_every=10", "--profile_steps=20:25", "--profile_workers")
    for attempt in range(6):  # as TensorFlow ends one in four by a crash: see worker.py
        with started(2, *app(tmp_path, f"--run={attempt}", *flags)) as processes:
            (code, out, err), (other, _, warned) = finished(processes)
        if other >= 0:
            break
        assert (code, record(tmp_path / str(attempt))["status"]) == (1, "failed"), out + err
    assert (code, other) == (0, 0), err + warned
    (capture,) = captures.find(tmp_path / str(attempt))
    assert len(capture.files) == 2
    assert captures.numbers(capture).steps == tuple(range(20, 25))
    assert [p.name for p in (tmp_path / str(attempt) / "workers").rglob("*")] == ["1", "log.txt"]


LOOP = """
import sys
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import keras, tracker
with strategy.scope():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
try:
    tracker.TrainStep(tracker.Run(sys.argv[1]), lambda: None, model.trainable_variables)
except ValueError as error:
    print(error)
"""


def test_a_loop_of_several_processes_is_refused_before_anything_is_written(tmp_path):
    with started(2, "-c", LOOP, str(tmp_path)) as processes:
        for code, out, err in finished(processes):
            assert code == 0, err
            assert out.startswith("The variables are held by CollectiveAllReduceStrategy; should")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lost", [0, 1], ids=["the chief", "another"])
def test_a_worker_that_is_killed_ends_the_others_and_resume_goes_on(tmp_path, lost):
    flags = ("--steps=1000000", "--profile_steps=", "--checkpoint_every=50", "--summary_every=20")
    with started(2, *app(tmp_path, "--run=r", *flags)) as processes:
        checkpoints = tmp_path / "r/checkpoints"
        deadline = time.monotonic() + 100
        while not list(checkpoints.glob("step-*.index")) and time.monotonic() < deadline:
            time.sleep(0.1)
        processes[lost].kill()
        code, out, err = finished(processes)[1 - lost]
    assert code == 1, out + err
    assert "a worker is gone" in err or "another worker is gone" in err
    assert "Traceback" not in err
    if lost:
        assert record(tmp_path / "r")["status"] == "failed"
    saved = max(int(p.stem.partition("-")[2]) for p in checkpoints.glob("step-*.index"))
    goes_on = ("--resume=r", f"--steps={saved + 60}")
    command = ("-m", "tracker.main", f"--logdir={tmp_path}", *goes_on)
    with started(2, *command) as processes:
        ended = finished(processes)
    assert [c for c, _, _ in ended] == [0, 0], ended
    assert f"resumed at step {saved:,}" in ended[0][1]
    found = values(tmp_path / "r/train")
    assert sorted(found["loss"]) == list(range(1, saved + 61))
    assert record(tmp_path / "r")["status"] == "completed"


def test_a_signal_at_any_worker_ends_the_run_for_all(tmp_path):
    with started(2, *app(tmp_path, "--run=r", "--steps=1000000", "--profile_steps=")) as processes:
        run = pathlib.Path(tmp_path / "r")
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, events.CorruptRecordError):
                if len(values(run / "train").get("loss", ())) > 5:
                    break
            time.sleep(0.2)
        processes[1].send_signal(signal.SIGTERM)
        (code, _, err), (other, _, _) = finished(processes)
    assert code == 143, err
    assert other == 1
    assert record(run)["status"] == "interrupted"
    assert list((run / "checkpoints").glob("step-*.index"))


class TestTheOthersAreNotThere:
    @pytest.mark.parametrize(
        ("index", "says"), [(0, "was not there within 2"), (1, "The chief at")]
    )
    def test_it_is_said_in_one_sentence(self, tmp_path, index, says):
        done = subprocess.run(
            [sys.executable, *app(tmp_path, "--worker_timeout=2")], check=False,
            env=environment(free_ports(2), index), capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert says in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
        assert not list(tmp_path.iterdir())

    def test_a_port_that_is_taken(self, tmp_path):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            ports = [taken.getsockname()[1], *free_ports(1)]
            done = subprocess.run(
                [sys.executable, *app(tmp_path)], check=False, env=environment(ports, 0),
                capture_output=True, text=True, timeout=100,
            )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr.startswith(f"TF_CONFIG: the port of 127.0.0.1:{ports[0]} cannot be")
        assert done.stderr.count("\n") == 1

    def test_a_name_that_is_taken_ends_both(self, tmp_path):
        (tmp_path / "r").mkdir()
        (tmp_path / "r/run.json").write_text("{}")
        with started(2, *app(tmp_path, "--run=r", "--steps=5")) as processes:
            ended = finished(processes)
        assert [code for code, _, _ in ended] == [2, 2]
        assert "The chief could not begin the run" in ended[1][2]
        assert ended[0][2].splitlines()[-1].startswith("The run r exists")
        assert not any("Traceback" in err for _, _, err in ended), ended


GOOD = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}


def test_tf_config_says_who_is_who():
    found = cluster.read(json.dumps(GOOD))
    assert (found.addresses, found.number, found.chief) == (("a:1", "b:2"), 1, False)
    chief = {
        "cluster": {"worker": ["b:2"], "chief": ["a:1"]},
        "task": {"type": "chief", "index": 0},
    }
    found = cluster.read(json.dumps(chief))
    assert (found.addresses, found.number, found.chief) == (("a:1", "b:2"), 0, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not set"),
        ("{", "is not JSON"),
        ("[]", "has no cluster"),
        (json.dumps({**GOOD, "task": None}), "has no task"),
        (json.dumps({**GOOD, "task": {"type": "ps", "index": 0}}), "has the task type 'ps'"),
        (
            json.dumps({**GOOD, "task": {"type": "worker", "index": 2}}),
            "has the task index 2 for 2",
        ),
        (json.dumps({**GOOD, "task": {"type": "worker"}}), "has the task index None"),
        (json.dumps({**GOOD, "cluster": {"worker": ["a:1"]}}), "names fewer than two workers"),
        (json.dumps({**GOOD, "cluster": {"worker": ["a:1", "a:1"]}}), "names a:1 twice"),
        (json.dumps({**GOOD, "cluster": {"worker": ["a:1", "b"]}}), "has the address 'b'"),
        (json.dumps({**GOOD, "cluster": {"worker": "a:1"}}), "has no list of addresses for worker"),
        (json.dumps({**GOOD, "cluster": {"ps": [], "worker": []}}), "has tasks of the type ps"),
    ],
)
def test_a_malformed_tf_config_is_one_sentence(text, says):
    with pytest.raises(ValueError, match="TF_CONFIG") as caught:
        cluster.read(text)
    assert says in str(caught.value)
    assert "should be like" in str(caught.value)
