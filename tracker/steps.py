"""The compiled step functions: a plain one, and one that also measures.

A *plain* step updates and adds noise. An *instrumented* step does the same and measures what it
did (`wur.measure`). They are two bodies, not one with a branch: on plain steps no norm, no snapshot
and no summary work exists in the graph. Both take their batch from the same iterator inside the
function, so that shapes, and with them the last bits of the weights, do not depend on how many
steps one call runs.

    >>> functions = Steps(model, rule, adder, selector, dataset.element_spec)
    >>> result = functions.plain(iterator, step=0, count=100)       # steps 1 to 100
    >>> result = functions.tracked(iterator, step=100, intervals=2, plain=49)  # 101, ..., 151, ...
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tracker import wur
from tracker.distribution import Replicas
from tracker.instrument import Instrument, Taken
from tracker.updates import Update


class Body(NamedTuple):
    """What a step is made of.

    Attributes:
      model: the Keras model, compiled with its loss and metrics.
      rule: the update rule.
      instrument: the noise after the update, and what is measured.
      stop: whether to end a call at the first loss that is not finite.
      jit: whether the update is compiled by XLA; noise and diagnostics never are.
      replicas: that hold the model.
    """

    model: Any
    rule: Any
    instrument: Instrument
    stop: bool = True
    jit: bool = False
    replicas: Replicas = Replicas()


class Plain(NamedTuple):
    """What the steps of a call returned, one element a step.

    Attributes:
      loss: float32, on the weights before the step; the mean over the step's batches.
      choice: int32, index of the chosen stddev.
      skipped: int64, batches without an update before the step's own.
      accepted: bool, whether the step was kept; None where every step is.
    """

    loss: Any
    choice: Any
    skipped: Any
    accepted: Any = None


class Instrumented(NamedTuple):
    """What instrumented steps returned beside `Plain`, one row a step.

    Attributes:
      measured: float64 [steps, variables, fields of wur.Measured].
      metrics: float32 [steps, metrics], on the batch, in the order of `Steps.metric_names`.
      learning_rate: float32, what the step used.
      input_wait: float64, seconds that the step waited for its (first) batch.
      seconds: float64, wall time of the whole step, its measuring included.
    """

    measured: Any
    metrics: Any
    learning_rate: Any
    input_wait: Any
    seconds: Any


class Result(NamedTuple):
    """What one call did; NumPy arrays.

    Attributes:
      steps: how many were done; fewer than asked if a loss was not finite or no batch updated.
      plain: of all steps, in order.
      instrumented: of the instrumented steps, None for `Steps.plain`.
      stuck: whether the last step gave up: `most_skipped` batches without an update.
    """

    steps: int
    plain: Plain
    instrumented: Instrumented | None
    stuck: bool


class Steps:
    """Compiles the two functions for a body and a kind of batch.

    Each is traced once, when first called, whatever the numbers of steps.

    Args:
      body: what a step is made of.
      element_spec: of the data set whose iterators will be given.
    """

    def __init__(self, body: Body, element_spec: Any):
        self.body = body
        self._iterator_spec = tf.data.IteratorSpec(element_spec)
        self.metric_names = _metric_names(body.model, element_spec)
        scalar = tf.TensorSpec([], tf.int64)
        indices = tf.TensorSpec([None], tf.int32)
        self.plain_function = tf.function(
            self._plain,
            input_signature=[self._iterator_spec, scalar, scalar, indices],
            autograph=False,
        )
        self.tracked_function = tf.function(
            self._tracked,
            input_signature=[self._iterator_spec, scalar, scalar, scalar, indices],
            autograph=False,
        )

    def plain(self, iterator: Any, step: int, count: int) -> Result:
        """Runs `count` plain steps after step `step`."""
        planned = self._planned(step, count)
        done, stuck, plain = self.plain_function(iterator, step, count, planned)
        return _result(done, stuck, plain)

    def tracked(self, iterator: Any, step: int, intervals: int, plain: int) -> Result:
        """Runs, `intervals` times, one instrumented step and then `plain` plain ones."""
        planned = self._planned(step, intervals * (plain + 1))
        done, stuck, every, rows = self.tracked_function(iterator, step, intervals, plain, planned)
        return _result(done, stuck, every, rows, plain + 1)

    def _planned(self, step: int, count: int) -> np.ndarray:
        selector = self.body.instrument.selector
        plan = None if selector is None else selector.planned
        if plan is None:
            return np.zeros([0], np.int32)
        return np.array([plan(step + i + 1) for i in range(count)], np.int32)

    def _plain(self, iterator, step, count, planned):
        with self.body.replicas.scope():
            state = self._plain_steps(iterator, step, planned, _start(count), count)
        done, _, stuck, arrays = state
        return done, stuck, _stack(arrays)

    def _plain_steps(self, iterator, step, planned, state, end):
        """Plain steps until `end` are done in this call, or one says to stop."""

        def one(done, ok, stuck, arrays):
            result = _one_step(self.body, iterator, step, done, planned, None)
            return _after(self.body, done, stuck, arrays, result)

        return tf.while_loop(
            lambda done, ok, stuck, arrays: tf.logical_and(done < end, ok),
            one,
            state,
            parallel_iterations=1,
        )

    def _tracked(self, iterator, step, intervals, plain, planned):
        def interval(number, state, rows):
            done, _, stuck, every = state
            one = _one_step(self.body, iterator, step, done, planned, self.metric_names)
            state = _after(self.body, done, stuck, every, one)
            rows = _write(rows, number, one.instrumented)
            end = (number + 1) * (plain + 1)
            return number + 1, self._plain_steps(iterator, step, planned, state, end), rows

        variables = len(self.body.instrument.measured)
        shapes = [variables, len(wur.Measured._fields)], [len(self.metric_names)]
        number = tf.constant(0, tf.int64)
        state = _start(intervals * (plain + 1))
        with self.body.replicas.scope():
            _, state, rows = tf.while_loop(
                lambda number, state, rows: tf.logical_and(number < intervals, state[1]),
                interval,
                (number, state, _rows(intervals, *shapes)),
                parallel_iterations=1,
            )
        done, _, stuck, every = state
        return done, stuck, _stack(every), _stack(rows)


class _One(NamedTuple):
    """One step, inside the graph."""

    plain: Plain
    instrumented: Instrumented | None
    applied: tf.Tensor | None  # None: always


def _one_step(body: Body, iterator, step, done, planned, metric_names) -> _One:
    """One step after `step + done`; instrumented if there are metric names to report."""
    measure = metric_names is not None
    selector, rule = body.instrument.selector, body.rule
    plan = None if selector is None or selector.planned is None else tf.gather(planned, done)
    number = step + done + 1

    def accepts(taken: Taken):
        return rule.accepts(*taken.details.batch, taken.loss, number)

    stepped = body.instrument.step(
        number, lambda choice: _update(body, iterator, number, choice, measure), plan, measure,
        rule.perturbs, accepts if rule.judges else None,
    )  # fmt: skip
    taken, details = stepped.taken, stepped.taken.details
    plain = Plain(taken.loss, stepped.choice, details.skipped, stepped.accepted)
    if not measure:
        return _One(plain, None, taken.applied)
    with tf.name_scope("diagnostics"):
        metrics = _batch_metrics(body.model, details.batch, details.outputs, metric_names)
        with tf.control_dependencies([stepped.rows, metrics]):
            seconds = tf.timestamp() - details.started
    rows = Instrumented(stepped.rows, metrics, details.rate, details.waited, seconds)
    return _One(plain, rows, taken.applied)


class _Details(NamedTuple):
    """What it took to move the weights once."""

    outputs: Any
    batch: Any  # the first one
    skipped: tf.Tensor
    started: tf.Tensor | None
    waited: tf.Tensor | None
    rate: tf.Tensor | None


def _update(body: Body, iterator, number, choice, timed: bool) -> Taken:
    """The update of one step: of one batch, or of as many as it takes to move the weights."""
    rate = None
    if timed:
        with tf.name_scope("diagnostics/before"):
            rate = body.rule.learning_rate()
    start = body.rule.updates_done() if body.rule.may_skip else None
    batch, started, waited = _next(iterator, timed)
    stddev = None if choice is None else body.instrument.stddev(choice)
    update = _compiled(body, timed or body.instrument.touched)
    first = update(*batch, number, stddev)
    if start is None:
        details = _Details(first.outputs, batch, tf.constant(0, tf.int64), started, waited, rate)
        return Taken(first.loss, _by_variable(body.rule, first), None, details)

    def one(batches, applied, total):
        more = update(*_next(iterator, False)[0], number, stddev)
        return batches + 1, body.rule.updates_done() > start, total + more.loss

    batches, applied, total = tf.while_loop(
        lambda batches, applied, total: ~applied & (batches < body.rule.most_skipped),
        one,
        (tf.constant(1, tf.int64), body.rule.updates_done() > start, first.loss),
        parallel_iterations=1,
    )
    skipped = batches - tf.cast(applied, tf.int64)
    details = _Details(first.outputs, batch, skipped, started, waited, rate)
    # The gradients would be those of the first of several batches.
    return Taken(total / tf.cast(batches, tf.float32), {}, applied, details)


def _compiled(body: Body, whole: bool):
    """The rule's update, by XLA if asked; of plain steps nothing but the loss leaves it then."""

    def update(x, y, number, stddev):
        made = body.rule.update(x, y, number, stddev, whole)
        return made if whole else made._replace(outputs=None, gradients=None)

    return tf.function(update, jit_compile=True, autograph=False) if body.jit else update


def _by_variable(rule: Any, update: Update) -> dict[int, Any]:
    if update.gradients is None:
        return {}
    return {id(v): g for v, g in zip(rule.trainable, update.gradients, strict=True)}


def _next(iterator, timed: bool):
    """The next batch, and for a timed one when it was asked for and how long that took."""
    with tf.name_scope("data"):
        if not timed:
            return next(iterator), None, None
        start = tf.timestamp()
        with tf.control_dependencies([start]):
            batch = next(iterator)
        with tf.control_dependencies(tf.nest.flatten(batch)):
            return batch, start, tf.timestamp() - start


def _metric_names(model, element_spec) -> list[str]:
    """Builds the model's metrics, and names what they report for a batch."""
    from keras import tree

    x, y = tree.map_structure(
        lambda spec: tf.zeros([1 if d is None else d for d in spec.shape], spec.dtype),
        tuple(element_spec),
    )

    def build():
        return {
            n: v
            for n, v in model.compute_metrics(x, y, model(x, training=False)).items()
            if n != "loss"
        }

    # Metrics make their variables when first used; tracing uses them in a tenth of the time that
    # running takes.
    names = list(tf.function(build, autograph=False).get_concrete_function().structured_outputs)
    model.reset_metrics()
    return names


def _batch_metrics(model, batch, outputs, names):
    if not names:
        return tf.zeros([0], tf.float32)
    with tf.name_scope("metrics"):
        model.reset_metrics()
        found = model.compute_metrics(batch[0], batch[1], outputs)
        values = [tf.cast(found[n], tf.float32) for n in names]
        with tf.control_dependencies(values):
            model.reset_metrics()
        return tf.stack(values)


def _array(dtype, size, shape=()):
    return tf.TensorArray(dtype, tf.cast(size, tf.int32), element_shape=list(shape))


def _start(size):
    """State of a call before its first step: done, ok, stuck, and a vector for each of `Plain`."""
    types = tf.float32, tf.int32, tf.int64, tf.bool
    arrays = Plain(*(_array(t, size) for t in types))
    return tf.constant(0, tf.int64), tf.constant(True), tf.constant(False), arrays


def _rows(size, measured_shape, metrics_shape) -> Instrumented:
    return Instrumented(
        _array(tf.float64, size, measured_shape),
        _array(tf.float32, size, metrics_shape),
        _array(tf.float32, size),
        _array(tf.float64, size),
        _array(tf.float64, size),
    )


def _write(arrays, at, values):
    at = tf.cast(at, tf.int32)
    return type(arrays)(*(a.write(at, v) for a, v in zip(arrays, values, strict=True)))


def _stack(arrays):
    return type(arrays)(*(a.stack() for a in arrays))


def _after(body: Body, done, stuck, arrays: Plain, one: _One):
    """Loop state after a step: a step that gave up does not count, and ends the call."""
    arrays = _write(arrays, done, one.plain)
    ok = tf.math.is_finite(one.plain.loss) if body.stop else tf.constant(True)
    if one.applied is None:
        return done + 1, ok, stuck, arrays
    done = done + tf.cast(one.applied, tf.int64)
    return done, tf.logical_and(ok, one.applied), tf.logical_not(one.applied), arrays


def _result(done, stuck, plain: Plain, rows: Instrumented | None = None, every=1) -> Result:
    steps = int(done)
    plain = Plain(*(a.numpy()[:steps] for a in plain))
    if rows is not None:
        intervals = -(-steps // every)
        rows = Instrumented(*(a.numpy()[:intervals] for a in rows))
    return Result(steps, plain, rows, bool(stuck))
