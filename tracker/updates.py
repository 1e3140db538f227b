"""Update rules: what computes the update of a step, before noise is added.

The gradient rule is any Keras optimizer by its class name, applied as Keras itself does.

    >>> rule = Gradient(model, optimizer('adam', 1e-3))
    >>> update = rule.update(x, y)      # inside a compiled step; the weights have moved
"""

from __future__ import annotations

import inspect
import math
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tracker import distribution

_NEEDS_ARGUMENTS = ("LossScaleOptimizer", "MultiOptimizer", "OptimizerMap")


class Update(NamedTuple):
    """What one batch gave.

    Attributes:
      loss: float32 scalar, on the weights before the update.
      outputs: what the model returned for the batch.
      gradients: one for each trainable variable: a tensor, an IndexedSlices, or None; None where
        they were not kept.
    """

    loss: tf.Tensor
    outputs: Any
    gradients: list[Any] | None


def optimizer_names() -> list[str]:
    """Names of Keras' optimizers that can be made from a learning rate and options."""
    found = []
    for name, value in vars(keras.optimizers).items():
        if not inspect.isclass(value) or not issubclass(value, keras.optimizers.Optimizer):
            continue
        if value is not keras.optimizers.Optimizer and name not in _NEEDS_ARGUMENTS:
            found.append(name)
    return sorted(found)


def optimizer(
    name: str, learning_rate: float, args: dict[str, Any] | None = None
) -> keras.optimizers.Optimizer:
    """Makes a Keras optimizer.

    Args:
      name: class name in `keras.optimizers`, in any case.
      learning_rate: dimensionless.
      args: further arguments of its constructor, such as {'beta_2': 0.99}.

    Raises:
      ValueError: unknown name, or arguments that the class refuses.
    """
    names = {n.lower(): n for n in optimizer_names()}
    if name.lower() not in names:
        raise ValueError(f"--optimizer={name} is unknown; should be one of {', '.join(names)}")
    for key, value in (args or {}).items():
        if key != "name" and (isinstance(value, str) or ("clip" in key and not value > 0)):
            wanted = "more than 0" if "clip" in key else "a number, True or False"
            raise ValueError(f"--optimizer_args: {key}={value} should be {wanted}")
    try:
        return getattr(keras.optimizers, names[name.lower()])(
            learning_rate=learning_rate, **(args or {})
        )
    except (TypeError, ValueError) as error:
        given = ",".join(f"{k}={v}" for k, v in (args or {}).items())
        raise ValueError(
            f"--optimizer_args={given}: {names[name.lower()]} refuses them: {error}"
        ) from error


def accumulates(optimizer: keras.optimizers.Optimizer) -> int:
    """Batches that one update is made of, by Keras' gradient accumulation.

    Args:
      optimizer: built, so that one of several optimizers knows which of them it uses.

    Raises:
      ValueError: the parts of a MultiOptimizer accumulate different numbers of batches.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    parts = [inner]
    if isinstance(inner, keras.optimizers.MultiOptimizer):
        parts = [part for part in inner.optimizers if part.built]
    found = sorted({part.gradient_accumulation_steps or 1 for part in parts})
    if len(found) > 1:
        raise ValueError(
            "The optimizers of the MultiOptimizer have gradient_accumulation_steps of "
            f"{' and '.join(map(str, found))}; should be the same, for a step to be one update."
        )
    return found[0]


def done(optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """Number of updates applied so far, int64 scalar: what a skipped batch does not move."""
    count = tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(inner, keras.optimizers.MultiOptimizer):
        return count // accumulates(optimizer)  # its own count is of batches
    return count


def learning_rate(optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """The rate that the next update uses, float32 scalar; NaN for a MultiOptimizer's several."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(inner, keras.optimizers.MultiOptimizer):
        return tf.constant(math.nan, tf.float32)
    return tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float32)


def may_skip(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether a batch can leave the weights as they are: accumulation, loss scaling."""
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return scaled or accumulates(optimizer) > 1


class Gradient:
    """The gradient rule: loss, gradients by a tape, and a Keras optimizer's update.

    Args:
      model: a built Keras model, compiled with its loss.
      optimizer: built on `model.trainable_variables` when given here, if it was not yet.
      replicas: that hold the model.

    Attributes:
      perturbs: False; the step's stddev is chosen after the update, for the noise.
      judges: False; every update is kept.
    """

    perturbs = False
    judges = False

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        replicas: distribution.Replicas | None = None,
    ):
        self._model = model
        self._replicas = replicas or distribution.Replicas()
        self.optimizer = optimizer
        self.trainable = list(model.trainable_variables)
        if not optimizer.built:
            optimizer.build(self.trainable)
        accumulates(optimizer)  # refuses what makes no whole updates
        self.variables = [v.value for v in optimizer.variables]

    @property
    def may_skip(self) -> bool:
        """Whether a batch can leave the weights as they are."""
        return may_skip(self.optimizer)

    @property
    def accumulates(self) -> int:
        """Batches that one update is made of."""
        return accumulates(self.optimizer)

    @property
    def most_skipped(self) -> int:
        """Batches in a row without an update, after which a step gives up."""
        return max(1000, 2 * self.accumulates)

    def updates_done(self) -> tf.Tensor:
        """Number of updates applied so far, int64 scalar: what a skipped batch does not move."""
        return done(self.optimizer)

    def learning_rate(self) -> tf.Tensor:
        """The rate that the next update uses, float32 scalar; NaN for several."""
        return learning_rate(self.optimizer)

    def update(
        self,
        x: Any,
        y: Any,
        number: tf.Tensor | None = None,
        stddev: tf.Tensor | None = None,
        gather: bool = True,
    ) -> Update:
        """Applies the update of one batch, inside a compiled function.

        Args:
          x, y: the batch.
          number, stddev: of the step; a gradient depends on neither.
          gather: whether outputs and gradients are wanted, of all replicas.
        """
        loss, outputs, gradients = self._replicas.run(self._local, (x, y), gather)
        return Update(tf.cast(loss, tf.float32), outputs, gradients)

    def _local(self, batch: Any, weight: tf.Tensor | None) -> tuple[tf.Tensor, Any, list[Any]]:
        """What one replica does with its part of the batch."""
        x, y = batch
        with tf.GradientTape() as tape:
            with tf.name_scope("forward"):
                outputs = self._model(x, training=True)
                loss = self._model.compute_loss(x=x, y=y, y_pred=outputs, training=True)
                loss = distribution.weighted(loss, self._model.losses, weight)
            target = loss
            if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
                target = self.optimizer.scale_loss(loss)
        with tf.name_scope("gradients"):
            gradients = tape.gradient(target, [v.value for v in self.trainable])
        with tf.name_scope("update"):
            self.optimizer.apply(gradients, self.trainable)
        return loss, outputs, gradients
