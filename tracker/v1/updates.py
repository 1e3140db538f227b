"""Finds, in a TF1 graph, what a block of the user's code added: its train op, and what that writes.

Nothing is asked of the code but that it stands in the block: the ops are found by what they do.

    >>> mark = Mark.here("wur")
    >>> train = tf.compat.v1.train.AdamOptimizer().minimize(loss)
    >>> found = find(mark, label="wur")
    >>> found.train is train
    True
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

_READS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
)
_PASSED_ON = frozenset({"Switch", "Identity", "Enter", "RefSwitch", "RefEnter", "RefIdentity"})
_APPLIES = ("ResourceApply", "ResourceSparseApply")
_SPARSE = ("ResourceSparseApply", "ResourceScatter")
_REFERENCES = ("Variable", "VariableV2")


@dataclasses.dataclass(frozen=True)
class Mark:
    """Where a block of code begins: the graph, and what it held by then."""

    graph: Any
    operations: int
    train_ops: tuple[Any, ...]

    @classmethod
    def here(cls, label: str) -> Mark:
        """The default graph as it is now.

        Args:
          label: of the block, for messages.

        Raises:
          ValueError: there is no graph, as operations run eagerly.
        """
        if tf.executing_eagerly():
            raise ValueError(
                f"{label}: there is no graph here, operations run eagerly; the block should stand "
                "in `with tf.Graph().as_default():`, or eager mode be off"
            )
        graph = tf.compat.v1.get_default_graph()
        train_ops = tuple(graph.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP))
        return cls(graph, len(graph.get_operations()), train_ops)


@dataclasses.dataclass(frozen=True)
class Updated:
    """A variable that the block updates.

    Attributes:
      variable: a resource variable.
      writes: the ops of the block that write to it.
      sparse: whether one of them writes only some rows.
    """

    variable: Any
    writes: tuple[tf.Operation, ...]
    sparse: bool


@dataclasses.dataclass(frozen=True)
class Found:
    """The train op of a block, and the variables that the block updates, in creation order."""

    train: tf.Operation
    updated: tuple[Updated, ...]


def find(mark: Mark, label: str) -> Found:
    """What was added to the graph since a mark.

    Updated variables are the trainable ones that an op of the block writes to, and others that an
    optimizer of the block was given (not its own slots, nor counters).

    Raises:
      ValueError: in one sentence: no train op was created since, or several that nothing groups; or
        a variable is a reference variable, which cannot be read before its own update.
    """
    block = mark.graph.get_operations()[mark.operations :]
    writes = _writes(block)
    trainable = {id(v) for v in mark.graph.get_collection("trainable_variables")}
    updated, references = [], []
    for variable in _unique(mark.graph.get_collection("variables")):
        is_reference = variable.op.type in _REFERENCES
        source = variable.op.outputs[0] if is_reference else variable.handle
        mine = [op for op in writes.get(id(source), ()) if op is not variable.initializer]
        applied = any(op.type.startswith(_APPLIES) and op.inputs[0] is source for op in mine)
        if not mine or not (id(variable) in trainable or applied):
            continue
        if is_reference:
            references.append(variable.op.name)
        else:
            sparse = any(op.type.startswith(_SPARSE) for op in mine)
            updated.append(Updated(variable, tuple(mine), sparse))
    if references:
        raise ValueError(
            f"{label}: {', '.join(references)} is a reference variable, of which no value before "
            "its update can be kept; should be made with use_resource=True, or after "
            "tf.compat.v1.enable_resource_variables()"
        )
    roots = _new_train_ops(mark) or [op for u in updated for op in u.writes]
    if not roots or not updated:
        raise ValueError(
            f"{label}: no train op was created inside the block; opt.apply_gradients(...) or "
            "opt.minimize(...) should stand in it"
        )
    return Found(_last(block, roots, label), tuple(updated))


def operations_after(start: tf.Operation, operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Of operations in creation order those that run after `start`, itself included."""
    return _descendants([start], operations)


def _new_train_ops(mark: Mark) -> list[tf.Operation]:
    now = mark.graph.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP)
    # One that stands in the function of a branch is not an op of the graph.
    mine = [op for op in now if op.graph is mark.graph]
    return [op for op in mine if all(op is not before for before in mark.train_ops)]


def _last(block: Sequence[tf.Operation], roots: Sequence[tf.Operation], label: str) -> tf.Operation:
    """The one op after which everything that the roots began is done."""
    reached = _descendants(roots, block)
    ends: list[tf.Operation] = []
    awaited: set[tf.Operation] = set()
    for op in reversed(block):
        # What is only computed ends nothing: TensorFlow itself adds a read to every assignment.
        acts = not op.outputs or (op.op_def.is_stateful and op.type not in _READS)
        if op not in reached or not (acts or op in awaited):
            continue
        if op not in awaited:
            ends.append(op)
        awaited.update(i.op for i in op.inputs)
        awaited.update(op.control_inputs)
    if len(ends) != 1:
        names = ", ".join(op.name for op in ends[:5])
        raise ValueError(
            f"{label}: {len(ends)} ops of the block end an update ({names}); should be one: group "
            "them inside the block with tf.group, or give each a block of its own"
        )
    return ends[0]


def _descendants(
    roots: Sequence[tf.Operation], operations: Iterable[tf.Operation]
) -> set[tf.Operation]:
    reached = set(roots)
    for op in operations:
        if any(i.op in reached for i in op.inputs) or any(c in reached for c in op.control_inputs):
            reached.add(op)
    return reached


def _writes(block: Sequence[tf.Operation]) -> dict[int, list[tf.Operation]]:
    """Ops that may write to a variable, by the id of its handle (or reference).

    An op that calls a function with a handle counts as writing if it has any effect.
    """
    found: dict[int, list[tf.Operation]] = {}
    for op in block:
        only_reads = op.type in _READS | _PASSED_ON or not op.op_def.is_stateful
        if only_reads and not _takes_reference(op):
            continue
        for tensor in op.inputs:
            if tensor.dtype == tf.resource or tensor.dtype._is_ref_dtype:
                found.setdefault(id(_source(tensor)), []).append(op)
    return found


def _takes_reference(op: tf.Operation) -> bool:
    return op.type not in _PASSED_ON and any(a.is_ref for a in op.op_def.input_arg)


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """The handle itself, where branches and loops of TF1 pass it on."""
    while tensor.op.type in _PASSED_ON:
        tensor = tensor.op.inputs[0]
    return tensor


def _unique(variables: Iterable[Any]) -> list[Any]:
    return list({id(v): v for v in variables}.values())
