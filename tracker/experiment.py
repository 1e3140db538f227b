"""Assembles an experiment from its configuration: data, model, rule, noise, compiled steps.

Everything that can be wrong with a configuration is found here, before anything exists on disk.

    >>> experiment = assemble(validate(Config(steps=100)))
    >>> experiment.functions.plain(iter(experiment.batches()), 0, 10)
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tracker import config as config_lib
from tracker import data as data_lib
from tracker import distribution, gradient_free, models, updates, variables
from tracker import instrument as instrument_lib
from tracker import steps as steps_lib
from tracker.checkpoints import Checkpoints
from tracker.config import Config
from tracker.schedule import Schedule

DEFAULT_LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The parts of a run, ready to train.

    Attributes:
      config: what it was made from.
      steps: of the whole run.
      data, model, rule: its parts.
      instrument: noise and measurement around its updates.
      schedule: when things happen.
      functions: the compiled steps.
      loss_name: of the loss in force.
      replicas: that hold the model.
    """

    config: Config
    steps: int
    data: data_lib.Data
    model: keras.Model
    rule: Any
    instrument: instrument_lib.Instrument
    schedule: Schedule
    functions: steps_lib.Steps
    loss_name: str
    replicas: distribution.Replicas

    def batches(self, first: int = 0) -> tf.data.Dataset:
        """Training batches, without the first ones that a run has had."""
        return self.data.batches(self.config.batch_size, self.config.seed, first)

    def state(self) -> dict[str, list[tf.Variable]]:
        """Every variable that decides how the run goes on."""
        return {
            "model": [v.value for v in self.model.variables],
            "optimizer": list(self.rule.variables),
            "selector": self.instrument.selector_variables(),
        }

    def checkpoints(self, directory: Any) -> Checkpoints:
        """The checkpoints of a run in a directory."""
        return Checkpoints(directory, self.state(), self.config.keep_checkpoints)

    def noise_bytes(self) -> int:
        """Bytes that strategy and noise source hold beside the model."""
        held = self.instrument.noise_variables()
        return sum(math.prod(v.shape) * v.dtype.size for v in held)

    @property
    def examples_a_batch(self) -> float:
        """Examples a batch on average: the last of an epoch is smaller."""
        return len(self.data.x) / -(-len(self.data.x) // self.config.batch_size)

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(math.prod(v.shape) for v in self.model.trainable_variables)


def assemble(
    config: Config, noise_: bool = True, replicas: distribution.Replicas | None = None
) -> Experiment:
    """Makes every part of a run.

    Args:
      config: validated.
      noise_: whether to add noise at all; without, not even the choice of a stddev costs anything.
      replicas: that hold the model; None for those of the configuration.

    Raises:
      ValueError: one sentence: the data, the model or a pattern does not fit the rest.
    """
    _configure_devices(config)
    data = data_lib.load(config.dataset, config.seed, config.validation_fraction, config.label)
    total = config_lib.resolved_steps(config, len(data.x))
    windows = config_lib.profile_windows(config, total)
    replicas = replicas or distribution.make(config.distribute)
    _check_batches(config, len(data.x), replicas.count)
    with replicas.scope():
        with _precision(config.precision):
            model = models.make(config.model, data.input_shape, data.classes, config.seed)
        compiled = model.optimizer if model.compiled else None
        optimizer = _optimizer(config, compiled)
    loss_name = models.prepare(model, data.x[:2], data.y[:2], data.classes, config.loss, optimizer)
    paths = variables.paths(model.trainable_variables, model)
    around = instrument_lib.build(config, model.trainable_variables, paths, total, noise_)
    with replicas.scope():
        rule = _rule(config, model, around, replicas)
    if around.touched and rule.may_skip:
        raise ValueError(
            "--sparse_noise=touched: the optimizer accumulates gradients or scales the loss, so "
            "that the rows of one batch are not those of the update; should be all"
        )
    body = steps_lib.Body(
        model, rule, around, config.on_nonfinite == "stop", config.jit_compile, replicas
    )
    kind, every = config_lib.checkpoint_interval(config.checkpoint_every)
    schedule = Schedule(
        steps=total,
        summary_every=config.summary_every,
        validate_every=config.validate_every if len(data.validation_x) else 0,
        histogram_every=config.histogram_every,
        checkpoint_every=every if kind == "steps" else 0,
        windows=windows,
    )
    spec = data.batches(config.batch_size, config.seed).element_spec
    return Experiment(
        config, total, data, model, rule, around, schedule, steps_lib.Steps(body, spec),
        loss_name, replicas,
    )  # fmt: skip


@contextlib.contextmanager
def _precision(name: str) -> Iterator[None]:
    """Keras' global dtype policy, while a model is made; its layers keep it."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _configure_devices(config: Config) -> None:
    cpus = len(tf.config.list_logical_devices("CPU"))
    if config.logical_cpus not in (1, cpus):
        raise ValueError(
            f"--logical_cpus={config.logical_cpus}: TensorFlow began with {cpus} in this process"
        )
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()


def _rule(
    config: Config,
    model: keras.Model,
    around: instrument_lib.Instrument,
    replicas: distribution.Replicas,
) -> Any:
    """The update rule."""
    if config.update == "random_walk":
        return gradient_free.RandomWalk(model, replicas)
    if config.update == "hill_climb":
        return gradient_free.HillClimb(model, config.temperature, config.seed, replicas)
    adder = around.adder
    if config.update == "gradient" or adder is None:
        return updates.Gradient(model, model.optimizer, replicas)
    parts = model, model.optimizer, around.targets, adder.source
    if config.update == "spsa":
        return gradient_free.Spsa(*parts, replicas)
    return gradient_free.Evolution(*parts, config.population, replicas)


def _check_batches(config: Config, examples: int, replicas: int) -> None:
    """Refuses batches with fewer examples than there are replicas."""
    last = examples % config.batch_size or config.batch_size
    if last < replicas:
        raise ValueError(
            f"--batch_size={config.batch_size}: the last batch of an epoch has {last} examples for "
            f"{replicas} replicas; should leave as many or more"
        )


def _optimizer(config: Config, compiled: Any) -> Any:
    if compiled is None:
        rate = DEFAULT_LEARNING_RATE if config.learning_rate is None else config.learning_rate
        args = config_lib.parse_args(config.optimizer_args)
        return updates.optimizer(config.optimizer or "adam", rate, args)
    for flag in ("optimizer", "learning_rate", "optimizer_args"):
        value = getattr(config, flag)
        if value not in (None, ""):
            raise ValueError(f"--{flag}={value}: the model is compiled and keeps its own optimizer")
    return compiled
