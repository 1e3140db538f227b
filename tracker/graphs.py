"""The graph of one step, as people meet it in TensorBoard's Graphs tab.

TensorFlow keeps a compiled step as functions inside functions: a loop whose body holds a `Case`
whose branches are the noise routes. TensorBoard shows such functions under generated names, cut
short. Here they are written out into one flat graph with the parts of a step at its top (`data`,
`forward`, `gradients`, `update`, `noise`, `diagnostics`), and inside `noise/route` one box for each
route, named for its number and stddev. The names are those that profiler traces show, through
`node_name`; the graph is for reading, and cannot be imported and run.

    >>> graph = step_graph(train.get_concrete_function(iterator, count))
    >>> event = Event(graph_def=graph.SerializeToString())
    >>> node_name("while/body/_1/gradient_tape/while/forward/dense/MatMul/MatMul_1:MatMul")
    'gradients/forward/dense/MatMul/MatMul_1'
    >>> part("while/body/_1/while/forward/dense/MatMul:_MklMatMul")
    'forward'
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from absl import logging

PARTS = ("data", "forward", "gradients", "update", "noise", "diagnostics")
COLLAPSED = "Collapsed"  # the op of a node that stands for many
MOST_NODES = 10_000  # two megabytes, drawn in some three seconds; a scope of ops fills a screen
MOST_CONSTANT_BYTES = 1024  # TensorBoard does not send longer attributes to the page either
FIRST_ROUTES, LAST_ROUTES = 8, 4  # what is shown of many routes

_TYPE = re.compile(r":\w+$")
_LOWERED = re.compile(r"/(body|cond|then|else|branch\d+)/_\d+/")
_REWRITTEN = re.compile(
    r"(^|/)ConstantFolding/|(?<=/)ArithmeticOptimizer/[A-Z][A-Za-z]+_"
    r"(?:(?:(?:u?int|b?float)\d+|float|double|half|bool)_)?"
)
_ROUTE = re.compile(r"^noise/(?:.*/)?(?=route_\d+_)")
_CHOSEN = re.compile(r"^noise/(?:cond/(?:then/)?)?(?:route/)?(?:switch_case/)?indexed_case(?=/|$)")
_ROUTE_BOX = re.compile(r"^noise/route/route_[^/]+$")
_FLAT = re.compile(r"/\d+_(ops|more_routes)$")


def node_name(op_name: str) -> str:
    """Name in the exported graph of an op as a profiler's host plane names it.

    TensorFlow inlines functions before it runs them and names the ops for it, so that
    `while/body/_1/while/forward/add` is the op `while/forward/add` of the body of `while`. These
    prefixes go, as do the scopes of the loops around the step, the `:OpType` at the end, and what
    TensorFlow's optimizer puts before the name of an op that it rewrites
    (`norm/ArithmeticOptimizer/ReplaceMulWithSquare_mul` is `norm/mul`). What belongs to no part of
    a step (counters, the vectors of results) goes to `loop/`.

    Args:
      op_name: such as `while/body/_1/while/forward/dense/MatMul:_MklMatMul`, or a plain op name.

    Returns:
      The name; whether the graph has that node, or one that stands for it, tells `find`.
    """
    name = _REWRITTEN.sub(r"\1", _TYPE.sub("", op_name))
    first, *rest = _LOWERED.split(name)
    segments = first.split("/")
    for kind, inner in zip(rest[::2], rest[1::2], strict=True):
        segments = _inside(segments, kind, inner.split("/"))
    name = "/".join(_placed(segments))
    name = _ROUTE.sub("noise/route/", name)
    return _CHOSEN.sub("noise/route/chosen", name)


def part(op_name: str) -> str | None:
    """Part of the step that an op belongs to, one of `PARTS`; None for what is around the step."""
    top = node_name(op_name).split("/")[0]
    return top if top in PARTS else None


def find(graph: Any, op_name: str) -> str | None:
    """The node of an exported graph that shows an op of a profiler trace.

    Args:
      graph: from `step_graph`.
      op_name: as for `node_name`.

    Returns:
      The op's own node, or the collapsed one that stands for it; None if there is neither.
    """
    name = node_name(op_name)
    collapsed = {}
    for node in graph.node:
        if node.name == name:
            return name
        if node.op == COLLAPSED:
            collapsed[_FLAT.sub("", node.name)] = node.name
    while name and name not in collapsed:
        name = name.rpartition("/")[0]
    return collapsed.get(name)


def step_graph(function: Any, most_nodes: int = MOST_NODES) -> Any:
    """The graph of one step of a compiled function.

    The step may stand in a loop of the function, or in a loop of a loop. Of two kinds of step of
    which one is in a loop beside the other, the other is shown. Of more than twelve routes the
    first eight and the last four are.

    Args:
      function: a `ConcreteFunction`.
      most_nodes: bound on the number of nodes. In a larger graph the ops of the fullest scopes are
        drawn as one node each until it fits, and a line in the log says so.

    Returns:
      A `GraphDef` without a function library. Long constants have a type and a shape, no values.
    """
    from tensorflow.core.framework import graph_pb2

    inliner = _Inliner(function)
    nodes = _collapsed(inliner.nodes(), most_nodes)
    return graph_pb2.GraphDef(node=nodes, versions=inliner.versions)


def _inside(outer: list[str], kind: str, inner: list[str]) -> list[str]:
    """Joins the name of a loop or branch with the name of an op in its function.

    A function has the scopes of the place where it was traced, so the two mostly overlap. Branches
    and conditions keep their kind in the name, as two of them may have ops of the same name.
    """
    overlaps = [
        (i + n == len(outer), n, i)
        for i in range(len(outer))
        if (n := _common(outer[i:], inner)) > 0
    ]
    mark = [] if kind == "body" else [kind]
    if not overlaps:
        return [*outer, *mark, *inner]
    _, length, start = max(overlaps)
    return [*outer[:start], *inner[:length], *mark, *inner[length:]]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _placed(segments: list[str]) -> list[str]:
    """Drops the scopes around the part of the step; gradients come under one scope."""
    if "gradient_tape" in segments:
        inner = segments[segments.index("gradient_tape") + 1 :]
        return ["gradients", *(_from_part(inner) or inner)]
    return _from_part(segments) or ["loop", *segments]


def _from_part(segments: list[str]) -> list[str]:
    return next((segments[i:] for i, s in enumerate(segments[:-1]) if s in PARTS), [])


class _Inliner:
    """Writes out the functions of a graph, with the names that TensorFlow's own inlining gives.

    Inputs of a function become aliases of what its caller gave, and outputs of a call aliases of
    what the function returned; both are followed at the end.
    """

    def __init__(self, function: Any):
        graph = function.graph.as_graph_def(add_shapes=True)
        self.versions = graph.versions
        self._functions = {f.signature.name: f for f in graph.library.function}
        self._nodes: dict[str, Any] = {}  # by the name that a trace shows
        self._alias: dict[str, str] = {}
        self._inputs = _input_names(function)
        self._walk(graph.node, "")

    def nodes(self) -> list[Any]:
        """The nodes under their exported names; of two that share one, the first.

        The knots that a loop ties around everything that has an effect are left out: they would
        draw an edge from each part to `loop`.
        """
        names = {raw: self._inputs.get(raw) or node_name(raw) for raw in self._nodes}
        for raw, node in self._nodes.items():
            if node.op == "NoOp" and names[raw].startswith("loop/"):
                del names[raw]
        found: dict[str, Any] = {}
        for raw, node in self._nodes.items():
            if raw not in names or names[raw] in found:
                continue
            sources = (self._resolved(i) for i in node.input)
            inputs = [f"{mark}{names[name]}{port}" for mark, name, port in sources if name in names]
            found[names[raw]] = _drawn(node, names[raw], inputs)
        return list(found.values())

    def _resolved(self, tensor: str) -> tuple[str, str, str]:
        if tensor.startswith("^"):
            return "^", tensor[1:], ""
        while tensor in self._alias:
            tensor = self._alias[tensor]
        name, _, port = tensor.rpartition(":")
        return "", name, "" if port == "0" else f":{port}"

    def _walk(self, nodes: Iterable[Any], prefix: str) -> None:
        shown = any(part(n.name) == "update" for n in nodes)
        for original in nodes:
            node = type(original)()
            node.CopyFrom(original)
            node.name = prefix + node.name
            node.input[:] = [_prefixed(i, prefix) for i in node.input]
            self._nodes[node.name] = node
            if node.op in ("While", "StatelessWhile"):
                if shown and self._updates(node.attr["body"].func.name):
                    node.op = COLLAPSED  # the step is drawn once
                else:
                    self._loop(node)
            elif node.op in ("If", "StatelessIf"):
                self._branches(node, {"then": node.attr["then_branch"].func.name,
                                      "else": node.attr["else_branch"].func.name})  # fmt: skip
            elif node.op in ("Case", "StatelessCase"):
                functions = enumerate(node.attr["branches"].list.func)
                self._branches(node, {f"branch{i}": f.name for i, f in functions})
            elif node.op in ("PartitionedCall", "StatefulPartitionedCall"):
                results = self._open(node.attr["f"].func.name, f"{node.name}/", node.input)
                self._returns(node.name, results)

    def _updates(self, function: str) -> bool:
        """Whether a function holds a step of its own."""
        nodes = self._functions[function].node_def
        inner = (a.func.name for n in nodes for a in n.attr.values() if a.HasField("func"))
        return any(part(n.name) == "update" for n in nodes) or any(map(self._updates, inner))

    def _open(self, function: str, prefix: str, arguments: Sequence[str]) -> list[str]:
        """Writes out a function; returns the tensors that it returns."""
        from tensorflow.python.framework import function_def_to_graph

        definition = self._functions[function]
        graph, flat = function_def_to_graph.function_def_to_graph_def(definition)
        names = [a.name for a in definition.signature.input_arg]
        tensors = (a for a in arguments if not a.startswith("^"))
        self._alias.update({f"{prefix}{n}:0": t for n, t in zip(names, tensors, strict=True)})
        self._walk(graph.node[len(names) :], prefix)
        returned = (definition.ret[o.name] for o in definition.signature.output_arg)
        return [_prefixed(flat[r], prefix) for r in returned]

    def _loop(self, node: Any) -> None:
        inputs = list(node.input)
        condition = self._open(node.attr["cond"].func.name, f"{node.name}/cond/_0/", inputs)
        self._returns(
            node.name, self._open(node.attr["body"].func.name, f"{node.name}/body/_0/", inputs)
        )
        node.input[:] = condition

    def _returns(self, name: str, results: Sequence[str]) -> None:
        self._alias.update({f"{name}:{i}": r for i, r in enumerate(results)})

    def _branches(self, node: Any, functions: dict[str, str]) -> None:
        """Writes out branches: the choice leads to each of them, and they to the node itself."""
        choice, *inputs = list(node.input)
        node.input[:] = [choice]
        kinds = list(functions)
        hidden = kinds[FIRST_ROUTES:-LAST_ROUTES] if len(kinds) > FIRST_ROUTES + LAST_ROUTES else []
        for kind in kinds:
            if kind in hidden:
                continue
            before = len(self._nodes)
            results = self._open(functions[kind], f"{node.name}/{kind}/_0/", inputs)
            for inner in list(self._nodes.values())[before:][:1]:
                inner.input.append("^" + choice.rpartition(":")[0])
            node.input.extend(results)
        if hidden:
            self._leave_out(node, choice, len(hidden))

    def _leave_out(self, node: Any, choice: str, count: int) -> None:
        name = f"{node_name(node.name).removesuffix('/chosen')}/{count}_more_routes"
        more = type(node)(name=name, op=COLLAPSED, input=["^" + choice.rpartition(":")[0]])
        self._nodes[name] = more
        self._inputs[name] = name
        node.input.append("^" + name)


def _prefixed(tensor: str, prefix: str) -> str:
    if tensor.startswith("^"):
        return f"^{prefix}{tensor[1:]}"
    return prefix + (tensor if ":" in tensor else tensor + ":0")


def _input_names(function: Any) -> dict[str, str]:
    """Names of a function's inputs: variables by their own names, under `variables/`."""
    graph = function.graph
    variables = {id(v.handle): v.name.split(":")[0] for v in graph.variables}
    names = {t.op.name: f"inputs/{t.op.name.rpartition('/')[2]}" for t in graph.inputs}
    taken: dict[str, int] = defaultdict(int)
    for outside, inside in graph.captures:
        if id(outside) in variables:
            name = f"variables/{variables[id(outside)]}"
            count, taken[name] = taken[name], taken[name] + 1
            names[inside.op.name] = f"{name}_{count}" if count else name
    return names


def _drawn(node: Any, name: str, inputs: Sequence[str]) -> Any:
    """A node as it is written: without references to functions, and without long values."""
    drawn = type(node)(name=name, op=node.op, device=node.device, input=inputs)
    for key, value in node.attr.items():
        if key.startswith("_") and key != "_output_shapes":
            continue
        if value.HasField("func") or value.list.func:
            continue
        if value.ByteSize() <= MOST_CONSTANT_BYTES:
            drawn.attr[key].CopyFrom(value)
        elif value.HasField("tensor"):
            drawn.attr[key].tensor.dtype = value.tensor.dtype
            drawn.attr[key].tensor.tensor_shape.CopyFrom(value.tensor.tensor_shape)
    return drawn


def _collapsed(nodes: list[Any], most: int) -> list[Any]:
    """Draws the ops of the fullest scopes as one node each until there are few enough nodes.

    A scope of ops alone becomes a node of its own name, which its parent may then swallow; one
    with scopes inside, a part of the step or a route gets a node `<number>_ops`.
    """
    original, target = len(nodes), {n.name: n.name for n in nodes}
    while (left := len(set(target.values()))) > most:
        scopes: dict[str, list[str]] = defaultdict(list)
        for name in set(target.values()):
            scopes[name.rpartition("/")[0]].append(name)
        merged = _merges(scopes, left - most)
        if not merged:
            break
        target = {name: merged.get(t, t) for name, t in target.items()}
    if left == original:
        return nodes
    logging.info(
        "The step's graph has %d nodes; TensorBoard draws up to %d well, so the fullest scopes are "
        "shown as one node each (%d nodes).", original, most, left,
    )  # fmt: skip
    return _merged(nodes, target)


def _merges(scopes: dict[str, list[str]], surplus: int) -> dict[str, str]:
    """New names for the nodes of as many scopes, fullest first, as it takes to lose a surplus."""
    parents = {s.rpartition("/")[0] for s in scopes}
    merged: dict[str, str] = {}
    for scope, members in sorted(scopes.items(), key=lambda item: (-len(item[1]), item[0])):
        own = scope and scope.count("/") > 0 and scope not in parents
        own = own and not _ROUTE_BOX.match(scope)
        if surplus <= 0 or not scope or (len(members) == 1 and not own):
            continue
        name = scope if own else f"{scope}/{len(members)}_ops"
        merged.update(dict.fromkeys(members, name))
        surplus -= len(members) - 1
    return merged


def _merged(nodes: list[Any], target: dict[str, str]) -> list[Any]:
    """The nodes after a merge, with the edges between what was merged left out."""
    sizes: dict[str, int] = defaultdict(int)
    for name in target.values():
        sizes[name] += 1
    found: dict[str, Any] = {}
    for node in nodes:
        name = target[node.name]
        if name == node.name and sizes[name] == 1:
            new = found[name] = type(node)(name=name, op=node.op, device=node.device)
            new.attr.MergeFrom(node.attr)
        else:
            new = found.setdefault(name, type(node)(name=name, op=COLLAPSED))
        present = set(new.input)
        for tensor in node.input:
            source = tensor.lstrip("^").split(":")[0]
            same = target[source] == source
            moved = tensor if same else ("^" if tensor[0] == "^" else "") + target[source]
            if target[source] != name and moved not in present:
                new.input.append(moved)
                present.add(moved)
    return list(found.values())
