import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import experiments
from tests.main_test import record, values
from tracker import config as config_lib
from tracker import noise, session

SHORT = ("--steps=60", "--summary_every=20", "--profile_steps=", "--validate_every=30")


def make(**settings):
    keras.backend.clear_session()
    given = {**experiments.QUICK, "graph": "v1", "steps": 20, **settings}
    return session.assemble(config_lib.validate(config_lib.Config(**given)))


def weights(experiment):
    return [v.numpy() for v in experiment.model.variables]


def frozen(input_shape, classes):
    layers = keras.layers
    model = keras.Sequential([keras.Input(input_shape), layers.Flatten(), layers.Dense(8, "tanh"),
                              layers.BatchNormalization(), layers.Dropout(0.2),
                              layers.Dense(classes)])  # fmt: skip
    model.layers[1].trainable = False
    return model


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same experiment by each kind of graph: their directories."""
    logdir = tmp_path_factory.mktemp("logdir")
    for graph in ("v1", "v2"):
        done = experiments.command(
            f"--logdir={logdir}", f"--run={graph}", f"--graph={graph}", "--model=mlp",
            "--optimizer=sgd", "--learning_rate=0.1", "--wur=update,norm_change", *SHORT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    return logdir / "v1", logdir / "v2"


def test_the_run_is_that_of_compiled_steps_under_the_same_tags(runs):
    one, other = (values(r / "train") for r in runs)
    assert set(one) - {"tracker/overhead_percent"} == set(other) - {"tracker/overhead_percent"}
    for tag in ("noise/choice", "noise/stddev", "wur_all/stddev", "wur_all/undefined"):
        assert one[tag] == other[tag]
    for tag in ("loss", "accuracy", "wur/sequential/dense/kernel", "wur_all/ratio",
                "wur_noise/sequential/dense_1/bias", "norm_change/sequential/dense/kernel",
                "wur_all/unchanged_fraction", "learning_rate"):  # fmt: skip
        assert list(one[tag]) == list(other[tag])
        first, second = (np.array(list(v[tag].values())) for v in (one, other))
        np.testing.assert_allclose(first, second, rtol=2e-2, atol=1e-5)
    assert list(one["loss"]) == list(range(1, 61))
    assert list(one["wur_all/ratio"]) == [1, 20, 40, 60]
    first, second = (values(r / "validation") for r in runs)
    assert list(first["accuracy"]) == list(second["accuracy"]) == [0, 1, 30, 60]


def test_what_the_run_leaves(runs):
    run = runs[0]
    assert record(run)["status"] == "completed"
    model = keras.saving.load_model(run / "model.keras")
    saved = tf.train.load_checkpoint(str(run / "checkpoints"))
    for name, value in (
        ("dense/kernel", model.layers[1].kernel),
        ("dense_2/bias", model.layers[3].bias),
    ):
        assert saved.get_tensor(f"sequential/{name}").tobytes() == value.numpy().tobytes()
    done = experiments.command(f"--logdir={run.parent}", "--resume=v1")
    assert done.returncode == 2
    assert done.stderr == "--resume=v1: runs with --graph=v1 cannot go on; start a new one.\n"


def test_weights_depend_on_neither_strategy_nor_summaries_nor_calls():
    ends = []
    for strategy in noise.STRATEGIES:
        for every, most in ((0, 20), (1, 20), (7, 3)):
            experiment = make(strategy=strategy, summary_every=every, model="mlp")
            size = len(experiment.functions.graph.get_operations())
            experiments.run_steps(experiment, most)
            assert experiment.functions.graph.finalized
            assert len(experiment.functions.graph.get_operations()) == size
            ends.append(weights(experiment))
    for end in ends[1:]:
        assert experiments.equal(ends[0], end)


def test_layers_with_state_and_frozen_ones():
    experiment = make(model="tests.session_test:frozen", summary_every=5)
    names = experiment.instrument.names
    assert not any(n.startswith("sequential/dense/") for n in names)
    before = weights(experiment)
    experiments.run_steps(experiment)
    same = {v.path.partition("/")[2]: a.tobytes() == b.tobytes() for v, a, b in
            zip(experiment.model.variables, before, weights(experiment), strict=True)}  # fmt: skip
    assert same["dense/kernel"] and same["dense/bias"]
    assert not same["dense_1/kernel"]
    assert not same["batch_normalization/moving_mean"]
    assert not next(v for n, v in same.items() if "seed_generator" in n)


def plan(step):
    return step % 3


@pytest.mark.parametrize("selector", ["tests.session_test:plan", "bandit", "cycle"])
def test_selectors(selector):
    experiment = make(selector=selector, summary_every=4)
    other = experiments.make(selector=selector, summary_every=4, steps=20)
    found, wanted = (
        np.concatenate([r.plain.choice for *_, r in experiments.run_steps(e)])
        for e in (experiment, other)
    )
    assert len(set(found)) == 3
    if selector == "bandit":  # it depends on the last bits of the loss
        found, wanted = found[:3], wanted[:3]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "adadelta"])
def test_optimizers_do_what_those_of_keras_do(optimizer):
    settings = {"optimizer": optimizer, "learning_rate": 0.01, "summary_every": 10}
    one, other = make(**settings), experiments.make(steps=20, **settings)
    for experiment in (one, other):
        experiments.run_steps(experiment)
    for a, b in zip(weights(one), weights(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=2e-3)


def test_rmsprop_begins_with_smaller_steps_than_that_of_keras():
    """TF1 starts its mean of squares at 1, Keras at 0."""
    settings = {"optimizer": "rmsprop", "stddevs": (0.0,), "steps": 1, "summary_every": 1}
    moved = []
    for experiment in (make(**settings), experiments.make(**settings)):
        (_, _, result), *_ = experiments.run_steps(experiment)
        moved.append(result.instrumented.measured[0, 0, 2])
    assert 0 < moved[0] < moved[1] / 2


def test_a_loss_that_is_no_number_ends_the_call():
    experiment = make(optimizer="sgd", learning_rate=1e38, summary_every=0, validate_every=0)
    (_, call, result), *rest = experiments.run_steps(experiment)
    assert not rest
    assert result.steps < call.steps
    assert not np.isfinite(result.plain.loss[-1])
    assert np.all(np.isfinite(result.plain.loss[:-1]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"noise_source": "table"}, "--noise_source=table with --graph=v1: .* should be stateless"),
        ({"noise_scale": "relative"}, "--noise_scale=relative with --graph=v1: .* absolute"),
        ({"optimizer": "lion"}, "--optimizer=lion with --graph=v1: .*adadelta, adagrad, adam,"),
        (
            {"optimizer_args": "weight_decay=1e-4"},
            "--optimizer_args=weight_decay=1e-4 with .*beta_1",
        ),
    ],
)
def test_what_sessions_do_not_have(settings, said):
    with pytest.raises(ValueError, match=said):
        make(**settings)


def test_a_refusal_is_one_sentence_and_leaves_nothing(tmp_path):
    done = experiments.command(f"--logdir={tmp_path / 'l'}", "--graph=v1", "--optimizer=lion")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "l").exists()
