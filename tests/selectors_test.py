import itertools

import numpy as np
import pytest
import tensorflow as tf

from tracker import noise, selectors

SIX = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


def choices(selector, steps, losses=None):
    losses = itertools.repeat(0.0) if losses is None else losses
    choose = tf.function(selector.choose, autograph=False)
    return [
        int(choose(tf.constant(k, tf.int64), tf.constant(loss, tf.float32)))
        for k, loss in zip(steps, losses, strict=False)
    ]


def make(name, stddevs=SIX, seed=0, steps=100, **options):
    return selectors.make(name, stddevs, seed, steps, **options)


def test_random_is_even_seeded_and_not_constant():
    found = choices(make("random"), range(1, 1201))
    counts = np.bincount(found, minlength=6)
    assert np.all(np.abs(counts - 200) < 60)
    assert found == choices(make("random"), range(1, 1201))
    assert found != choices(make("random", seed=1), range(1, 1201))


def test_the_exact_sequence_under_a_seed():
    assert choices(make("random"), range(1, 9)) == [4, 4, 5, 0, 2, 3, 2, 0]


def test_cycle():
    assert choices(make("cycle"), range(1, 9)) == [0, 1, 2, 3, 4, 5, 0, 1]


def test_weighted_keeps_to_its_probabilities():
    weights = (0.5, 0.0, 0.2, 0.3, 0.0, 0.0)
    found = np.bincount(choices(make("weighted", weights=weights), range(1, 2001)), minlength=6)
    np.testing.assert_allclose(found / 2000, weights, atol=0.04)
    assert found[1] == found[4] == found[5] == 0


def test_anneal_goes_from_the_largest_to_the_smallest():
    mixed = (1e-3, 0.0, 1e-1)
    found = choices(make("anneal", mixed, steps=9), range(1, 10))
    assert found == [2, 2, 2, 0, 0, 0, 1, 1, 1]
    assert make("anneal").depends_on_steps


def test_anneal_by_neelakantan_follows_the_decay():
    stddevs = (0.0, 0.1, 0.05, 0.02)
    found = choices(make("anneal", stddevs, anneal_schedule="neelakantan"), [1, 2, 20, 400, 10_000])
    sigma = 0.1 * np.array([1, 2, 20, 400, 10_000], float) ** (-0.55 / 2)
    logs = np.log([1e-300, 0.1, 0.05, 0.02])
    assert found == [int(np.argmin(np.abs(logs - np.log(s)))) for s in sigma]
    assert 0 not in found


def planted(selector, steps, good, seed, swap=None):
    """Losses of a made-up training in which one of six stddevs lowers the loss, five raise it."""
    random = np.random.default_rng(seed)
    choose = tf.function(selector.choose, autograph=False)
    loss, found = 5.0, []
    for k in range(1, steps + 1):
        good = swap[1] if swap and k > swap[0] else good
        index = int(choose(tf.constant(k, tf.int64), tf.constant(loss, tf.float32)))
        found.append(index)
        loss += (-0.01 if index == good else 0.01) + random.normal(0, 0.005)
    return np.array(found)


@pytest.mark.parametrize("seed", range(5))
def test_bandit_finds_the_stddev_that_lowers_the_loss(seed):
    selector = selectors.bandit(6, noise.key(seed, "selector"))
    found = planted(selector, 600, good=seed % 6, seed=seed)
    assert np.mean(found[300:] == seed % 6) >= 0.6


@pytest.mark.parametrize("seed", range(5))
def test_bandit_finds_the_new_one_after_a_swap(seed):
    selector = selectors.bandit(6, noise.key(seed, "selector"))
    found = planted(selector, 1100, good=0, seed=seed, swap=(500, 4))
    assert np.mean(found[-100:] == 4) >= 0.6


def test_bandit_learns_nothing_from_a_loss_that_is_not_a_number():
    selector = selectors.bandit(3, 0)
    choices(selector, range(1, 6), [1.0, 0.9, np.nan, np.inf, 0.8])
    assert all(np.all(np.isfinite(v.numpy())) for v in selector.variables[:3])


def test_resuming_with_the_variables_goes_on_as_if_nothing_had_happened():
    losses = list(np.random.default_rng(0).normal(size=40))
    whole = choices(selectors.bandit(4, 9), range(1, 41), losses)
    first, second = selectors.bandit(4, 9), selectors.bandit(4, 9)
    start = choices(first, range(1, 21), losses[:20])
    for mine, other in zip(second.variables, first.variables, strict=True):
        mine.assign(other)
    assert start + choices(second, range(21, 41), losses[20:]) == whole


def every_third(step):
    return 1 if step % 3 == 0 else 0


def out_of_range(step):
    return 7


def test_a_function_of_the_user_plans_on_the_host():
    selector = make("tests.selectors_test:every_third")
    assert [selector.planned(k) for k in range(1, 7)] == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tests.selectors_test:missing", "could not be imported"),
        ("no_such_module:f", "could not be imported"),
        ("tests.selectors_test:SIX", "is not a function"),
        ("sometimes", "should be random"),
    ],
)
def test_a_wrong_reference_is_one_clear_error(name, says):
    with pytest.raises(ValueError, match=says):
        make(name)


def test_an_index_out_of_range_is_an_error_when_it_is_planned():
    with pytest.raises(
        selectors.ChoiceError, match="returned 7 for step 1; it should return an index from 0"
    ):
        make("tests.selectors_test:out_of_range").planned(1)
