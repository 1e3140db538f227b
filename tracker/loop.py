"""Noise and measurement for a training loop of one's own, without rewriting it.

    >>> with Run('logdir', 'mine', noise=(0.0, 1e-3), summary_every=100) as run:
    ...     step = TrainStep(run, train_step, model.trainable_variables, optimizer)
    ...     for x, y in batches:
    ...         loss = step(x, y)

The user's function is compiled twice, plain and instrumented, and the host calls the instrumented
one on summary steps; each is traced once, whatever the sizes of the batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph

from tracker import distribution, updates, variables
from tracker import instrument as instrument_lib
from tracker.instrument import Taken
from tracker.journal import Run


class TrainStep:
    """The user's training step, compiled, with noise after its update, measured when due.

    Called with what the function takes, it returns what the function returns. Tensors and arrays
    may change from call to call in their first dimension; all other arguments are constants, and
    another value of them is another compilation.

    Args:
      run: where to write.
      train_step: a function, or a `tf.function`, that applies one update to the variables.
      variables_: those to measure and to add noise to, of Keras or of TensorFlow, in model order.
      optimizer: of Keras; its `iterations` are the step axis, and where it accumulates gradients or
        scales losses it tells which batches made an update. Without one every call is a step.
      model: of Keras, for canonical names; None to take names from the variables alone.
      loss: takes the loss out of what the function returns. By default that is itself, or its
        first part, or its item 'loss', if that is a scalar.

    Raises:
      ValueError: in one sentence: the variables are not there yet, or cannot take noise.
    """

    def __init__(
        self,
        run: Run,
        train_step: Callable,
        variables_: Sequence[Any],
        optimizer: Any = None,
        model: Any = None,
        loss: Callable[[Any], Any] | None = None,
    ):
        self._run = run
        self._user = _Function(train_step)
        self._trainable = list({id(v): v for v in variables_}.values())
        self._optimizer = optimizer
        self._loss = loss or _scalar
        self._replicas = distribution.of(self._trainable)
        with self._replicas.scope():
            paths = variables.paths(self._trainable, model)
            self.instrument = run.instrument(self._trainable, paths)
            if optimizer is not None and not optimizer.built:
                optimizer.build(self._trainable)
        self._may_skip = optimizer is not None and updates.may_skip(optimizer)
        self._counter = None if optimizer is not None else tf.Variable(0, False, dtype=tf.int64)
        self._compiled: dict[Any, tuple[Any, Any]] = {}
        self._frozen = [not v.trainable for v in self._trainable]
        self._ended = 0.0
        self._losses: list[float] = []  # of the batches since the last update

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Takes one batch."""
        run, given = self._run, tf.nest.flatten((args, kwargs))
        flat = [_tensor(a) if _is_tensor(a) else a for a in given]
        plain, measured = self._functions(args, kwargs, flat)
        tensors = [a for a in flat if _is_tensor(a)]
        if run.status != "running":
            self._begin(tensors, plain)
        elif run.names != self.instrument.names:
            raise ValueError(
                "The run measures the variables of another TrainStep; give this one a run of its "
                "own, or call run.end('completed') before it."
            )
        number = run.step + 1
        planned = self._planned(number)
        began = time.time()
        waited = began - self._ended if self._ended else np.nan
        measure = run.due(number) and (not self._may_skip or self._completes())
        with run.taking(number):
            function = measured if measure else plain
            result, loss, choice, *rest = function(planned, *tensors)
            self._note(measure, loss, choice, rest, began, waited)
        self._ended = time.time()
        return result

    def _note(self, measure: bool, loss, choice, rest, began: float, waited: float) -> None:
        run = self._run
        applied, rows, rate = rest
        skipped = 0
        if self._may_skip:
            self._losses.append(float(loss))
            if not bool(applied):
                return
            skipped, loss = len(self._losses) - 1, np.mean(self._losses)
            self._losses = []
        if measure:
            run.summary(float(loss), int(choice), rows.numpy(), began, float(rate), waited, skipped)
        else:
            run.plain(loss, choice, began, skipped)

    def _completes(self) -> bool:
        """Whether the next batch is the last of those that an update is accumulated from."""
        every = updates.accumulates(self._optimizer)
        inner = getattr(self._optimizer, "inner_optimizer", self._optimizer)
        return every == 1 or (int(tf.convert_to_tensor(inner._iterations)) + 1) % every == 0

    def _planned(self, number: int) -> Any:
        selector = self.instrument.selector
        plan = None if selector is None else selector.planned
        return np.int32(0 if plan is None else plan(number))

    def _begin(self, tensors: Sequence[tf.Tensor], plain: Any) -> None:
        done = 0 if self._optimizer is None else int(updates.done(self._optimizer))
        size = next((n for n in map(_size, tensors) if n), 1)
        count = sum(int(np.prod(v.shape)) for v in self._trainable)
        function = plain.get_concrete_function()  # before there is a directory: it can fail
        self._run.begin(self.instrument, done, size, parameters=count)
        settings = {} if self._optimizer is None else {"optimizer": type(self._optimizer).__name__}
        self._run.describe(function, settings)

    def _functions(self, args: Any, kwargs: Any, flat: list[Any]) -> tuple[Any, Any]:
        """The plain and the instrumented function for arguments of this kind."""
        signature = [_spec(a) if _is_tensor(a) else None for a in flat]
        constants = tuple(repr(a) for a in flat if not _is_tensor(a))
        key = (repr(tf.nest.map_structure(lambda _: 0, (args, kwargs))), str(signature), constants)
        if [not v.trainable for v in self._trainable] != self._frozen:
            raise ValueError(
                "Layers were frozen or thawed after the TrainStep was made, which a compiled step "
                "does not see; call run.end('completed') and make another TrainStep, to go on."
            )
        if key not in self._compiled:
            self._compiled[key] = tuple(
                self._compile((args, kwargs), flat, signature, measure) for measure in (False, True)
            )
        return self._compiled[key]

    def _compile(self, structure: Any, flat: list[Any], signature: list[Any], measure: bool) -> Any:
        def function(planned, *tensors):
            given = iter(tensors)
            filled = [
                next(given) if s is not None else a for a, s in zip(flat, signature, strict=True)
            ]
            args, kwargs = tf.nest.pack_sequence_as(structure, filled)
            return self._step(planned, args, kwargs, measure)

        specs = [tf.TensorSpec([], tf.int32), *(s for s in signature if s is not None)]
        return tf.function(function, input_signature=specs, autograph=False)

    def _step(self, planned, args, kwargs, measure: bool):
        """One call, in the graph."""
        with self._replicas.scope():
            return self._taken(planned, args, kwargs, measure)

    def _taken(self, planned, args, kwargs, measure: bool):
        rate = self._rate()
        done = self._done()

        def take(choice):
            with tf.name_scope("forward"):
                result, gradients = self._user(self._optimizer, args, kwargs)
            loss = self._loss(result)
            if self._counter is not None:
                self._counter.assign_add(1)
            applied = self._done() > done if self._may_skip else None
            unknown = tf.constant(np.nan, tf.float32)
            loss = unknown if loss is None else tf.cast(loss, tf.float32)
            return Taken(loss, {} if self._may_skip else gradients, applied, result)

        stepped = self.instrument.step(done + 1, take, planned, measure)
        taken = stepped.taken
        applied = tf.constant(True) if taken.applied is None else taken.applied
        rows = tf.zeros([0, 0], tf.float64) if stepped.rows is None else stepped.rows
        return taken.details, taken.loss, stepped.choice, applied, rows, rate

    def _done(self) -> tf.Tensor:
        if self._optimizer is None:
            return tf.convert_to_tensor(self._counter)
        return updates.done(self._optimizer)

    def _rate(self) -> tf.Tensor:
        if self._optimizer is None:
            return tf.constant(np.nan, tf.float32)
        return updates.learning_rate(self._optimizer)


class _Function:
    """A user's function as it can be called inside a compiled step of ours.

    A `tf.function` is taken apart, so that the gradients that reach the optimizer are seen; one
    that is compiled by XLA stays compiled by XLA, with the noise and the norms outside of it.
    """

    def __init__(self, function: Callable):
        self._jit = bool(getattr(function, "_jit_compile", False))
        convert = getattr(function, "_autograph", True)
        python = getattr(function, "python_function", function)
        status = ag_ctx.Status.ENABLED if convert else ag_ctx.Status.DISABLED
        self._python = autograph.tf_convert(python, ag_ctx.ControlStatusCtx(status))

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, dict[int, Any]]:
        if not self._jit:
            with instrument_lib.seen_gradients(optimizer) as gradients:
                return self._python(*args, **kwargs), gradients
        order: list[int] = []

        def compiled(args, kwargs):
            with instrument_lib.seen_gradients(optimizer) as gradients:
                result = self._python(*args, **kwargs)
            order[:] = gradients
            return result, list(gradients.values())

        result, values = tf.function(compiled, jit_compile=True, autograph=False)(args, kwargs)
        return result, dict(zip(order, values, strict=True))


def _scalar(result: Any) -> Any:
    """The loss in what a training step returns; None if it is not to be seen."""
    found = result
    if isinstance(result, dict):
        found = result.get("loss")
    elif isinstance(result, tuple | list) and result:
        found = result[0]
    if isinstance(found, tf.Tensor) and found.shape.rank == 0 and found.dtype.is_floating:
        return found
    return None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor | np.ndarray | np.generic) or _is_divided(value)


def _is_divided(value: Any) -> bool:
    """Whether each replica has its part of an argument; variables are constants."""
    divided = isinstance(value, tf.distribute.DistributedValues)
    return divided and not isinstance(value, tf.Variable)


def _tensor(value: Any) -> Any:
    if _is_divided(value):
        return tf.nest.map_structure(tf.convert_to_tensor, value, expand_composites=True)
    return tf.convert_to_tensor(value)


def _size(value: Any) -> int:
    """Examples in an argument, over all replicas; 0 in a scalar."""
    if _is_divided(value):
        return sum(map(_size, value.values))
    return np.shape(value)[0] if np.ndim(value) else 0


def _spec(value: Any) -> Any:
    """The type of an argument, of any size in its first dimension."""
    if not _is_divided(value):
        return tf.TensorSpec([None, *value.shape[1:]] if value.shape.rank else [], value.dtype)
    if any(isinstance(v, tf.__internal__.CompositeTensor) for v in value.values):
        kind = type(value.values[0]).__name__
        raise ValueError(
            f"An argument of the step is a {kind} on each replica; should be a tensor on each"
        )
    return type(tf.type_spec_from_value(value))(*map(_spec, value.values))
