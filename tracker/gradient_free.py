"""Update rules that compute no gradient: they try weights, and look at the loss.

All variables are perturbed at once by noise of the step's stddev, in one compiled step. The noise
is a function of seed, variable and step, so it is drawn again where it is needed again, never kept.
Losses are those of the batch with the model in inference mode: dropout would be a different model
at every try, and statistics of batches would be moved by tries that are then given up.

    >>> rule = Evolution(model, optimizer, targets, source, pairs=16)
    >>> update = rule.update(x, y, number, stddev)      # inside a compiled step
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tracker import distribution, noise
from tracker.updates import Update, learning_rate

_BETWEEN_PAIRS = 2**40  # counter blocks, more than any variable draws


class RandomWalk:
    """Adds the noise of the step, whatever the loss does.

    Attributes:
      variables: the count of steps.
      trainable: the model's trainable variables.
      optimizer: None.
      perturbs: False; the noise is added after the update, as it is to a gradient's.
      judges: False; every step is kept.
    """

    optimizer: Any = None
    perturbs = False
    judges = False
    may_skip = False
    accumulates = 1
    most_skipped = 0

    def __init__(self, model: keras.Model, replicas: distribution.Replicas | None = None):
        self._model = model
        self._replicas = replicas or distribution.Replicas()
        self.trainable = list(model.trainable_variables)
        self._counter = tf.Variable(0, trainable=False, dtype=tf.int64, name="steps_done")
        self.variables = [self._counter]

    def updates_done(self) -> tf.Tensor:
        """Number of steps so far, int64 scalar."""
        return self._counter.read_value()

    def learning_rate(self) -> tf.Tensor:
        """NaN: there is none."""
        return tf.constant(math.nan, tf.float32)

    def update(
        self, x: Any, y: Any, number: tf.Tensor, stddev: tf.Tensor | None, gather: bool = True
    ) -> Update:
        """The loss of one batch on the weights as they are."""
        loss, outputs = self.loss(x, y, gather)
        self._counter.assign_add(1)
        return Update(loss, outputs, [None] * len(self.trainable))

    def loss(self, x: Any, y: Any, gather: bool = False) -> tuple[tf.Tensor, Any]:
        """Loss (float32 scalar) and outputs (if wanted) for a batch; the model is not changed."""
        loss, outputs, _ = self._replicas.run(self._local, (x, y), gather)
        return tf.cast(loss, tf.float32), outputs

    def _local(self, batch: Any, weight: tf.Tensor | None) -> tuple[tf.Tensor, Any, None]:
        """What one replica does with its part of the batch."""
        x, y = batch
        with tf.name_scope("forward"):
            outputs = self._model(x, training=False)
            loss = self._model.compute_loss(x=x, y=y, y_pred=outputs, training=False)
            return distribution.weighted(loss, self._model.losses, weight), outputs, None


class HillClimb(RandomWalk):
    """Keeps the noise of a step only if the loss on the batch falls.

    With a temperature T a loss that rises by d is kept with probability exp(−d / T) (Metropolis et
    al. 1953, "Equation of State Calculations by Fast Computing Machines"). What is not kept is
    taken back from a copy, bit for bit.

    Args:
      model: built and compiled.
      temperature: in units of the loss; 0 keeps only what lowers it.
      seed: of the draws that accept.

    Attributes:
      judges: True.
    """

    judges = True

    def __init__(
        self,
        model: keras.Model,
        temperature: float = 0.0,
        seed: int = 0,
        replicas: distribution.Replicas | None = None,
    ):
        super().__init__(model, replicas)
        self._temperature = temperature
        self._key = noise.key(seed, "metropolis")

    def accepts(self, x: Any, y: Any, loss: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Whether the weights as they are now are to be kept, bool scalar.

        Args:
          x, y: the batch.
          loss: on it, before.
          number: of the step.
        """
        with tf.name_scope("proposal"):
            change = self.loss(x, y)[0] - loss
        lower = change < 0
        if not self._temperature:
            return lower
        place = noise.uniform(self._key, noise.counter(number), [])
        return tf.logical_or(lower, place < tf.exp(-change / self._temperature))


class _Estimator(RandomWalk):
    """Estimates a gradient from losses at perturbed weights, for an optimizer to apply.

    Args:
      model: built and compiled.
      optimizer: of Keras.
      targets: the variables to perturb and to update.
      source: of the perturbations.

    Attributes:
      perturbs: True; the step's stddev is that of the perturbations.
    """

    perturbs = True

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        targets: Sequence[noise.Target],
        source: noise.Source,
        replicas: distribution.Replicas | None = None,
    ):
        super().__init__(model, replicas)
        self.optimizer = optimizer
        self._targets = list(targets)
        self._source = source
        if not optimizer.built:
            optimizer.build([t.variable for t in self._targets])
        self.variables = [self._counter, *(v.value for v in optimizer.variables)]

    def learning_rate(self) -> tf.Tensor:
        """The rate that the next update uses, float32 scalar; NaN for several."""
        return learning_rate(self.optimizer)

    def update(
        self, x: Any, y: Any, number: tf.Tensor, stddev: tf.Tensor | None, gather: bool = True
    ) -> Update:
        """Makes the update of one batch.

        Args:
          x, y: the batch.
          number: of the step, int64.
          stddev: of the perturbations, float32 scalar, more than 0.
          gather: whether outputs are wanted.

        Returns:
          The mean loss over the tries, the outputs of the first, and the estimates.
        """
        kept = [tf.identity(t.variable.value) for t in self._targets]
        loss, outputs, estimates = self._estimate(x, y, number, stddev, kept, gather)
        for target, value in zip(self._targets, kept, strict=True):
            target.variable.assign(value)
        self._counter.assign_add(1)
        with tf.name_scope("update"):
            variables = [t.variable for t in self._targets]
            self._replicas.apply(self.optimizer, estimates, variables)
        known = {id(t.variable): g for t, g in zip(self._targets, estimates, strict=True)}
        return Update(loss, outputs, [known.get(id(v)) for v in self.trainable])

    def _estimate(self, x, y, number, stddev, kept, gather) -> tuple[Any, Any, list[tf.Tensor]]:
        raise NotImplementedError

    def _numbers(self, target: noise.Target, number, pair) -> tf.Tensor:
        first = tf.cast(pair, tf.int64) * _BETWEEN_PAIRS
        at = tf.cast(tf.stack([first, tf.cast(number, tf.int64)]), tf.uint64)
        numbers = self._source.draw(target.name, at, target.variable.shape)
        return tf.cast(numbers, noise.noise_dtype(target.variable))

    def _losses(self, x, y, number, stddev, kept, pair, gather=False) -> tuple[tf.Tensor, Any]:
        """Losses on the weights plus and minus one perturbation, float32 [2], and outputs."""
        found, outputs = [], None
        for sign in (1.0, -1.0):
            with tf.name_scope("noise/perturbation"):
                for target, value in zip(self._targets, kept, strict=True):
                    numbers = self._numbers(target, number, pair)
                    moved = tf.cast(value, numbers.dtype) + numbers * tf.cast(
                        sign * stddev, numbers.dtype
                    )
                    target.variable.assign(tf.cast(moved, target.variable.dtype))
            loss, outputs_ = self.loss(x, y, gather and outputs is None)
            outputs = outputs_ if outputs is None else outputs
            found.append(loss)
        return tf.stack(found), outputs


class Spsa(_Estimator):
    """Simultaneous perturbation: two losses, one difference along one random direction.

    The estimate is (L(w + c z) − L(w − c z)) / (2 c) · z with z of unit variance and c the step's
    stddev. Spall 1992, "Multivariate Stochastic Approximation Using a Simultaneous Perturbation
    Gradient Approximation", divides by the elements of z, which are ±1 there, so that both are the
    same; for normal z the product is the unbiased form.
    """

    def _estimate(self, x, y, number, stddev, kept, gather):
        zero = tf.constant(0, tf.int64)
        losses, outputs = self._losses(x, y, number, stddev, kept, zero, gather)
        slope = (losses[0] - losses[1]) / (2.0 * stddev)
        with tf.name_scope("estimate"):
            drawn = [self._numbers(t, number, zero) for t in self._targets]
            estimates = [
                tf.cast(d * tf.cast(slope, d.dtype), t.variable.dtype)
                for d, t in zip(drawn, self._targets, strict=True)
            ]
        return tf.reduce_mean(losses), outputs, estimates


class Evolution(_Estimator):
    """Evolution strategies with antithetic pairs and centred ranks (Salimans et al. 2017).

    "Evolution Strategies as a Scalable Alternative to Reinforcement Learning": n tries in pairs
    w ± σ z, their losses replaced by ranks from −1/2 to 1/2, and the estimate 1 / (n σ) · Σ rank
    · z with the sign of the try. Ties share no rank: the earlier try counts as the smaller loss.

    Args:
      pairs: how many pairs of tries.
      model, optimizer, targets, source, replicas: as for every estimator.
    """

    def __init__(self, model, optimizer, targets, source, pairs: int, replicas=None):
        super().__init__(model, optimizer, targets, source, replicas)
        self._pairs = pairs

    def _estimate(self, x, y, number, stddev, kept, gather):
        first = tf.constant(0, tf.int64)
        losses, outputs = self._losses(x, y, number, stddev, kept, first, gather)
        array = tf.TensorArray(tf.float32, self._pairs, element_shape=[2]).write(0, losses)

        def one(pair, array):
            found, _ = self._losses(x, y, number, stddev, kept, pair)
            return pair + 1, array.write(tf.cast(pair, tf.int32), found)

        start = tf.constant(1, tf.int64)
        _, array = tf.while_loop(
            lambda pair, array: pair < self._pairs, one, (start, array), parallel_iterations=1
        )
        losses = array.stack()
        ranks = centred_ranks(tf.reshape(losses, [-1]))
        ranks = tf.reshape(ranks, [self._pairs, 2])
        weights = (ranks[:, 0] - ranks[:, 1]) / (2.0 * self._pairs * stddev)
        return tf.reduce_mean(losses), outputs, self._summed(number, weights)

    def _summed(self, number, weights: tf.Tensor) -> list[tf.Tensor]:
        """Adds up all pairs' perturbations, drawing each again."""
        zeros = [tf.zeros(t.variable.shape, noise.noise_dtype(t.variable)) for t in self._targets]

        def one(pair, *sums):
            weight = tf.gather(weights, pair)
            drawn = [self._numbers(t, number, pair) for t in self._targets]
            more = (s + d * tf.cast(weight, d.dtype) for s, d in zip(sums, drawn, strict=True))
            return pair + 1, *more

        with tf.name_scope("estimate"):
            _, *sums = tf.while_loop(
                lambda pair, *sums: pair < self._pairs,
                one,
                (tf.constant(0, tf.int64), *zeros),
                parallel_iterations=1,
            )
        return [tf.cast(s, t.variable.dtype) for s, t in zip(sums, self._targets, strict=True)]


def centred_ranks(values: tf.Tensor) -> tf.Tensor:
    """Ranks of a vector, float32, equally spaced from −1/2 (smallest) to 1/2 (largest)."""
    order = tf.argsort(values, stable=True)
    count = tf.size(values)
    ranks = tf.cast(tf.math.invert_permutation(order), tf.float32)
    return ranks / tf.cast(tf.maximum(count - 1, 1), tf.float32) - 0.5
