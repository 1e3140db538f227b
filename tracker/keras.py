"""Callbacks for `model.fit`: what each update does to each layer, noise, updates at random.

    >>> model.fit(x, y, callbacks=[tracker.keras.Tracker('logdir', noise=(0.0, 1e-3))])

`Tracker` gives `fit` another training function for the one call that holds a summary step, and
puts Keras' own back as that function's first act, so other calls cost nothing more. With noise
every call is by a function of ours, around the model's own `train_step`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tracker import fitting, noise, updates, variables
from tracker.journal import Run

_FORWARD_ONLY = "_tracker_forward_only"
_AT_RANDOM = "_tracker_random_update"


class Tracker(keras.callbacks.Callback):
    """Writes a run directory while a model is fitted, and adds noise to its updates if asked.

    The step axis is the optimizer's count of applied updates, over all calls of `fit`. The model is
    left as it was found. One callback is for one model, and goes on with its run when `fit` is
    called again.

    Args:
      logdir: the directory of all runs.
      name: of the run; None for one made of the time.
      **settings: of `tracker.Run`: summary_every, noise, wur, wur_variables, profile_steps,
        log_every, steps, hparams, resume, verbose.

    Raises:
      ValueError: in one sentence: a setting that cannot be; and when `fit` begins, a model that
        this callback cannot follow. No directory was made then.

    Attributes:
      run: the `tracker.Run`; its `log` writes values of one's own.
    """

    def __init__(self, logdir: Any, name: str | None = None, **settings: Any):
        super().__init__()
        self.run = Run(logdir, name, **settings)
        self._followed: Any = None
        self._functions: fitting.Functions | None = None
        self._step = 0
        self._losses: list[float] = []  # of the batches since the last update

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Checks the model."""
        model = self.model
        if self._followed is not None and model is not self._followed:
            raise ValueError(
                f"This Tracker follows the model {self._followed.name}, and cannot follow "
                f"{model.name} as well; make another Tracker for it."
            )
        if model.run_eagerly or tf.config.functions_run_eagerly():
            raise ValueError(
                f"The model {model.name} runs eagerly; Tracker measures compiled training: compile "
                "the model with run_eagerly=False."
            )
        self._followed = model
        self._prepared = False

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Counts anew: the last call of an epoch may have had fewer batches."""
        self._epoch = epoch
        if self._prepared:
            self._synchronise()
        elif self.model.built:
            self._prepare()

    def _prepare(self) -> None:
        """Makes the functions for the model as it is, or keeps those of the last `fit`."""
        model, run = self.model, self.run
        if self._functions is None:
            fitting.renew_if_frozen(model)
        self._unannounced = self._functions is not None and self._functions.refresh()
        self._functions = fitting.functions(model, run, self._functions, _at_random(model))
        self._prepared = True
        self._synchronise()
        if run.status == "running":  # an earlier `fit` ended by an error
            run.read()
            run.step = self._step

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Puts a function of ours in place, if the next call has something to do for it."""
        functions = self._functions
        if functions is None or not self._prepared:  # the model is built by its first batch
            fitting.Once.install(self.model, self._call)
            return
        if batch == 0 and functions.stale:  # a callback froze a layer: as if by another `fit`
            self.run.end("completed")
            self._prepare()
            functions = self._functions
            assert functions is not None
        if functions.scaled:
            self._synchronise()
        else:
            self._batches += self._called
            self._step = self._batches // functions.accumulates
        self._called = self.model.steps_per_execution
        if self.run.status != "running" or self.run.noise is not None or self._due(self._called):
            fitting.Once.install(self.model, self._call)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Writes the epoch's running means, and its validation."""
        if self.run.status != "running":
            return
        self._synchronise()
        self._catch_up(self._step)
        logs = dict(logs or {})
        seen = {f"epoch/{k}": v for k, v in logs.items() if not k.startswith("val_")}
        self.run.scalars(_numbers(seen))
        found = {k.removeprefix("val_"): v for k, v in logs.items() if k.startswith("val_")}
        if found:
            self.run.validation(_numbers(found))
        self._loss = float(logs.get("loss", 0.0))

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Ends the run; another `fit` goes on with it."""
        if self.run.status != "running":
            return
        if np.isfinite(self._loss):
            self.run.end("completed")
        else:
            self.run.end("diverged", f"the loss of the last epoch is {self._loss:g}")

    _batches = 0  # that the optimizer has been given, all told
    _called = 0  # batches of the call that is going on
    _epoch = 0
    _loss = 0.0  # of the last epoch

    def _synchronise(self) -> None:
        assert self._functions is not None
        self._batches, self._step = self._functions.counts()
        self._called = 0

    def _due(self, calls: int) -> bool:
        """Whether the next call holds a summary step, or stands in a profile window."""
        first, last = self._step + 1, self._step + self._updates(calls)
        return self._at(calls) >= 0 or self.run.in_window(first, max(first, last))

    def _updates(self, batches: int) -> int:
        assert self._functions is not None
        return (self._batches + batches) // self._functions.accumulates - self._step

    def _at(self, batches: int) -> int:
        """Which batch of the next call makes a summary step; -1 if none does."""
        assert self._functions is not None
        every = self._functions.accumulates
        for i in range(batches):
            number, left = divmod(self._batches + i + 1, every)
            if self._functions.scaled:
                number = self._step + i // every + 1
            if not left and self.run.due(number):
                return i
        return -1

    def _call(self, iterator: Any, inner: Callable) -> Any:
        """Runs one call of the training function."""
        if not self._prepared:
            fitting.build(self.model, iterator)
            self._prepare()
            self._called = self.model.steps_per_execution
        run, functions = self.run, self._functions
        assert functions is not None
        if run.status != "running":
            self._begin(iterator)
        at = self._at(self._called)
        with run.taking(self._step + 1):
            if at < 0 and run.noise is None and _at_random(self.model) is None:
                return inner(iterator)
            self._catch_up(self._step)
            began = time.time()
            planned = functions.planned(self._step, self._called)
            logs, taken = functions(iterator, planned, at)
            self._note(taken, at, began)
            return logs

    def _begin(self, iterator: Any) -> None:
        functions, run = self._functions, self.run
        assert functions is not None
        concrete = functions.trace(iterator)  # before there is a directory: it can fail
        last = None
        if self.params.get("steps"):
            batches = (self.params["epochs"] - self._epoch) * self.params["steps"]
            last = (self._batches + batches) // functions.accumulates
        count = sum(int(np.prod(v.shape)) for v in self.model.trainable_variables)
        size = fitting.batch_size(iterator)
        run.begin(functions.instrument, self._step, size, last, count, functions.knows_loss)
        run.describe(concrete, _settings(self.model))
        if self._unannounced:
            run.warn(
                f"Layers of {self.model.name} were frozen or thawed and not compiled again: its "
                "training function is made anew, for the change to take effect."
            )

    def _note(self, taken: fitting.Batches, at: int, began: float) -> None:
        """Hands to the run what a call returned: every batch if there is noise, else one."""
        run, functions = self.run, self._functions
        assert functions is not None
        count = int(taken.count)
        for i in range(count) if run.noise is not None else range(at, min(at + 1, count)):
            skipped, loss = 0, taken.loss[i]
            if functions.may_skip and run.noise is not None:
                self._losses.append(float(loss))
                if not bool(taken.applied[i]):
                    continue
                skipped, loss = len(self._losses) - 1, np.mean(self._losses)
                self._losses = []
            elif functions.may_skip and not bool(taken.applied[i]):
                continue
            if i != at:
                run.plain(loss, taken.choice[i], began, skipped)
                continue
            self._catch_up(int(taken.number) - 1)
            run.summary(
                float(loss), int(taken.choice[i]), taken.rows.numpy(), began, float(taken.rate),
                float(taken.waited), skipped,
            )  # fmt: skip

    def _catch_up(self, step: int) -> None:
        """Counts the steps of Keras' own function."""
        if self.run.noise is None:
            self.run.unseen(step - self.run.step)


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in logs.items() if np.ndim(v) == 0}


def _settings(model: Any) -> dict[str, Any]:
    """What a compiled model says of its training."""
    optimizer = model.optimizer
    found: dict[str, Any] = {"model": model.name, "optimizer": type(optimizer).__name__}
    rate = float(updates.learning_rate(optimizer))
    if not np.isnan(rate):
        found["learning_rate"] = rate
    loss = model.loss
    if loss is not None:
        found["loss"] = loss if isinstance(loss, str) else getattr(loss, "name", None) or str(loss)
    return found


def _at_random(model: Any) -> RandomUpdate | None:
    return getattr(model, _AT_RANDOM, None)


class RandomUpdate(keras.callbacks.Callback):
    """Adds random numbers to variables after each batch, in one compiled call.

    With `forward_only(model)` nothing else moves the weights, and no gradient is computed.

    Args:
      low, high: the numbers are uniform on [low, high).
      variables: regular expression of canonical paths; '' for all trainable variables.
      seed: of the numbers, which are a function of seed, variable and step.
      source: stateless, or table: numbers made beforehand and read at random places, which is
        faster, and less independent (see `tracker.noise.Table`).

    Raises:
      ValueError: in one sentence: bounds that are none; when `fit` begins, a pattern that matches
        no variable, or a variable that is not of floats.
    """

    def __init__(
        self,
        low: float,
        high: float,
        variables: str = "",
        seed: int = 0,
        source: str = "stateless",
    ):
        super().__init__()
        if not -np.inf < low < high < np.inf:
            raise ValueError(
                f"low={low:g}, high={high:g}: should be finite, and low less than high."
            )
        if source not in ("stateless", "table"):
            raise ValueError(f"source={source}: should be stateless or table.")
        self._low, self._high = float(low), float(high)
        self._pattern, self._seed, self._kind = variables, seed, source
        self._source: noise.Source | None = None
        self._chosen: list[tuple[str, Any]] = []
        self._functions: fitting.Functions | None = None
        self.counter = tf.Variable(0, trainable=False, dtype=tf.int64, name="random_updates")

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Finds the variables."""
        model = self.model
        trainable = model.trainable_variables
        paths = variables.paths(trainable, model)
        found = variables.matching(paths, self._pattern)
        if not found:
            known = ", ".join(paths) or "none: is the model built?"
            raise ValueError(f"variables={self._pattern}: matches none of the variables {known}")
        for i in found:
            if "float" not in str(trainable[i].dtype):
                raise ValueError(
                    f"The variable {paths[i]} is of type {trainable[i].dtype}; should be of floats."
                )
        self._chosen = [(f"random_update/{paths[i]}", trainable[i]) for i in found]
        if self._source is None:
            self._source = self._made([int(np.prod(trainable[i].shape)) for i in found])
        object.__setattr__(model, _AT_RANDOM, self)
        self._functions = fitting.functions(model, None, self._functions, self)

    def _made(self, sizes: list[int]) -> noise.Source:
        if self._kind == "stateless":
            return noise.Stateless(self._seed, "uniform")
        size = noise.table_size(max(sizes), sum(sizes))
        return noise.Table(self._seed, size, "uniform")

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Lets go of the model."""
        if _at_random(self.model) is self:
            object.__delattr__(self.model, _AT_RANDOM)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Puts a function in place that makes the update after each batch of the next call."""
        fitting.Once.install(self.model, self._call)

    def _call(self, iterator: Any, inner: Callable) -> Any:
        if isinstance(inner, fitting.Once):  # a Tracker's, whose function has the update in it
            return inner(iterator)
        functions = self._functions
        assert functions is not None
        return functions(iterator, functions.planned(0, self.model.steps_per_execution), -1)[0]

    def apply(self) -> None:
        """Makes the update, in a compiled function."""
        at = noise.counter(self.counter.assign_add(1))
        middle, width = (self._low + self._high) / 2, (self._high - self._low) / (2 * np.sqrt(3.0))
        assert self._source is not None
        with tf.name_scope("noise"):
            for name, variable in self._chosen:
                if not variable.trainable:  # frozen since
                    continue
                numbers = self._source.draw(name, at, variable.shape)  # of unit variance
                noise.add_to(variable, noise.as_noise(middle + width * numbers, variable))


def forward_only(model: Any, on: bool = True) -> Any:
    """Lets `fit` compute loss and metrics, but no gradient and no update.

    A learning rate of 0 would still compute every gradient.

    Args:
      model: of Keras, compiled.
      on: False puts the model's own training back.

    Returns:
      The model.
    """

    def train_step(data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight, training=True)
        model._loss_tracker.update_state(loss, sample_weight=tf.shape(tf.nest.flatten(x)[0])[0])
        return model.compute_metrics(x, y, outputs, sample_weight=weight)

    if on:
        object.__setattr__(model, "train_step", train_step)
        object.__setattr__(model, _FORWARD_ONLY, True)
    elif getattr(model, _FORWARD_ONLY, False):
        object.__delattr__(model, "train_step")
        object.__delattr__(model, _FORWARD_ONLY)
    model.train_function = None
    return model


def is_forward_only(model: Any) -> bool:
    """Whether `forward_only` is in force."""
    return bool(getattr(model, _FORWARD_ONLY, False))
