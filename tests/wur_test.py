import numpy as np
import pytest
import tensorflow as tf

from tests import experiments
from tracker import wur


def measure(before, middle, after, gradients, noised=True):
    to = [[tf.constant(v) for v in values] for values in (before, middle, after)]
    rows = tf.function(lambda: wur.measure(*to, gradients, tf.constant(noised)))()
    return wur.Measured.from_rows(rows.numpy())


def test_a_hand_made_case():
    old, mid, new = np.float32([3, 4]), np.float32([3, 4.005]), np.float32([3.012, 4.005])
    found = wur.ratios(measure([old], [mid], [new], [tf.constant([0.0, 1.0])]))
    np.testing.assert_allclose(found.gradient, [0.001], rtol=1e-4)
    np.testing.assert_allclose(found.noise, [0.0024], rtol=1e-4)
    np.testing.assert_allclose(found.total, [0.0026], rtol=1e-4)
    np.testing.assert_allclose(found.norm_change, [np.hypot(3.012, 4.005) / 5 - 1], rtol=1e-4)


def test_a_rotation_has_a_ratio_but_no_change_of_norm():
    found = wur.ratios(
        measure([np.float32([3, 4])], [np.float32([4, 3])], [np.float32([4, 3])], [None])
    )
    np.testing.assert_allclose(found.total, [np.sqrt(2) / 5], rtol=1e-6)
    assert found.norm_change[0] == 0


def test_zero_before():
    zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
    measured = measure([zero, zero], [zero, one], [zero, one], [None, None])
    found, overall = wur.ratios(measured), wur.overall(measured)
    assert found.total[0] == 0  # nothing there, nothing moved
    assert np.isnan(found.total[1])  # no ratio, and no huge number in its place
    assert found.undefined.tolist() == [False, True]
    assert overall.undefined == 1
    assert overall.out_of_band == 1  # the ratio of 0
    assert len(overall.log10) == 0
    np.testing.assert_allclose(measured.update, [0, np.sqrt(2)])


@pytest.mark.parametrize("scale", [1e-25, 1e-36, 1.0, 3e20, 1e38])
def test_weights_of_any_size_have_a_ratio(scale):
    old = np.float32([0.5, -0.25, 0.75]) * np.float32(scale)
    new = old * np.float32(1.5)
    found = wur.ratios(measure([old], [new], [new], [None]))
    np.testing.assert_allclose(found.total, [0.5], rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_has_no_ratio_and_is_counted(bad):
    old, new = np.float32([1, 2, 3]), np.float32([1, bad, bad])
    measured = measure([old], [new], [new], [None])
    assert np.isnan(wur.ratios(measured).total[0])
    assert measured.nonfinite[0] == 2
    overall = wur.overall(measured)
    assert overall.undefined == 0
    assert overall.worst == ()


def test_low_precision_does_not_inflate_the_ratio():
    old = tf.cast(tf.linspace(0.5, 2.0, 1000), tf.bfloat16)
    new = old + tf.cast(0.0625, tf.bfloat16)
    measured = wur.Measured.from_rows(wur.measure([old], [new], [new], [None]).numpy())
    wide_old, wide_new = old.numpy().astype(np.float64), new.numpy().astype(np.float64)
    right = np.linalg.norm(wide_new - wide_old) / np.linalg.norm(wide_old)
    np.testing.assert_allclose(wur.ratios(measured).total, [right], rtol=1e-6)


def test_swallowed_updates_count_elements_with_a_gradient():
    old = np.float32([1, 1, 1, 1])
    mid, new = np.float32([1, 2, 1, 1]), np.float32([1, 2, 3, 1])
    gradient = tf.constant([1.0, 1.0, 1.0, 0.0])
    overall = wur.overall(measure([old], [mid], [new], [gradient]))
    assert overall.unchanged_fraction == pytest.approx(2 / 3)
    assert overall.unchanged_by_noise == pytest.approx(3 / 4)
    silent = wur.overall(measure([old], [mid], [new], [gradient], noised=False))
    assert np.isnan(silent.unchanged_by_noise)


def test_touched_rows_of_an_embedding():
    old = np.ones([4, 2], np.float32)
    new = old.copy()
    new[1] += 0.5
    gradient = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 1, 2]), tf.constant([4, 2]))
    measured = measure([old], [new], [new], [gradient])
    found = wur.ratios(measured)
    np.testing.assert_allclose(found.total, [np.sqrt(0.5 / 8)], rtol=1e-6)
    np.testing.assert_allclose(found.touched, [np.sqrt(0.5 / 4)], rtol=1e-6)
    assert measured.touched_rows[0] == 2
    assert measured.with_gradient[0] == 4
    assert wur.overall(measured).unchanged_fraction == pytest.approx(0.5)


def test_all_variables_as_one_vector():
    old = [np.float32([3, 0]), np.float32([4])]
    new = [np.float32([3, 0.3]), np.float32([4.4])]
    overall = wur.overall(measure(old, new, new, [None, None]))
    assert overall.ratio == pytest.approx(0.1, rel=1e-6)
    assert set(overall.worst) == {0, 1}


def test_worst_first_ties_in_model_order():
    sizes = np.float32([1e-3, 1e-1, 0, 1e-1])
    old = [np.float32([1])] * 4
    new = [old[0] + s for s in sizes]
    assert wur.overall(measure(old, new, new, [None] * 4)).worst == (2, 1, 3, 0)


OPTIMIZERS = [
    ("SGD", ""),
    ("sgd", "momentum=0.9"),
    ("adam", ""),
    ("AdamW", "weight_decay=0.01"),
    ("lion", ""),
]


@pytest.mark.parametrize(
    ("optimizer", "args", "strategy"),
    [
        *((name, args, "routes") for name, args in OPTIMIZERS),
        ("adam", "", "scalar"),
        ("adam", "", "buffered"),
    ],
)
def test_ratios_equal_numpys_for_real_steps(optimizer, args, strategy):
    """The reference is float64 arithmetic on weights that are saved around each step.

    The weights between update and noise come from the same run without noise for one step, which
    Keras' own optimizer makes.
    """
    settings = {
        "optimizer": optimizer, "optimizer_args": args, "learning_rate": 1e-2, "steps": 4,
        "summary_every": 1, "strategy": strategy, "model": "mlp",
    }  # fmt: skip
    noisy = experiments.make(**settings)
    silent = experiments.make(**settings)
    iterator = iter(noisy.batches())
    for step in range(4):
        before = experiments.weights(noisy)
        for mine, other in zip(silent.model.variables, noisy.model.variables, strict=True):
            mine.assign(other)
        for mine, other in zip(silent.rule.variables, noisy.rule.variables, strict=True):
            mine.assign(other)
        result = noisy.functions.tracked(iterator, step, 1, 0)
        after = experiments.weights(noisy)
        middle = keras_step(silent, step)
        found = wur.ratios(wur.Measured.from_rows(result.instrumented.measured[0]))
        for i in range(len(before)):
            old, mid, new = (w[i].astype(np.float64) for w in (before, middle, after))
            size = np.linalg.norm(old)
            if size == 0:
                assert np.isnan(found.total[i]) or found.total[i] == 0
                continue
            right = [np.linalg.norm(d) / size for d in (new - old, mid - old, new - mid)]
            got = [found.total[i], found.gradient[i], found.noise[i]]
            np.testing.assert_allclose(got, right, rtol=1e-5)
            change = abs(np.linalg.norm(new) - size) / size
            np.testing.assert_allclose(found.norm_change[i], change, rtol=1e-4, atol=1e-7)


def keras_step(experiment, step):
    """One step by Keras' own means on the batch that the step sees; returns the weights after."""
    model = experiment.model
    x, y = next(iter(experiment.batches(step)))
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    experiment.rule.optimizer.apply(gradients, model.trainable_variables)
    return experiments.weights(experiment)


def test_a_variable_without_elements_is_no_variable():
    empty, old, new = np.zeros(0, np.float32), np.float32([1]), np.float32([1.5])
    overall = wur.overall(measure([empty, old], [empty, new], [empty, new], [None, None]))
    assert overall.ratio == pytest.approx(0.5)


def test_a_large_array_is_summed_exactly_enough():
    random = np.random.default_rng(0)
    old = random.normal(size=3_000_000).astype(np.float32)
    mid = old + random.normal(size=old.size).astype(np.float32) * np.float32(1e-3)
    new = mid + random.normal(size=old.size).astype(np.float32) * np.float32(1e-4)
    found = wur.ratios(measure([old], [mid], [new], [None]))
    wide = [w.astype(np.float64) for w in (old, mid, new)]
    size = np.linalg.norm(wide[0])
    right = [np.linalg.norm(wide[b] - wide[a]) / size for a, b in ((0, 2), (0, 1), (1, 2))]
    got = [found.total[0], found.gradient[0], found.noise[0]]
    np.testing.assert_allclose(got, right, rtol=1e-6)


def test_one_strange_variable_does_not_disturb_the_others():
    old = [np.float32([3, 4]), np.float32([1e-30]), np.float32([1])]
    new = [np.float32([3, 4.5]), np.float32([2e-30]), np.float32([np.nan])]
    measured = measure(old, new, new, [None] * 3)
    found = wur.ratios(measured)
    np.testing.assert_allclose(found.total[:2], [0.1, 1], rtol=1e-6)
    assert np.isnan(found.total[2])
    assert measured.nonfinite.tolist() == [0, 0, 1]


@pytest.mark.parametrize("noised", [True, False])
@pytest.mark.parametrize("judged", [False, True])
def test_many_small_variables_measured_together_are_those_measured_one_by_one(noised, judged):
    """Seventy small ones and a large, a sparse and a float64 one between them, in their order."""
    rng = np.random.default_rng(0)
    before, middle, after, gradients, proposed = [], [], [], [], []
    for i in range(73):
        shape = {7: [wur._SMALL + 1], 8: [6, 2], 9: [3]}.get(i, [i % 5, 3] if i % 9 else [])
        dtype = tf.float64 if i == 9 else tf.bfloat16 if i == 20 else tf.float32
        size = 0.0 if i == 30 else 1e-20 if i == 31 else 1.0
        old = tf.cast(size * rng.normal(size=shape), dtype)
        mid = old if i == 40 else old + tf.cast(size * 1e-2 * rng.normal(size=shape), dtype)
        new = mid if i % 10 == 0 else mid + tf.cast(1e-2 * rng.normal(size=shape), dtype)
        if i == 50:
            new = new * np.nan
        slope = tf.cast(rng.normal(size=shape), dtype)
        if i == 8:
            slope = tf.IndexedSlices(slope[:2], tf.constant([4, 1]), tf.constant([6, 2]))
        for kept, value in zip(
            (before, middle, after, gradients, proposed),
            (old, mid, new, None if i == 41 else slope, old + mid), strict=True,
        ):  # fmt: skip
            kept.append(value)
    arguments = before, middle, after, gradients
    rest = tf.constant(noised), True, proposed if judged else None
    together = wur.measure(*arguments, *rest).numpy()
    for i, row in enumerate(together):
        alone = wur.measure(
            *([v[i]] for v in arguments), *rest[:2], [proposed[i]] if judged else None
        ).numpy()[0]
        np.testing.assert_allclose(row, alone, rtol=1e-5, err_msg=str(i))
