"""Replicas: copies that stay bit-identical, noise once and whole, and the single device's weights.

TensorFlow divides its CPU before it is first used, so every case is a process of its own, which
writes what it found as JSON.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests import experiments
from tests.main_test import record, values

SCRIPT = """
import json, sys
import numpy as np
from tracker import quiet
replicas, several = json.loads(sys.argv[1])
quiet.import_tensorflow(replicas)
from tests import experiments
from tracker import wur

def train(given):
    experiment = experiments.make(**{**given, "stddevs": tuple(given["stddevs"])})
    done = experiments.run_steps(experiment, 7)
    copies = [[p.numpy() for p in getattr(v.value, "values", [v.value])]
              for v in experiment.model.trainable_variables]
    instrumented = [r.instrumented for _, _, r in done if r.instrumented is not None]
    rows = [row for r in instrumented for row in r.measured]
    functions = experiment.functions
    return {
        "weights": [c[0].tolist() for c in copies],
        "copies": len(copies[0]),
        "same": all(p.tobytes() == c[0].tobytes() for c in copies for p in c),
        "loss": np.concatenate([r.plain.loss for _, _, r in done]).tolist(),
        "ratios": [wur.ratios(wur.Measured.from_rows(r)).total.tolist() for r in rows],
        "metrics": [m.tolist() for r in instrumented for m in r.metrics],
        "traced": [f.experimental_get_tracing_count()
                   for f in (functions.plain_function, functions.tracked_function)],
    }

print("FOUND" + json.dumps([train(given) for given in several]))
"""
BASE = {"model": "mlp", "steps": 40, "summary_every": 10, "stddevs": (0.0, 1e-3, 1e-2)}
TABLE = {"noise_source": "table", "steps": 100, "selector": "cycle", "model": "linear"}
STILL = {"optimizer": "lion", "learning_rate": 0.0, "stddevs": (0.1,), "steps": 1}
APART = [
    {"model": "tests.architectures:batch_norm"},
    {"model": "tests.architectures:dropout", "selector": "bandit"},
    {"update": "hill_climb", "model": "linear"},
    {"update": "evolution", "model": "linear", "stddevs": (0.01,), "population": 3},
]


def train(replicas, *several):
    """What runs with so many replicas found, in a process of their own; 1 is no distribution."""
    kind = "none" if replicas == 1 else "mirrored"
    given = [{**BASE, "distribute": kind, "logical_cpus": replicas, **s} for s in several]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([replicas, given])],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.partition("FOUND")[2])


@pytest.fixture(scope="module")
def single():
    return train(1, {}, TABLE, STILL)


@pytest.fixture(scope="module")
def double():
    strategies = ({"strategy": s} for s in ("routes", "scalar", "buffered"))
    return train(2, *strategies, TABLE, STILL)


def apart(one, other):
    return max(
        np.abs(np.asarray(a) - np.asarray(b)).max()
        for a, b in zip(one["weights"], other["weights"], strict=True)
    )


def agree(found, single, replicas):
    assert found["copies"] == replicas
    assert found["same"]
    assert apart(found, single) < 1e-5
    np.testing.assert_allclose(found["loss"], single["loss"], rtol=1e-4)
    np.testing.assert_allclose(found["ratios"], single["ratios"], rtol=1e-3)
    np.testing.assert_allclose(found["metrics"], single["metrics"], rtol=1e-5)
    assert found["traced"] == [1, 1]


@pytest.mark.parametrize("which", range(3), ids=["routes", "scalar", "buffered"])
def test_g1_two_replicas_are_one_and_agree_with_the_single_device(single, double, which):
    agree(double[which], single[0], 2)
    assert double[which]["weights"] == double[0]["weights"]


def test_four_replicas_agree_too(single):
    agree(*train(4, {}), single[0], 4)


def test_so_does_a_table_of_noise_after_a_hundred_steps(single, double):
    agree(double[3], single[1], 2)


def test_g2_noise_has_its_stddev_and_not_a_share_of_it(single, double):
    assert double[4]["weights"] == single[2]["weights"]


def test_what_replicas_see_apart_still_leaves_them_equal_and_repeatable():
    short = [{**settings, "steps": 12} for settings in APART]
    for one, other in zip(train(2, *short), train(2, *short), strict=True):
        assert one["same"]
        assert one["copies"] == 2
        assert one["weights"] == other["weights"]


def test_a4_a_run_is_one_stream_that_resumes(tmp_path):
    flags = ("--distribute=mirrored", "--logical_cpus=2", "--model=linear", "--profile_steps=")
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", "--steps=20", "--summary_every=5", *flags
    )
    assert done.returncode == 0, done.stderr
    again = experiments.command(f"--logdir={tmp_path}", "--resume=r", "--steps=40")
    assert again.returncode == 0, again.stderr
    whole = experiments.command(
        f"--logdir={tmp_path}", "--run=whole", "--steps=40", "--summary_every=5", *flags
    )
    assert whole.returncode == 0, whole.stderr
    found, expected = (values(tmp_path / n / "train") for n in ("r", "whole"))
    assert found["loss"] == expected["loss"]
    assert sorted(found["loss"]) == list(range(1, 41))
    assert record(tmp_path / "r")["flags"]["distribute"] == "mirrored"


REFUSED = {
    "--distribute=mirrored: there is one CPU only": (),
    "--batch_size=479: the last batch of an epoch has 1": ("--logical_cpus=2", "--batch_size=479"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_distributed_is_one_sentence(tmp_path, message):
    done = experiments.command(f"--logdir={tmp_path}", "--distribute=mirrored", *REFUSED[message])
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
