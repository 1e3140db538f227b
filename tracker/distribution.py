"""Replicas: how the batch of a step is divided among devices, and what they found is put together.

The engine is `tf.distribute`, for replicas of one process and of several. A step's function runs in
cross-replica context; the loss and its gradients are computed by all replicas, each on its part of
the same global batch, the optimizer adds the gradients up, and everything else of a step (choice of
the stddev, noise, measurement) is done once and written to all copies; with several processes each
does it for itself, by the same numbers. So copies stay bit-identical, and noise is neither drawn by
each replica nor divided by their number.

    >>> replicas = Replicas(tf.distribute.MirroredStrategy(['cpu:0', 'cpu:1']))
    >>> with replicas.scope():
    ...     loss, outputs = replicas.run(local, (x, y))    # inside a compiled step
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context

from tracker.cluster import Cluster

LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError,
        tf.errors.DeadlineExceededError, tf.errors.InternalError)  # fmt: skip
_NAME_LENGTH = 1024  # bytes of UTF-8


class Agreed(NamedTuple):
    """What all workers know after `Replicas.agree`.

    Attributes:
      chief: the chief's numbers.
      sums: everyone's, added up.
    """

    chief: list[int]
    sums: list[int]


class Replicas:
    """One replica, or those of a strategy.

    Args:
      strategy: of tf.distribute; None for one replica on the default device.
      cluster: the workers, if the strategy is over several processes.

    Attributes:
      count: how many there are.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy | None = None, cluster: Cluster | None = None
    ):
        self.strategy = strategy
        self.cluster = cluster
        self.count = 1 if strategy is None else strategy.num_replicas_in_sync
        self._summed: Any = None

    @property
    def chief(self) -> bool:
        """Whether this process writes the run; true where there is one process only."""
        return self.cluster is None or self.cluster.chief

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
            if not gather:
                return loss, None, None
            return loss, outputs, None if gradients is None else [_Rows.of(g) for g in gradients]

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

    def each(self, function: Callable, batch: Any) -> tuple[Any, tf.Tensor]:
        """Has each replica call a function with its part of a batch that was divided already.

        Args:
          function: of a part, that returns numbers and its share of the batch's loss.
          batch: an element of a distributed data set.

        Returns:
          The means of the numbers, and the loss.
        """
        if self.strategy is None:
            return function(batch)
        numbers, loss = self.strategy.run(function, args=(batch,))
        mean, total = tf.distribute.ReduceOp.MEAN, tf.distribute.ReduceOp.SUM
        return (
            tf.nest.map_structure(lambda n: self.strategy.reduce(mean, n, axis=None), numbers),
            self.strategy.reduce(total, loss, axis=None),
        )

    def agree(self, chief: Sequence[int] = (), everyone: Sequence[int] = ()) -> Agreed:
        """Lets all workers know what only one can decide; each calls it, as often and as long.

        Args:
          chief: numbers, of which those of the chief count.
          everyone: numbers, which are added up.

        Raises:
          LOST: another worker is gone.
        """
        if self.cluster is None:
            return Agreed(list(chief), list(everyone))
        mine = [c if self.chief else 0 for c in chief]
        if self._summed is None:
            self._summed = tf.function(
                self._add_up, input_signature=[tf.TensorSpec([None], tf.float64)], autograph=False
            )
        summed = self._summed(np.array([*mine, *everyone], np.float64)).numpy()
        found = np.rint(summed).astype(int).tolist()  # a share each, added up, may miss a last bit
        return Agreed(found[: len(mine)], found[len(mine) :])

    def _add_up(self, numbers: tf.Tensor) -> tf.Tensor:
        assert self.strategy is not None
        local = self.strategy.extended.worker_devices
        with self.strategy.scope():
            part = self.strategy.run(lambda n: n / len(local), args=(numbers,))
            return self.strategy.reduce(tf.distribute.ReduceOp.SUM, part, axis=None)

    def share(self, text: str = "") -> str:
        """The chief's text, of at most 1,023 bytes of UTF-8, at all workers; see `agree`."""
        if self.cluster is None:
            return text
        data = text.encode() if self.chief else b""
        found = self.agree([*data, *[0] * (_NAME_LENGTH - len(data))]).chief
        return bytes(found).rstrip(b"\0").decode()

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
        if isinstance(gradient, _Rows):
            shape = self.strategy.experimental_local_results(gradient.dense_shape)[0]
            values, indices = (self.strategy.gather(t, axis=0) for t in gradient[:2])
            return tf.IndexedSlices(values, indices, shape)
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, gradient, axis=None)


class _Rows(NamedTuple):
    """A sparse gradient of one replica, as what replicas can return."""

    values: Any
    indices: Any
    dense_shape: Any

    @classmethod
    def of(cls, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        return cls(gradient.values, gradient.indices, gradient.dense_shape)


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


def join(cluster: Cluster, seconds: float) -> Replicas:
    """Meets the other workers; before TensorFlow has done anything else.

    Args:
      cluster: whose port is free; if this is the chief, with all others listening.
      seconds: how long to wait for the chief.

    Raises:
      ValueError: in one sentence.
    """
    leader = f"/job:{'chief' if 'chief' in cluster.jobs else 'worker'}/replica:0/task:0"
    # As the strategy would do itself, but for the limits: it would wait for an hour.
    context.context().configure_coordination_service(
        "standalone",
        service_leader=leader,
        cluster_register_timeout_in_ms=int(1000 * (seconds + 5)),
        shutdown_barrier_timeout_in_ms=5000,
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=name, num_tasks=count)
            for name, count in cluster.jobs.items()
        ],
    )
    try:
        return Replicas(tf.distribute.MultiWorkerMirroredStrategy(), cluster)
    except tf.errors.OpError as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"The chief at {cluster.addresses[0]} cannot be reached ({reason[0]}); start the same "
            "command on every machine of TF_CONFIG, within --worker_timeout of each other"
        ) from error


def of(variables: Sequence[Any]) -> Replicas:
    """The replicas that hold variables somebody else has made.

    Args:
      variables: of Keras or TensorFlow.

    Raises:
      ValueError: in one sentence: a strategy over several processes.
    """
    inner = (v if isinstance(v, tf.Variable) else getattr(v, "value", v) for v in variables)
    found = (getattr(v, "distribute_strategy", None) for v in inner)
    strategy = next((s for s in found if s is not None), None)
    if strategy is None:
        return Replicas()
    servers = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    if servers or strategy.extended._in_multi_worker_mode():
        raise ValueError(
            f"The variables are held by {type(strategy).__name__}; should be by a strategy of one "
            "process, as each process would write the run (tracker.main has "
            "--distribute=multi_worker)"
        )
    return Replicas(strategy)


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
