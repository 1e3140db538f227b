import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from tests import experiments
from tracker import noise

STEP = tf.constant(3, tf.int64)
AT = noise.counter(STEP)
NEXT = noise.counter(STEP + 1)


def adder(strategy, variables, stddevs=(0.0, 0.1), source=None, prefix="v"):
    targets = [noise.Target(f"{prefix}{i}", v) for i, v in enumerate(variables)]
    return noise.Adder(strategy, source or noise.Stateless(7), stddevs, targets)


def add(strategy, variables, index=1, **options):
    made = adder(strategy, variables, **options)
    tf.function(lambda: made.add(STEP, tf.constant(index)))()
    return made


@pytest.mark.parametrize("strategy", noise.STRATEGIES)
def test_noise_has_the_asked_size(strategy):
    """s on n elements: L2 is s sqrt(n) = 31.62, about within s / sqrt(2) = 0.07."""
    variable = tf.Variable(tf.zeros([100_000]))
    add(strategy, [variable])
    assert np.linalg.norm(variable.numpy()) == pytest.approx(31.62, abs=0.3)


@pytest.mark.parametrize("distribution", noise.DISTRIBUTIONS)
@pytest.mark.parametrize("source", ["stateless", "table"])
def test_unit_variance_of_every_source(distribution, source):
    made = (
        noise.Stateless(1, distribution)
        if source == "stateless"
        else noise.Table(1, 2**21, distribution)
    )
    numbers = made.draw("kernel", AT, [200_000]).numpy()
    assert numbers.dtype == np.float32
    assert abs(numbers.mean()) < 0.01
    assert numbers.std() == pytest.approx(1, abs=0.01)
    fourth = (numbers**4).mean()
    assert fourth == pytest.approx(3 if distribution == "normal" else 9 / 5, rel=0.03)
    if distribution == "uniform":
        assert np.abs(numbers).max() <= math.sqrt(3) + 1e-6


@pytest.mark.parametrize("strategy", noise.STRATEGIES)
def test_stddev_zero_leaves_every_bit(strategy):
    values = np.float32([0.0, -1.5, 1e-30, 3.0])
    variable = tf.Variable(values)
    add(strategy, [variable], index=0)
    assert np.array_equal(variable.numpy(), values)


def test_strategies_add_the_same_bits():
    results = []
    for strategy in noise.STRATEGIES:
        variables = [tf.Variable(tf.ones([5, 3])), tf.Variable(tf.zeros([4], tf.float64))]
        add(strategy, variables, stddevs=(0.3, 1e-3, 0.0), index=1)
        results.append([v.numpy() for v in variables])
    assert experiments.equal(results[0], results[1])
    assert experiments.equal(results[0], results[2])


def test_numbers_do_not_depend_on_other_variables():
    alone, beside = tf.Variable(tf.zeros([6])), tf.Variable(tf.zeros([6]))
    add("scalar", [alone])
    targets = [noise.Target("other", tf.Variable(tf.zeros([9]))), noise.Target("v0", beside)]
    made = noise.Adder("scalar", noise.Stateless(7), (0.0, 0.1), targets)
    made.add(STEP, tf.constant(1))
    assert np.array_equal(alone.numpy(), beside.numpy())


def test_variables_seeds_and_steps_get_different_numbers():
    source = noise.Stateless(0)
    draws = [
        source.draw("a", AT, [1000]), source.draw("b", AT, [1000]),
        source.draw("a", NEXT, [1000]), noise.Stateless(1).draw("a", AT, [1000]),
    ]  # fmt: skip
    correlation = np.corrcoef([d.numpy() for d in draws])
    assert np.abs(correlation - np.eye(4)).max() < 0.15


@pytest.mark.parametrize("strategy", noise.STRATEGIES)
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_low_precision_draws_in_float32_and_then_casts(strategy, dtype):
    variable = tf.Variable(tf.ones([2000], dtype))
    add(strategy, [variable], stddevs=(0.0, 1e-3))
    noise_ = noise.Stateless(7).draw("v0", AT, [2000]) * tf.constant(1e-3)
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    right = tf.cast(tf.ones([2000], wide) + tf.cast(noise_, wide), dtype)
    assert variable.numpy().tobytes() == right.numpy().tobytes()


def test_bfloat16_swallows_most_of_a_small_noise():
    variable = tf.Variable(tf.ones([20_000], tf.bfloat16))
    add("scalar", [variable], stddevs=(0.0, 1e-3))
    values = variable.numpy().astype(np.float64)
    assert np.mean(values == 1) == pytest.approx(0.97, abs=0.02)


def test_persistent_state_of_each_strategy():
    variables = [tf.Variable(tf.zeros([10, 10])), tf.Variable(tf.zeros([7]))]
    assert adder("scalar", variables).variables == []
    assert adder("routes", variables).variables == []
    buffers = adder("buffered", variables).variables
    assert sum(math.prod(b.shape) for b in buffers) == 107


def test_a_table_is_read_within_its_bounds_and_keeps_to_its_key():
    source = noise.Table(5, 1000)
    whole = source.draw("big", AT, [1000]).numpy()  # the only place it fits
    piece = source.draw("small", AT, [10]).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(whole, 10)
    assert (windows == piece).all(axis=1).any()
    assert np.array_equal(piece, source.draw("small", AT, [10]).numpy())
    assert not np.array_equal(piece, source.draw("small", NEXT, [10]).numpy())


def test_steps_beyond_32_bits_have_numbers_of_their_own():
    source = noise.Stateless(0)
    steps = [2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**40, 1, 0]
    at = [noise.counter(tf.constant(k, tf.int64)) for k in steps]
    draws = {source.draw("a", counter, [4]).numpy().tobytes() for counter in at}
    assert len(draws) == len(steps)


def test_a_constraint_holds_after_the_noise():
    import keras

    layer = keras.layers.Dense(50, kernel_constraint=keras.constraints.NonNeg())
    layer.build([None, 50])
    layer.kernel.assign(tf.zeros([50, 50]))
    add("routes", [layer.kernel])
    values = layer.kernel.numpy()
    assert values.min() == 0
    assert 0.4 < np.mean(values > 0) < 0.6


def test_relative_noise_scales_with_the_variable():
    experiment = experiments.make(
        stddevs=(1e-3,), noise_scale="relative", learning_rate=0.0, steps=1, summary_every=1,
        optimizer="sgd", model="mlp",
    )  # fmt: skip
    before = experiments.weights(experiment)
    experiments.run_steps(experiment)
    for old, new in zip(before, experiments.weights(experiment), strict=True):
        ratio = np.linalg.norm(new - old) / max(np.linalg.norm(old), 1e-9)
        if np.any(old):
            assert ratio == pytest.approx(1e-3, rel=0.2)
        else:
            assert np.array_equal(new, old)  # a variable of zeros has no scale, and gets no noise


def test_tied_weights_get_noise_once():
    import keras

    from tracker import variables

    inputs = keras.Input([4])
    shared = keras.layers.Dense(4)
    model = keras.Model(inputs, shared(shared(inputs)))
    assert len(model.trainable_variables) == 2
    assert len(variables.paths(model.trainable_variables, model)) == 2


def test_very_many_branches_are_said():
    variables = [tf.Variable([0.0]) for _ in range(1000)]
    (said,) = adder("routes", variables, stddevs=(0.0, 0.1)).warnings()
    assert said.startswith("The strategy routes builds 2 branches for each of 1000 variables")
    assert not adder("scalar", variables, stddevs=(0.0, 0.1)).warnings()
    assert not adder("routes", variables[:999], stddevs=(0.0, 0.1)).warnings()


class TestTheVectorisedNormals:
    """Large variables: the same distribution as TensorFlow's kernel, at a fixed seed."""

    COUNT = 2_000_001

    @pytest.fixture(scope="class")
    @classmethod
    def numbers(cls):
        return noise.Stateless(3).draw("large", AT, [cls.COUNT]).numpy().astype(np.float64)

    def test_kolmogorov_smirnov(self, numbers):
        ordered = np.sort(numbers)
        normal = np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in ordered])
        ranks = np.arange(self.COUNT + 1) / self.COUNT
        distance = max(np.max(ranks[1:] - normal), np.max(normal - ranks[:-1]))
        assert distance < 1.63 / math.sqrt(self.COUNT)  # what 1 % of true samples exceed

    def test_moments_and_tails(self, numbers):
        assert abs(numbers.mean()) < 4 / math.sqrt(self.COUNT)
        assert numbers.var() == pytest.approx(1, abs=4 * math.sqrt(2 / self.COUNT))
        assert (numbers**3).mean() == pytest.approx(0, abs=4 * math.sqrt(15 / self.COUNT))
        assert (numbers**4).mean() == pytest.approx(3, abs=4 * math.sqrt(96 / self.COUNT))
        for size in (2, 3, 4):
            expected = self.COUNT * math.erfc(size / math.sqrt(2))
            beyond = np.count_nonzero(np.abs(numbers) > size)
            assert abs(beyond - expected) < 4 * math.sqrt(expected)
        assert 4.5 < np.abs(numbers).max() < 6

    def test_the_two_halves_and_neighbours_are_independent(self, numbers):
        half = self.COUNT // 2
        pairs = [(numbers[:half], numbers[half : 2 * half]), (numbers[:-1], numbers[1:])]
        for one, other in pairs:
            assert abs(np.corrcoef(one, other)[0, 1]) < 4 / math.sqrt(half)
            assert abs(np.corrcoef(one**2, other**2)[0, 1]) < 4 / math.sqrt(half)

    def test_strategies_and_call_lengths_give_the_same_bits(self):
        settings = {
            "model": "tests.architectures:wide", "steps": 6, "batch_size": 96, "summary_every": 2,
        }  # fmt: skip
        found = []
        for strategy, most in (("routes", 6), ("scalar", 1), ("buffered", 3)):
            experiment = experiments.make(**settings, strategy=strategy)
            experiments.run_steps(experiment, most)
            found.append(experiments.weights(experiment))
        assert max(w.size for w in found[0]) >= noise.VECTORISED
        assert experiments.equal(found[0], found[1])
        assert experiments.equal(found[0], found[2])


def test_what_a_table_gives_up_in_independence():
    """Draws that overlap are correlated at some lag: measured against what geometry says."""
    count, size = 5_000, 80_000
    source = noise.Table(0, size)
    draw = tf.function(lambda step: source.draw("a", noise.counter(step), [count]))
    draws = [draw(tf.constant(k, tf.int64)).numpy() for k in range(120)]
    best = []
    for one, other in itertools.pairwise(draws):
        spectrum = np.fft.rfft(one, 2 * count) * np.conj(np.fft.rfft(other, 2 * count))
        best.append(np.abs(np.fft.irfft(spectrum)).max() / count)
    overlapping = np.mean(np.array(best) > 0.1)
    assert 0.03 < overlapping < 0.25  # geometry: 2 · 5000 / 75001 = 0.13
    exact = noise.Stateless(0)
    draw = tf.function(lambda step: exact.draw("a", noise.counter(step), [count]))
    one, other = draw(STEP).numpy(), draw(STEP + 1).numpy()
    spectrum = np.fft.rfft(one, 2 * count) * np.conj(np.fft.rfft(other, 2 * count))
    assert np.abs(np.fft.irfft(spectrum)).max() / count < 0.1
