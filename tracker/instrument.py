"""What is put around an update: the noise after it, and on a summary step its measurement.

The update itself is somebody else's: the app's update rules, the `train_step` of a Keras model, or
the user's own function. Each of them takes one step through `Instrument.step`, so noise, its choice
and what is measured are the same wherever a model is trained.

    >>> instrument = Instrument(adder, targets, selector, measured=variables)
    >>> stepped = instrument.step(number, take, planned=None, measure=True)   # in a compiled step
    >>> stepped.rows        # float64 [variables, fields of wur.Measured]
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tracker import noise, selectors, variables, wur
from tracker.config import Config
from tracker.selectors import Selector


class Taken(NamedTuple):
    """An update that was made.

    Attributes:
      loss: float32 scalar, on the weights before it.
      gradients: those that are known, by the id of their variable: a tensor, an IndexedSlices, or
        None.
      applied: bool scalar, whether the weights were moved at all; None for always.
      details: whatever else its maker wants to have back.
    """

    loss: Any
    gradients: Mapping[int, Any] = {}
    applied: Any = None
    details: Any = None


class Stepped(NamedTuple):
    """One step, inside the graph.

    Attributes:
      taken: the update.
      choice: int32 scalar, index of the chosen stddev; 0 where there is no noise.
      rows: float64 [variables, fields of wur.Measured]; None where nothing was measured.
      accepted: bool scalar, whether the step was kept.
    """

    taken: Taken
    choice: Any
    rows: Any
    accepted: Any


class Instrument(NamedTuple):
    """Noise and measurement around an update.

    Attributes:
      adder: adds the noise to its targets; None for no noise.
      targets: the variables that get noise, as given to the adder.
      selector: picks the stddev; None for no noise.
      measured: the variables that an instrumented step measures.
      names: their canonical paths, in model order.
      relative: whether stddevs are relative to each target's RMS before the step.
      touched: whether of variables with a sparse gradient only its rows get noise.
    """

    adder: noise.Adder | None
    targets: Sequence[noise.Target]
    selector: Selector | None
    measured: Sequence[Any]
    names: Sequence[str] = ()
    relative: bool = False
    touched: bool = False

    @property
    def noised(self) -> list[str]:
        """Canonical paths of the variables that get noise."""
        return [t.name for t in self.targets]

    def noise_variables(self) -> list[tf.Variable]:
        """What strategy and noise source hold beside the model."""
        return [] if self.adder is None else [*self.adder.variables, *self.adder.source.variables]

    def stddev(self, choice: tf.Tensor) -> tf.Tensor:
        """The stddev of an index, a float32 scalar; 0 without noise."""
        return tf.constant(0.0) if self.adder is None else self.adder.stddev(choice)

    def selector_variables(self) -> list[tf.Variable]:
        """What the selector remembers from step to step."""
        return [] if self.selector is None else list(self.selector.variables)

    def step(
        self,
        number: tf.Tensor,
        take: Callable[[Any], Taken],
        planned: Any,
        measure: bool,
        perturbs: bool = False,
        accepts: Callable[[Taken], tf.Tensor] | None = None,
    ) -> Stepped:
        """Takes one step, inside a compiled function.

        Args:
          number: int64 scalar, of the step.
          take: makes the update, given the index of the stddev if `perturbs`, else None.
          planned: int32 scalar, what a selector of the user's chose on the host; else unused.
          measure: whether the step is instrumented.
          perturbs: whether the update itself uses the step's stddev; no noise is added after it.
          accepts: says after the noise whether the step is kept; if not, the variables that got
            noise are put back as they were, bit for bit.
        """
        scales = self._scales()
        if measure:
            with tf.name_scope("diagnostics/before"):
                before = [_read(v) for v in self.measured]
        choice = self._choose(number, tf.constant(0.0), planned) if perturbs else None
        taken = take(choice)
        if measure:
            with tf.name_scope("diagnostics/between"):
                middle = [_read(v) for v in self.measured]
        kept = [_read(t.variable) for t in self.targets] if accepts is not None else []
        if choice is None:
            choice = self._choose(number, taken.loss, planned)
            self._add(number, taken, choice, scales)
        proposed, accepted = None, tf.constant(True)
        if accepts is not None:
            if measure:
                with tf.name_scope("diagnostics/proposed"):
                    proposed = [_read(v) for v in self.measured]
            accepted = accepts(taken)
            _if(tf.logical_not(accepted), lambda: self._put_back(kept))
        rows = None
        if measure:
            with tf.name_scope("diagnostics"):
                rows = self._measure(before, middle, taken.gradients, choice, proposed, perturbs)
        return Stepped(taken, choice, rows, accepted)

    def _scales(self) -> list[tf.Tensor] | None:
        if not self.relative:
            return None
        with tf.name_scope("noise/scale"):
            return [noise.rms(t.variable) for t in self.targets]

    def _choose(self, number, loss, planned) -> tf.Tensor:
        selector = self.selector
        if self.adder is None or selector is None:
            return tf.constant(0)
        with tf.name_scope("noise/selector"):
            return planned if selector.choose is None else selector.choose(number, loss)

    def _add(self, number, taken: Taken, choice, scales) -> None:
        adder = self.adder
        if adder is None:
            return
        with tf.name_scope("noise"):
            rows = self._rows(taken) if self.touched else None
            _if(taken.applied, lambda: adder.add(number, choice, scales, rows))

    def _rows(self, taken: Taken) -> list[tf.Tensor | None]:
        """Of each target the rows of its gradient, each once; None for all."""
        found = [taken.gradients.get(id(t.variable)) for t in self.targets]
        return [
            tf.unique(tf.reshape(g.indices, [-1]))[0] if isinstance(g, tf.IndexedSlices) else None
            for g in found
        ]

    def _put_back(self, kept: Sequence[tf.Tensor]) -> None:
        for target, value in zip(self.targets, kept, strict=True):
            target.variable.assign(value)

    def _measure(self, before, middle, gradients, choice, proposed, perturbs) -> tf.Tensor:
        targets = set() if perturbs else {id(t.variable) for t in self.targets}
        after = [
            _read(v) if id(v) in targets else m for v, m in zip(self.measured, middle, strict=True)
        ]
        found = [gradients.get(id(v)) for v in self.measured]
        return wur.measure(
            before,
            middle,
            after,
            found,
            self.stddev(choice) > 0,
            self.relative,
            proposed,
            self.touched,
        )


def build(
    config: Config, trainable: Sequence[Any], paths: Sequence[str], steps: int, noise_: bool = True
) -> Instrument:
    """Makes the instrument that a configuration asks for.

    Args:
      config: validated.
      trainable: the trainable variables, in model order.
      paths: their canonical paths.
      steps: of the whole run.
      noise_: whether to add noise at all.

    Raises:
      ValueError: one sentence: a pattern that matches nothing, a selector that cannot be made, a
        table that is too small.
    """
    noised = _matching("variables", config.variables, paths) if noise_ else []
    targets = [noise.Target(paths[i], trainable[i]) for i in noised]
    measured = _matching("wur_variables", config.wur_variables, paths)
    return Instrument(
        noise.Adder(config.strategy, _source(config, targets), config.stddevs, targets),
        targets,
        _selector(config, steps),
        [trainable[i] for i in measured],
        [paths[i] for i in measured],
        config.noise_scale == "relative",
        config.sparse_noise == "touched" and noise_,
    )


def _matching(flag: str, pattern: str, paths: Sequence[str]) -> list[int]:
    found = variables.matching(paths, pattern)
    if not found:
        raise ValueError(f"--{flag}={pattern} matches none of the variables {', '.join(paths)}")
    return found


def _selector(config: Config, steps_: int) -> selectors.Selector:
    try:
        return selectors.make(
            config.selector,
            config.stddevs,
            config.seed,
            steps_,
            config.selector_weights,
            config.anneal_schedule,
        )
    except ValueError as error:
        message = str(error)
        raise ValueError(
            message if message.startswith("--") else f"--selector={message}"
        ) from error


def _source(config: Config, targets: Sequence[noise.Target]) -> noise.Source:
    if config.noise_source == "stateless":
        return noise.Stateless(config.seed, config.noise_distribution)
    sizes = [math.prod(t.variable.shape) for t in targets] or [0]
    size = config.table_size or noise.table_size(max(sizes), sum(sizes))
    if size < max(sizes):
        raise ValueError(
            f"--table_size={size}: should be at least {max(sizes)}, as the largest variable"
        )
    return noise.Table(config.seed, size, config.noise_distribution)


def _read(variable: Any) -> tf.Tensor:
    """A copy of the value of a Keras or TensorFlow variable, that later updates do not reach."""
    value = variable.value
    return tf.identity(value() if callable(value) else value)


def _if(applied, action: Callable[[], Any]) -> None:
    """Runs the action; where batches can be skipped, only if the last one was not."""
    if applied is None:
        action()
        return

    def run():
        action()
        return tf.constant(0)

    tf.cond(applied, run, lambda: tf.constant(0))


@contextlib.contextmanager
def seen_gradients(optimizer: Any) -> Iterator[dict[int, Any]]:
    """Notes the gradients that an optimizer is given while a step is traced.

    The update's ops come under the scope `update`, where the exported graph looks for them.

    Args:
      optimizer: of Keras; None to note nothing.

    Yields:
      Gradients by the id of their variable, of all replicas together, filled at the end. Those of a
      function that is compiled apart, and cannot be used in this graph, are left out.
    """
    found: dict[int, Any] = {}
    if optimizer is None:
        yield found
        return
    own = optimizer.__dict__.get("apply")
    apply, graph = optimizer.apply, tf.compat.v1.get_default_graph()
    parts: dict[int, dict[int, Any]] = {}  # by variable, and by the thread that traces a replica

    def applied(grads, trainable_variables=None):
        grads = list(grads)
        known = trainable_variables
        if known is None:
            known = optimizer._trainable_variables
        for variable, gradient in zip(known, grads, strict=False):
            if gradient is None or getattr(gradient, "graph", graph) is graph:
                parts.setdefault(id(variable), {})[threading.get_ident()] = gradient
        with tf.name_scope("update/"):
            return apply(grads, trainable_variables)

    # Past Keras' own bookkeeping of attributes, which would remember it.
    object.__setattr__(optimizer, "apply", applied)
    try:
        yield found
    finally:
        if own is None:
            object.__delattr__(optimizer, "apply")
        else:
            object.__setattr__(optimizer, "apply", own)
    found.update({variable: _sum(list(each.values())) for variable, each in parts.items()})


def _sum(gradients: list[Any]) -> Any:
    """The gradient of a batch from those of its replicas."""
    if len(gradients) == 1 or gradients[0] is None:
        return gradients[0]
    if not isinstance(gradients[0], tf.IndexedSlices):
        return tf.add_n(gradients)
    values, indices = (
        tf.concat([getattr(g, p) for g in gradients], 0) for p in ("values", "indices")
    )
    return tf.IndexedSlices(values, indices, gradients[0].dense_shape)
