"""Kinds of models, variables and optimizers that people train, measured against NumPy."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from etils import epath

import tracker
from tests import experiments
from tests.main_test import values
from tracker import keras as callbacks
from tracker import variables as variables_lib
from tracker import wur

layers, optimizers = keras.layers, keras.optimizers
RNG = np.random.default_rng(0)
X = RNG.normal(size=[24, 8]).astype(np.float32)
Y = RNG.normal(size=[24, 2]).astype(np.float32)
SEQUENCE = RNG.normal(size=[24, 5, 4]).astype(np.float32)
BATCH = 8


class Trained:
    """What one run wrote, and the weights around each of its steps.

    Attributes:
      paths: canonical paths of the trainable variables.
      steps: for each step its weights before and after, float64.
      tags: {tag: {step: value}}.
    """

    def __init__(self, model):
        self.model = model
        self.variables = list(model.trainable_variables)
        self.paths = variables_lib.paths(self.variables, model)
        self.steps, self.tags = [], {}

    def weights(self):
        return [v.numpy().astype(np.float64) for v in self.variables]

    def ratio(self, step, i):
        """The WUR of a variable by NumPy; None where it has none."""
        before, after = (w[i] for w in self.steps[step - 1])
        size, change = np.linalg.norm(before), np.linalg.norm(after - before)
        if not before.size or (size == 0 and change > 0):
            return None
        return change / size if size else 0.0

    def ratios(self, tag="wur"):
        """{path: {step: value}} as written."""
        head = f"{tag}/"
        return {t.removeprefix(head): v for t, v in self.tags.items() if t.startswith(head)}

    def check(self):
        """Every variable has the ratios of NumPy under a tag of its own, and nothing else has."""
        assert len(set(self.paths)) == len(self.paths)
        expected = {}
        for i, path in enumerate(self.paths):
            for step in range(1, len(self.steps) + 1):
                if (ratio := self.ratio(step, i)) is not None:
                    expected.setdefault(path, {})[step] = pytest.approx(ratio, rel=2e-5)
        assert self.ratios() == expected
        for step, (before, after) in enumerate(self.steps, 1):
            whole = [np.concatenate([w.ravel() for w in all_]) for all_ in (before, after)]
            change = np.linalg.norm(whole[1] - whole[0]) / np.linalg.norm(whole[0])
            assert self.tags["wur_all/ratio"][step] == pytest.approx(change, rel=2e-5)


def by_fit(model, x, y, directory, name="r", **settings):
    """Trains by `model.fit`, a batch a step, every step a summary step."""
    trained, before = Trained(model), []
    around = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: before.append(trained.weights()),
        on_train_batch_end=lambda batch, logs: trained.steps.append(
            (before[-1], trained.weights())
        ),
    )
    settings = {"verbose": False, "summary_every": 1, **settings}
    follow = callbacks.Tracker(directory, name, **settings)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[follow, around])
    trained.tags = values(epath.Path(directory) / name / "train")
    return trained


def by_loop(model, x, y, directory, name="r", **settings):
    """Trains by a hand-written loop."""
    trained = Trained(model)

    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True), training=True)
        gradients = tape.gradient(loss, [v.value for v in trained.variables])
        model.optimizer.apply(gradients, trained.variables)
        return loss

    settings = {"verbose": False, "summary_every": 1, **settings}
    with tracker.Run(directory, name, **settings) as run:
        step = tracker.TrainStep(run, train_step, trained.variables, model.optimizer, model)
        for data in tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH):
            before = trained.weights()
            step(*data)
            trained.steps.append((before, trained.weights()))
    trained.tags = values(epath.Path(directory) / name / "train")
    return trained


def make(build, **settings):
    """The same model each time, as in a new process."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    return build(**settings)


def compiled(model, optimizer=None, loss="mse"):
    model.compile(optimizer or optimizers.SGD(0.1), loss, jit_compile=False)
    return model


def dense(optimizer=None, **options):
    """Two layers named `first` and `last`."""
    return compiled(
        keras.Sequential(
            [
                keras.Input([8]),
                layers.Dense(6, "tanh", name="first", **options),
                layers.Dense(2, name="last"),
            ]
        ),
        optimizer,
    ), X, Y  # fmt: skip


def two_heads():
    inputs = keras.Input([8])
    trunk = layers.Dense(6, "tanh")(inputs)
    heads = [layers.Dense(2)(trunk), layers.Dense(1)(trunk)]
    return compiled(keras.Model(inputs, heads), loss=["mse", "mae"]), X, (Y, Y[:, :1])


def attention():
    inputs = keras.Input([5, 4])
    attended = layers.MultiHeadAttention(2, 3)(inputs, inputs)
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(attended + inputs))
    return compiled(keras.Model(inputs, layers.Dense(2)(pooled))), SEQUENCE, Y


def gru():
    stack = [layers.GRU(3, reset_after=True), layers.Dense(2)]
    return compiled(keras.Sequential([keras.Input([5, 4]), *stack])), SEQUENCE, Y


def normalised():
    stack = [layers.Dense(6), layers.BatchNormalization(), layers.Dense(2)]
    return compiled(keras.Sequential([keras.Input([8]), *stack])), X, Y


def group_optimizer(first=None, last=None):
    """SGD for the layer `first`, Adam for the rest, each with its accumulation."""
    sgd = optimizers.SGD(0.5, gradient_accumulation_steps=first)
    adam = optimizers.Adam(0.01, gradient_accumulation_steps=last)
    groups = {".*first/.*": sgd, "never": optimizers.SGD(1.0)}
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(adam, groups))


def averaged():
    options = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 1}
    return dense(optimizers.SGD(0.5, **options))


KINDS = {
    "two heads": two_heads,
    "attention": attention,
    "gru": gru,
    "batch normalisation": normalised,
    "an optimizer a group": lambda: dense(group_optimizer()),
    "NonNeg": lambda: dense(kernel_constraint=keras.constraints.NonNeg()),
    "MaxNorm": lambda: dense(kernel_constraint=keras.constraints.MaxNorm(0.3)),
    "averaged weights": averaged,
}


BOTH = ("two heads", "gru", "an optimizer a group")


@pytest.mark.parametrize(
    ("kind", "train"), [*((k, by_fit) for k in KINDS), *((k, by_loop) for k in BOTH)]
)
def test_every_variable_has_its_ratio_and_the_parts_of_it(tmp_path, kind, train):
    """Of the first step the weights before the noise are those of a run without noise."""
    silent = train(*make(KINDS[kind]), tmp_path, "silent")
    noisy = train(*make(KINDS[kind]), tmp_path, "noisy", noise=[0.02])
    silent.check()
    noisy.check()
    assert len(silent.steps) == 3
    (before, middle), (same, after) = silent.steps[0], noisy.steps[0]
    assert experiments.equal(before, same)
    for i, path in enumerate(noisy.paths):
        change, size = np.linalg.norm(after[i] - middle[i]), np.linalg.norm(before[i])
        assert change > 0
        if size:
            update = np.linalg.norm(middle[i] - before[i]) / size
            assert noisy.ratios("wur_noise")[path][1] == pytest.approx(change / size, rel=1e-4)
            assert noisy.ratios("wur_gradient")[path][1] == pytest.approx(update, rel=2e-5)


def test_statistics_of_batch_normalisation_get_no_noise_and_no_tag(tmp_path):
    kept = []
    for name, noise in (("silent", None), ("noisy", [0.5])):
        model, x, y = make(normalised)
        moving = model.non_trainable_variables
        assert [v.name for v in moving] == ["moving_mean", "moving_variance"]
        before = [v.numpy() for v in moving]
        trained = by_fit(model, x[:BATCH], y[:BATCH], tmp_path, name, noise=noise)
        kept.append([v.numpy() for v in moving])
        assert not any(np.array_equal(a, b) for a, b in zip(before, kept[-1], strict=True))
        assert len(trained.paths) == 6
        assert not [tag for tag in trained.tags if "moving" in tag]
    assert experiments.equal(*kept)


def grouped(input_shape, classes):
    """A model for the app, which brings an optimizer for each of two layers."""
    model = keras.Sequential(
        [keras.Input(input_shape), layers.Flatten(), layers.Dense(5, name="first"),
         layers.Dense(classes)]
    )  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(model, group_optimizer(), loss)


def grouped_unevenly(input_shape, classes):
    model = grouped(input_shape, classes)
    return compiled(model, group_optimizer(first=4), model.loss)


class TestAnOptimizerForEachGroup:
    """Keras' MultiOptimizer: one step is one update of all groups, and has no one learning rate."""

    UNEVEN = "gradient_accumulation_steps of 1 and 4; should be the same"

    @pytest.mark.parametrize("train", [by_fit, by_loop])
    def test_there_is_no_learning_rate(self, tmp_path, train):
        one, several = (
            train(*make(lambda o=o: dense(o())), tmp_path, name)
            for name, o in (("one", optimizers.Adam), ("several", group_optimizer))
        )
        assert one.tags["learning_rate"] == dict.fromkeys((1, 2, 3), pytest.approx(1e-3))
        assert "learning_rate" not in several.tags

    def test_in_the_app(self):
        settings = {"model": "tests.model_kinds_test:grouped", "steps": 2, "summary_every": 1}
        experiment = experiments.make(**settings, stddevs=(0.0,))
        before = experiments.weights(experiment)
        first = experiment.functions.tracked(iter(experiment.batches()), 0, 1, 0)
        assert np.isnan(first.instrumented.learning_rate[0])
        found = wur.Measured.from_rows(first.instrumented.measured[0])
        changes = [
            np.linalg.norm(new.astype(np.float64) - old)
            for old, new in zip(before, experiments.weights(experiment), strict=True)
        ]
        np.testing.assert_allclose(found.update, changes, rtol=2e-5)
        adams = 0.01 * np.sqrt([50, 10])  # Adam's first step is its rate, whatever the gradient
        np.testing.assert_allclose(found.update[2:], adams, rtol=1e-2)

    @pytest.mark.parametrize("train", [by_fit, by_loop])
    def test_accumulated_batches_are_one_step_with_one_noise(self, tmp_path, train):
        model, x, y = make(lambda: dense(group_optimizer(first=3, last=3)))
        trained = train(model, x, y, tmp_path, noise=[0.1])
        (before, same), (_, after) = trained.steps[0], trained.steps[2]
        assert experiments.equal(before, same)
        trained.steps = [(before, after)]
        trained.check()
        assert trained.tags["loss"].keys() == {1}
        assert trained.tags["wur_all/skipped"] == {1: 2}

    def test_groups_that_accumulate_differently_are_refused(self, tmp_path):
        for train in (by_fit, by_loop):
            with pytest.raises(ValueError, match=self.UNEVEN):
                train(*make(lambda: dense(group_optimizer(last=4))), tmp_path)
        assert not list(tmp_path.iterdir())
        with pytest.raises(ValueError, match=self.UNEVEN):
            experiments.make(model="tests.model_kinds_test:grouped_unevenly")


class TestFreezing:
    """A layer that is frozen has neither noise nor update nor further values; the others go on."""

    def frozen(self, tmp_path, name, freeze, noise=None, fits=2, **settings):
        """Trains on 3 batches for each fit, freezing `first` after the first; returns what moved.

        Returns:
          The tags, and the kernels of the two layers when it was frozen, and at the end.
        """
        model, x, y = make(dense)
        follow = callbacks.Tracker(tmp_path, name, verbose=False, noise=noise, **settings)
        kernels = []

        def note():
            kernels.append([layer.kernel.numpy() for layer in model.layers])

        for number in range(fits):
            if number:
                freeze(model)
                note()
            model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[follow])
        note()
        return values(epath.Path(tmp_path) / name / "train"), kernels

    def compile_again(self, model):
        model.get_layer("first").trainable = False
        model.compile(optimizers.SGD(0.1), "mse", jit_compile=False)

    def only_freeze(self, model):
        model.get_layer("first").trainable = False

    @pytest.mark.parametrize("noise", [None, (0.1,)], ids=["silent", "noisy"])
    @pytest.mark.parametrize("every", [1, 100])
    def test_without_compiling_again_it_takes_effect_and_is_said(self, tmp_path, every, noise):
        """Keras' own training function, made before, would go on to train it on plain steps."""
        settings = {"summary_every": every, "noise": noise}
        found, (before, after) = self.frozen(tmp_path, "r", self.only_freeze, **settings)
        np.testing.assert_array_equal(before[0], after[0])
        assert not np.array_equal(before[1], after[1])
        of = {name: max(found[f"wur/sequential/{name}/kernel"]) for name in ("first", "last")}
        assert of == {"first": 3, "last": 6}
        said = (tmp_path / "r" / "console.log").read_text()
        assert said.count("Warning: Layers of sequential were frozen or thawed") == 1

    def test_with_compiling_again_nothing_need_be_said(self, tmp_path):
        settings = {"summary_every": 1, "noise": (0.1,)}
        found, (before, after) = self.frozen(tmp_path, "r", self.compile_again, **settings)
        np.testing.assert_array_equal(before[0], after[0])
        assert not np.array_equal(before[1], after[1])
        assert "Warning" not in (tmp_path / "r" / "console.log").read_text()
        # A new optimizer counts from 0 again, the run goes on.
        assert sorted(found["wur/sequential/first/kernel"]) == [1, 2, 3]
        assert sorted(found["wur/sequential/last/kernel"]) == [1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("followed", [True, False])
    def test_another_tracker_finds_it_frozen(self, tmp_path, followed):
        model, x, y = make(dense)
        first = [callbacks.Tracker(tmp_path, "warm", verbose=False)] if followed else []
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=first)
        self.only_freeze(model)
        before = [layer.kernel.numpy() for layer in model.layers]
        found = callbacks.Tracker(tmp_path, "r", verbose=False, summary_every=100)
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[found])
        moved = [
            not np.array_equal(b, layer.kernel.numpy())
            for b, layer in zip(before, model.layers, strict=True)
        ]
        assert moved == [False, True]

    def test_by_a_callback_it_takes_effect_at_once(self, tmp_path):
        model, x, y = make(dense)
        kernels = []

        def freeze(epoch, logs):
            model.get_layer("first").trainable = epoch != 1
            kernels.append(model.get_layer("first").kernel.numpy())

        found = callbacks.Tracker(tmp_path, "r", verbose=False, noise=(0.01,), summary_every=1)
        late = keras.callbacks.LambdaCallback(on_epoch_begin=freeze)
        model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[found, late])
        kernels.append(model.get_layer("first").kernel.numpy())
        moved = [not np.array_equal(a, b) for a, b in itertools.pairwise(kernels)]
        assert moved == [True, False, True]
        written = values(tmp_path / "r" / "train")
        assert sorted(written["wur/sequential/first/kernel"]) == [1, 2, 3, 7, 8, 9]
        assert sorted(written["wur/sequential/last/kernel"]) == list(range(1, 10))

    def test_a_loop_of_one_s_own_is_told(self, tmp_path):
        model, x, y = make(dense)

        def train_step(x, y):
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x=x, y=y, y_pred=model(x))
            variables = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
            return loss

        with tracker.Run(tmp_path, "r", verbose=False, noise=(0.1,), summary_every=1) as run:
            step = tracker.TrainStep(run, train_step, model.trainable_variables, model.optimizer)
            self.only_freeze(model)
            with pytest.raises(ValueError, match="Layers were frozen or thawed after"):
                step(x, y)
            model.get_layer("first").trainable = True
            step(x, y)
            self.only_freeze(model)
            before = model.get_layer("first").kernel.numpy()
            with pytest.raises(ValueError, match=r"frozen or thawed .* make another TrainStep"):
                step(x, y)
            step = tracker.TrainStep(run, train_step, model.trainable_variables, model.optimizer)
            with pytest.raises(ValueError, match="The run measures the variables of another"):
                step(x, y)
            run.end("completed")
            for _ in range(2):
                step(x, y)
        found = values(tmp_path / "r" / "train")
        (first,), (last,) = ([t for t in found if t.startswith("wur/") and f"{name}/kernel" in t]
                             for name in ("first", "last"))  # fmt: skip
        assert (sorted(found[first]), sorted(found[last])) == ([1], [1, 2, 3])
        np.testing.assert_array_equal(before, model.get_layer("first").kernel.numpy())


class TestCompilingAgain:
    def test_another_loss_is_trained_and_measured(self, tmp_path):
        """With the same optimizer, from which alone it could not be told."""
        weights = []
        for followed in (False, True):
            model, x, y = make(dense)
            found = callbacks.Tracker(tmp_path, "r", verbose=False, noise=(0.0,), summary_every=1)
            given = [found] if followed else []
            for loss in ("mse", "mae"):
                model.compile(model.optimizer, loss, metrics=["mse"], jit_compile=False)
                history = model.fit(x, y, epochs=2, shuffle=False, verbose=0, callbacks=given)
            weights.append((history.history, model.get_weights()))
        assert weights[0][0] == weights[1][0]
        assert experiments.equal(weights[0][1], weights[1][1])

    def test_steps_without_an_update_by_an_optimizer_count_on(self, tmp_path):
        model, x, y = make(dense)
        callbacks.forward_only(model)
        found = callbacks.Tracker(tmp_path, "r", verbose=False, noise=(0.1,), summary_every=1)
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[found])
        model.get_layer("first").trainable = False
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[found])
        assert sorted(values(tmp_path / "r" / "train")["loss"]) == [1, 2, 3, 4, 5, 6]


def gradients(model, x, y):
    """Of the first batch, float64."""
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True), training=True)
    found = tape.gradient(loss, [v.value for v in model.trainable_variables])
    return [np.asarray(g, np.float64) for g in found]


def clipped(gradients, clip, limit):
    if clip == "clipvalue":
        return [np.clip(g, -limit, limit) for g in gradients]
    if clip == "global_clipnorm":
        size = np.sqrt(sum(np.sum(g**2) for g in gradients))
        return [g * min(1, limit / size) for g in gradients]
    return [g * min(1, limit / np.linalg.norm(g)) for g in gradients]


@pytest.mark.parametrize(
    ("clip", "limit"), [("clipnorm", 0.05), ("clipvalue", 0.01), ("global_clipnorm", 0.05)]
)
def test_the_clipped_update_is_what_counts(tmp_path, clip, limit):
    model, x, y = make(lambda: dense(optimizers.SGD(0.1, **{clip: limit})))
    whole = gradients(model, x[:BATCH], y[:BATCH])
    expected = clipped(whole, clip, limit)
    trained = by_fit(model, x, y, tmp_path, noise=[0.02])
    trained.check()
    for i, path in enumerate(trained.paths):
        update = 0.1 * np.linalg.norm(expected[i])
        assert update < 0.05 * np.linalg.norm(whole[i])  # half of the gradient's at most
        if size := np.linalg.norm(trained.steps[0][0][i]):
            part = trained.ratios("wur_gradient")[path][1]
            assert part == pytest.approx(update / size, rel=1e-4)


class Odd(layers.Layer):
    """A scalar, a variable without elements, one of float64, and further small ones."""

    def __init__(self, more):
        super().__init__()
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.empty = self.add_weight(shape=(0, 3), name="empty")
        self.wide = self.add_weight(
            shape=(8, 2), dtype="float64", initializer="glorot_uniform", name="wide"
        )
        self.more = [
            self.add_weight(shape=(), initializer="ones", name=f"more{i}") for i in range(more)
        ]

    def call(self, x):
        x = self.scale * (x @ keras.ops.cast(self.wide, "float32"))
        return x + sum(self.more) + keras.ops.sum(self.empty)


@pytest.mark.parametrize("scale", ["absolute", "relative"])
@pytest.mark.parametrize("more", [0, 70], ids=["one by one", "together"])
def test_scalars_empty_variables_and_float64_among_float32(tmp_path, more, scale):
    noise = tracker.Noise((0.02,), scale=scale)
    model, x, y = make(lambda: (compiled(keras.Sequential([keras.Input([8]), Odd(more)])), X, Y))
    trained = by_fit(model, x, y, tmp_path, noise=noise)
    trained.check()
    assert [str(v.dtype) for v in trained.variables[:3]] == ["float32", "float32", "float64"]
    assert trained.paths[1] not in trained.ratios()
    assert len(trained.ratios()) == 2 + more
    assert len(trained.ratios("wur_noise")) == 2 + more
    assert trained.tags["wur_all/undefined"] == {1: 0, 2: 0, 3: 0}
    assert not any(np.isnan(v) for found in trained.tags.values() for v in found.values())


class Tied(keras.Model):
    """Tokens to logits by one matrix: in as an embedding, out as its transpose."""

    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(7, 3)

    def call(self, tokens):
        return keras.ops.matmul(
            self.embedding(tokens), keras.ops.transpose(self.embedding.embeddings)
        )


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("train", [by_fit, by_loop])
def test_a_tied_embedding_is_one_variable_with_both_its_gradients(tmp_path, train):
    tokens = np.array([0, 1, 1, 2, 4, 4, 4, 5], np.int32)
    right = RNG.normal(size=[8, 7]).astype(np.float32)
    model = make(lambda: compiled(Tied()))
    model(tokens)
    trained = train(model, tokens, right, tmp_path)
    trained.check()
    assert list(trained.ratios()) == trained.paths
    assert len(trained.paths) == 1
    assert not trained.ratios("wur_touched")  # every row is touched by the way out
    (before,), _ = trained.steps[0]
    hidden = before[tokens]
    slope = 2 * (hidden @ before.T - right) / right.size
    gradient = slope.T @ hidden
    outward = np.linalg.norm(gradient)
    np.add.at(gradient, tokens, slope @ before)
    assert np.linalg.norm(gradient) != pytest.approx(outward, rel=0.05)
    ratio = 0.1 * np.linalg.norm(gradient) / np.linalg.norm(before)
    assert trained.ratios()[trained.paths[0]] == {1: pytest.approx(ratio, rel=1e-4)}


class Deaf(keras.Sequential):
    """Its loss depends on none of its variables."""

    def call(self, x, training=None):
        return tf.stop_gradient(super().call(x))


def deaf(input_shape=(8,), classes=2):
    return Deaf([keras.Input(input_shape), layers.Flatten(), layers.Dense(classes)])


def test_a_loss_that_depends_on_no_variable_is_refused_before_there_is_a_run(tmp_path):
    for train in (by_fit, by_loop):
        with pytest.raises(ValueError, match="No gradients provided for any variable"):
            train(make(lambda: compiled(deaf())), X, Y, tmp_path)
    experiment = experiments.make(model="tests.model_kinds_test:deaf", steps=1)
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        experiment.functions.plain_function.get_concrete_function()
    assert not list(tmp_path.iterdir())


def test_a_thousand_variables_cost_a_dozen_ops_each(tmp_path):
    """Measured one by one each would cost some hundred; the vector of all is measured once."""
    keras.backend.clear_session()
    many = [keras.Variable(np.float32(RNG.normal(size=[3])), name=f"v{i}") for i in range(1000)]
    optimizer = optimizers.SGD(0.1)

    def train_step(x):
        with tf.GradientTape() as tape:
            loss = x * tf.reduce_sum(tf.square(tf.stack([v.value for v in many])))
        optimizer.apply(tape.gradient(loss, [v.value for v in many]), many)
        return loss

    with tracker.Run(tmp_path, "r", verbose=False, summary_every=2) as run:
        step = tracker.TrainStep(run, train_step, many, optimizer)
        for x in (0.5, 0.4):
            before = np.stack([v.numpy() for v in many]).astype(np.float64)
            step(tf.constant(x))
        (functions,) = step._compiled.values()
    graphs = [f.get_concrete_function().graph.as_graph_def() for f in functions]
    plain, measured = (
        len(g.node) + sum(len(f.node_def) for f in g.library.function) for g in graphs
    )
    assert plain + 1000 < measured < plain + 16 * 1000
    assert [f.experimental_get_tracing_count() for f in functions] == [1, 1]
    assert len(graphs[1].library.function) - len(graphs[0].library.function) <= 4
    found = values(tmp_path / "r" / "train")
    ratios = {tag: v for tag, v in found.items() if tag.startswith("wur/")}
    assert len(ratios) == 1000
    after = np.stack([v.numpy() for v in many])
    change = np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)
    np.testing.assert_allclose([ratios[f"wur/v{i}"][2] for i in range(1000)], change, rtol=1e-4)
    whole = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert found["wur_all/ratio"][2] == pytest.approx(whole, rel=1e-4)
