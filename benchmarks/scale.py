"""Predicts what tracker costs from 10 thousand to 100 million parameters, then measures it.

    python -m benchmarks.scale [--json=FILE]

First the machine is calibrated: elementary TensorFlow operations on eight arrays of several sizes,
and elementary work of the host. From that `benchmarks/cost_model.py` predicts, and the predictions
are printed. Only then the real code runs: `noise.Adder` in a compiled loop, `Instrument.step` with
and without measuring, `Recorder.call`, first calls, and peak memory in fresh processes. Repeats are
interleaved, and a block during which other processes used the processors is repeated.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import json
import logging
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import cost_model
from tracker import quiet
from tracker.console import Console

ARRAYS = 8
SIZES = tuple(2**i for i in (7, 10, 13, 16, 19, 22))  # elements of the arrays that calibrate
PARAMETERS = (10**4, 10**5, 10**6, 10**7, 10**8)
VARIABLES = (8, 80)
STDDEVS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
MEMORY = (
    *(("noise", strategy, source, 8) for strategy, source in (
        ("scalar", "stateless"), ("buffered", "stateless"), ("scalar", "table"))),
    *(("measure", "scalar", "stateless", variables) for variables in VARIABLES),
)  # fmt: skip
_CHAIN = 3  # operations in a row


# --- what a block takes, and whether anyone disturbed it


def _busy() -> float:
    """Seconds that all processors worked since they started, for anyone."""
    fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    times = os.times()
    return times.user + times.system


class Clock:
    """Times blocks, and repeats those during which others used the processors.

    Args:
      patience: seconds to wait for quiet, in all.

    Attributes:
      disturbed: blocks that were kept though they were not alone, patience being at its end.
      blocks: all that were kept.
    """

    def __init__(self, patience: float):
        self._patience = patience
        self.disturbed = 0
        self.blocks = 0

    def time(self, act: Callable[[], Any]) -> float:
        """Seconds that `act` takes."""
        while True:
            busy, own, began = _busy(), _own(), time.perf_counter()
            act()
            taken = time.perf_counter() - began
            others = (_busy() - busy) - (_own() - own)
            alone = others < 0.03 + 0.05 * taken  # the system counts in hundredths of a second
            if alone or self._patience <= 0:
                self.blocks += 1
                self.disturbed += not alone
                return taken
            self._patience -= taken + 0.5
            time.sleep(0.5)


@dataclasses.dataclass
class Racer:
    """Something that can be done so many times.

    Attributes:
      run: does it, given how often.
      times: how often in a block; found by `race`.
      seconds: of once, one for each block.
    """

    run: Callable[[int], Any]
    times: int = 0
    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def median(self) -> float:
        """Of all blocks."""
        return statistics.median(self.seconds)


def _warm(racer: Racer) -> None:
    """Runs long enough for TensorFlow to know which operations are cheap.

    It takes every operation for dear at first, gives it to another thread, and comes down to what
    it takes by a tenth at each turn: some hundred turns, of each branch.
    """
    began = time.perf_counter()
    racer.run(1)
    turns = 0
    while turns < 1000 and time.perf_counter() - began < 1.0:
        racer.run(50 if turns else 5)
        turns += 50


def race(
    racers: Mapping[str, Racer], clock: Clock, rounds: int, block: float, show=lambda text: None
) -> None:
    """Runs all in turn, so many rounds; the first use of each is not timed."""
    for name, racer in racers.items():
        show(name)
        _warm(racer)
        racer.times = 1
        while True:
            taken = clock.time(lambda racer=racer: racer.run(racer.times))
            if taken > block / 3:
                break
            racer.times *= 4 if taken < block / 20 else 2
        racer.times = max(1, round(racer.times * block / taken))
    for _ in range(rounds):
        for name, racer in racers.items():
            show(name)
            taken = clock.time(lambda racer=racer: racer.run(racer.times))
            racer.seconds.append(taken / racer.times)


# --- calibration: elementary operations


def _loop(body: Callable[[Any], Any]) -> Callable[[int], Any]:
    """A compiled loop around `body`, a function of the turn that gives scalars to be added up."""
    import tensorflow as tf

    def turn(i, total):
        made = body(i)
        return i + 1, total + tf.add_n(made) if made else total

    @tf.function(autograph=False)
    def run(times):
        start = tf.constant(0, tf.int64), tf.constant(0.0)
        return tf.while_loop(lambda i, _: i < times, turn, start, parallel_iterations=1)

    return lambda times: run(tf.constant(times, tf.int64))


def _elementary(n: int) -> dict[str, Callable]:
    """Loop bodies of elementary operations on `ARRAYS` arrays of n numbers."""
    import tensorflow as tf

    def arrays():
        return [tf.Variable(tf.random.uniform([n], 0.5, 1.5)) for _ in range(ARRAYS)]

    x, y = arrays(), arrays()
    bools = [tf.Variable(v > 1.0) for v in x]

    def scalar(i):
        return 1.0 + 1e-9 * tf.cast(i, tf.float32)

    def ends(made):
        return [tf.cast(t[0], tf.float32) for t in made]

    def chain(*links):
        """Each array times a scalar, then the links in turn; no two that could become one."""

        def body(i):
            s = scalar(i)
            made = [v * s for v in x]
            for link in links:
                made = [link(t, s, w) for t, w in zip(made, y, strict=True)]
            return ends(made)

        return body

    def drawn(kernel):
        def body(i):
            counter = tf.cast(tf.stack([tf.constant(0, tf.int64), i]), tf.uint64)
            shape = tf.constant([n], tf.int32)
            keys = [tf.constant([k], tf.uint64) for k in range(ARRAYS)]
            return ends([kernel(shape=shape, key=k, counter=counter, alg=1) for k in keys])

        return body

    def ands(count):
        def body(i):
            made = [tf.not_equal(a, b) for a, b in zip(x, y, strict=True)]
            for _ in range(count):
                made = [tf.logical_and(t, b) for t, b in zip(made, bools, strict=True)]
            return ends(made)

        return body

    def apart(t, s, _):
        return s - t

    def function(f):
        return chain(*[lambda t, s, _: f(s + s + s - t)] * _CHAIN)

    segments = np.repeat(np.arange(ARRAYS), n // ARRAYS).astype(np.int32)
    segments = tf.Variable(segments)
    wide = [tf.Variable(tf.cast(v, tf.float64)) for v in x]

    longer = [tf.Variable(tf.random.uniform([n + 8])) for _ in range(ARRAYS)]

    def slices(i):
        first = i % 7 + 1
        return ends([tf.strided_slice(v, [first], [first + n], [1]) for v in longer])

    def summed(i):
        made = [tf.math.unsorted_segment_sum(v, segments, ARRAYS) for v in wide]
        return ends(made)

    return {
        "ends": lambda i: ends(x),
        "copy": chain(),
        "slice": slices,
        "add": lambda i: ends([a + b for a, b in zip(x, y, strict=True)]),
        "in_place": chain(*[apart] * _CHAIN),
        "combine": chain(*[lambda t, s, w: w - t] * _CHAIN),
        "log": function(tf.math.log),
        "sqrt": function(tf.sqrt),
        "trigonometric": function(tf.cos),
        "uniform": drawn(tf.raw_ops.StatelessRandomUniformV2),
        "normal": drawn(tf.raw_ops.StatelessRandomNormalV2),
        "square_sum": lambda i: [tf.nn.l2_loss(v) for v in x],
        "compare": ands(0),
        "both": ands(_CHAIN),
        "count": lambda i: [
            tf.cast(tf.reduce_sum(tf.cast(b, tf.int32)), tf.float32) for b in bools
        ],
        "segment_sum": summed,
    }


def _mixed(t, s):
    """Five operations on one or two numbers, as those between the large ones are."""
    import tensorflow as tf

    wide = tf.cast(tf.reduce_sum(tf.stack([t, s])), tf.float64)
    return tf.cast(wide - 1.0, tf.float32)


def _small() -> dict[str, Callable]:
    """Loop bodies of operations on single numbers: none, 1,000, as many not taken, and a call."""
    import tensorflow as tf
    from tensorflow.python.ops import cond_v2

    def some(i):
        starts = [tf.cast(i, tf.float32) + k for k in range(ARRAYS)]
        for _ in range(25):
            starts = [_mixed(t, starts[0]) for t in starts]
        return starts

    numbers = [tf.Variable(0.5) for _ in range(ARRAYS * 25)]

    def handed(i):
        for one, other in itertools.pairwise(numbers):
            one.assign(other.read_value())
        return []

    def called(i):
        case = [lambda: tf.cast(i, tf.float32), lambda: tf.cast(i + 1, tf.float32)]
        index = tf.cast(i % 2, tf.int32)
        return [cond_v2.indexed_case(index, case, lower_using_switch_merge=False)]

    return {
        "nothing": lambda i: [],
        "small": some,
        "views": handed,
        "dead": lambda i: [tf.cond(i < 0, lambda: tf.add_n(some(i)), lambda: tf.constant(0.0))],
        "call": called,
    }


_SMALL_OPERATIONS = ARRAYS * 25 * 5


def _host(directory: str) -> dict[str, Callable[[int], Any]]:
    """Elementary work of the host, each done so many times."""
    import psutil
    import tensorflow as tf
    from tensorboard.compat.proto import event_pb2, types_pb2
    from tensorboard.plugins.histogram import summary_v2

    array = np.random.default_rng(0).uniform(size=[80])
    process = psutil.Process()
    writer = tf.io.TFRecordWriter(os.path.join(directory, "records"))

    def tag(family, i):
        return f"{family}/sequential/dense_{i}/kernel"

    def numbers(times):
        for _ in range(times):
            kept = {}
            for i in range(60):
                values = {tag(family, i): array[i] for family in ("a", "b", "c", "d", "e")}
                kept |= {n: f for n, v in values.items() if math.isfinite(f := float(v))}

    def values(times):
        for _ in range(times):
            event = event_pb2.Event()
            for i in range(300):
                value = event.summary.value.add(tag=tag("wur_gradient", i))
                value.tensor.dtype = types_pb2.DT_FLOAT
                value.tensor.float_val.append(0.5)
            event.SerializeToString()

    def arrays(times):
        for _ in range(times):
            fine = np.isfinite(array) & (array > 0)
            np.where(fine, array / 2.0, np.nan)

    def records(times):
        for _ in range(times):
            writer.write(b"x" * 2000)
            writer.flush()

    return {
        "number": numbers,
        "value": values,
        "array": arrays,
        "histogram": lambda times: [summary_v2.histogram_pb("h", array) for _ in range(times)],
        "record": records,
        "memory": lambda times: [process.memory_info().rss for _ in range(times)],
    }


def _build_elementary(links: int) -> tuple[float, int]:
    """Seconds to trace, optimise and run a graph for the first time, and its nodes."""
    import tensorflow as tf

    def body(i):
        made = [tf.cast(i + k, tf.float32) for k in range(ARRAYS)]
        for _ in range(links):
            made = [_mixed(t, made[0]) for t in made]
        return made

    run = _loop(body)
    began = time.perf_counter()
    run(1)
    taken = time.perf_counter() - began
    graph = tf.Graph()
    with graph.as_default():
        body(tf.compat.v1.placeholder(tf.int64, []))
    return taken, len(graph.get_operations())


def _building() -> tuple[float, float]:
    """Seconds to build a graph of hardly any nodes, and for each node; medians of three."""
    few, many = ([_build_elementary(links) for _ in range(3)] for links in (1, 60))
    start, least = (statistics.median(x) for x in zip(*few, strict=True))
    end, most = (statistics.median(x) for x in zip(*many, strict=True))
    each = (end - start) / (most - least)
    return start - least * each, each


def calibrate(clock: Clock, rounds: int, show: Callable[[str], None]) -> cost_model.Machine:
    """Measures elementary operations, and nothing of tracker."""
    small = {name: Racer(_loop(body)) for name, body in _small().items()}
    race(small, clock, rounds, 0.1, lambda text: show(f"calibrates: {text}"))
    loop = small["nothing"].median
    op = (small["small"].median - loop) / _SMALL_OPERATIONS
    curves: dict[str, list[tuple[float, float]]] = {kind: [] for kind in cost_model.KINDS}
    for n in SIZES:
        racers = {kind: Racer(_loop(body)) for kind, body in _elementary(n).items()}
        race(racers, clock, rounds, 0.1, lambda text, n=n: show(f"calibrates: {text}, {n:,}"))
        for kind, seconds in _each(racers, loop, op).items():
            curves[kind].append((float(n), max(seconds, op / 2)))
        del racers
        gc.collect()
    with tempfile.TemporaryDirectory() as directory:
        host = {name: Racer(run) for name, run in _host(directory).items()}
        race(host, clock, rounds, 0.05, lambda text: show(f"calibrates: {text}"))
    build, node = _building()
    return cost_model.Machine(
        curves={kind: tuple(points) for kind, points in curves.items()},
        arrays=ARRAYS,
        op_seconds=op,
        view_seconds=(small["views"].median - loop) / (2 * ARRAYS * 25 - 2),
        dead_seconds=(small["dead"].median - loop) / _SMALL_OPERATIONS,
        loop_seconds=loop,
        call_seconds=small["call"].median - loop,
        build_seconds=build,
        node_seconds=node,
        value_seconds=host["value"].median / 300,
        number_seconds=host["number"].median / 300,
        array_seconds=host["array"].median / 5,
        histogram_seconds=host["histogram"].median,
        record_seconds=host["record"].median,
        memory_seconds=host["memory"].median,
    )


def _each(racers: Mapping[str, Racer], loop: float, op: float) -> dict[str, float]:
    """Seconds of one operation, from bodies that have some others around it."""
    taken = {kind: (racer.median - loop) / ARRAYS for kind, racer in racers.items()}
    ends = taken["ends"]  # reads a variable, and takes its first element
    found = {
        "copy": taken["copy"] - ends,
        "slice": taken["slice"] - ends,
        "add": taken["add"] - ends - op,
        "square_sum": taken["square_sum"] - op,
        "compare": taken["compare"] - ends - 2 * op,
        "both": (taken["both"] - taken["compare"]) / _CHAIN,
        "count": taken["count"] - 2 * op,
        "segment_sum": taken["segment_sum"] - ends - op,
        "in_place": (taken["in_place"] - taken["copy"]) / _CHAIN,
        "combine": (taken["combine"] - taken["copy"]) / _CHAIN,
    }
    found |= {kind: taken[kind] - ends + op for kind in ("uniform", "normal")}
    for kind in ("log", "sqrt", "trigonometric"):
        found[kind] = (taken[kind] - taken["copy"]) / _CHAIN - found["in_place"]
    return found


# --- the figures: each predicted, then measured


@dataclasses.dataclass
class Figure:
    """One figure.

    Attributes:
      part: what it is about: noise, measuring, writing, building or memory.
      name: within the part.
      parameters, variables: of the model; 0 where they do not matter.
      predicted: by the model; seconds, or bytes of memory.
      measured: median; None until the real code has run.
      spread: quartiles of the blocks.
    """

    part: str
    name: str
    parameters: int
    variables: int
    predicted: float
    measured: float | None = None
    spread: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1 if self.measured else float("nan")


def _strategies() -> Iterator[tuple[str, str]]:
    for source in ("stateless", "table"):
        for strategy in ("scalar", "routes", "buffered"):
            yield strategy, source


def predict(machine: cost_model.Machine, parameters: Sequence[int], memory: bool) -> list[Figure]:
    """All figures that will be measured."""
    figures = []
    for total in parameters:
        for variables in VARIABLES:
            sizes = cost_model.equal(total, variables)
            for strategy, source in _strategies():
                seconds = cost_model.noise_seconds(machine, sizes, strategy, source)
                seconds += machine.loop_seconds
                name = f"{strategy}, {source}"
                figures.append(Figure("noise", name, total, variables, seconds))
            seconds = cost_model.measure_seconds(machine, sizes)
            figures.append(Figure("measuring", "summary step - plain", total, variables, seconds))
    for variables in (8, 80, 800):
        seconds = cost_model.write_seconds(machine, variables)
        figures.append(Figure("writing", "a summary step", 0, variables, seconds))
    for variables in VARIABLES:
        for strategy in ("scalar", "routes"):
            sizes = cost_model.equal(_BUILT, variables)
            nodes = cost_model.graph_nodes(sizes, strategy, stddevs=len(STDDEVS))
            seconds = cost_model.build_seconds(machine, nodes)
            figures.append(Figure("building", f"noise, {strategy}", _BUILT, variables, seconds))
    if memory:
        for what, strategy, source, variables in MEMORY:
            size = _memory(parameters[-1], what, strategy, source, variables)
            name = f"{what}, {strategy}, {source}"
            figures.append(Figure("memory", name, parameters[-1], variables, size))
    return figures


_BUILT = 10**6


def _memory(parameters: int, what: str, strategy: str, source: str, variables: int) -> float:
    """Bytes of weights, for measuring gradients, and what tracker needs beside them."""
    sizes = cost_model.equal(parameters, variables)
    own = cost_model.WORD * parameters * (2 if what == "measure" else 1)
    threads = os.cpu_count() or 1
    peak = cost_model.peak_bytes(sizes, strategy, source, what == "measure", threads)
    return own + peak


class Subject:
    """A model's variables, and tracker's own code at work on them.

    Args:
      parameters: in all.
      variables: that share them.
    """

    def __init__(self, parameters: int, variables: int):
        import keras
        import tensorflow as tf

        from tracker import noise

        self.sizes = cost_model.equal(parameters, variables)
        self._variables = [keras.Variable(tf.fill([n], 0.5)) for n in self.sizes]
        self.targets = [noise.Target(f"v{i}", v) for i, v in enumerate(self._variables)]
        self._table: Any = None

    def adder(self, strategy: str, source: str) -> Any:
        """The noise; all strategies share one table."""
        from tracker import noise

        if source == "table" and self._table is None:
            size = noise.table_size(max(self.sizes), sum(self.sizes))
            self._table = noise.Table(0, size)
        made = noise.Stateless(0) if source == "stateless" else self._table
        return noise.Adder(strategy, made, STDDEVS, self.targets)

    def noise(self, strategy: str, source: str) -> Callable[[int], Any]:
        """A compiled loop of steps that only add noise."""
        import tensorflow as tf

        adder = self.adder(strategy, source)

        def turn(i):
            adder.add(i, tf.cast(i % len(STDDEVS), tf.int32))
            return []

        return _loop(turn)

    def steps(self, measured: bool) -> Callable[[int], Any]:
        """A compiled loop of steps of plain gradient descent with noise."""
        import tensorflow as tf

        from tracker import instrument, selectors

        if not hasattr(self, "_gradients"):
            self._gradients = [tf.Variable(tf.fill([n], 1e-3)) for n in self.sizes]
        selector = selectors.make("cycle", STDDEVS[1:], 0, 1)
        names = [t.name for t in self.targets]
        around = instrument.Instrument(
            self.adder("scalar", "stateless"), self.targets, selector, self._variables, names
        )

        def take(_):
            gradients = [g.read_value() for g in self._gradients]
            for variable, gradient in zip(self._variables, gradients, strict=True):
                variable.value.assign_sub(1e-3 * gradient)  # as Keras' SGD does
            known = {id(v): g for v, g in zip(self._variables, gradients, strict=True)}
            return instrument.Taken(tf.constant(0.0), known)

        def turn(i):
            stepped = around.step(i, take, None, measured)
            return [tf.cast(tf.reduce_sum(stepped.rows[:, :7]), tf.float32)] if measured else []

        return _loop(turn)


def recording(variables: int, directory: pathlib.Path) -> Callable[[int], Any]:
    """The recorder, given the same rows again and again."""
    from etils import epath

    from tracker import recorder, schedule, steps, summaries, wur

    random = np.random.default_rng(0)
    rows = random.uniform(0.1, 1.0, size=[1, variables, len(wur.Measured._fields)])
    rows[..., 11:] = np.nan  # no sparse gradients, no proposals
    rows[..., 10] = 0
    names = [f"sequential/dense_{i // 2}/{'kernel' if i % 2 else 'bias'}" for i in range(variables)]
    writer = summaries.EventWriter(epath.Path(directory) / str(variables))
    recording = recorder.Recorder(writer, names, ["accuracy"], STDDEVS, ["update"], 128.0)
    one, zero = np.ones([1], np.float32), np.zeros([1], np.int64)
    result = steps.Result(
        1,
        steps.Plain(one, np.zeros([1], np.int32), zero),
        steps.Instrumented(rows, np.ones([1, 1]), one, np.zeros([1]), np.full([1], 1e-3)),
        False,
    )
    done = 0

    def run(times):
        nonlocal done
        for _ in range(times):
            recording.call(done, schedule.Call(1, 0), result, float(done), done + 1.0)
            done += 1

    return run


def measure(
    figures: Sequence[Figure], clock: Clock, rounds: int, show: Callable[[str], None]
) -> None:
    """Runs the real code, and fills in what was measured."""
    of = {(f.part, f.name, f.parameters, f.variables): f for f in figures}

    def fill(key, seconds):
        figure = of[key]
        figure.measured = statistics.median(seconds)
        low, _, high = statistics.quantiles(seconds, n=4)
        figure.spread = low, high

    for total, variables in sorted({(f.parameters, f.variables) for f in figures
                                    if f.part == "noise"}):  # fmt: skip
        subject = Subject(total, variables)
        racers = {f"{s}, {o}": Racer(subject.noise(s, o)) for s, o in _strategies()}
        about = f"{total:.0e} in {variables}"
        race(racers, clock, rounds, 0.15, lambda text, about=about: show(f"{about}: {text}"))
        for name, racer in racers.items():
            fill(("noise", name, total, variables), racer.seconds)
        del racers
        subject = Subject(total, variables)
        pair = {m: Racer(subject.steps(m == "measured")) for m in ("plain", "measured")}
        race(pair, clock, rounds, 0.15, lambda text, about=about: show(f"{about}: {text}"))
        both = zip(pair["measured"].seconds, pair["plain"].seconds, strict=True)
        fill(("measuring", "summary step - plain", total, variables), [m - p for m, p in both])
        del pair, subject
        gc.collect()
    with tempfile.TemporaryDirectory() as directory:
        counts = sorted({f.variables for f in figures if f.part == "writing"})
        racers = {str(v): Racer(recording(v, pathlib.Path(directory))) for v in counts}
        race(racers, clock, rounds, 0.15, lambda text: show(f"writes {text} variables"))
        for name, racer in racers.items():
            fill(("writing", "a summary step", 0, int(name)), racer.seconds)
    for f in figures:
        if f.part == "building":
            show(f"builds {f.name}, {f.variables} variables")
            strategy, times = f.name.rpartition(" ")[2], []
            for _ in range(3):
                subject = Subject(f.parameters, f.variables)
                times.append(clock.time(lambda s=subject, k=strategy: s.noise(k, "stateless")(1)))
            fill(("building", f.name, f.parameters, f.variables), times)
    for f in figures:
        if f.part == "memory":
            show(f"memory of {f.name}, {f.variables} variables")
            command = [sys.executable, "-m", "benchmarks.scale",
                       f"--memory_of={f.name}, {f.variables}, {f.parameters}"]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            f.measured = float(done.stdout)


def _resident(what: str) -> int:
    """Bytes of resident memory of this process: now ('VmRSS') or at the most ('VmHWM')."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.findall(rf"{what}:\s+(\d+) kB", status)[0]) * 1024


def memory_of(text: str) -> int:
    """Bytes that this process takes more, at the most, while three steps of a kind run."""
    what, strategy, source, variables, parameters = text.split(", ")
    race({"": Racer(Subject(10**5, 8).steps(True))}, Clock(0), 1, 0.01)
    before = _resident("VmRSS")
    subject = Subject(int(parameters), int(variables))
    run = subject.noise(strategy, source) if what == "noise" else subject.steps(True)
    run(3)
    return _resident("VmHWM") - before


def table(figures: Sequence[Figure]) -> str:
    """Markdown: predicted and measured, and the error."""
    lines = [
        "| part | parameters | variables | predicted | measured (quartiles) | error |",
        "|---|---|---|---|---|---|",
    ]
    for f in figures:
        count = f"{f.parameters:.0e}".replace("e+0", "e") if f.parameters else ""
        spread = (
            "" if f.spread is None else f" ({_shown(f, f.spread[0])} to {_shown(f, f.spread[1])})"
        )
        measured = "" if f.measured is None else f"{_shown(f, f.measured)}{spread}"
        error = "" if f.measured is None else f"{f.error:+.0%}"
        lines.append(
            f"| {f.part}: {f.name} | {count} | {f.variables} | {_shown(f, f.predicted)} | "
            f"{measured} | {error} |"
        )
    return "\n".join(lines)


def _shown(figure: Figure, value: float) -> str:
    if figure.part == "memory":
        return f"{value / 1e6:,.0f} MB"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.3 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def errors(figures: Sequence[Figure]) -> dict[str, float]:
    """Median absolute error of each part, and of all."""
    parts = list(dict.fromkeys(f.part for f in figures))
    found = {
        part: statistics.median(abs(f.error) for f in figures if f.part == part) for part in parts
    }
    return found | {"all": statistics.median(abs(f.error) for f in figures)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="also writes all figures into this file")
    parser.add_argument("--rounds", type=int, default=7, help="blocks of each figure")
    parser.add_argument("--most", type=float, default=1e8, help="parameters at the most")
    parser.add_argument("--patience", type=float, default=1800, help="seconds to wait for quiet")
    parser.add_argument("--memory_of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    quiet.import_tensorflow()
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # of functions traced again and again
    if args.memory_of:
        print(memory_of(args.memory_of))
        return
    clock = Clock(args.patience)
    with Console() as console:
        # Blocks are not known before; the bar counts what was begun.
        with console.progress(1) as bar:
            machine = calibrate(clock, args.rounds, lambda text: bar(0, text))
        figures = predict(machine, [p for p in PARAMETERS if p <= args.most], True)
        console.say("Predicted, before any of it has run:\n")
        console.say(table(figures))
        with console.progress(len(figures)) as bar:
            measure(
                figures, clock, args.rounds,
                lambda text: bar(sum(f.measured is not None for f in figures), text),
            )  # fmt: skip
        console.say("\nPredicted and measured:\n")
        console.say(table(figures))
        found = errors(figures)
        said = ", ".join(f"{part} {error:.0%}" for part, error in found.items())
        console.say(f"\nMedian error: {said}.")
        console.say(f"{clock.disturbed} of {clock.blocks} blocks were not alone on the machine.")
    if args.json:
        document = {
            "machine": machine.to_json(),
            "figures": [dataclasses.asdict(f) | {"error": f.error} for f in figures],
            "median_error": found,
            "blocks": clock.blocks,
            "disturbed": clock.disturbed,
        }
        pathlib.Path(args.json).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
