"""The contestants: training with noise and diagnostics, each written as its users write it.

A contestant is made for a size of model and then runs so many steps at a time: `run(steps)`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from etils import epath

import tracker
from tracker import config as config_lib
from tracker import data, experiment, noise, recorder, summaries

STDDEVS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
BATCH = 128
WIDTHS = {"small": 64, "large": 1024}  # hidden units: 9 thousand and 1.1 million parameters


def model(size: str) -> keras.Model:
    """Two hidden layers on the digits."""
    keras.utils.set_random_seed(0)
    width = WIDTHS[size]
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input([8, 8]),
            layers.Flatten(),
            layers.Dense(width, "relu"),
            layers.Dense(width, "relu"),
            layers.Dense(10),
        ]
    )


def small(input_shape, classes):
    """The small model, as `--model=benchmarks.contestants:small`."""
    del input_shape, classes
    return model("small")


def large(input_shape, classes):
    """The large model, as `--model=benchmarks.contestants:large`."""
    del input_shape, classes
    return model("large")


def folder() -> epath.Path:
    """A new directory for event files."""
    return epath.Path(tempfile.mkdtemp(prefix="tracker-benchmark-"))


def batches() -> tf.data.Dataset:
    """Endless batches of the digits, as a tutorial feeds them."""
    digits = data.load("digits", validation_fraction=0.0)
    whole = tf.data.Dataset.from_tensor_slices((digits.x, digits.y))
    return whole.shuffle(len(digits.x), seed=0).repeat().batch(BATCH).prefetch(2)


def loss_function():
    """Cross-entropy of logits."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Tracked:
    """tracker's own loop: many steps a call, diagnostics on summary steps, events on disk."""

    def __init__(self, size: str, summary_every: int, most: int = 0, **settings: Any):
        given = {
            "model": f"benchmarks.contestants:{size}", "batch_size": BATCH, "steps": 10**9,
            "summary_every": summary_every, "profile_steps": "", "checkpoint_every": "0",
            "validate_every": 0, "stddevs": STDDEVS, **settings,
        }  # fmt: skip
        noisy = given.pop("noisy", True)
        config = config_lib.validate(config_lib.Config(**given))
        self.experiment = experiment.assemble(config, noise_=noisy)
        self._iterator = iter(self.experiment.batches())
        self._step = 0
        self._most = most or (400 if size == "small" else 16)
        functions = self.experiment.functions
        self.recorder = recorder.Recorder(
            summaries.EventWriter(folder()), self.experiment.instrument.names,
            functions.metric_names, config.stddevs, config.wur, BATCH,
        )  # fmt: skip
        self.run(3)

    def run(self, steps: int) -> None:
        end = self._step + steps
        while self._step < end:
            call = self.experiment.schedule.call(self._step, min(self._most, end - self._step))
            functions = self.experiment.functions
            if call.intervals:
                result = functions.tracked(self._iterator, self._step, call.intervals, call.plain)
            else:
                result = functions.plain(self._iterator, self._step, call.plain)
            self.recorder.call(self._step, call, result, 0.0, 1.0)
            self._step += result.steps


class Steps:
    """tracker's compiled steps alone, without events: for the cost of noise."""

    def __init__(self, size: str, **settings: Any):
        self._tracked = Tracked(size, 0, **settings)
        self.experiment = self._tracked.experiment
        self._iterator = iter(self.experiment.batches())
        self._step = 0
        self.run(3)

    def run(self, steps: int) -> None:
        self.experiment.functions.plain(self._iterator, self._step, steps)
        self._step += steps


class PerVariableNormal(noise.Stateless):
    """TensorFlow's `stateless_normal` for each variable, whatever its size."""

    def draw(self, name: str, counter_: tf.Tensor, shape: Any) -> tf.Tensor:
        seed = tf.stack([noise.key(self._seed, name), tf.cast(counter_[1], tf.int64)])
        return tf.random.stateless_normal(shape, seed, alg="philox")


class EagerLoop:
    """(a) A tutorial's loop: eager, noise for each variable after `apply_gradients`."""

    def __init__(self, size: str):
        self._model, self._loss = model(size), loss_function()
        self._optimizer = keras.optimizers.Adam(1e-3)
        self._batches = iter(batches())
        self.run(1)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            x, y = next(self._batches)
            with tf.GradientTape() as tape:
                loss = self._loss(y, self._model(x, training=True))
            variables = self._model.trainable_variables
            self._optimizer.apply_gradients(
                zip(tape.gradient(loss, variables), variables, strict=True)
            )
            stddev = np.random.choice(STDDEVS)
            for variable in variables:
                variable.assign_add(tf.random.normal(variable.shape, stddev=stddev))


class NoiseCallback(keras.callbacks.Callback):
    """Noise as a Keras callback adds it."""

    def on_train_batch_end(self, batch, logs=None):
        stddev = np.random.choice(STDDEVS)
        for variable in self.model.trainable_variables:
            variable.assign_add(tf.random.normal(variable.shape, stddev=stddev))


class KerasFit:
    """(b) `fit` with the TensorBoard callback at `update_freq=1` and `histogram_freq=1`."""

    def __init__(self, size: str):
        self._model = model(size)
        self._model.compile(keras.optimizers.Adam(1e-3), loss_function(), metrics=["accuracy"])
        self._data = batches()
        self._callbacks = [
            keras.callbacks.TensorBoard(str(folder()), update_freq=1, histogram_freq=1),
            NoiseCallback(),
        ]
        self._epoch = 0
        self.run(2)

    def run(self, steps: int) -> None:
        self._model.fit(
            self._data, steps_per_epoch=steps, epochs=self._epoch + 1, initial_epoch=self._epoch,
            callbacks=self._callbacks, verbose=0,
        )  # fmt: skip
        self._epoch += 1


class Fit:
    """`fit` without noise: alone, or followed by tracker's callback.

    Args:
      size: of the model.
      followed: whether by `tracker.keras.Tracker`, whose only summary step is the first.
    """

    def __init__(self, size: str, followed: bool):
        self._model = model(size)
        self._model.compile(keras.optimizers.Adam(1e-3), loss_function(), metrics=["accuracy"])
        self._data = batches()
        self._callbacks: list[Any] = []
        if followed:
            self._callbacks = [
                tracker.keras.Tracker(str(folder()), summary_every=10**9, verbose=False)
            ]
        self.run(2)

    def run(self, steps: int) -> None:
        self._model.fit(
            self._data, steps_per_epoch=steps, verbose=0, callbacks=list(self._callbacks)
        )


class ZeroRate:
    """(g) Updates at random as a recipe has them: a learning rate of 0, and then `assign_add`."""

    def __init__(self, size: str):
        self._model = model(size)
        self._model.compile(keras.optimizers.SGD(0.0), loss_function(), metrics=["accuracy"])
        self._batches = iter(batches())
        self.run(1)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._model.train_on_batch(*next(self._batches))
            for variable in self._model.trainable_variables:
                variable.assign_add(tf.random.uniform(variable.shape, -1e-3, 1e-3))


class ForwardOnly:
    """The same by tracker's callback in a `fit` that computes no gradient.

    Args:
      size: of the model.
      source: of the numbers.
    """

    def __init__(self, size: str, source: str):
        self._model = model(size)
        self._model.compile(
            keras.optimizers.SGD(0.0), loss_function(), metrics=["accuracy"],
            steps_per_execution=32,
        )  # fmt: skip
        tracker.keras.forward_only(self._model)
        self._update = tracker.keras.RandomUpdate(-1e-3, 1e-3, source=source)
        self._data = batches()
        self.run(1)

    def run(self, steps: int) -> None:
        self._model.fit(self._data, steps_per_epoch=steps, verbose=0, callbacks=[self._update])


class Published:
    """A compiled step a call, with the ratio computed and written in one of the published ways.

    Args:
      size: of the model.
      way: 'none'; 'allennlp' (copies of all parameters on the host before and after, on logging
        steps); 'lczero' (copies on the device outside the step); 'always' (in the graph of every
        step, written on logging steps); 'record_if' (`tf.summary.record_if` inside one function).
      every: steps between logging steps.
    """

    def __init__(self, size: str, way: str, every: int):
        self._model, self._loss = model(size), loss_function()
        self._optimizer = keras.optimizers.Adam(1e-3)
        self._optimizer.build(self._model.trainable_variables)
        self._batches = iter(batches())
        self._writer = tf.summary.create_file_writer(str(folder()))
        self._every = every
        self._step = tf.Variable(0, dtype=tf.int64)
        self._names = [v.path for v in self._model.trainable_variables]
        self._logging: Callable = getattr(self, f"_{way}")
        self._function = tf.function(
            {"always": self._with_ratio, "record_if": self._with_summaries}.get(way, self._plain)
        )
        self.run(2)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._step.assign_add(1)
            self._logging(next(self._batches), int(self._step) % self._every == 0)

    def _plain(self, x, y):
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._loss(y, self._model(x, training=True))
        self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def _with_ratio(self, x, y):
        before = [tf.identity(v.value) for v in self._model.trainable_variables]
        loss = self._plain(x, y)
        after = [v.value for v in self._model.trainable_variables]
        return loss, [tf.norm(b - a) / tf.norm(a) for a, b in zip(before, after, strict=True)]

    def _with_summaries(self, x, y):
        with self._writer.as_default(), tf.summary.record_if(self._step % self._every == 0):
            loss, ratios = self._with_ratio(x, y)
            for name, ratio in zip(self._names, ratios, strict=True):
                tf.summary.scalar(f"update_ratios/{name}", ratio, step=self._step)
        return loss

    def _none(self, batch, logging):
        self._function(*batch)

    def _allennlp(self, batch, logging):
        if not logging:
            self._function(*batch)
            return
        before = [v.numpy() for v in self._model.trainable_variables]
        self._function(*batch)
        after = [v.numpy() for v in self._model.trainable_variables]
        self._write(
            np.linalg.norm(b - a) / (np.linalg.norm(b) + 1e-13)
            for a, b in zip(before, after, strict=True)
        )

    def _lczero(self, batch, logging):
        if not logging:
            self._function(*batch)
            return
        before = [v.value.read_value() for v in self._model.trainable_variables]
        self._function(*batch)
        after = [v.value.read_value() for v in self._model.trainable_variables]
        self._write(tf.norm(b - a) / tf.norm(a) for a, b in zip(before, after, strict=True))

    def _always(self, batch, logging):
        _, ratios = self._function(*batch)
        if logging:
            self._write(ratios)

    def _record_if(self, batch, logging):
        self._function(*batch)

    def _write(self, ratios):
        with self._writer.as_default(step=self._step):
            for name, ratio in zip(self._names, ratios, strict=True):
                tf.summary.scalar(f"update_ratios/{name}", ratio)


class Writing:
    """(h) Ten scalars a step, written and flushed every 100 steps, by one of the writers."""

    VALUES = 10

    def __init__(self, way: str):
        self._way = way
        self._step = 0
        self._tags = [f"tag/{i}" for i in range(self.VALUES)]
        place = folder()
        if way == "tracker":
            self._writer: Any = summaries.EventWriter(place)
        elif way == "tensorboardX":
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(str(place))
        else:
            self._writer = tf.summary.create_file_writer(str(place))
        self.run(2)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._step += 1
            getattr(self, f"_{self._way.replace('.', '_')}")(self._step)
            if self._step % 100 == 0:
                self._writer.flush()

    def _tracker(self, step):
        self._writer.scalars(step, dict.fromkeys(self._tags, 0.5))

    def _tensorboardX(self, step):  # noqa: N802 - the name of the library
        for tag in self._tags:
            self._writer.add_scalar(tag, 0.5, step)

    def _tf_summary(self, step):
        with self._writer.as_default(step=step):
            for tag in self._tags:
                tf.summary.scalar(tag, 0.5)
