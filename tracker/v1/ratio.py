"""The weight-update ratio of a TF1 graph, around the user's own optimizer lines.

    with tracker.v1.weight_update_ratio() as wur:
        train = optimizer.apply_gradients(grads_and_vars)
    sess.run(train)                                # measures nothing
    _, summary = sess.run([train, wur.summary])    # measures this update

It is a conditional fetch: what is not fetched does not run. The norm *before* the update is what
makes that hard, as the usual way, control dependencies around the optimizer, takes it at every
step. Here the update only waits for plain reads of its variables. A read copies nothing; while a
fetched ratio holds what was read, the update writes to a new buffer, and else in place. The norms
hang on the ratio alone. See `tracker.wur` for what the ratio is.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tracker import tags, variables
from tracker import wur as wur_lib
from tracker.v1.noise import noised_in
from tracker.v1.updates import Mark, Updated, find, operations_after

_FIELD = {name: i for i, name in enumerate(wur_lib.Measured._fields)}


class WeightUpdateRatio:
    """Made by `weight_update_ratio`; everything but `record` is there when the block has ended.

    Each is a float64 scalar for `sess.run`, of the update made in the same run, which it applies
    if `train` is not fetched beside it. NaN: there is no such ratio, as a variable of zeros moved;
    one of zeros that stays zero has 0.

    Attributes:
      train: the train op found in the block.
      names: of the measured variables, in creation order.
      ratio: ‖after − before‖₂ / ‖before‖₂, by name.
      norm_change: |‖after‖₂ − ‖before‖₂| / ‖before‖₂, by name.
      overall: the ratio of all of them as one vector.
      overall_norm_change: likewise.
      undefined: how many have no ratio, an int32 scalar.
      measured: float64 [variables, fields of `tracker.wur.Measured`].
      summary: one serialised Summary with the tags of `tracker.tags`, a string scalar.
      record: bool scalar, to be fed True where variables that the optimizer updates row by row are
        measured. To read these copies them, so it is not done otherwise.
    """

    train: tf.Operation
    names: list[str]
    ratio: dict[str, tf.Tensor]
    norm_change: dict[str, tf.Tensor]
    overall: tf.Tensor
    overall_norm_change: tf.Tensor
    undefined: tf.Tensor
    measured: tf.Tensor
    summary: tf.Tensor
    record: tf.Tensor

    def __init__(self, name: str, var_scope: str | None, kinds: Sequence[str]):
        self._name = name
        self._label = f"weight_update_ratio('{name}')"
        self._pattern = var_scope or ""
        self._kinds = tuple(kinds)

    def __enter__(self) -> WeightUpdateRatio:
        self._mark = Mark.here(self._label)
        with self._scope(""):
            self.record = tf.compat.v1.placeholder_with_default(False, [], name="record")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if error is not None:
            return
        found = find(self._mark, self._label)
        self.train = found.train
        chosen = self._chosen(found.updated)
        with self._mark.graph.as_default(), tf.control_dependencies(None):
            rows = self._rows(chosen)
            with self._scope("ratio"):
                self._divide(rows)
            with self._scope("summary"):
                self.summary = self._serialised()
        self._warn_of_summaries()

    def _warn_of_summaries(self) -> None:
        """Says which summaries of the user's cannot be fetched, nor merged with others."""
        graph = self._mark.graph
        inside = [
            summary.op.name
            for summary in graph.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
            if summary.graph is not graph or summary.op._get_control_flow_context() is not None
        ]
        if inside:
            warnings.warn(
                f"{self._label}: the summaries {', '.join(inside)} are made inside a loop or a "
                "branch, where no session can fetch them; make them outside, of what it returns",
                stacklevel=3,
            )

    def _scope(self, part: str) -> Any:
        return tf.name_scope(
            f"{self._name}/{part}".rstrip("/") + "/"
        )  # entered again, not numbered

    def _chosen(self, updated: Sequence[Updated]) -> list[Updated]:
        names = variables.paths([u.variable for u in updated])
        found = variables.matching(names, self._pattern)
        if not found:
            raise ValueError(
                f"{self._label}: var_scope={self._pattern} matches none of the updated variables "
                f"{', '.join(names)}"
            )
        self.names = [names[i] for i in found]
        return [updated[i] for i in found]

    def _rows(self, chosen: Sequence[Updated]) -> list[tf.Tensor]:
        """One row of `wur.measure` for each variable, so that each can be fetched alone."""
        noised = noised_in(self._mark.graph, self._mark.operations)
        # All reads come first: what is added to the graph from here on is not part of the update.
        with self._scope("before"):
            before = [self._read_before(u, u.writes) for u in chosen]
        middle = self._middle(chosen, noised)
        rows = []
        for i, one in enumerate(chosen):
            with self._scope("after"), tf.control_dependencies([self.train]):
                after = self._kept(one, one.variable.read_value())
            between = after if middle[i] is None else self._kept(one, middle[i])
            noise = noised.get(id(one.variable))
            with self._scope("norms"):
                rows.append(
                    wur_lib.measure(
                        [self._kept(one, before[i])], [between], [after],
                        [noise.gradient if noise else None],
                        noise.stddev > 0 if noise else None,
                    )
                )  # fmt: skip
        return rows

    def _middle(self, chosen: Sequence[Updated], noised: Any) -> list[tf.Tensor | None]:
        """Each variable between optimizer and noise; None for one that gets none."""
        operations = self._mark.graph.get_operations()[self._mark.operations :]
        later = {id(n.update): operations_after(n.update, operations) for n in noised.values()}
        result: list[tf.Tensor | None] = []
        for one in chosen:
            noise = noised.get(id(one.variable))
            if noise is None:
                result.append(None)
                continue
            writes = [op for op in one.writes if op in later[id(noise.update)]]
            with self._scope("between"), tf.control_dependencies([noise.update]):
                result.append(self._read_before(one, writes))
        return result

    def _read_before(self, one: Updated, writes: Sequence[tf.Operation]) -> tf.Tensor:
        """A read that the writes wait for."""
        if one.sparse:
            read = tf.cond(
                self.record, one.variable.read_value, lambda: tf.zeros([0], one.variable.dtype)
            )
        else:
            kind = one.variable.dtype.base_dtype
            read = tf.raw_ops.ReadVariableOp(resource=one.variable.handle, dtype=kind)
        for op in writes:
            op._add_control_input(read.op)
        return read

    def _kept(self, one: Updated, read: tf.Tensor) -> tf.Tensor:
        """What was read, or the error of a run in which it was not."""
        if not one.sparse:
            return read
        name = variables.paths([one.variable])[0]
        recorded = tf.debugging.Assert(
            self.record,
            [f"{self._label}: {name} is updated row by row and was not read in this run; feed "
             f"{{wur.record: True}} to measure it"],
        )  # fmt: skip
        with tf.control_dependencies([recorded]):
            return tf.ensure_shape(tf.identity(read), one.variable.shape)

    def _divide(self, rows: Sequence[tf.Tensor]) -> None:
        self._fields = [{field: row[0, i] for field, i in _FIELD.items()} for row in rows]
        self.measured = tf.concat(rows, axis=0)
        total = {f: self.measured[:, i] for f, i in _FIELD.items()}
        norm = {
            f: tf.sqrt(tf.reduce_sum(tf.square(total[f]))) for f in ("before", "after", "update")
        }
        self.ratio, self.norm_change = {}, {}
        for name, one in zip(self.names, self._fields, strict=True):
            self.ratio[name] = _divided(one["update"], one["before"])
            self.norm_change[name] = _divided(tf.abs(one["after"] - one["before"]), one["before"])
        self.overall = _divided(norm["update"], norm["before"])
        self.overall_norm_change = _divided(tf.abs(norm["after"] - norm["before"]), norm["before"])
        moved = tf.equal(total["before"], 0) & (total["update"] > 0)
        self.undefined = tf.math.count_nonzero(moved, dtype=tf.int32)
        self._total = total

    def _serialised(self) -> tf.Tensor:
        values: dict[str, tf.Tensor] = {}
        for name, one in zip(self.names, self._fields, strict=True):
            values |= self._of_variable(name, one)
        ratios = tf.stack(list(self.ratio.values()))
        finite = tf.math.is_finite(ratios)
        outside = finite & ((ratios < tags.HEALTHY_LOW) | (ratios > tags.HEALTHY_HIGH))
        total = self._total
        values |= {
            tags.WUR_ALL_RATIO: self.overall,
            tags.WUR_ALL_OUT_OF_BAND: tf.math.count_nonzero(outside, dtype=tf.int32),
            tags.WUR_ALL_UNDEFINED: self.undefined,
            tags.WUR_ALL_UNCHANGED: _share(total["swallowed"], total["with_gradient"]),
            tags.WUR_ALL_UNCHANGED_BY_NOISE: _share(total["noise_swallowed"], total["noised"]),
        }
        numbers = tf.stack([tf.cast(v, tf.float64) for v in values.values()])
        written = tf.math.is_finite(numbers)
        return tf.raw_ops.ScalarSummary(
            tags=tf.boolean_mask(tf.constant(list(values)), written),
            values=tf.boolean_mask(numbers, written),
        )

    def _of_variable(self, name: str, one: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        before = one["before"]
        values: dict[str, tf.Tensor] = {}
        if "update" in self._kinds:
            values |= {
                tags.wur(name): self.ratio[name],
                tags.wur_gradient(name): _divided(one["gradient"], before),
                tags.wur_noise(name): _divided(one["noise"], before),
                tags.wur_touched(name): _divided(one["touched_update"], one["touched_before"]),
            }
        if "norm_change" in self._kinds:
            values[tags.norm_change(name)] = self.norm_change[name]
        bad = one["nonfinite"]
        nan = tf.constant(np.nan, tf.float64)
        return values | {
            tags.weight_norm(name): before,
            tags.update_norm(name): one["update"],
            tags.nonfinite(name): tf.where(bad > 0, bad, nan),
        }


def weight_update_ratio(
    name: str = "wur", var_scope: str | None = None, kinds: Sequence[str] = ("update",)
) -> WeightUpdateRatio:
    """A context manager around the lines that make a train op.

    Any optimizer of `tf.compat.v1.train`, by `apply_gradients` or `minimize`; what the block adds
    to the update (moving averages, noise of `tracker.v1.noisy_train`) is measured with it.

    Args:
      name: scope of the ops that measure.
      var_scope: regular expression over variable names (`re.search`): which are measured. None: all
        that the block updates.
      kinds: which ratios `summary` holds, of `tracker.config.WUR_KINDS`.

    Returns:
      The context manager, and what it gives; see `WeightUpdateRatio`.

    Raises:
      ValueError: when the block begins: operations run eagerly. When it ends, in one sentence: it
        created no train op, or several; a variable is a reference variable; or `var_scope` matches
        nothing.
    """
    return WeightUpdateRatio(name, var_scope, kinds)


def _divided(part: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    """part / whole, as `tracker.wur.ratios` divides: 0 / 0 is 0, x / 0 NaN."""
    finite = tf.math.is_finite(part) & tf.math.is_finite(whole)
    defined = finite & (whole > 0)
    nan = tf.constant(np.nan, tf.float64)
    still = tf.equal(part, 0) & tf.equal(whole, 0)  # `==` compares objects in a TF1 graph
    nothing = tf.where(still, tf.zeros_like(nan), nan)
    return tf.where(defined, part / tf.where(defined, whole, tf.ones_like(whole)), nothing)


def _share(part: tf.Tensor, whole: tf.Tensor) -> tf.Tensor:
    """The sum of parts by the sum of wholes; NaN of nothing."""
    return tf.reduce_sum(part) / tf.reduce_sum(whole)
