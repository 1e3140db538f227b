"""Noise in a TF1 graph: a train op that applies an optimizer's update and then adds noise.

The numbers are those of `tracker.noise`, a function of (seed, variable, step), so the three
strategies agree bit for bit with each other, and their noise with that of the app.

    opt = tf.compat.v1.train.AdamOptimizer()
    noisy = tracker.v1.noisy_train('routes', opt, opt.compute_gradients(loss), stddevs=(0., 1e-3))
    sess.run(noisy.train)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tracker import noise, tags, variables

_COLLECTION = "tracker/noised"


class NoisyTrain(NamedTuple):
    """A train op with noise; one `sess.run(train)` is one step.

    Attributes:
      train: applies the update, then adds the noise.
      assign: what puts the step's noise in place, of which `train` runs it itself: the assignment
        of the scalar stddev variable (`scalar`), or of all noise variables (`buffered`); None for
        `routes`.
      step: number of the step, from 1, an int64 scalar.
      choice: index of the step's stddev, an int32 scalar.
      stddev: the step's stddev, a float32 scalar.
      state: variables that the strategy holds beside the model.
    """

    train: tf.Operation
    assign: tf.Operation | None
    step: tf.Tensor
    choice: tf.Tensor
    stddev: tf.Tensor
    state: list[tf.Variable]


class Noised(NamedTuple):
    """What the ratio needs to know of a variable with noise."""

    variable: Any
    gradient: Any
    update: tf.Operation  # of the optimizer; the noise comes after it
    stddev: tf.Tensor
    operations: int  # how many the graph had by then


def noisy_train(
    strategy: str,
    optimizer: Any,
    grads_and_vars: Sequence[tuple[Any, Any]],
    stddevs: Sequence[float],
    choice: Callable[[tf.Tensor], tf.Tensor] | None = None,
    seed: int = 0,
    pattern: str = "",
    distribution: str = "normal",
    global_step: Any = None,
    name: str = "noise",
) -> NoisyTrain:
    """Makes a train op with noise, in the default graph.

    Args:
      strategy: 'scalar', one variable holds the stddev at which the noise is drawn; 'routes', a
        branch of the graph for each stddev, of which one runs; 'buffered', a variable beside each
        trainable one holds its noise.
      optimizer: of `tf.compat.v1.train`.
      grads_and_vars: from `optimizer.compute_gradients`; may have been changed since.
      stddevs: to choose from, in units of the weights.
      choice: from the number of the step (int64 scalar, from 1) to the index of its stddev (int32
        scalar): a function of the graph, or one that returns a placeholder. Default: at random,
        each as often, as the app's `--selector=random` with this seed.
      seed: of the noise and the choice.
      pattern: regular expression over variable names: which get noise.
      distribution: 'normal' or 'uniform', of the same stddev.
      global_step: variable that counts the steps; default: one of ours.
      name: scope of the ops that add noise.

    Raises:
      ValueError: in one sentence: an unknown strategy, no stddev, a pattern that matches nothing.
    """
    if strategy not in noise.STRATEGIES or not stddevs:
        raise ValueError(
            f"noisy_train: strategy={strategy} with {len(stddevs)} stddevs; should be one of "
            f"{', '.join(noise.STRATEGIES)}, with at least one"
        )
    pairs = [(g, v) for g, v in grads_and_vars if getattr(v, "trainable", True)]
    names = variables.paths([v for _, v in pairs])
    chosen = variables.matching(names, pattern)
    if not chosen:
        raise ValueError(f"noisy_train: pattern={pattern} matches none of {', '.join(names)}")
    with tf.name_scope(f"{name}/"):
        step, counted = _step(global_step)
        with tf.name_scope("selector"):
            index = choice(step) if choice else _random(seed, len(stddevs), step)
            stddev = tf.gather(tf.constant(list(stddevs), tf.float32), index)
    with tf.control_dependencies([step]):
        update = optimizer.apply_gradients(grads_and_vars, global_step=counted)
    begun = len(update.graph.get_operations())
    targets = [_Target(names[i], pairs[i][1], update) for i in chosen]
    for i in chosen:
        known = Noised(pairs[i][1], pairs[i][0], update, stddev, begun)
        update.graph.add_to_collection(_COLLECTION, known)
    source = noise.Stateless(seed, distribution)
    draw = _Draw(source, noise.counter(step))
    with tf.name_scope(f"{name}/"):
        if strategy == "routes":
            done, assign, state = _routes(targets, draw, list(stddevs), index), None, []
        else:
            make = _scalar if strategy == "scalar" else _buffered
            done, assign, state = make(targets, draw, stddev)
        train = tf.group(*done, *([] if assign is None else [assign]), update, name="train")
    return NoisyTrain(train, assign, step, index, stddev, state)


def noised_in(graph: Any, operations: int) -> dict[int, Noised]:
    """Variables that got noise after the graph had so many operations, by their id."""
    known = graph.get_collection(_COLLECTION)
    return {id(n.variable): n for n in known if n.operations > operations}


class _Target(NamedTuple):
    name: str
    variable: Any
    update: tf.Operation


class _Draw(NamedTuple):
    """Draws the unit-variance numbers of a step."""

    source: noise.Source
    counter: tf.Tensor

    def __call__(self, target: _Target, stddev: tf.Tensor) -> tf.Tensor:
        numbers = self.source.draw(target.name, self.counter, target.variable.shape)
        wide = target.variable.dtype.base_dtype == tf.float64
        return tf.cast(numbers * stddev, tf.float64 if wide else tf.float32)


def _step(global_step: Any) -> tuple[tf.Tensor, Any]:
    """The number of the step, read before anything moves, and the variable that counts it."""
    if global_step is None:
        global_step = tf.compat.v1.get_variable(
            "tracker/step", [], tf.int64, tf.compat.v1.zeros_initializer(), trainable=False,
            use_resource=True,
        )  # fmt: skip
    return tf.cast(global_step.read_value(), tf.int64) + 1, global_step


def _random(seed: int, count: int, step: tf.Tensor) -> tf.Tensor:
    return noise.integer(noise.key(seed, "selector"), noise.counter(step), count)


def _state(name: str, shape: Any, dtype: tf.DType) -> tf.Variable:
    return tf.compat.v1.get_variable(
        f"tracker/{name}", shape, dtype, tf.compat.v1.zeros_initializer(), trainable=False,
        use_resource=True,
    )  # fmt: skip


def _scalar(targets, draw, stddev):
    held = _state("stddev", [], tf.float32)
    assign = held.assign(stddev, read_value=False, name="assign")
    with tf.control_dependencies([assign]):
        now = held.read_value()
    return [_add(t, draw(t, now)) for t in targets], assign, [held]


def _buffered(targets, draw, stddev):
    state, assigned, done = [], [], []
    for target in targets:
        drawn = draw(target, stddev)
        buffer = _state(f"noise/{target.name}", target.variable.shape, drawn.dtype)
        assign = buffer.assign(drawn, read_value=False)
        with tf.control_dependencies([assign]):
            done.append(_add(target, buffer.read_value()))
        state.append(buffer)
        assigned.append(assign)
    return done, tf.group(*assigned, name="assign"), state


def _routes(targets, draw, stddevs, index):
    """A branch for each stddev. They stand in the graph itself, as TF1's own branches do.

    An op runs only if all that it waits for has run, and of the outputs of a switch one is alive:
    what waits for output i runs on steps whose choice is i.
    """
    done = []
    with tf.name_scope("route"):
        for number, stddev in enumerate(stddevs):
            _, alive = tf.raw_ops.Switch(data=index, pred=tf.equal(index, number))
            with tf.name_scope(f"route_{number}_{tags.number(stddev)}"):
                gate = tf.identity(alive, name="chosen")
                with tf.control_dependencies([gate]):
                    chosen = tf.constant(stddev, tf.float32)
                    added = [_add(t, draw(t, chosen)) for t in targets]
                with tf.control_dependencies(added):
                    done.append(tf.identity(gate, name="done"))
        merged = tf.raw_ops.Merge(inputs=done, name="chosen")
    return [merged.output.op]


def _add(target: _Target, drawn: tf.Tensor) -> tf.Operation:
    """Adds noise to a variable after its update; its constraint holds again afterwards."""
    variable = target.variable
    with tf.control_dependencies([target.update]):
        if drawn.dtype == variable.dtype.base_dtype:
            added = variable.assign_add(drawn, read_value=False)
        else:
            value = tf.cast(variable.read_value(), drawn.dtype) + drawn
            added = variable.assign(tf.cast(value, variable.dtype), read_value=False)
    if getattr(variable, "constraint", None) is None:
        return added
    with tf.control_dependencies([added]):
        held = variable.constraint(variable.read_value())
        return variable.assign(held, read_value=False)
