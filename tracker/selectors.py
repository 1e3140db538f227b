"""Selectors: what picks one stddev out of the list for each step.

Every selector but the user's own runs inside the compiled step. `choose(step, loss)` is called once
a step, after the loss of the step is known and before its noise is added, and returns an index.
The choice depends on the seed, the step and (bandit) the losses so far, never on how many steps one
call runs; what a selector remembers is in `variables`, so that a checkpoint holds it.

    >>> selector = make('cycle', stddevs=(0.0, 0.1), seed=0, steps=10)
    >>> [int(selector.choose(tf.constant(k, tf.int64), 0.0)) for k in (1, 2, 3)]
    [0, 1, 0]
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tracker import noise

NAMES = ("random", "cycle", "weighted", "anneal", "bandit")
ANNEAL_SCHEDULES = ("linear", "neelakantan")

_NEELAKANTAN_GAMMA = 0.55  # Neelakantan et al. 2015, "Adding Gradient Noise Improves Learning..."


class ChoiceError(RuntimeError):
    """The user's function did not give an index."""


class Selector:
    """Picks an index by a function of step and loss.

    Attributes:
      variables: what the selector remembers; empty for those that depend on the step alone.
      depends_on_steps: whether the choice depends on how many steps the run has in all.
      planned: for the user's own function, which runs on the host: step → index. There is no
        `choose` then; the host passes the indices of a call's steps into the call.
    """

    def __init__(
        self,
        choose: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None,
        variables: Sequence[tf.Variable] = (),
        depends_on_steps: bool = False,
        planned: Callable[[int], int] | None = None,
    ):
        self.choose = choose
        self.variables = list(variables)
        self.depends_on_steps = depends_on_steps
        self.planned = planned


def make(
    name: str,
    stddevs: Sequence[float],
    seed: int,
    steps: int,
    weights: Sequence[float] = (),
    anneal_schedule: str = "linear",
) -> Selector:
    """Makes a selector by name.

    Args:
      name: one of `NAMES`, or `module:function` with a function step (int, from 1) → index.
      stddevs: the standard deviations to choose from, at least one.
      seed: seed of the run.
      steps: number of steps of the run (for `anneal`).
      weights: probabilities for `weighted`, as many as stddevs, adding to 1.
      anneal_schedule: one of `ANNEAL_SCHEDULES`.

    Raises:
      ValueError: unknown name, or a `module:function` that does not import.
    """
    count = len(stddevs)
    key = noise.key(seed, "selector")
    if name == "random":
        return Selector(lambda step, loss: _uniform_index(key, step, count))
    if name == "cycle":
        return Selector(lambda step, loss: tf.cast((step - 1) % count, tf.int32))
    if name == "weighted":
        edges = np.cumsum(np.asarray(weights, np.float64))[:-1]
        return Selector(lambda step, loss: _weighted_index(key, step, edges))
    if name == "anneal":
        return _anneal(stddevs, steps, anneal_schedule)
    if name == "bandit":
        return bandit(count, key)
    return _planned(name, count)


def load_function(reference: str) -> Callable:
    """The object that `module:function` names.

    Raises:
      ValueError: if the module does not import, or has no such callable.
    """
    module_name, _, attribute = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        raise ValueError(f"{reference} could not be imported: {error}") from error
    if not callable(function):
        raise ValueError(f"{reference} is not a function but {type(function).__name__}")
    return function


def _uniform_index(key: int, step: tf.Tensor, count: int) -> tf.Tensor:
    return noise.integer(key, noise.counter(step), count)


def _weighted_index(key: int, step: tf.Tensor, edges: np.ndarray) -> tf.Tensor:
    place = noise.uniform(key, noise.counter(step), [])
    return tf.cast(tf.math.count_nonzero(place >= tf.constant(edges, tf.float32)), tf.int32)


def _anneal(stddevs: Sequence[float], steps: int, schedule: str) -> Selector:
    """From the largest stddev to the smallest.

    `linear` spends the same number of steps on each. `neelakantan` follows σ_t = σ_1 t^(−γ/2) with
    γ = 0.55 (variance η / (1 + t)^γ there) from the largest, and takes the listed stddev nearest to
    it by ratio; a stddev of 0 is never near.
    """
    order = np.argsort(-np.asarray(stddevs), kind="stable").astype(np.int32)
    if schedule == "linear":
        ranks = tf.constant(order)
        count = len(stddevs)

        def by_rank(step, loss):
            return tf.gather(ranks, tf.clip_by_value((step - 1) * count // steps, 0, count - 1))

        return Selector(by_rank, depends_on_steps=True)
    sizes = np.asarray(stddevs, np.float64)
    with np.errstate(divide="ignore"):
        logs = tf.constant(np.log(sizes))
    start = float(np.log(sizes.max())) if sizes.max() > 0 else 0.0

    def by_decay(step, loss):
        target = start - _NEELAKANTAN_GAMMA / 2 * tf.math.log(tf.cast(step, tf.float64))
        return tf.cast(tf.argmin(tf.abs(logs - target)), tf.int32)

    return Selector(by_decay)


def bandit(count: int, key: int, discount: float = 0.99, explore: float = 0.15) -> Selector:
    """Learns which stddev lowers the loss: discounted UCB, a bandit for rewards that drift.

    Garivier and Moulines 2011, "On Upper-Confidence Bound Policies for Switching Bandit Problems".
    The reward of the stddev used in step k is loss(k) − loss(k+1), divided by the discounted root
    mean square of the rewards so far (their scale is not known, and shrinks while training goes
    on). The choice is the largest of mean + sqrt(explore · log(total) / uses), both discounted, so
    an arm that is not used is tried again before long. A loss that is not finite teaches nothing.

    Args:
      count: number of stddevs.
      key: of the stateless draws that break ties in the first steps.
      discount: weight of the past, per step; 0.99 forgets over some hundred steps.
      explore: how much an arm's uncertainty counts.
    """
    uses = tf.Variable(tf.zeros([count], tf.float64), trainable=False, name="bandit_uses")
    sums = tf.Variable(tf.zeros([count], tf.float64), trainable=False, name="bandit_sums")
    scale = tf.Variable(tf.zeros([2], tf.float64), trainable=False, name="bandit_scale")
    last = tf.Variable(tf.zeros([], tf.float64), trainable=False, name="bandit_last_loss")
    chosen = tf.Variable(-1, trainable=False, dtype=tf.int32, name="bandit_last_choice")

    def learn(loss):
        reward = last - loss
        counts = tf.logical_and(chosen >= 0, tf.math.is_finite(reward))
        reward = tf.where(counts, reward, tf.zeros_like(reward))
        weight = tf.cast(counts, tf.float64)
        arm = tf.one_hot(chosen, count, dtype=tf.float64) * weight
        scale.assign(discount * scale + tf.stack([reward**2, tf.ones_like(reward)]) * weight)
        size = tf.sqrt(tf.math.divide_no_nan(scale[0], scale[1]))
        uses.assign(discount * uses + arm)
        sums.assign(discount * sums + arm * tf.math.divide_no_nan(reward, size))

    def choose(step, loss):
        loss = tf.cast(loss, tf.float64)
        learn(loss)
        total = tf.reduce_sum(uses)
        width = tf.sqrt(explore * tf.math.log(tf.maximum(total, 1.0)) / tf.maximum(uses, 1e-9))
        bound = sums / tf.maximum(uses, 1e-9) + width
        ties = noise.uniform(key, noise.counter(step), [count])
        unused = uses < 1e-6
        first = tf.argmax(tf.where(unused, ties, -tf.ones_like(ties)), output_type=tf.int32)
        best = tf.argmax(bound, output_type=tf.int32)
        choice = tf.where(tf.reduce_any(unused), first, best)
        last.assign(loss)
        chosen.assign(choice)
        return choice

    return Selector(choose, [uses, sums, scale, last, chosen])


def _planned(reference: str, count: int) -> Selector:
    if ":" not in reference:
        known = ", ".join(NAMES)
        raise ValueError(f"--selector={reference}: should be {known}, or module:function")
    function = load_function(reference)

    def plan(step: int) -> int:
        try:
            index = function(step)
        except Exception as error:
            raise ChoiceError(
                f"--selector={reference} failed for step {step}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(index, int | np.integer) or not 0 <= index < count:
            raise ChoiceError(
                f"--selector={reference} returned {index!r} for step {step}; it should return an "
                f"index from 0 to {count - 1}"
            )
        return int(index)

    return Selector(None, planned=plan)
