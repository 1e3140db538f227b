"""What tracker costs, as formulas: seconds, bytes and operations of noise, measuring and writing.

Each part is written down as the TensorFlow operations that it runs for one variable, each with the
numbers that it works on. Traffic, time, memory and graph size follow from that one list. What a
machine needs for an operation is a `Machine`: curves of elementary operations over the number of
elements, which `benchmarks/scale.py` measures, never the parts that are to be predicted. Plain
Python, without TensorFlow; `docs/scale.md` says what comes out.

    >>> sizes = equal(2**20, variables=8)
    >>> traffic(noise_ops(sizes[0]))            # words read and written, operations, an element
    Traffic(reads=9.5, writes=8.5, flops=25.5, functions=2.0)
    >>> persistent_bytes(sizes, 'buffered')
    4194304
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tracker import tags

WORD = 4  # bytes of a float32
VECTORISED = 2**12  # as noise.VECTORISED
SMALL_VARIABLE, MANY = 2**12, 64  # as in wur: from so many small variables they go together
ALIGNED = 64 // WORD  # elements: a slice that begins at a multiple of this is not copied
FIELDS = 15  # of wur.Measured, float64 each
SMALL = "small"  # the kind of operations on a few numbers, which cost the same for any variable
VIEW = "view"  # that hand an array on: reading and assigning a variable, another shape
BRANCH = "branch"  # small ones that TensorFlow folds away, but not in a branch that it leaves whole


class Kind(NamedTuple):
    """What an elementary operation does with each element.

    Attributes:
      reads, writes: float32 words (a bool is a quarter).
      flops: additions, multiplications, comparisons and integer operations.
      functions: logarithms, roots, sines and cosines.
    """

    reads: float
    writes: float
    flops: float = 0.0
    functions: float = 0.0


# Philox4x32-10 makes four numbers by ten rounds of two wide products, four exclusive ors and two
# additions of the key: 20 operations a number, and 2 to make it a float.
_PHILOX = 22.0

KINDS = {
    "copy": Kind(1, 1),
    "slice": Kind(1, 1),  # a stretch that does not begin where a vector of the processor may
    "add": Kind(2, 1, 1),  # two arrays into a new one
    "in_place": Kind(1, 1, 1),  # an array and a scalar
    "combine": Kind(2, 1, 1),  # two arrays into one of them
    "log": Kind(1, 1, 0, 1),
    "sqrt": Kind(1, 1, 0, 1),
    "trigonometric": Kind(1, 1, 0, 1),
    "uniform": Kind(0, 1, _PHILOX),
    "normal": Kind(0, 1, _PHILOX, 2),
    "square_sum": Kind(1, 0, 2),
    "compare": Kind(2, 0.25, 1),
    "both": Kind(0.5, 0.25, 1),
    "count": Kind(1.25, 1, 1),  # bools into integers, and their sum
    "segment_sum": Kind(3, 0, 1),  # float64, by an integer for each
}


class Op(NamedTuple):
    """One operation on one variable.

    Attributes:
      type: TensorFlow's.
      kind: key of `KINDS`, or `SMALL`, `VIEW` or `BRANCH`.
      elements: that it works on.
      cold: how many of its words an element were not touched just before: variables and snapshots.
      more: further operations of the graph that are counted with it.
    """

    type: str
    kind: str = SMALL
    elements: float = 0.0
    cold: float = 0.0
    more: tuple[str, ...] = ()


class Traffic(NamedTuple):
    """Words of 4 bytes and operations for each element of a variable."""

    reads: float
    writes: float
    flops: float
    functions: float

    @property
    def bytes(self) -> float:
        """Bytes an element, read and written."""
        return WORD * (self.reads + self.writes)


def traffic(ops: Sequence[Op], elements: float | None = None) -> Traffic:
    """Adds up what operations do, for each element of the variable.

    Args:
      ops: of one variable.
      elements: of the variable; by default what the largest operation works on.
    """
    each = elements or max((op.elements for op in ops), default=0) or 1
    sums = [0.0] * 4
    for op in ops:
        if op.kind in KINDS:
            sums = [s + op.elements * k for s, k in zip(sums, KINDS[op.kind], strict=True)]
    return Traffic(*(s / each for s in sums))


def equal(parameters: int, variables: int) -> list[int]:
    """Sizes of so many variables that share the parameters as equally as whole numbers can."""
    return [parameters * (i + 1) // variables - parameters * i // variables
            for i in range(variables)]  # fmt: skip


def draw_ops(elements: int, source: str = "stateless", device: str = "cpu") -> list[Op]:
    """Unit-variance numbers for one variable (`noise.Stateless`, `noise.Table`).

    Args:
      elements: of the variable.
      source: 'stateless' or 'table', of normal numbers.
      device: 'cpu', or 'gpu', where TensorFlow's kernel makes normal numbers of any size.
    """
    n = float(elements)
    if source == "table":
        return [
            *map(Op, ("StatelessRandomUniformIntV2", "AddV2")),
            *[Op(type_, BRANCH) for type_ in ("Cast", "Pack", "Pack")],
            *[Op(type_, VIEW) for type_ in ("ReadVariableOp", "Reshape")],
            Op("StridedSlice", "slice", n, cold=1),
        ]
    if elements < VECTORISED or device == "gpu":
        return [Op("StatelessRandomNormalV2", "normal", n)]
    half = float((elements + 1) // 2)
    apart = half % ALIGNED == 0  # whether halves of the uniform numbers are views, not copies
    first = "copy" if apart else "in_place"
    views = [Op("StridedSlice")] * 2 if apart else [Op("StridedSlice", "slice", half)] * 2
    return [
        Op("StatelessRandomUniformV2", "uniform", 2 * half),
        *views,
        Op("Sub", first, half),
        Op("Log", "log", half),
        Op("Mul", "in_place", half),
        Op("Sqrt", "sqrt", half),
        Op("Mul", first, half),
        Op("Cos", "trigonometric", half),
        Op("Sin", "trigonometric", half),
        Op("Mul", "combine", half),
        Op("Mul", "combine", half),
        Op("ConcatV2", "copy", 2 * half),
        Op("StridedSlice", "slice", n) if elements % 2 else Op("StridedSlice", BRANCH),
        Op("Reshape", VIEW),
    ]


def noise_ops(
    elements: int, strategy: str = "scalar", source: str = "stateless", device: str = "cpu"
) -> list[Op]:
    """The noise of one step on one variable: `noise.Adder`, one branch of `routes`."""
    n = float(elements)
    read, assign = Op("ReadVariableOp", VIEW), Op("AssignVariableOp", VIEW)
    scaled = [*draw_ops(elements, source, device), Op("Mul", "in_place", n), read]
    if strategy == "buffered":
        # The buffer keeps the noise, so that the sum needs an array of its own.
        return [*scaled, assign, read, Op("AddV2", "add", n, cold=1), assign]
    return [*scaled, Op("AddV2", "combine", n, cold=1), assign]


def snapshot_ops(elements: int) -> list[Op]:
    """What keeping the weights of before costs an update that works in place: a copy."""
    read = [Op("ReadVariableOp", VIEW)] * 3
    return [*read, Op("copy-on-write", "copy", float(elements), cold=1)]


def measure_ops(elements: int, noised: bool = True) -> list[Op]:
    """`wur.measure` of one variable with a dense gradient, where no sum is out of range."""
    n = float(elements)
    norms = ("Mul", "Cast")
    differences = 3 if noised else 1
    held, fresh = (2, 3) if noised else (2, 2)
    count = ("Sum", "Cast")
    noise_count = [
        Op("Equal", "compare", n, cold=2),
        Op("Cast", "count", n, more=(*count, "SelectV2", "SelectV2")),
    ]
    return [
        *[Op("Sub", "add", n, cold=2)] * differences,
        *[Op("L2Loss", "square_sum", n, cold=1, more=norms)] * held,
        *[Op("L2Loss", "square_sum", n, more=norms)] * fresh,
        Op("NotEqual", "compare", n, cold=1),
        Op("Cast", "count", n, more=count),
        Op("Equal", "compare", n, cold=2),
        Op("LogicalAnd", "both", n),
        Op("Cast", "count", n, more=count),
        *(noise_count if noised else []),
        *map(Op, ("Pack", "Pack", "StridedSlice")),
    ]


def together_ops(sizes: Sequence[int]) -> list[Op]:
    """`wur.measure` of many small variables, as one float64 vector."""
    n, wide = float(sum(sizes)), 2.0 * sum(sizes)
    flat = [Op("Reshape", VIEW)] * (4 * len(sizes))
    vector = [Op("ConcatV2", "copy", n, cold=1), Op("Cast", "copy", (n + wide) / 2)]
    total = Op("UnsortedSegmentSum", "segment_sum", n)
    norm = [Op("Square", "copy", wide), total, Op("Sqrt")]
    number = [Op("Cast", "copy", n), total]
    return [
        *flat,
        *vector * 4,
        Op("NotEqual", "compare", n),
        *[Op("Sub", "add", wide)] * 3,
        *norm * 5,
        *number,
        Op("Equal", "compare", wide),
        Op("LogicalAnd", "both", n),
        *number,
        Op("Equal", "compare", wide),
        *number,
        Op("IsFinite", "compare", n),
        Op("LogicalNot", "both", n),
        *number,
        *map(Op, ("Cast", "Mul", "Mul", "Mul", "Pack")),
    ]


def groups(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Sizes that are measured one by one, and those measured together, as `wur` divides them."""
    small = [n for n in sizes if n <= SMALL_VARIABLE]
    if len(small) < MANY:
        return list(sizes), []
    return [n for n in sizes if n > SMALL_VARIABLE], small


def summary_ops(sizes: Sequence[int], noised: bool = True) -> list[Op]:
    """What a summary step runs more than a plain one."""
    apart, small = groups(sizes)
    return [
        *(op for n in sizes for op in snapshot_ops(n)),
        *(op for n in apart for op in measure_ops(n, noised)),
        *(together_ops(small) if small else ()),
    ]


# Of the branch of `wur.measure` that takes norms the careful way, a variable.
CAREFUL_NODES = 85
# Constants that the graph holds beside the operations: of noise, and of measuring, a variable.
_CONSTANTS = {"small": 2, "vectorised": 18, "table": 12, "measure": 17}


def op_counts(ops: Sequence[Op]) -> collections.Counter:
    """How many operations of each type the graph holds."""
    found: collections.Counter = collections.Counter()
    for op in ops:
        found.update((op.type, *op.more))
    return found


def random_numbers(sizes: Sequence[int], source: str = "stateless") -> int:
    """Random numbers that the noise of a step draws; of a table one offset a variable."""
    if source == "table":
        return len(sizes)
    return sum(n if n < VECTORISED else 2 * ((n + 1) // 2) for n in sizes)


def graph_nodes(
    sizes: Sequence[int],
    strategy: str = "scalar",
    source: str = "stateless",
    stddevs: int = 6,
    measured: bool = False,
    device: str = "cpu",
) -> int:
    """About how many nodes of the compiled step are tracker's, functions that it calls included."""
    nodes = 0
    for n in sizes:
        small = n < VECTORISED or device == "gpu"
        kind = "table" if source == "table" else "small" if small else "vectorised"
        one = sum(op_counts(noise_ops(n, strategy, source, device)).values()) + _CONSTANTS[kind]
        nodes += one * (stddevs if strategy == "routes" else 1)
    if measured:
        nodes += sum(op_counts(summary_ops(sizes)).values()) + 3 * len(sizes)
        nodes += (CAREFUL_NODES + _CONSTANTS["measure"]) * len(groups(sizes)[0])
    return nodes


Curve = tuple[tuple[float, float], ...]  # (elements, seconds of one operation), ascending


@dataclasses.dataclass(frozen=True)
class Machine:
    """What elementary operations cost on a machine; seconds.

    Attributes:
      curves: for each of `KINDS` seconds of one operation over its elements, for `arrays` of them
        at a time, so that caches, threads and starting an operation are in it.
      arrays: how many arrays a curve was measured with.
      op_seconds: of an operation on a few numbers.
      view_seconds: of reading or assigning a variable.
      dead_seconds: of an operation in a branch that is not taken.
      loop_seconds: of one turn of the loop around the steps.
      call_seconds: of a branch that is called as a function.
      build_seconds: to trace, optimise and start a graph of hardly any nodes.
      node_seconds: the same, for each node.
      value_seconds: to make one value of a record.
      number_seconds: to test one Python number and put it into a dictionary.
      array_seconds: of one NumPy operation on a short array.
      histogram_seconds: of TensorBoard's histogram of a short array.
      record_seconds: to serialise a record, write it and flush it.
      memory_seconds: to ask for the resident memory of the process.
    """

    curves: Mapping[str, Curve]
    arrays: int
    op_seconds: float
    view_seconds: float
    dead_seconds: float
    loop_seconds: float
    call_seconds: float
    build_seconds: float
    node_seconds: float
    value_seconds: float
    number_seconds: float
    array_seconds: float
    histogram_seconds: float
    record_seconds: float
    memory_seconds: float

    def seconds(self, op: Op, footprint: float, whole: bool = False) -> float:
        """Of one operation.

        Args:
          op: the operation.
          whole: whether it is in a branch that TensorFlow leaves whole.
          footprint: float32 words of the variables and snapshots that a step goes through; if they
            do not fit into a cache, what is cold comes from memory.
        """
        if op.kind == BRANCH:
            return self.op_seconds if whole else 0.0
        if op.kind in (SMALL, VIEW):
            return self.op_seconds if op.kind == SMALL else self.view_seconds
        small = self.op_seconds * len(op.more)
        if not op.elements:
            return small
        taken = interpolated(self.curves[op.kind], op.elements)
        # The curve was measured on as many words as `arrays` of this size have.
        farther = max(self._word(footprint / self.arrays) - self._word(op.elements), 0.0)
        return small + taken + op.elements * op.cold * farther

    def _word(self, elements: float) -> float:
        """Seconds to read a word of an array of so many, among `arrays` of them."""
        curve = self.curves["square_sum"]
        return max(interpolated(curve, elements) - curve[0][1], 0.0) / elements

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return dataclasses.asdict(self)


def interpolated(curve: Curve, x: float) -> float:
    """A curve between its points, straight in logarithms; beyond the last proportional to x."""
    xs = [point[0] for point in curve]
    if x <= xs[0]:
        return curve[0][1]
    if x >= xs[-1]:
        return curve[-1][1] * x / xs[-1]
    i = bisect.bisect_right(xs, x)
    (x0, y0), (x1, y1) = curve[i - 1], curve[i]
    return y0 * (y1 / y0) ** (math.log(x / x0) / math.log(x1 / x0))


def noise_seconds(
    machine: Machine,
    sizes: Sequence[int],
    strategy: str = "scalar",
    source: str = "stateless",
    device: str = "cpu",
) -> float:
    """Seconds that the noise of one step takes.

    The number of stddevs is no argument: one branch runs, or one scalar is looked up. It costs
    nodes (`graph_nodes`) and with them the time to build the graph.
    """
    table = table_size(sizes) if source == "table" else 0
    footprint = sum(sizes) + table
    fixed = machine.call_seconds if strategy == "routes" else machine.op_seconds
    fixed += 3 * machine.op_seconds  # the counter of the step
    return fixed + sum(
        machine.seconds(op, footprint, whole=strategy == "routes")
        for n in sizes
        for op in noise_ops(n, strategy, source, device)
    )


def measure_seconds(machine: Machine, sizes: Sequence[int], noised: bool = True) -> float:
    """Seconds that a summary step takes more than a plain one, the writing left out."""
    footprint = 4 * sum(sizes)  # before, between, after, and the gradients
    dead = machine.dead_seconds * CAREFUL_NODES * len(groups(sizes)[0])
    return dead + sum(machine.seconds(op, footprint) for op in summary_ops(sizes, noised))


# What the host does for a summary step, by counting `Recorder` and `wur.overall`: operations on
# arrays with an element a variable; numbers tested and put into dictionaries, fixed and a variable;
# values of a record; records.
_ARRAY_OPERATIONS = 315
_NUMBERS = (20, 9)


def write_seconds(machine: Machine, variables: int, fixed_values: int = 20) -> float:
    """Seconds that the host takes to turn the rows of a summary step into records, and to write.

    Args:
      machine: what it runs on.
      variables: that are measured.
      fixed_values: that the record has besides those of the variables.
    """
    values = fixed_values + 5 * variables
    numbers = _NUMBERS[0] + _NUMBERS[1] * variables
    return (
        machine.array_seconds * _ARRAY_OPERATIONS
        + machine.number_seconds * numbers
        + machine.value_seconds * values
        + machine.histogram_seconds
        + machine.record_seconds * 2
        + machine.memory_seconds
    )


def log_seconds(machine: Machine, values: int = 3) -> float:
    """Seconds that the host takes for the scalars that every step has."""
    return machine.record_seconds + machine.value_seconds * values / 3


def build_seconds(machine: Machine, nodes: int) -> float:
    """Seconds until a compiled step with so many nodes has run once."""
    return machine.build_seconds + machine.node_seconds * nodes


class Step(NamedTuple):
    """Mean seconds of a step."""

    update: float
    noise: float
    measuring: float
    writing: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def step_seconds(
    machine: Machine,
    sizes: Sequence[int],
    update_seconds: float,
    strategy: str = "scalar",
    source: str = "stateless",
    summary_every: int = 100,
    device: str = "cpu",
) -> Step:
    """Mean seconds of a step of a run.

    Args:
      machine: what it runs on.
      sizes: of the variables.
      update_seconds: of forward pass, gradients and optimizer.
      strategy, source, device: as for `noise_seconds`.
      summary_every: 0 for never.
    """
    every = summary_every or math.inf
    return Step(
        update_seconds,
        noise_seconds(machine, sizes, strategy, source, device),
        measure_seconds(machine, sizes) / every,
        write_seconds(machine, len(sizes)) / every + log_seconds(machine),
    )


def table_size(sizes: Sequence[int]) -> int:
    """Numbers of the default table, as `noise.table_size`."""
    largest, total = max(sizes), sum(sizes)
    return max(2**20, min(16 * largest, 4 * total), largest)


def persistent_bytes(
    sizes: Sequence[int],
    strategy: str = "scalar",
    source: str = "stateless",
    table: int = 0,
    word: int = WORD,
) -> int:
    """Bytes that strategy and source hold beside the model, on each replica.

    Args:
      sizes: of the variables that get noise.
      strategy, source: of the noise.
      table: numbers in the table; 0 for the default.
      word: bytes of a number of the buffers: 8 for float64 variables, else 4.
    """
    held = word * sum(sizes) if strategy == "buffered" else 0
    return held + (WORD * (table or table_size(sizes)) if source == "table" else 0)


def snapshot_bytes(sizes: Sequence[int], word: int = WORD) -> int:
    """Bytes that a summary step holds beside a plain one: the weights before, and before noise."""
    return 2 * word * sum(sizes)


# Arrays as large as a variable that are alive at once while it is worked on: uniform numbers and
# both halves of them, or the halves of the normal numbers and their concatenation; three
# differences and a count.
_ALIVE = {"stateless": 2.0, "table": 1.0, "measuring": 4.25}
_MAKING = 2.0  # tables that are alive beside the one that is made, once


def transient_bytes(
    sizes: Sequence[int], source: str = "stateless", measured: bool = False, threads: int = 2
) -> int:
    """Bytes of what is made and freed within a step, at the most.

    TensorFlow goes through one variable after another, and as many at a time as it has threads,
    with one more under way.
    """
    alive = _ALIVE["measuring"] if measured else _ALIVE[source]
    return round(WORD * alive * sum(sorted(sizes)[-(threads + 1) :]))


def peak_bytes(
    sizes: Sequence[int],
    strategy: str = "scalar",
    source: str = "stateless",
    measured: bool = False,
    threads: int = 2,
) -> int:
    """Bytes that tracker needs at the most beside model, optimizer and gradients."""
    held = persistent_bytes(sizes, strategy, source)
    stepping = transient_bytes(sizes, source, measured, threads)
    stepping += snapshot_bytes(sizes) if measured else 0
    making = round(_MAKING * WORD * table_size(sizes)) if source == "table" else 0
    return held + max(stepping, making)


def row_bytes(variables: int) -> int:
    """Bytes that a summary step sends from the device to the host."""
    return 8 * FIELDS * variables


def _varint(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def _field(length: int) -> int:
    """Bytes of a field of a protocol buffer that holds so many bytes."""
    return 1 + _varint(length) + length


def value_bytes(tag: str) -> int:
    """A scalar: its tag, and a tensor of type and number."""
    return _field(_field(len(tag.encode())) + _field(2 + 6))


def record_bytes(step: int, payload: int) -> int:
    """A record of an event: length and checksums, wall time, step, summary."""
    return 16 + 9 + 1 + _varint(step) + _field(payload)


def histogram_bytes(tag: str, buckets: int = 30) -> int:
    """A histogram: three float64 a bucket, and its metadata, which each one carries."""
    shape = _field(_field(2)) - 2 + _field(_field(2) - 2)
    tensor = 2 + shape + _field(24 * buckets)
    plugin = _field(len("histograms")) + 0
    described = _field(len(tags.description(tag).encode()))
    return _field(_field(len(tag)) + _field(tensor) + _field(_field(plugin) + described + 2))


def summary_tags(
    names: Sequence[str], stddevs: Sequence[float], metrics: Sequence[str] = ()
) -> list[str]:
    """Tags of the scalars of a summary step, where every variable has a ratio.

    Args:
      names: canonical paths of the measured variables.
      stddevs: those that steps used since the last summary step.
      metrics: names of those of a batch.
    """
    fixed = [tags.LOSS, tags.NOISE_STDDEV, tags.NOISE_CHOICE, tags.WUR_ALL_SKIPPED, *metrics,
             tags.LEARNING_RATE, tags.WUR_ALL_STDDEV, tags.WUR_ALL_LOSS, tags.NONFINITE_LOSS,
             tags.WUR_ALL_OUT_OF_BAND, tags.WUR_ALL_UNDEFINED, tags.WUR_ALL_RATIO,
             tags.WUR_ALL_UNCHANGED, tags.WUR_ALL_UNCHANGED_BY_NOISE, tags.PERF_STEP_MS,
             tags.PERF_STEPS_PER_SECOND, tags.PERF_EXAMPLES_PER_SECOND, tags.PERF_INPUT_WAIT_MS,
             tags.PERF_HOST_MEMORY_MB, tags.OVERHEAD]  # fmt: skip
    families = tags.wur, tags.wur_gradient, tags.wur_noise, tags.weight_norm, tags.update_norm
    return [*fixed, *(f(n) for n in names for f in families), *map(tags.loss_change, stddevs)]


def summary_bytes(
    names: Sequence[str], stddevs: Sequence[float], metrics: Sequence[str] = (), step: int = 1000
) -> int:
    """Bytes of a summary step in the event file, from the second one on: scalars and histogram.

    The first one also has the description of every tag; where the worst variables are others than
    before, a text of some hundred bytes is added.
    """
    scalars = sum(value_bytes(t) for t in summary_tags(names, stddevs, metrics))
    histogram = histogram_bytes(tags.WUR_ALL_LOG10)
    return record_bytes(step, scalars) + record_bytes(step, histogram)


def logged_bytes(step: int = 1000) -> int:
    """Bytes of the scalars of a plain step in the event file."""
    logged = tags.LOSS, tags.NOISE_STDDEV, tags.NOISE_CHOICE
    return record_bytes(step, sum(map(value_bytes, logged)))


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A device by its data sheet.

    Attributes:
      name: of the device.
      bandwidth: bytes of memory a second.
      flops: dense operations of a training step a second.
      normals: normal numbers a second that TensorFlow's kernel makes, where memory is no limit.
      link: bytes a second to another device, one way.
      launch_seconds: of a kernel.
      memory: bytes.
    """

    name: str
    bandwidth: float
    flops: float
    normals: float
    link: float
    launch_seconds: float
    memory: float

    def machine(self, host: Machine) -> Machine:
        """As a `Machine`: every operation is limited by memory; the host is the one given."""

        def seconds(kind: str, n: int) -> float:
            one = KINDS[kind]
            moved = WORD * n * (one.reads + one.writes) / self.bandwidth
            made = n / self.normals if kind == "normal" else 0.0
            return self.launch_seconds + max(moved, made)

        curves = {
            kind: tuple((float(2**i), seconds(kind, 2**i)) for i in range(0, 41)) for kind in KINDS
        }
        return dataclasses.replace(
            host, curves=curves, arrays=1, op_seconds=self.launch_seconds, dead_seconds=0.0
        )
