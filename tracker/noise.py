"""Noise: where the normal numbers come from, and how they reach the variables.

A *source* gives unit-variance numbers that are a function of (seed, variable, step) alone: not of
the strategy, the number of steps a call runs, the replica, a resume, or (with `stateless`) which
other variables exist. A *strategy* adds stddev · numbers to the variables: `scalar` at a scale
chosen by one scalar, `routes` by one of K branches of the graph, `buffered` through a noise
variable beside each trainable one. With the same source all three give the same weights, bit for
bit.

    >>> adder = Adder('routes', Stateless(seed=0), stddevs=(0.0, 0.1), targets=[('kernel', v)])
    >>> adder.add(step, index)     # inside a compiled step; v moves by 0.1 · z or not at all
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf
from tensorflow.python.ops import cond_v2

from tracker import tags

STRATEGIES = ("scalar", "routes", "buffered")
DISTRIBUTIONS = ("normal", "uniform")
_PHILOX = 1  # tf.random.Algorithm.PHILOX
MANY_BRANCHES = 2000  # of variables, from which TensorFlow takes a minute to start a step
VECTORISED = 2**12  # numbers, from which array operations beat TensorFlow's kernel on a CPU


def key(seed: int, name: str) -> int:
    """A 64-bit key for (seed, name): equal inputs give equal keys in every process."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def counter(step: tf.Tensor) -> tf.Tensor:
    """The uint64 [2] counter at which the draws of a step begin: the step in its high word.

    Counter-based generators are made to be used so: a key for each stream, the counter says where
    in it (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"). There are 2^64 blocks
    between two steps, so draws never overlap.
    """
    return tf.cast(tf.stack([tf.constant(0, tf.int64), tf.cast(step, tf.int64)]), tf.uint64)


def uniform(key_: int, counter_: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Float32 numbers uniform on [0, 1), a function of key and counter."""
    return tf.raw_ops.StatelessRandomUniformV2(
        shape=tf.constant(list(shape), tf.int32), key=_constant(key_), counter=counter_, alg=_PHILOX
    )


def integer(key_: int, counter_: tf.Tensor, count: int | tf.Tensor, dtype=tf.int32) -> tf.Tensor:
    """An integer uniform on 0 to count − 1, a function of key and counter."""
    return tf.raw_ops.StatelessRandomUniformIntV2(
        shape=tf.constant([], tf.int32), key=_constant(key_), counter=counter_, alg=_PHILOX,
        minval=tf.constant(0, dtype), maxval=tf.cast(count, dtype),
    )  # fmt: skip


def _normal(key_: int, counter_: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    return tf.raw_ops.StatelessRandomNormalV2(
        shape=tf.constant(list(shape), tf.int32), key=_constant(key_), counter=counter_, alg=_PHILOX
    )


def _constant(key_: int) -> tf.Tensor:
    return tf.constant([key_ % 2**64], tf.uint64)


class Source(Protocol):
    """Gives unit-variance float32 numbers for a variable in a step.

    Attributes:
      variables: what it holds from step to step.
    """

    variables: list[tf.Variable]

    def draw(self, name: str, counter_: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
        """Numbers of the given shape; a function of (source, name, `counter(step)`) alone."""


class Stateless:
    """Exact source: a counter-based generator (Philox, Salmon et al. 2011) keyed for each draw.

    Args:
      seed: seed of the run.
      distribution: 'normal', or 'uniform' on ±sqrt(3), which has unit variance as well.
    """

    def __init__(self, seed: int, distribution: str = "normal"):
        self._seed = seed
        self._distribution = distribution
        self.variables: list[tf.Variable] = []

    def draw(self, name: str, counter_: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
        """See `Source`."""
        key_ = key(self._seed, f"noise/{name}")
        return _unit_variance(self._distribution, key_, counter_, shape)


class Table:
    """One shared table of numbers, read at an offset derived from (seed, step, variable).

    As OpenAI's evolution strategies do (Salimans et al. 2017). Cheaper than drawing; the price is
    independence: two draws whose stretches of the table overlap are correlated, with probability
    about (n + m) / size for draws of n and m numbers. With the default size, two draws of a model's
    largest variable overlap in an eighth of all cases, then by half of it on average; their mean
    squared correlation was measured as 0.04, against 1 / n for independent ones.

    Args:
      seed: seed of the run.
      size: numbers in the table (4 bytes each); at least the largest variable's.
      distribution: as for `Stateless`.
    """

    def __init__(self, seed: int, size: int, distribution: str = "normal"):
        self._seed = seed
        self._size = size

        def make():
            return _unit_variance(distribution, key(seed, "table"), counter(tf.constant(0)), [size])

        # In a function arrays that are not needed any more are used again, a third of all.
        numbers = tf.function(make, autograph=False)()
        self._table = tf.Variable(numbers, trainable=False, name="noise_table")
        self.variables = [self._table]

    def draw(self, name: str, counter_: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
        """See `Source`."""
        count = math.prod(shape)
        key_ = key(self._seed, f"noise/{name}")
        offset = integer(key_, counter_, self._size - count + 1, tf.int64)
        stretch = tf.strided_slice(self._table.read_value(), [offset], [offset + count], [1])
        return tf.reshape(stretch, shape)


def table_size(largest: int, total: int) -> int:
    """Default size of a table: 16 times the largest variable, or 4 times all, at least 2^20."""
    return max(2**20, 16 * largest if 16 * largest < 4 * total else 4 * total, largest)


def _unit_variance(
    distribution: str, key_: int, counter_: tf.Tensor, shape: Sequence[int]
) -> tf.Tensor:
    if distribution == "uniform":
        return (2.0 * uniform(key_, counter_, shape) - 1.0) * math.sqrt(3.0)
    if math.prod(shape) < VECTORISED or tf.config.list_logical_devices("GPU"):
        return _normal(key_, counter_, shape)
    return _box_muller(key_, counter_, shape)


def _box_muller(key_: int, counter_: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Normal numbers as TensorFlow's own kernel makes them, by its vectorised operations.

    Box and Muller 1958: for uniform u and v, sqrt(−2 ln u) · (cos 2πv, sin 2πv) are two independent
    normal numbers. TensorFlow's CPU kernel computes the logarithm and the angles one by one; as
    operations on whole arrays they take 0.6 to 0.8 times as long. The uniform numbers have 23 bits
    there and here, so both reach about 5.6 standard deviations.
    """
    count = math.prod(shape)
    pairs = uniform(key_, counter_, [2, (count + 1) // 2])
    radius = tf.sqrt(-2.0 * tf.math.log(1.0 - pairs[0]))
    angle = pairs[1] * (2.0 * math.pi)
    numbers = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=0)
    return tf.reshape(numbers[:count], shape)


class Target(NamedTuple):
    """A variable that gets noise, under the canonical path that keys its numbers."""

    name: str
    variable: Any  # keras.Variable or tf.Variable


def rms(variable: Any) -> tf.Tensor:
    """Root mean square of a variable, float32 scalar."""
    value = tf.cast(tf.convert_to_tensor(variable), tf.float32)
    return tf.sqrt(tf.reduce_mean(tf.square(value)))


class Adder:
    """Adds the noise of a step to its targets by one strategy.

    Args:
      strategy: one of `STRATEGIES`.
      source: where the numbers come from.
      stddevs: the standard deviations that an index chooses from.
      targets: what gets noise.

    Attributes:
      variables: persistent state that the strategy needs beside the model, empty but for
        `buffered`. It is written and read within one step, so no checkpoint needs it.
    """

    def __init__(
        self,
        strategy: str,
        source: Source,
        stddevs: Sequence[float],
        targets: Sequence[Target],
    ):
        self.source = source
        self._stddevs = [float(s) for s in stddevs]
        self._targets = list(targets)
        self._add = {"scalar": self._scalar, "routes": self._routes, "buffered": self._buffered}[
            strategy
        ]
        self.variables: list[tf.Variable] = []
        if strategy == "buffered":
            self.variables = [
                tf.Variable(tf.zeros(t.variable.shape, noise_dtype(t.variable)), trainable=False,
                            name=f"noise_buffer_{i}")
                for i, t in enumerate(self._targets)
            ]  # fmt: skip

    def warnings(self) -> list[str]:
        """What people would want to know before such a step is started, in sentences."""
        routes, variables = len(self._stddevs), len(self._targets)
        few = routes < 2 or routes * variables < MANY_BRANCHES
        if self._add != self._routes or few:
            return []
        return [
            f"The strategy routes builds {routes} branches for each of {variables} variables, "
            "which can take minutes to start; the strategy scalar adds the same noise without them."
        ]

    def add(
        self,
        step: tf.Tensor,
        index: tf.Tensor,
        scales: Sequence[tf.Tensor] | None = None,
        rows: Sequence[tf.Tensor | None] | None = None,
    ) -> None:
        """Adds the noise of one step, inside a compiled function.

        Args:
          step: int64 scalar.
          index: int32 scalar, which stddev.
          scales: a float32 scalar for each target that multiplies its stddev (the RMS of the
            variable, for relative noise), or None for 1.
          rows: of each target the rows that get noise, int [n], each once; None for all. A row's
            numbers are the same whichever other rows get some.
        """
        if not self._targets:
            return
        nothing = [None] * len(self._targets)
        parts = scales or nothing, rows or nothing
        self._add(counter(step), index, list(zip(self._targets, *parts, strict=True)))

    def stddev(self, index: tf.Tensor) -> tf.Tensor:
        """The chosen stddev, a float32 scalar."""
        return tf.gather(tf.constant(self._stddevs, tf.float32), index)

    def _noise(self, target: Target, counter_, stddev, scale) -> tf.Tensor:
        numbers = self.source.draw(target.name, counter_, target.variable.shape)
        stddev = stddev if scale is None else stddev * scale
        return as_noise(numbers * stddev, target.variable)

    def _scalar(self, counter_, index, added):
        stddev = self.stddev(index)
        for target, scale, rows in added:
            add_to(target.variable, self._noise(target, counter_, stddev, scale), rows)

    def _routes(self, counter_, index, added):
        def route(number: int, stddev: float):
            def run():
                with tf.name_scope(f"route_{number}_{tags.number(stddev)}"):
                    chosen = tf.constant(stddev, tf.float32)
                    for target, scale, rows in added:
                        noise = self._noise(target, counter_, chosen, scale)
                        add_to(target.variable, noise, rows)
                return tf.constant(number, tf.int32)

            return run

        # As `tf.switch_case`, but left whole: TensorFlow would otherwise turn it into switches in
        # the step's own graph, and at every step walk over the ops of all branches that do not run.
        # A branch that is left whole runs on one device, so for replicas it is not.
        branches = [route(i, s) for i, s in enumerate(self._stddevs)]
        several = tf.distribute.has_strategy()
        cond_v2.indexed_case(index, branches, name="route", lower_using_switch_merge=several)

    def _buffered(self, counter_, index, added):
        stddev = self.stddev(index)
        for (target, scale, rows), buffer in zip(added, self.variables, strict=True):
            buffer.assign(self._noise(target, counter_, stddev, scale))
            add_to(target.variable, buffer.read_value(), rows)


def noise_dtype(variable: Any) -> tf.DType:
    """Noise is drawn and added in float32, or in float64 for a float64 variable."""
    return tf.float64 if tf.as_dtype(variable.dtype) == tf.float64 else tf.float32


def as_noise(numbers: tf.Tensor, variable: Any) -> tf.Tensor:
    """Float32 numbers in the type that noise is added to a variable in."""
    return tf.cast(numbers, noise_dtype(variable))


def add_to(
    variable: Any,
    noise: tf.Tensor,
    rows: tf.Tensor | None = None,
) -> None:
    """Adds noise to a variable and applies its constraint again, which noise could break.

    Args:
      variable: of floats.
      noise: from `as_noise`.
      rows: those that get it; None for all.
    """
    if 0 in variable.shape:  # Keras would take [0, n] for a bias to be added
        return
    if rows is not None:
        value = tf.convert_to_tensor(variable)
        moved = tf.cast(tf.gather(value, rows), noise.dtype) + tf.gather(noise, rows)
        moved = tf.cast(moved, variable.dtype)
        variable.assign(tf.tensor_scatter_nd_update(value, rows[:, tf.newaxis], moved))
        return
    if noise.dtype != tf.as_dtype(variable.dtype):
        wide = tf.cast(tf.convert_to_tensor(variable), noise.dtype)
        variable.assign(tf.cast(wide + noise, variable.dtype))
    else:
        variable.assign_add(noise)
    constraint = getattr(variable, "constraint", None)
    if constraint is not None:
        variable.assign(constraint(tf.convert_to_tensor(variable)))
