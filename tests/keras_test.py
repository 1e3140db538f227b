"""`fit` with our callbacks is the `fit` that it was, measured; and updates without gradients."""

import itertools
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
from tracker import events
from tracker import keras as callbacks

RNG = np.random.default_rng(0)
X = RNG.normal(size=[1000, 8]).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int32)
LOSS = keras.losses.SparseCategoricalCrossentropy
EPOCH = 10  # 900 examples in batches of 96, the last smaller
KERNEL = "wur/sequential/dense/kernel"


class OwnStep(keras.Sequential):
    """A model whose user wrote the training step."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            metric.update_state(*([loss] if metric.name == "loss" else [y, self(x)]))
        return {metric.name: metric.result() for metric in self.metrics}


class Subclassed(keras.Model):
    """A model without a graph of layers, built by its first batch."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(16, "relu"), keras.layers.Dense(2)

    def call(self, x):
        return self.second(self.first(x))


def functional():
    inputs = keras.Input([8])
    hidden = keras.layers.Dense(16, "relu")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2)(hidden))


def layers():
    return [
        keras.Input([8]),
        keras.layers.Dense(16, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(2),
    ]


def make(build=lambda: keras.Sequential(layers()), optimizer=None, **compiled):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = build()
    settings = {"jit_compile": False, **compiled}
    model.compile(
        optimizer or keras.optimizers.Adam(1e-3),
        LOSS(from_logits=True),
        metrics=["accuracy"],
        **settings,
    )
    return model


def fit(model, *added, **settings):
    return model.fit(
        X, Y,
        **{"batch_size": 96, "verbose": 0, "shuffle": False, "validation_split": 0.1, **settings},
        callbacks=list(added),
    )  # fmt: skip


def follow(tmp_path, name="r", **settings):
    return callbacks.Tracker(tmp_path, name, **{"verbose": False, "summary_every": 3, **settings})


def weights(model):
    return [v.numpy() for v in model.variables]


def train(tmp_path, name="r"):
    return values(epath.Path(tmp_path) / name / "train")


def record(tmp_path, name="r"):
    return json.loads((tmp_path / name / "run.json").read_text())


SUMMARIES = [1, 3, 6, 9, 10]
KINDS = {
    "sequential": {},
    "functional": {"build": functional},
    "subclassed": {"build": Subclassed},
    "own train_step": {"build": lambda: OwnStep(layers())},
    "xla": {"jit_compile": True},
    "auto": {"jit_compile": "auto"},
    "four a call": {"steps_per_execution": 4},
}


@pytest.mark.parametrize("kind", KINDS)
def test_fit_is_bit_for_bit_the_one_without_us(tmp_path, kind):
    alone, followed = make(**KINDS[kind]), make(**KINDS[kind])
    expected = fit(alone)
    found = fit(followed, follow(tmp_path))
    assert experiments.equal(weights(alone), weights(followed))
    assert found.history == expected.history
    assert type(followed.train_function) is type(alone.train_function)
    assert "train_step" not in followed.__dict__
    assert "compute_loss" not in followed.__dict__
    written = train(tmp_path)
    ratios = [t for t in written if t.startswith("wur/")]
    assert len(ratios) == len(followed.trainable_variables)
    every = next(t for t in ratios if "dense" in t and "kernel" in t)
    # Of one call one step is measured, so four a call leave out step 3, and end short at 10.
    steps = [1, 6, 9] if kind == "four a call" else SUMMARIES
    assert sorted(written[every]) == steps
    assert sorted(written["loss"]) == steps  # on others it is not known
    assert written["epoch/loss"] == {10: pytest.approx(found.history["loss"][0])}


def test_the_loss_of_a_summary_step_is_the_batch_s_not_the_running_mean(tmp_path):
    model = make(functional)
    first = float(keras.ops.mean(LOSS(from_logits=True)(Y[:96], model(X[:96]))))
    fit(model, follow(tmp_path, summary_every=1))
    found = train(tmp_path)
    assert found["loss"][1] == pytest.approx(first, rel=1e-5)
    sizes = [96] * 9 + [36]
    mean = np.average([found["loss"][k] for k in range(1, 11)], weights=sizes)
    assert found["epoch/loss"][10] == pytest.approx(mean, rel=1e-5)


def test_ratios_are_those_of_numpy_for_every_step(tmp_path):
    model = make(functional, keras.optimizers.SGD(0.1))
    kernel = model.trainable_variables[0]
    seen = [kernel.numpy().astype(np.float64)]
    after = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(kernel.numpy().astype(np.float64))
    )
    fit(model, follow(tmp_path, summary_every=1), after)
    expected = {
        k: np.linalg.norm(new - old) / np.linalg.norm(old)
        for k, (old, new) in enumerate(itertools.pairwise(seen), 1)
    }
    assert train(tmp_path)["wur/dense/kernel"] == pytest.approx(expected, rel=1e-5)


def test_b1_per_batch_scalars_are_there_for_every_second_batch(tmp_path):
    fit(make(), follow(tmp_path, summary_every=2), validation_split=0.0, batch_size=100)
    assert sorted(train(tmp_path)["loss"]) == [1, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("order", [1, -1])
def test_b2_keras_own_callback_changes_nothing_in_ours(tmp_path, order):
    fit(make(), follow(tmp_path, "alone"))
    other = keras.callbacks.TensorBoard(tmp_path / "both" / "train", update_freq=1, write_graph=0)
    fit(make(), *[follow(tmp_path, "both"), other][::order])
    alone, both = train(tmp_path, "alone"), train(tmp_path, "both")
    for tag in (t for t in alone if not t.startswith(("perf/", "tracker/"))):
        assert both[tag] == alone[tag], tag


def test_b3_one_callback_over_three_fits_has_one_axis_and_one_run(tmp_path):
    model, tracked = make(), follow(tmp_path, summary_every=5)
    for epoch in range(3):
        fit(model, tracked, initial_epoch=epoch, epochs=epoch + 1)
    found = train(tmp_path)
    assert sorted(found[KERNEL]) == [1, 5, 10, 15, 20, 25, 30]
    assert sorted(found["epoch/loss"]) == [10, 20, 30]
    assert [a["first_step"] for a in record(tmp_path)["attempts"]] == [1, 11, 21]
    assert record(tmp_path)["status"] == "completed"


def test_b4_every_variable_has_its_tag_in_every_process_state(tmp_path):
    make()
    keras.Sequential(layers())  # makes Keras number the next one otherwise
    model = keras.Sequential(layers())
    model.compile("adam", LOSS(from_logits=True))
    fit(model, follow(tmp_path))
    named = sorted(t for t in train(tmp_path) if t.startswith("weight_norm/"))
    assert named == [
        f"weight_norm/sequential/{v}"
        for v in ("batch_normalization/beta", "batch_normalization/gamma", "dense/bias",
                  "dense/kernel", "dense_1/bias", "dense_1/kernel")
    ]  # fmt: skip


def test_the_run_has_graph_settings_validation_and_profile(tmp_path):
    fit(make(), follow(tmp_path, profile_steps="4:6", hparams={"note": "x"}))
    files = events.event_files(epath.Path(tmp_path) / "r" / "train")
    found = [e for f in files for _, e in events.read(f)]
    (graph,) = [e.graph_def for e in found if e.graph_def]
    assert all(part in graph.decode("latin1") for part in ("forward/", "gradients/", "update/"))
    written = train(tmp_path)
    assert written["profile/step_ms"].keys() == {5}
    assert sorted(values(epath.Path(tmp_path) / "r" / "validation")["accuracy"]) == [10]
    assert record(tmp_path)["results"]["validation/accuracy"] > 0
    assert record(tmp_path)["flags"]["note"] == "x"


def test_noise_is_what_the_app_adds_at_the_same_seed(tmp_path):
    from tests.experiments import make as experiment
    from tests.experiments import run_steps

    app = experiment(stddevs=(0.0, 1e-2), seed=5, steps=12, model="mlp", summary_every=4)
    start = [v.numpy() for v in app.model.trainable_variables]
    run_steps(app)
    iterator = iter(app.batches())
    data = [next(iterator) for _ in range(12)]
    model = experiment(seed=5, model="mlp", steps=12).model
    for variable, value in zip(model.trainable_variables, start, strict=True):
        variable.assign(value)
    noise = tracker.Noise((0.0, 1e-2), seed=5)
    stream = tf.data.Dataset.from_generator(
        lambda: iter(data), output_signature=app.batches().element_spec
    )
    model.fit(
        stream,
        verbose=0,
        shuffle=False,
        steps_per_epoch=12,
        callbacks=[follow(tmp_path, noise=noise, summary_every=4)],
    )
    assert experiments.equal(
        [v.numpy() for v in model.trainable_variables],
        [v.numpy() for v in app.model.trainable_variables],
    )
    assert sorted(train(tmp_path)["noise/stddev"]) == list(range(1, 13))


@pytest.mark.parametrize("kind", ["sequential", "xla", "four a call"])
def test_h5_noise_does_not_depend_on_summaries_and_zero_is_none(tmp_path, kind):
    plain, zero, never, often = (make(**KINDS[kind]) for _ in range(4))
    fit(plain)
    fit(zero, follow(tmp_path, "zero", noise=[0.0], summary_every=2))
    fit(never, follow(tmp_path, "never", noise=[0.0, 0.1], summary_every=0))
    fit(often, follow(tmp_path, "often", noise=[0.0, 0.1], summary_every=1))
    assert experiments.equal(weights(plain), weights(zero))
    assert experiments.equal(weights(never), weights(often))
    assert not experiments.equal(weights(plain), weights(never))
    assert sorted(train(tmp_path, "never")["loss"]) == list(range(1, 11))


@pytest.mark.parametrize("calls", [1, 3])
def test_accumulated_batches_are_one_step_and_get_noise_once(tmp_path, calls):
    def optimizer():
        return keras.optimizers.SGD(0.0, gradient_accumulation_steps=4)

    model = make(functional, optimizer(), steps_per_execution=calls)
    before = model.trainable_variables[0].numpy().astype(np.float64)
    fit(model, follow(tmp_path, noise=[0.1], summary_every=1), epochs=2)
    found = train(tmp_path)
    assert sorted(found["loss"]) == [1, 2, 3, 4, 5]
    moved = model.trainable_variables[0].numpy() - before
    assert np.std(moved) == pytest.approx(0.1 * np.sqrt(5), rel=0.2)


def half_precision():
    policy = keras.DTypePolicy("mixed_float16")
    inputs = keras.Input([8])
    hidden = keras.layers.Dense(16, "relu", dtype=policy)(inputs)
    return keras.Model(inputs, keras.layers.Dense(2, dtype=policy)(hidden))


def test_overflown_batches_get_no_noise_and_are_no_steps(tmp_path):
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.0), 2.0**60)
    model = make(half_precision, optimizer)
    before = [v.numpy() for v in model.trainable_variables]
    fit(model, follow(tmp_path, noise=[0.1], summary_every=1))
    assert experiments.equal(before, [v.numpy() for v in model.trainable_variables])
    assert "loss" not in train(tmp_path)
    fit(model, follow(tmp_path, "later", noise=[0.1], summary_every=1), epochs=6)
    found = train(tmp_path, "later")
    assert sorted(found["loss"]) == list(range(1, int(model.optimizer.iterations) + 1))
    assert found["wur_all/skipped"][1] > 30


def test_f5_the_noise_is_really_applied(tmp_path):
    keras.backend.clear_session()
    model = keras.Sequential([keras.Input([100]), keras.layers.Dense(1000, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    before = model.weights[0].numpy().astype(np.float64)
    data = np.ones([4, 100], np.float32), np.ones([4, 1000], np.float32)
    model.fit(*data, verbose=0, callbacks=[follow(tmp_path, noise=[0.1])])
    moved = model.weights[0].numpy() - before
    assert np.linalg.norm(moved) == pytest.approx(31.62, abs=0.3)


def test_a_run_goes_on_in_another_process_s_callback(tmp_path):
    model = make()
    fit(model, follow(tmp_path))
    fit(model, follow(tmp_path, resume=True))
    assert sorted(train(tmp_path)[KERNEL]) == [*SUMMARIES, 12, 15, 18, 20]


def test_a_failed_fit_leaves_the_model_whole_and_the_run_can_go_on(tmp_path):
    class Breaks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                raise OSError("gone")

    model, alone, tracked = make(), make(), follow(tmp_path, summary_every=1)
    original = []
    keep = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: original.append(model.train_function)
    )
    with pytest.raises(OSError, match="gone"):
        fit(model, keep, tracked, Breaks())
    assert model.train_function is original[0]
    fit(model, tracked)
    assert sorted(train(tmp_path)[KERNEL]) == list(range(1, 16))
    with pytest.raises(OSError, match="gone"):
        fit(alone, Breaks())
    fit(alone)
    assert experiments.equal(weights(alone), weights(model))


def test_a_loss_that_is_not_a_number_ends_the_run_as_diverged(tmp_path):
    model = make(functional, keras.optimizers.SGD(1e30))
    fit(model, follow(tmp_path))
    assert record(tmp_path)["status"] == "diverged"


def test_freezing_a_layer_between_two_fits_takes_effect(tmp_path):
    model, tracked = make(functional), follow(tmp_path, noise=[0.1], summary_every=1)
    fit(model, tracked)
    model.layers[1].trainable = False
    model.compile(keras.optimizers.SGD(0.0), LOSS(from_logits=True), jit_compile=False)
    before = model.layers[1].kernel.numpy()
    tracked = follow(tmp_path, "second", noise=[0.1], summary_every=1)
    fit(model, tracked)
    np.testing.assert_array_equal(before, model.layers[1].kernel.numpy())
    assert not [t for t in train(tmp_path, "second") if t.endswith("/dense/kernel")]


class TestRefusals:
    """One sentence, and no directory."""

    def refused(self, tmp_path, message, model, *added, **settings):
        with pytest.raises(ValueError, match=message):
            fit(model, *added, **settings)
        assert not [p for p in tmp_path.iterdir() if p.name == "r"]

    def test_a_model_that_runs_eagerly(self, tmp_path):
        self.refused(tmp_path, "runs eagerly", make(run_eagerly=True), follow(tmp_path))

    def test_two_models(self, tmp_path):
        tracked = follow(tmp_path, "first")
        fit(make(), tracked)
        self.refused(tmp_path, "follows the model sequential, and cannot", make(), tracked)

    def test_patterns_that_match_nothing(self, tmp_path):
        message = "^variables=absent matches none of the variables sequential/dense/kernel, "
        noise = tracker.Noise((0.1,), variables="absent")
        self.refused(tmp_path, message, make(), follow(tmp_path, noise=noise))

    def test_random_updates(self, tmp_path):
        with pytest.raises(ValueError, match=re.escape("low=1, high=0: should be")):
            callbacks.RandomUpdate(1, 0)
        update = callbacks.RandomUpdate(-1, 1, "absent")
        self.refused(tmp_path, "variables=absent: matches none of the variables", make(), update)
        with pytest.raises(ValueError, match="source=x: should be stateless or table"):
            callbacks.RandomUpdate(0, 1, source="x")


class TestUpdatesAtRandom:
    def walk(self, tmp_path, *added, **compiled):
        model = callbacks.forward_only(make(functional, **compiled))
        return model, fit(model, *added, epochs=2)

    @pytest.mark.parametrize("source", ["stateless", "table"])
    def test_nothing_but_the_random_numbers_moves_the_weights(self, tmp_path, source):
        still, history = self.walk(tmp_path)
        assert experiments.equal(weights(still), weights(make(functional)))
        moved, _ = self.walk(tmp_path, callbacks.RandomUpdate(-0.01, 0.02, source=source))
        for old, new in zip(still.trainable_variables, moved.trainable_variables, strict=True):
            change = new.numpy() - old.numpy()
            assert np.abs(change).max() <= 20 * 0.02
        kernel = moved.layers[1].kernel.numpy() - still.layers[1].kernel.numpy()
        assert kernel.mean() == pytest.approx(20 * 0.005, abs=0.01)
        assert kernel.std() == pytest.approx(np.sqrt(20) * 0.03 / np.sqrt(12), rel=0.2)
        assert set(history.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}

    def test_loss_and_metrics_are_those_of_a_learning_rate_of_zero(self, tmp_path):
        _, ours = self.walk(tmp_path)
        recipe = fit(make(functional, keras.optimizers.SGD(0.0)), epochs=2)
        for name, found in ours.history.items():
            assert found == pytest.approx(recipe.history[name], rel=1e-6), name

    def test_no_gradient_is_computed(self, tmp_path):
        model = make(functional)
        data = tf.data.Dataset.from_tensors((X[:96], Y[:96]))

        def ops():
            iterator = iter(data)
            function = tf.function(lambda: model.train_step(next(iterator)))
            return {o.name for o in function.get_concrete_function().graph.get_operations()}

        assert any("gradient_tape" in name for name in ops())
        callbacks.forward_only(model)
        assert not [name for name in ops() if "gradient_tape" in name]

    def test_several_batches_a_call_give_the_same_bits(self, tmp_path):
        one, _ = self.walk(tmp_path, callbacks.RandomUpdate(-0.01, 0.01))
        four, _ = self.walk(tmp_path, callbacks.RandomUpdate(-0.01, 0.01), steps_per_execution=4)
        assert experiments.equal(weights(one), weights(four))

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_tracker_measures_them_in_either_order_and_changes_nothing(self, tmp_path, order):
        alone, _ = self.walk(tmp_path, callbacks.RandomUpdate(-0.01, 0.01, seed=2))
        update = callbacks.RandomUpdate(-0.01, 0.01, seed=2)
        both, _ = self.walk(tmp_path, *[follow(tmp_path), update][::order])
        assert experiments.equal(weights(alone), weights(both))
        found = train(tmp_path)["wur/dense/kernel"]
        assert sorted(found) == [1, 3, 6, 9, 12, 15, 18, 20]
        assert all(ratio > 0 for ratio in found.values())

    def test_only_some_variables_and_training_put_back(self, tmp_path):
        model, _ = self.walk(tmp_path, callbacks.RandomUpdate(-1, 1, variables="dense_1/"))
        fresh = make(functional)
        assert experiments.equal(weights(fresh)[:2], weights(model)[:2])
        assert not experiments.equal(weights(fresh)[2:4], weights(model)[2:4])
        before = weights(model)
        callbacks.forward_only(model, on=False)
        fit(model)
        assert not experiments.equal(before[:2], weights(model)[:2])
