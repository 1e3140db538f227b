"""Replicas: how the batch of a step is divided among devices, and what they found is put together.

The engine is `tf.distribute`. A step's function runs in cross-replica context; the loss and its
gradients are computed by all replicas, each on its part of the same global batch, the optimizer
adds the gradients up, and everything else of a step (choice of the stddev, noise, measurement) is
done once and written to all copies. So copies stay bit-identical, and noise is neither drawn by
each replica nor divided by their number.

    >>> replicas = Replicas(tf.distribute.MirroredStrategy(['cpu:0', 'cpu:1']))
    >>> with replicas.scope():
    ...     loss, outputs = replicas.run(local, (x, y))    # inside a compiled step
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Replicas:
    """One replica, or those of a strategy.

    Args:
      strategy: of tf.distribute; None for one replica on the default device.

    Attributes:
      count: how many there are.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None = None):
        self.strategy = strategy
        self.count = 1 if strategy is None else strategy.num_replicas_in_sync

    def scope(self) -> contextlib.AbstractContextManager:
        """Where variables that all replicas hold are made, and steps are traced."""
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def run(
        self, local: Callable, batch: Any, gather: bool
    ) -> tuple[tf.Tensor, Any, list[Any] | None]:
        """Has all replicas work on their parts of a batch.

        Args:
          local: function of (a part of the batch, its weight) that returns its weighted loss,
            outputs, and a list of gradients or None. The weight is None for one replica, else what
            a part's mean counts, so that the losses of all parts add up to that of the batch.
          batch: a structure of tensors [examples, ...] with at least one example a replica.
          gather: whether outputs and gradients are wanted.

        Returns:
          The loss of the whole batch, its outputs in order, and its gradients, added up.
        """
        if self.strategy is None:
            return local(batch, None)
        strategy = self.strategy

        def replica(batch):
            part, weight = self._part(batch)
            loss, outputs, gradients = local(part, weight)
            return (loss, outputs, gradients) if gather else (loss, None, None)

        loss, outputs, gradients = strategy.run(replica, args=(batch,))
        loss = strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
        if not gather:
            return loss, None, None
        outputs = tf.nest.map_structure(lambda t: strategy.gather(t, axis=0), outputs)
        summed = None if gradients is None else [self._sum(g) for g in gradients]
        return loss, outputs, summed

    def apply(self, optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
        """Has an optimizer apply gradients of the whole batch, which are the same everywhere."""
        if self.strategy is None:
            optimizer.apply(gradients, variables)
            return

        def replica():
            # A share each, made on the replica's device: the optimizers add them up.
            optimizer.apply([g / self.count for g in gradients], variables)

        self.strategy.run(replica)

    def _part(self, batch: Any) -> tuple[Any, tf.Tensor]:
        """This replica's part of a batch, and its weight: its share of it, times `count`."""
        context = tf.distribute.get_replica_context()
        index = tf.cast(context.replica_id_in_sync_group, tf.int32)
        size = tf.shape(tf.nest.flatten(batch)[0])[0]
        first, last = size * index // self.count, size * (index + 1) // self.count
        part = tf.nest.map_structure(lambda t: t[first:last], batch)
        weight = tf.cast((last - first) * self.count, tf.float32) / tf.cast(size, tf.float32)
        return part, weight

    def _sum(self, gradient: Any) -> Any:
        """A gradient of all replicas; of a sparse one the rows that any of them touched."""
        assert self.strategy is not None
        if gradient is None:
            return None
        first = self.strategy.experimental_local_results(gradient)[0]
        if isinstance(first, tf.IndexedSlices):
            parts = self.strategy.experimental_local_results(gradient)
            return tf.IndexedSlices(
                tf.concat([p.values for p in parts], 0),
                tf.concat([p.indices for p in parts], 0),
                first.dense_shape,
            )
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, gradient, axis=None)


def weighted(loss: tf.Tensor, additional: list[tf.Tensor], weight: tf.Tensor | None) -> tf.Tensor:
    """What a replica's loss adds to that of the whole batch.

    Args:
      loss: from Keras' `compute_loss`, which divides it by the number of replicas.
      additional: losses that do not depend on the batch, such as weight penalties, undivided.
      weight: from `Replicas.run`; None for one replica.
    """
    if weight is None:
        return loss
    if not additional:
        return loss * tf.cast(weight, loss.dtype)
    count = tf.distribute.get_strategy().num_replicas_in_sync
    fixed = tf.add_n([tf.cast(a, loss.dtype) for a in additional]) / count
    return (loss - fixed) * tf.cast(weight, loss.dtype) + fixed


def make(name: str) -> Replicas:
    """The replicas of a run on one machine.

    Args:
      name: 'none', or 'mirrored' for all GPUs, or all logical CPU devices where there is no GPU.

    Raises:
      ValueError: in one sentence: there is one device only.
    """
    if name == "none":
        return Replicas()
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    devices = [d.name for d in tf.config.list_logical_devices(kind)]
    if len(devices) < 2:
        raise ValueError(
            f"--distribute={name}: there is one {kind} only; should be two or more devices (to "
            "try it on a CPU, give --logical_cpus=2)"
        )
    # On CPUs TensorFlow would use collectives, whose keys a second run of the process takes again.
    across = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
    return Replicas(tf.distribute.MirroredStrategy(devices, cross_device_ops=across))
