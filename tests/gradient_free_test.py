"""Rules without gradients: their numbers against NumPy, and that no gradient is there."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import experiments
from tracker import gradient_free, instrument, noise, selectors, steps, wur

RULES = ("random_walk", "hill_climb", "spsa", "evolution")


class Slope(keras.Model):
    """y = w · x for one weight w that begins at 0, and a bias that the loss does not feel."""

    def __init__(self):
        super().__init__()
        self.w = self.add_weight(shape=[1], initializer="zeros", name="w")
        self.built = True

    def call(self, x):
        return x * self.w


def square(rule, stddevs=(0.1,), count=60, optimizer=None, **options):
    """(w − 3)² from w = 0; returns the weights after each step, and what the steps returned."""
    keras.backend.clear_session()
    model = Slope()
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss="mse")
    target = noise.Target("w", model.w)
    source = noise.Stateless(0)
    made = {
        "random_walk": lambda: gradient_free.RandomWalk(model),
        "hill_climb": lambda: gradient_free.HillClimb(model, **options),
        "spsa": lambda: gradient_free.Spsa(model, model.optimizer, [target], source),
        "evolution": lambda: gradient_free.Evolution(
            model, model.optimizer, [target], source, **options
        ),
    }[rule]()
    selector = selectors.make("cycle", stddevs, 0, count)
    adder = noise.Adder("scalar", source, stddevs, [target])
    around = instrument.Instrument(adder, [target], selector, [model.w], ["w"])
    data = tf.data.Dataset.from_tensors((tf.ones([1, 1]), 3 * tf.ones([1, 1]))).repeat()
    functions = steps.Steps(steps.Body(model, made, around), data.element_spec)
    iterator, weights, results = iter(data), [0.0], []
    for step in range(count):
        results.append(functions.tracked(iterator, step, 1, 0))
        weights.append(float(model.w.numpy()[0]))
    return np.array(weights, np.float64), results


def numbers(step, pair=0):
    """The perturbation of a step, as its source gives it."""
    counter = tf.cast(tf.constant([pair * 2**40, step], tf.int64), tf.uint64)
    return float(noise.Stateless(0).draw("w", counter, [1])[0])


def test_f7_a_random_walk_moves_zeros_by_its_stddev():
    weights, results = square("random_walk")
    for step, (old, new) in enumerate(itertools.pairwise(weights), 1):
        assert new - old == pytest.approx(0.1 * numbers(step), abs=1e-6)
    assert results[0].plain.loss[0] == pytest.approx(9.0)


def test_f7_a_climb_never_raises_the_loss_and_takes_back_bit_for_bit():
    weights, results = square("hill_climb")
    losses = (weights - 3) ** 2
    kept = np.array([r.plain.accepted[0] for r in results])
    assert 0.2 < kept.mean() < 0.8
    assert np.all(losses[1:][kept] < losses[:-1][kept])
    np.testing.assert_array_equal(weights[1:][~kept], weights[:-1][~kept])
    for step, accepted in enumerate(kept, 1):
        proposed = weights[step - 1] + 0.1 * numbers(step)
        assert accepted == ((proposed - 3) ** 2 < losses[step - 1])
        measured = wur.Measured.from_rows(results[step - 1].instrumented.measured[0])
        found = wur.ratios(measured)
        assert measured.proposed[0] == pytest.approx(0.1 * abs(numbers(step)), rel=1e-3)
        if not accepted and measured.before[0]:
            assert found.total[0] == 0.0
            assert found.proposed[0] > 0


def test_a_hot_climb_keeps_rises_as_often_as_metropolis_says():
    count = 2000
    weights, results = square("hill_climb", count=count, temperature=1.0)
    losses = (weights - 3) ** 2
    kept = np.array([r.plain.accepted[0] for r in results])
    steps_ = np.arange(1, count + 1)
    proposed = weights[:-1] + 0.1 * np.array([numbers(k) for k in steps_])
    rise = (proposed - 3) ** 2 - losses[:-1]
    assert np.all(kept[rise < 0])
    expected = np.exp(-rise[rise > 0])
    spread = np.sqrt(np.sum(expected * (1 - expected)))
    assert abs(kept[rise > 0].sum() - expected.sum()) < 4 * spread


def test_spsa_is_the_difference_along_one_direction():
    stddevs = (0.1, 0.5)
    weights, _ = square("spsa", stddevs)
    for step, (old, new) in enumerate(itertools.pairwise(weights), 1):
        z, c = numbers(step), stddevs[(step - 1) % 2]
        slope = ((old + c * z - 3) ** 2 - (old - c * z - 3) ** 2) / (2 * c)
        assert new - old == pytest.approx(-0.1 * slope * z, abs=2e-5)
    assert abs(weights[-1] - 3) < 0.2


def test_evolution_weighs_perturbations_by_centred_ranks():
    pairs = 4
    weights, results = square("evolution", pairs=pairs, count=20)
    for step, (old, new) in enumerate(itertools.pairwise(weights), 1):
        z = np.array([numbers(step, pair) for pair in range(pairs)])
        tries = np.stack([old + 0.1 * z, old - 0.1 * z], axis=1)
        losses = (tries - 3) ** 2
        ranks = np.argsort(np.argsort(losses.ravel())).reshape(pairs, 2) / (2 * pairs - 1) - 0.5
        estimate = np.sum((ranks[:, 0] - ranks[:, 1]) * z) / (2 * pairs * 0.1)
        assert new - old == pytest.approx(-0.1 * estimate, abs=1e-4)
        assert results[step - 1].plain.loss[0] == pytest.approx(losses.mean(), rel=1e-4)
    assert weights[-1] > 1.5


def test_ranks_are_centred_and_ties_go_by_order():
    found = gradient_free.centred_ranks(tf.constant([3.0, 1.0, 3.0, -2.0, 7.0])).numpy()
    np.testing.assert_allclose(found, [0, -0.25, 0.25, -0.5, 0.5])


def make(rule, **settings):
    stddevs = {"stddevs": (1e-2, 3e-2)}
    return experiments.make(update=rule, **{"steps": 12, "summary_every": 5, **stddevs, **settings})


@pytest.mark.parametrize("rule", RULES)
def test_no_gradient_is_computed_and_all_variables_move(rule):
    experiment = make(rule, model="mlp")
    before = experiments.weights(experiment)
    experiments.run_steps(experiment)
    if rule != "hill_climb":  # each of whose steps may be taken back
        for old, new in zip(before, experiments.weights(experiment), strict=True):
            assert not np.array_equal(old, new)
    for function in (experiment.functions.plain_function, experiment.functions.tracked_function):
        graph = function.get_concrete_function().graph.as_graph_def()
        names = [n.name for f in graph.library.function for n in f.node_def]
        assert not [n for n in names if "gradient_tape" in n]
        assert any("forward" in n for n in names)


@pytest.mark.parametrize("rule", RULES)
def test_weights_depend_neither_on_call_lengths_nor_on_summaries(rule):
    found = []
    for most, every in ((1, 1), (5, 0), (100, 4)):
        experiment = make(rule, summary_every=every)
        experiments.run_steps(experiment, most)
        found.append(experiments.weights(experiment))
    assert experiments.equal(found[0], found[1])
    assert experiments.equal(found[0], found[2])


def test_strategies_agree_where_noise_is_added():
    for rule in ("random_walk", "hill_climb"):
        found = []
        for strategy in ("scalar", "routes", "buffered"):
            experiment = make(rule, strategy=strategy, summary_every=0)
            experiments.run_steps(experiment)
            found.append(experiments.weights(experiment))
        assert experiments.equal(found[0], found[1])
        assert experiments.equal(found[0], found[2])


@pytest.mark.parametrize("rule", RULES)
def test_only_the_named_variables_move(rule):
    experiment = make(rule, variables="bias", steps=20)
    before = experiments.weights(experiment)
    experiments.run_steps(experiment)
    after = experiments.weights(experiment)
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


REFUSED = {
    "--optimizer=sgd with --update=hill_climb": ("hill_climb", "--optimizer=sgd"),
    "--learning_rate=0.1 with --update=random_walk": ("random_walk", "--learning_rate=0.1"),
    "--temperature=1.0 with --update=spsa": ("spsa", "--temperature=1", "--stddevs=1"),
    "--population=4 with --update=spsa": ("spsa", "--population=4", "--stddevs=1"),
    "--stddevs=0,0.1 with --update=evolution: 0 perturbs": ("evolution", "--stddevs=0,0.1"),
    "--selector=bandit with --update=spsa": ("spsa", "--selector=bandit", "--stddevs=1"),
    "--update=hill_climb with --graph=v1": ("hill_climb", "--graph=v1"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_flags_that_do_not_fit_are_one_sentence(tmp_path, message):
    rule, *others = REFUSED[message]
    done = experiments.command(f"--logdir={tmp_path}", f"--update={rule}", *others)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
