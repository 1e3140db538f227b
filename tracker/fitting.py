"""The compiled training functions that take the place of Keras' own in `fit`.

They run the model's own `train_step`, batch by batch and as many as Keras would, with noise after
each update, and on one of them the measurement.

    >>> made = functions(model, run)
    >>> logs, taken = made(iterator, planned, at=0)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tracker import distribution, updates, variables, wur
from tracker import instrument as instrument_lib
from tracker.instrument import Taken
from tracker.journal import Run


class Batches(NamedTuple):
    """What the batches of one call gave.

    Attributes:
      count: how many there were; fewer than asked for at the end of the data.
      loss: float32 [count], NaN where it is not known.
      choice: int32 [count], index of the stddev.
      applied: bool [count], whether the batch made an update.
      rows: float64 [variables, fields of wur.Measured] of the instrumented batch.
      number: int64, the step that it made.
      rate: float32, the learning rate that it used.
      waited: float64, seconds that it waited for its data.
    """

    count: Any
    loss: Any
    choice: Any
    applied: Any
    rows: Any
    number: Any
    rate: Any
    waited: Any


class Once:
    """A training function for one call, which puts Keras' own back as its first act."""

    def __init__(self, model: Any, original: Any, inner: Any, run: Callable):
        self._model, self.original, self._inner, self._run = model, original, inner, run

    def __call__(self, iterator: Any) -> Any:
        """Makes the call."""
        self._model.train_function = self.original
        return self._run(iterator, self._inner)

    @classmethod
    def install(cls, model: Any, run: Callable) -> None:
        """Makes `run(iterator, what it would have been)` the model's next training call."""
        inner = model.train_function
        model.train_function = cls(model, cls.original_of(model), inner, run)

    @classmethod
    def original_of(cls, model: Any) -> Any:
        """Keras' own training function of a model."""
        function = model.train_function
        return function.original if isinstance(function, cls) else function

    @classmethod
    def renew(cls, model: Any) -> None:
        """Has Keras make its own function anew, behind one of ours if there is one."""
        function = model.train_function
        model.make_train_function(force=True)
        if isinstance(function, cls):
            function.original, model.train_function = model.train_function, function


def build(model: Any, iterator: Any) -> None:
    """Builds a model that has no variables yet, for the data that it is about to be given."""
    import keras

    data = iterator.element_spec
    x = data[0] if isinstance(data, tuple) else data
    model(keras.tree.map_structure(lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), x))


def functions(
    model: Any, run: Run | None, before: Functions | None = None, at_random: Any = None
) -> Functions:
    """The functions for a model as it is now; those of before if nothing has changed.

    Args:
      model: compiled and built.
      run: says what noise to add and what to measure; None for neither.
      before: of an earlier `fit`.
      at_random: a `RandomUpdate` of the same `fit`, or None.

    Raises:
      ValueError: in one sentence: variables that cannot be followed, replicas of several processes.
    """
    if before is not None and before.fits(model, at_random):
        before.follow()
        return before
    instrument = instrument_lib.Instrument(None, [], None, [])
    trainable = list(model.trainable_variables)
    replicas = distribution.of(trainable)
    with replicas.scope():
        if run is not None:
            instrument = run.instrument(trainable, variables.paths(trainable, model))
        made = Functions(model, instrument, at_random, replicas)
    if before is not None:
        made.go_on(before, 0 if run is None else run.step)
    made.follow()
    return made


def renew_if_frozen(model: Any) -> None:
    """Has Keras make its function anew, if layers were frozen since its optimizer was built."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    trained = getattr(optimizer, "_trainable_variables", None)
    if optimizer.built and trained and not _same(trained, model.trainable_variables):
        Once.renew(model)


def _made_of(model: Any, at_random: Any) -> list[Any]:
    """What the functions of a model hold besides its variables; `compile` makes some of it anew."""
    return [
        model, model.optimizer, at_random, model.__dict__.get("train_step"), model._compile_loss,
        model._compile_metrics, model.jit_compile, model.steps_per_execution,
    ]  # fmt: skip


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether they are the same objects, and equal numbers."""
    return len(one) == len(other) and all(
        a is b or (isinstance(a, int) and a == b) for a, b in zip(one, other, strict=True)
    )


class Functions:
    """Compiles, when first called, the training functions of a model.

    Args:
      model: compiled and built.
      instrument: around each update.
      at_random: a `RandomUpdate` of the same `fit`, or None.
      replicas: that hold the model.

    Attributes:
      instrument: as given.
      knows_loss: whether a batch's loss can be seen; known once traced.
    """

    def __init__(
        self,
        model: Any,
        instrument: instrument_lib.Instrument,
        at_random: Any,
        replicas: distribution.Replicas,
    ):
        self._model = model
        self._keras: Any = None
        self._replicas = replicas
        self._at_random = at_random
        self._trainable = list(model.trainable_variables)
        self._made_of = _made_of(model, at_random)
        self._optimizer = optimizer = model.optimizer
        self._behind = 0  # updates of the run by optimizers before this one
        if not optimizer.built:
            optimizer.build(self._trainable)
        self.instrument = instrument
        self.knows_loss = False
        self._forward = bool(getattr(model, "_tracker_forward_only", False))
        self._own = tf.Variable(0, trainable=False, dtype=tf.int64) if self._forward else None
        self.accumulates = 1 if self._forward else updates.accumulates(optimizer)
        self.may_skip = not self._forward and updates.may_skip(optimizer)
        self.scaled = self.may_skip and hasattr(optimizer, "inner_optimizer")
        self._plain = tf.function(
            lambda iterator, planned: self._batches(iterator, planned, None), autograph=False
        )
        self._measured = tf.function(self._batches, autograph=False)

    def fits(self, model: Any, at_random: Any) -> bool:
        """Whether they are for the model as it is now."""
        return not self.stale and _same(self._made_of, _made_of(model, at_random))

    def go_on(self, before: Functions, step: int) -> None:
        """Counts on from functions before; a new optimizer begins at 0, and the run does not.

        Args:
          before: of the same run.
          step: that the run is at.
        """
        if before._own is not None and self._own is not None:
            self._own = before._own
        elif before._optimizer is self._optimizer:
            self._behind = before._behind
        else:
            self._behind = max(step - self.counts()[1], 0)

    def follow(self) -> None:
        """Notes which function of Keras' own it takes the place of."""
        self._keras = Once.original_of(self._model)

    @property
    def stale(self) -> bool:
        """Whether layers of the model were frozen or thawed since."""
        return not _same(self._trainable, self._model.trainable_variables)

    def refresh(self) -> bool:
        """Has Keras make its own function anew if it is one for other variables than the model's.

        Returns:
          Whether it was: layers were frozen or thawed, and the model was not compiled again.
        """
        if not self.stale or Once.original_of(self._model) is not self._keras:
            return False
        Once.renew(self._model)
        return True

    def counts(self) -> tuple[int, int]:
        """Batches that the optimizer was given, and updates that it applied."""
        if self._forward:
            done = int(self._counter())
            return done, done
        optimizer = self._model.optimizer
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        batches, done = int(tf.convert_to_tensor(inner._iterations)), int(updates.done(optimizer))
        return batches + self._behind * self.accumulates, done + self._behind

    def planned(self, step: int, batches: int) -> np.ndarray:
        """What a selector of the user's chooses for the steps to come, one a batch."""
        selector = self.instrument.selector
        plan = None if selector is None else selector.planned
        if plan is None:
            return np.zeros([batches], np.int32)
        return np.array([plan(step + i // self.accumulates + 1) for i in range(batches)], np.int32)

    def trace(self, iterator: Any) -> Any:
        """Traces the plain function; returns it as a `ConcreteFunction`."""
        batches = self._model.steps_per_execution
        return self._plain.get_concrete_function(iterator, np.zeros([batches], np.int32))

    def __call__(self, iterator: Any, planned: np.ndarray, at: int) -> tuple[Any, Batches]:
        """Runs one call.

        Args:
          iterator: of the data.
          planned: from `planned`.
          at: which batch to measure; -1 for none.

        Returns:
          Keras' logs, and what the batches gave.
        """
        if at < 0:
            return self._plain(iterator, planned)
        return self._measured(iterator, planned, np.int64(at))

    def _counter(self) -> tf.Tensor:
        if self._forward:
            counter = self._own if self._at_random is None else self._at_random.counter
            return tf.cast(tf.convert_to_tensor(counter), tf.int64)
        return updates.done(self._model.optimizer) + self._behind

    def _batches(self, iterator, planned, at) -> tuple[Any, Batches]:
        with self._replicas.scope():
            return self._call(iterator, planned, at)

    def _call(self, iterator, planned, at) -> tuple[Any, Batches]:
        if self._model.steps_per_execution == 1:
            with tf.name_scope("data"):
                start = tf.timestamp()
                with tf.control_dependencies([start] if at is not None else []):
                    data = iterator.get_next()
                with tf.control_dependencies(tf.nest.flatten(data, expand_composites=True)):
                    waited = tf.timestamp() - start if at is not None else _zero()
            logs, one = self._one(data, planned[0], at is not None)
            return logs, one._replace(
                count=tf.constant(1, tf.int64), waited=waited, loss=one.loss[tf.newaxis],
                choice=one.choice[tf.newaxis], applied=one.applied[tf.newaxis],
            )  # fmt: skip
        return _Several(self, iterator, planned, at).run()

    def _one(self, data, planned, measure: bool) -> tuple[Any, Batches]:
        """One batch, in the graph."""
        done, rate = self._counter(), self._rate()

        def take(choice):
            logs, loss, gradients = self._train_step(data)
            if self._at_random is not None:
                self._at_random.apply()
            elif self._own is not None:
                self._own.assign_add(1)
            applied = self._counter() > done if self.may_skip else None
            return Taken(loss, {} if self.may_skip else gradients, applied, logs)

        stepped = self.instrument.step(done + 1, take, planned, measure)
        taken, rows = stepped.taken, stepped.rows
        applied = tf.constant(True) if taken.applied is None else taken.applied
        if rows is None:
            rows = self.no_rows()
        zero = tf.constant(0, tf.int64)
        batch = Batches(zero, taken.loss, stepped.choice, applied, rows, done + 1, rate, _zero())
        return taken.details, batch

    def no_rows(self) -> tf.Tensor:
        """In place of what was not measured."""
        return tf.zeros([len(self.instrument.measured), len(wur.Measured._fields)], tf.float64)

    def _rate(self) -> tf.Tensor:
        if self._forward:
            return tf.constant(np.nan, tf.float32)
        return updates.learning_rate(self._model.optimizer)

    def _train_step(self, data) -> tuple[Any, Any, dict[int, Any]]:
        """The model's own training step: Keras' logs, the batch's loss, the gradients.

        Compiled by XLA if the model is, in a function of its own: noise and norms stay outside. The
        gradients are not seen then, as to return them could change how XLA fuses the step.
        """
        model = self._model
        step = model._autoconvert_optionals(model.train_step)

        def one(data):
            with tf.name_scope("forward"):
                logs = step(data)
            found = losses.pop(threading.get_ident(), None)
            self.knows_loss = found is not None
            unknown = tf.constant(np.nan, tf.float32)
            return logs, unknown if found is None else tf.cast(found, tf.float32)

        def whole(data):
            return self._replicas.each(one, data)

        if model.jit_compile:
            whole = tf.function(whole, jit_compile=True, reduce_retracing=True, autograph=False)
        optimizer = None if self._forward else model.optimizer
        with (
            instrument_lib.seen_gradients(optimizer) as gradients,
            _seen_losses(model) as losses,
        ):
            logs, loss = whole(data)
        return logs, loss, gradients


class _Several:
    """A call of several batches: plain ones, the instrumented one at its place, plain ones."""

    def __init__(self, functions: Functions, iterator, planned, at):
        self._functions = functions
        self._iterator = iterator
        self._planned = planned
        self._at = at
        self._most = functions._model.steps_per_execution

    def run(self) -> tuple[Any, Batches]:
        """Builds the graph of the call."""
        data = self._iterator.get_next_as_optional()
        logs, zeros = self._like(data)
        loss, choice, applied = (_array(d, self._most) for d in (tf.float32, tf.int32, tf.bool))
        none = tf.constant(0, tf.int64)
        start = zeros._replace(count=none, loss=loss, choice=choice, applied=applied)
        end = tf.constant(self._most, tf.int64)
        if self._at is None:
            logs, done, _ = self._loop(logs, start, data, end)
        else:
            logs, done, data = self._loop(logs, start, data, self._at)
            logs, done, data = self._instrumented(logs, done, data)
            logs, done, _ = self._loop(logs, done, data, end)
        with tf.control_dependencies([tf.debugging.Assert(done.count > 0, ["no data"])]):
            count = tf.cast(done.count, tf.int32)
        stacked = (a.stack()[:count] for a in (done.loss, done.choice, done.applied))
        return logs, Batches(done.count, *stacked, *done[4:])

    def _like(self, data) -> tuple[Any, Batches]:
        """Zeros like what one batch gives."""
        traced = tf.function(
            lambda d: self._functions._one(d, tf.constant(0), False), autograph=False
        ).get_concrete_function(data.get_value())
        return tf.nest.map_structure(
            lambda t: tf.zeros([n or 0 for n in t.shape], t.dtype), traced.structured_outputs
        )

    def _loop(self, logs, done: Batches, data, end):
        def one(logs, done, data):
            return self._take(logs, done, data, False)

        return tf.while_loop(
            lambda logs, done, data: tf.logical_and(done.count < end, data.has_value()),
            one,
            (logs, done, data),
            parallel_iterations=1,
        )

    def _instrumented(self, logs, done: Batches, data):
        return tf.cond(
            data.has_value(),
            lambda: self._take(logs, done, data, True),
            lambda: (logs, done, data),
        )

    def _take(self, _, done: Batches, data, measure: bool):
        i = tf.cast(done.count, tf.int32)
        logs, one = self._functions._one(data.get_value(), tf.gather(self._planned, i), measure)
        kept = one if measure else done
        after = Batches(
            done.count + 1, done.loss.write(i, one.loss), done.choice.write(i, one.choice),
            done.applied.write(i, one.applied), *kept[4:],
        )  # fmt: skip
        following = tf.cond(
            after.count < self._most, self._iterator.get_next_as_optional, lambda: data
        )
        return logs, after, following


def _array(dtype, size: int):
    return tf.TensorArray(dtype, size, element_shape=[])


def _zero() -> tf.Tensor:
    return tf.constant(0, tf.float64)


def batch_size(iterator: Any) -> float:
    """Examples a batch as far as the data say; NaN if they do not."""
    first = tf.nest.flatten(iterator.element_spec)[0]
    replicas = getattr(first, "_value_specs", (first,))
    sizes = [(s.shape[0] or 0) if s.shape.rank else 0 for s in replicas]
    return float(sum(sizes)) if all(sizes) else np.nan


@contextlib.contextmanager
def _seen_losses(model: Any) -> Iterator[dict[int, Any]]:
    """Notes the first loss that each replica's thread computes while a step is traced."""
    found: dict[int, Any] = {}
    compute = model.compute_loss

    def computed(*args, **kwargs):
        loss = compute(*args, **kwargs)
        found.setdefault(threading.get_ident(), loss)
        return loss

    own = model.__dict__.get("compute_loss")
    object.__setattr__(model, "compute_loss", computed)
    try:
        yield found
    finally:
        if own is None:
            object.__delattr__(model, "compute_loss")
        else:
            object.__setattr__(model, "compute_loss", own)
