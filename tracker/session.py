"""The app's experiments as a TF1 graph that a session runs: `--graph=v1`.

Data, model, choice of the stddev, noise and tags are those of the compiled steps; the update is
made by the optimizer of `tf.compat.v1.train` of the same name, and a step is one `session.run`.
On summary steps the ratio is fetched beside the train op (`tracker.v1`), on others it is not.

    >>> experiment = assemble(validate(Config(graph='v1', steps=100)))
    >>> outcome = train(experiment, run, record, console)
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tracker import config as config_lib
from tracker import experiment as experiment_lib
from tracker import selectors, v1, variables
from tracker.config import Config
from tracker.experiment import Experiment
from tracker.steps import Instrumented, Plain, Result

_SUPPORTED = frozenset(
    {
        *("seed", "dataset", "label", "validation_fraction", "batch_size", "model", "loss"),
        *("optimizer", "learning_rate", "optimizer_args", "steps", "epochs", "steps_per_call"),
        *("stddevs", "selector", "selector_weights", "anneal_schedule", "strategy", "graph"),
        *("noise_distribution", "variables", "summary_every", "histogram_every", "log_every"),
        *("validate_every", "wur", "wur_variables", "profile_steps", "overhead_budget"),
        *("checkpoint_every", "keep_checkpoints", "on_nonfinite", "deterministic"),
        *("profile_every", "profile_captures", "profile_host_level", "profile_python_level"),
        *("profile_device_level", "profiler_port"),
    }
)
_ARGUMENTS = {
    "SGD": ("momentum", "nesterov"),
    "Adam": ("beta_1", "beta_2", "epsilon"),
    "RMSprop": ("rho", "momentum", "epsilon", "centered"),
    "Adagrad": ("initial_accumulator_value",),
    "Adadelta": ("rho", "epsilon"),
}


class SessionExperiment(Experiment):
    """An experiment whose steps are runs of a session.

    Its Keras model gives the initial weights, and holds those of the session after every call, for
    validation and saving.
    """

    def batches(self, first: int = 0) -> Any:
        """Nothing: the graph reads its own batches."""
        del first
        return ()

    def checkpoints(self, directory: Any) -> Any:
        """The checkpoints of a run in a directory."""
        return self.functions.checkpoints(directory)  # type: ignore[attr-defined]

    def noise_bytes(self) -> int:
        """Bytes that the strategy holds beside the model."""
        held = self.functions.noise_state  # type: ignore[attr-defined]
        return sum(math.prod(v.shape) * v.dtype.size for v in held)


def assemble(config: Config, noise_: bool = True) -> SessionExperiment:
    """Makes every part of a run, the graph included; a finished graph does not grow any more.

    Args:
      config: validated, with `graph='v1'`.
      noise_: whether to add noise at all.

    Raises:
      ValueError: one sentence: a flag that this graph does not have, or as
        `tracker.experiment.assemble` raises.
    """
    _check(config)
    # The strategy is built in the session's graph, not beside it.
    base = experiment_lib.assemble(dataclasses.replace(config, strategy="scalar"), noise_)
    optimizer = _optimizer(base.rule.optimizer, config)
    if base.model.losses:
        raise ValueError(
            f"--model={config.model} with --graph=v1: adds losses of its own; should have none"
        )
    functions = SessionSteps(base, config, optimizer, noise_)
    parts = {f.name: getattr(base, f.name) for f in dataclasses.fields(base)}
    return SessionExperiment(**{**parts, "config": config, "functions": functions})


def _check(config: Config) -> None:
    for field in dataclasses.fields(Config):
        value = getattr(config, field.name)
        if field.name not in _SUPPORTED and value != field.default:
            raise ValueError(
                f"--{field.name}={value} with --graph=v1: sessions do not have it; should be "
                f"{field.default}"
            )


def _optimizer(model_optimizer: Any, config: Config) -> Any:
    """The TF1 optimizer with the options of a Keras one.

    Raises:
      ValueError: there is none, or it lacks an option.
    """
    kind, train = type(model_optimizer).__name__, tf.compat.v1.train
    if kind not in _ARGUMENTS:
        names = ", ".join(sorted(n.lower() for n in _ARGUMENTS))
        raise ValueError(
            f"--optimizer={kind.lower()} with --graph=v1: is not in tf.compat.v1.train; should be "
            f"one of {names}"
        )
    unknown = set(config_lib.parse_args(config.optimizer_args)) - set(_ARGUMENTS[kind])
    if unknown:
        raise ValueError(
            f"--optimizer_args={config.optimizer_args} with --graph=v1: {kind.lower()} of "
            f"tf.compat.v1.train takes {', '.join(_ARGUMENTS[kind])}"
        )
    rate = float(model_optimizer.learning_rate.numpy())
    given = [getattr(model_optimizer, name) for name in _ARGUMENTS[kind]]
    if kind == "SGD":
        momentum, nesterov = given
        return (
            train.MomentumOptimizer(rate, momentum, use_nesterov=nesterov)
            if momentum
            else train.GradientDescentOptimizer(rate)
        )
    if kind == "RMSprop":
        *numbers, centered = given
        return train.RMSPropOptimizer(rate, *numbers, centered=centered)
    return getattr(train, f"{kind}Optimizer")(rate, *given)


class SessionSteps:
    """The graph, its session, and the two kinds of run: plain, and with the ratio.

    Args:
      base: gives data, model, names, and what a step is made of.
      config: with the strategy.
      optimizer: of `tf.compat.v1.train`.
      noise_: whether to add noise.

    Attributes:
      graph: finished.
      metric_names: of the metrics that an instrumented run returns.
      noise_state: variables of the strategy.
    """

    def __init__(self, base: Experiment, config: Config, optimizer: Any, noise_: bool):
        self._model = base.model
        self._stop = config.on_nonfinite == "stop"
        self._rate = np.float32(base.rule.learning_rate())
        self._keep = config.keep_checkpoints
        self.metric_names = ["accuracy" if base.data.classes else "mae"]
        values = [v.numpy() for v in base.model.variables]
        self.graph = tf.Graph()
        with self.graph.as_default():
            made = _Made(base, config, optimizer, noise_, values)
            self._saver = tf.compat.v1.train.Saver(max_to_keep=self._keep)
            initial = tf.compat.v1.global_variables_initializer()
        self.graph.finalize()
        self.noise_state = made.noise_state
        selector = base.instrument.selector
        self._planned = None if selector is None else selector.planned
        self._made = made
        options = tf.compat.v1.ConfigProto()
        options.gpu_options.allow_growth = True
        self.session = tf.compat.v1.Session(graph=self.graph, config=options)
        self.session.run([initial, made.start_data])
        feeds = None if made.planned is None else [made.planned]
        fetches = [made.loss, made.choice, made.train]
        self._run_plain = self.session.make_callable(fetches, feeds)
        measuring = [*fetches, made.measured, made.metrics, made.got_batch]
        self._run_tracked = self.session.make_callable(measuring, feeds)
        self._read = self.session.make_callable([v.read for v in made.held])

    @property
    def plain_function(self) -> Any:
        """What `graphs.step_graph` shows: the ops of a plain run."""
        return _Shown(self.graph, [self._made.train.name, self._made.loss.op.name])

    def plain(self, iterator: Any, step: int, count: int) -> Result:
        """Runs `count` plain steps after step `step`."""
        del iterator
        rows = list(self._plain(step, count))
        return self._result(rows, [])

    def tracked(self, iterator: Any, step: int, intervals: int, plain: int) -> Result:
        """Runs, `intervals` times, one instrumented step and then `plain` plain ones."""
        del iterator
        rows: list[tuple[Any, Any]] = []
        instrumented: list[Instrumented] = []
        for number in range(intervals):
            first = step + number * (plain + 1)
            one, measured = self._tracked(first)
            rows.append(one)
            instrumented.append(measured)
            if self._ends(one[0]):
                break
            rows += self._plain(first + 1, plain)
            if self._ends(rows[-1][0]):
                break
        return self._result(rows, instrumented)

    def checkpoints(self, directory: Any) -> SessionCheckpoints:
        """Checkpoints of the session's variables."""
        return SessionCheckpoints(self.session, self._saver, directory)

    def _plain(self, step: int, count: int) -> Iterator[tuple[Any, Any]]:
        for i in range(count):
            loss, choice, _ = self._run_plain(*self._feeds(step + i + 1))
            yield loss, choice
            if self._ends(loss):
                return

    def _tracked(self, step: int) -> tuple[tuple[Any, Any], Instrumented]:
        feeds = self._feeds(step + 1)
        began = time.time()
        loss, choice, _, measured, metrics, got_batch = self._run_tracked(*feeds)
        seconds = time.time() - began
        waited = min(max(float(got_batch) - began, 0.0), seconds)
        return (loss, choice), Instrumented(measured, metrics, self._rate, waited, seconds)

    def _feeds(self, step: int) -> list[int]:
        return [] if self._planned is None else [self._planned(step)]

    def _ends(self, loss: Any) -> bool:
        return self._stop and not np.isfinite(loss)

    def _result(self, rows: list[tuple[Any, Any]], instrumented: list[Instrumented]) -> Result:
        for held, value in zip(self._made.held, self._read(), strict=True):
            held.variable.assign(value)
        losses, choices = zip(*rows, strict=True) if rows else ((), ())
        skipped = np.zeros(len(rows), np.int64)
        plain = Plain(np.array(losses, np.float32), np.array(choices, np.int32), skipped)
        stacked = (
            Instrumented(*map(np.stack, zip(*instrumented, strict=True))) if instrumented else None
        )
        return Result(len(rows), plain, stacked, False)


@dataclasses.dataclass(frozen=True)
class _Held:
    """A variable of the Keras model, and its counterpart in the graph."""

    variable: Any
    graph_variable: tf.Variable
    read: tf.Tensor


class _Made:
    """Builds the graph: data, forward, gradients, update, noise, and what measures it."""

    def __init__(
        self, base: Experiment, config: Config, optimizer: Any, noise_: bool, values: list[Any]
    ):
        self._base, self._config = base, config
        with tf.name_scope("data"):
            batches = base.data.batches(config.batch_size, config.seed)
            iterator = tf.compat.v1.data.make_initializable_iterator(batches)
            self._x, self._y = iterator.get_next()
        self.start_data = iterator.initializer
        with tf.name_scope("diagnostics/"), tf.control_dependencies([self._x, self._y]):
            self.got_batch = tf.timestamp()
        self.held = self._variables(values)
        self._outputs, self.loss, updates = self._forward()
        trainable = self._counterparts(base.model.trainable_variables)
        with tf.name_scope("gradients"):
            pairs = optimizer.compute_gradients(self.loss, list(trainable.values()))
        self.planned: tf.Tensor | None = None
        self._selector: selectors.Selector | None = None
        wanted = "|".join(f"^{re.escape(name)}$" for name in base.instrument.names)
        with v1.weight_update_ratio("diagnostics", wanted, config.wur) as ratio:
            train = self._train(optimizer, pairs, trainable, noise_)
        self.measured = ratio.measured
        if ratio.names != base.instrument.names:
            raise ValueError(
                f"--model={config.model} with --graph=v1: not all variables are updated"
            )
        with tf.control_dependencies([train]):
            self.train = tf.group(train, *updates, name="step")
        with tf.name_scope("diagnostics/"):
            self.metrics = tf.stack([self._metric()])

    def _variables(self, values: list[np.ndarray]) -> list[_Held]:
        model = self._base.model
        names = variables.paths(model.variables, model)
        held = []
        for name, variable, value in zip(names, model.variables, values, strict=True):
            mine = tf.compat.v1.get_variable(
                name, initializer=tf.constant(value), use_resource=True,
                trainable=variable.trainable,
            )  # fmt: skip
            held.append(_Held(variable, mine, mine.read_value()))
        return held

    def _counterparts(self, wanted: list[Any]) -> dict[int, tf.Variable]:
        mine = {id(h.variable): h.graph_variable for h in self.held}
        return {id(v): mine[id(v)] for v in wanted}

    def _forward(self) -> tuple[tf.Tensor, tf.Tensor, list[tf.Operation]]:
        """Outputs and loss, and what the layers change of their own state."""
        model = self._base.model
        trainable = self._counterparts(model.trainable_variables)
        others = self._counterparts(model.non_trainable_variables)
        with tf.name_scope("forward"):
            outputs, changed = model.stateless_call(
                [v.read_value() for v in trainable.values()],
                [v.read_value() for v in others.values()],
                self._x,
                training=True,
            )
            loss = model.compute_loss(x=self._x, y=self._y, y_pred=outputs, training=True)
            updates = [
                mine.assign(new, read_value=False)
                for mine, new in zip(others.values(), changed, strict=True)
                if mine.trainable is False and new.op.type != "ReadVariableOp"
            ]
        return outputs, tf.cast(loss, tf.float32), updates

    def _train(self, optimizer, pairs, trainable, noise_) -> tf.Operation:
        with tf.name_scope("update"):
            if not noise_:
                self.choice, self.noise_state = tf.constant(0), []
                return optimizer.apply_gradients(pairs)
            names = variables.paths(list(trainable.values()))
            noised = [n for n in names if n in self._base.instrument.noised]
            noisy = v1.noisy_train(
                self._config.strategy, optimizer, pairs, self._config.stddevs, self._choose,
                seed=self._config.seed, pattern="|".join(f"^{re.escape(n)}$" for n in noised),
                distribution=self._config.noise_distribution,
            )  # fmt: skip
        self.choice, self.noise_state = noisy.choice, noisy.state
        return noisy.train

    def _choose(self, step: tf.Tensor) -> tf.Tensor:
        """The index of a step's stddev: the selector's, or fed where the host plans it."""
        config = self._config
        selector = self._base.instrument.selector
        if selector is not None and selector.planned is not None:
            self.planned = tf.compat.v1.placeholder(tf.int32, [], name="planned")
            return self.planned
        made = selectors.make(
            config.selector, config.stddevs, config.seed, self._base.steps,
            config.selector_weights, config.anneal_schedule,
        )  # fmt: skip
        assert made.choose is not None
        # What a selector learns it assigns in order, which only functions keep in a TF1 graph.
        choose = tf.function(made.choose, autograph=False) if made.variables else made.choose
        return choose(step, self.loss)

    def _metric(self) -> tf.Tensor:
        if self._base.data.classes:
            right = tf.equal(tf.argmax(self._outputs, axis=-1, output_type=tf.int32), self._y)
            return tf.reduce_mean(tf.cast(right, tf.float32))
        return tf.reduce_mean(tf.abs(self._outputs[:, 0] - tf.cast(self._y, tf.float32)))


class SessionCheckpoints:
    """Checkpoints of a session's variables, in TF1's format.

    Attributes:
      last_step: that was saved, or None.
    """

    def __init__(self, session: tf.compat.v1.Session, saver: Any, directory: Any):
        self._session = session
        self._saver = saver
        self._directory = directory
        self.last_step: int | None = None

    def save(self, step: int, batches: int) -> None:
        """Saves the state after `step` steps, each of one batch.

        Raises:
          tf.errors.OpError, OSError: it could not be written.
        """
        del batches
        self._directory.mkdir(parents=True, exist_ok=True)
        path = os.fspath(self._directory / "step")
        with self._session.graph.as_default():
            self._saver.save(self._session, path, step, write_meta_graph=False)
        self.last_step = step


class _Shown:
    """A part of a TF1 graph as `graphs.step_graph` takes the graph of a function."""

    inputs = ()

    def __init__(self, graph: tf.Graph, fetches: list[str]):
        self.graph = self
        self._graph = graph
        self._fetches = fetches
        with graph.as_default():
            self.variables = tf.compat.v1.global_variables()
        self.captures = [(v.handle, v.handle) for v in self.variables]

    def get_concrete_function(self) -> _Shown:
        """Itself."""
        return self

    def as_graph_def(self, add_shapes: bool = True) -> Any:
        """The ops that fetching runs."""
        whole = self._graph.as_graph_def(add_shapes=add_shapes)
        nodes = {n.name: n for n in whole.node}
        reached, ahead = set(self._fetches), list(self._fetches)
        while ahead:
            for tensor in nodes[ahead.pop()].input:
                name = tensor.lstrip("^").split(":")[0]
                if name not in reached:
                    reached.add(name)
                    ahead.append(name)
        kept = [n for n in whole.node if n.name in reached]
        return type(whole)(node=kept, versions=whole.versions, library=whole.library)
