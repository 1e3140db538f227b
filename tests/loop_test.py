"""A training loop of one's own: measured when due, noisy if asked, and otherwise what it was."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from etils import epath

import tracker
from tests import experiments
from tests.main_test import values
from tracker import captures, schedule

RNG = np.random.default_rng(0)
X = RNG.normal(size=[1000, 8]).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int32)


class Problem:
    """A model, an optimizer, and the training step that its user wrote."""

    def __init__(self, optimizer=None, compiled=True, jit=False):
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization()]
        self.model = keras.Sequential([keras.Input([8]), *layers, keras.layers.Dense(2)])
        self.optimizer = optimizer or keras.optimizers.Adam(1e-2)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.step = self.train_step
        if compiled:
            self.step = tf.function(self.train_step, jit_compile=jit or None)

    def train_step(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x, training=True))
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        return loss

    def weights(self):
        return [v.numpy() for v in self.model.variables]


def batches(size=96, epochs=1):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size).repeat(epochs)


def train(tmp_path, problem, name="r", epochs=1, data=None, **settings):
    """Trains as the README says; returns the step and the losses."""
    with tracker.Run(tmp_path, name, verbose=False, **settings) as run:
        step = tracker.TrainStep(
            run, problem.step, problem.model.trainable_variables, problem.optimizer, problem.model
        )
        losses = [float(step(x, y)) for x, y in data or batches(epochs=epochs)]
    return step, losses


def train_dir(tmp_path, name="r"):
    return epath.Path(tmp_path) / name / "train"


@pytest.mark.parametrize("compiled", [True, False])
def test_weights_and_losses_are_those_of_the_loop_without_us(tmp_path, compiled):
    plain, measured = Problem(), Problem(compiled=compiled)
    spec = batches().element_spec  # as every function of ours: the batch dimension is open
    alone = tf.function(plain.train_step, input_signature=spec)
    expected = [float(alone(x, y)) for x, y in batches(epochs=2)]
    _, losses = train(tmp_path, measured, epochs=2, summary_every=5)
    assert losses == expected
    assert experiments.equal(plain.weights(), measured.weights())
    found = values(train_dir(tmp_path))
    assert sorted(found["wur/sequential/dense/kernel"]) == [1, 5, 10, 15, 20]
    np.testing.assert_array_equal([found["loss"][k] for k in range(1, 23)], losses)
    assert not any(tag.startswith(("noise/", "wur_noise/")) for tag in found)


def test_the_ratio_is_that_of_numpy(tmp_path):
    problem = Problem(keras.optimizers.SGD(0.1))
    kernel = problem.model.trainable_variables[0]
    with tracker.Run(tmp_path, "r", verbose=False, summary_every=1) as run:
        step = tracker.TrainStep(run, problem.step, problem.model.trainable_variables,
                                 problem.optimizer, problem.model)  # fmt: skip
        expected = {}
        for number, (x, y) in enumerate(batches(), 1):
            before = kernel.numpy().astype(np.float64)
            step(x, y)
            change = kernel.numpy().astype(np.float64) - before
            expected[number] = np.linalg.norm(change) / np.linalg.norm(before)
    found = values(train_dir(tmp_path))["wur/sequential/dense/kernel"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_each_function_is_traced_once_and_plain_calls_run_no_norm(tmp_path):
    problem = Problem()
    with tracker.Run(tmp_path, "r", verbose=False, summary_every=0) as run:
        step = tracker.TrainStep(run, problem.step, problem.model.trainable_variables,
                                 problem.optimizer, problem.model)  # fmt: skip
        for x, y in batches(epochs=2):
            step(x, y)
        tf.profiler.experimental.start(str(tmp_path / "trace"))
        for x, y in batches().take(3):
            step(x, y)
        tf.profiler.experimental.stop()
        run._schedule = schedule.Schedule(1000, summary_every=2)
        for x, y in batches(epochs=18):
            step(x, y)
    assert run.step == 223
    traced = [f.experimental_get_tracing_count() for pair in step._compiled.values() for f in pair]
    assert traced == [1, 1]
    (capture,) = captures.find(epath.Path(tmp_path) / "trace")
    ops = captures.executed_ops(capture.path)
    assert any("MatMul" in op for op in ops)
    assert not [op for op in ops if re.search(r"diagnostics|L2Loss", op)]


def test_noise_is_what_the_app_adds_and_reaches_the_weights(tmp_path):
    variable = tf.Variable(tf.ones([100_000]))
    with tracker.Run(tmp_path, "r", verbose=False, noise=[0.1], summary_every=1) as run:
        step = tracker.TrainStep(run, lambda x: tf.reduce_sum(x), [variable])
        for _ in range(3):
            before = variable.numpy()
            step(tf.ones([4]))
            length = np.linalg.norm(variable.numpy().astype(np.float64) - before)
            assert length == pytest.approx(31.62, abs=0.3)
    found = values(train_dir(tmp_path))
    assert found["update_norm/Variable"][3] == pytest.approx(length, rel=1e-5)
    assert found["loss"] == {1: 4.0, 2: 4.0, 3: 4.0}


@pytest.mark.parametrize("strategy", ["scalar", "routes", "buffered"])
def test_noise_of_zero_is_no_noise_and_strategies_agree(tmp_path, strategy):
    none, zero, noisy, routes = (Problem() for _ in range(4))
    train(tmp_path, none, "none")
    train(tmp_path, zero, "zero", noise=tracker.Noise((0.0,), strategy=strategy))
    train(tmp_path, noisy, "noisy", noise=tracker.Noise((0.0, 0.1), strategy=strategy, seed=3))
    train(tmp_path, routes, "routes", noise=tracker.Noise((0.0, 0.1), seed=3), summary_every=2)
    assert experiments.equal(none.weights(), zero.weights())
    assert not experiments.equal(none.weights(), noisy.weights())
    assert experiments.equal(noisy.weights(), routes.weights())


def test_a_step_compiled_by_xla_is_measured_and_gets_the_same_noise(tmp_path):
    settings = {"noise": tracker.Noise((0.1,), seed=1), "summary_every": 4}
    xla, plain = Problem(keras.optimizers.SGD(0.0), jit=True), Problem(keras.optimizers.SGD(0.0))
    train(tmp_path, xla, "xla", **settings)
    train(tmp_path, plain, "plain", **settings)
    one, other = (values(train_dir(tmp_path, n)) for n in ("xla", "plain"))
    tag = "wur_noise/sequential/dense/kernel"
    assert sorted(one[tag]) == [1, 4, 8]
    assert one[tag] == pytest.approx(other[tag], rel=1e-5)


def test_accumulated_batches_are_one_step(tmp_path):
    problem = Problem(keras.optimizers.Adam(1e-2, gradient_accumulation_steps=4))
    train(tmp_path, problem, epochs=2, summary_every=3, noise=[0.1])
    found = values(train_dir(tmp_path))
    assert sorted(found["loss"]) == [1, 2, 3, 4, 5]  # 22 batches
    assert sorted(found["wur/sequential/dense/kernel"]) == [1, 3]
    assert set(found["wur_all/skipped"].values()) == {3}


def test_a_run_goes_on_in_another_object_and_keeps_one_value_a_step(tmp_path):
    problem = Problem()
    train(tmp_path, problem, "r", summary_every=4)
    with tracker.Run(tmp_path, "r", verbose=False, summary_every=4, resume=True) as run:
        step = tracker.TrainStep(run, problem.step, problem.model.trainable_variables,
                                 problem.optimizer, problem.model)  # fmt: skip
        for x, y in batches():
            step(x, y)
    assert sorted(values(train_dir(tmp_path))["loss"]) == list(range(1, 23))
    record = json.loads((tmp_path / "r" / "run.json").read_text())
    assert [a["first_step"] for a in record["attempts"]] == [1, 12]
    assert record["status"] == "completed"


def test_an_exception_ends_the_run_as_failed_with_all_that_was_seen(tmp_path):
    problem = Problem()

    def data():
        yield from batches().take(5)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="disk"):
        train(tmp_path, problem, data=data())
    record = json.loads((tmp_path / "r" / "run.json").read_text())
    assert (record["status"], record["reason"]) == ("failed", "OSError: the disk is gone")
    assert sorted(values(train_dir(tmp_path))["loss"]) == [1, 2, 3, 4, 5]


def test_validation_log_and_window(tmp_path):
    problem = Problem()
    with tracker.Run(tmp_path, "r", verbose=False, profile_steps="3:5", hparams={"a": 1}) as run:
        step = tracker.TrainStep(run, problem.step, problem.model.trainable_variables,
                                 problem.optimizer, problem.model)  # fmt: skip
        for x, y in batches():
            loss = step(x, y)
            run.log(None, {"mine/twice": 2 * loss})
        run.validation({"loss": 0.5, "accuracy": 0.75})
    found = values(train_dir(tmp_path))
    assert found["mine/twice"][11] == pytest.approx(2 * found["loss"][11])
    assert found["profile/step_ms"].keys() == {4}
    assert values(epath.Path(tmp_path) / "r" / "validation")["accuracy"] == {11: 0.75}
    record = json.loads((tmp_path / "r" / "run.json").read_text())
    assert record["results"]["best/accuracy"] == 0.75
    assert record["flags"]["a"] == 1


REFUSED = {
    "stddevs: -1": {"noise": [-1.0]},
    "selector=wild is unknown": {"noise": tracker.Noise((0.1,), selector="wild")},
    "wur_variables=nothing matches none of": {"wur_variables": "nothing"},
    "variables=nothing matches none of": {"noise": tracker.Noise((0.1,), variables="nothing")},
    "profile_steps=x: 'x' should be": {"profile_steps": "x"},
    "needs to know the number of steps": {"noise": tracker.Noise((0.1,), selector="anneal")},
    "The run name '..'": {"name": ".."},
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_settings_are_one_sentence_and_leave_nothing(tmp_path, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train(tmp_path, Problem(), **REFUSED[message])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("variable", [tf.Variable(1), tf.Variable("a")], ids=["int", "string"])
def test_variables_that_cannot_be_measured_are_refused(tmp_path, variable):
    with (
        tracker.Run(tmp_path, "r") as run,
        pytest.raises(ValueError, match=r"The variable Variable is of type .*should be of floats"),
    ):
        tracker.TrainStep(run, lambda: None, [variable])
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_taken_is_refused_at_once(tmp_path):
    train(tmp_path, Problem(), "r")
    with pytest.raises(ValueError, match=r"The run r exists in .*resume=True"):
        tracker.Run(tmp_path, "r")
