"""Measures which way of building the noise costs least, on your own model and data.

  python -m tracker.compare_strategies --model=mlp --stddev_counts=6,60

takes the app's flags, and for each number of stddevs measures training without noise, with each
strategy, and with the table source: step time (interleaved in this process), persistent bytes,
peak memory (in a fresh process each), nodes of the graph, seconds to build it, and of the first
call. With --logdir the table also goes into TensorBoard, as text of a run. --graph=v1 measures TF1
graphs and their sessions, which have no table source.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from tracker import app_flags, quiet, rundir
from tracker import config as config_lib
from tracker.config import Config
from tracker.console import Console

flags.adopt_module_key_flags(app_flags)

_STDDEV_COUNTS = flags.DEFINE_list(
    "stddev_counts", ["6", "60"], "Numbers of stddevs to measure with, separated by commas."
)
_REPEATS = flags.DEFINE_integer("repeats", 15, "Blocks of steps to time, each.", lower_bound=3)
_BLOCK_SECONDS = flags.DEFINE_float(
    "block_seconds", 0.2, "About how long one block takes.", lower_bound=0.01
)
_JSON = flags.DEFINE_boolean("json", False, "Print one JSON document in place of the table.")
_MEMORY_OF = flags.DEFINE_string(
    "memory_of", None, "Internal: measure the peak memory of one contestant, NAME/COUNT."
)

CONTESTANTS = ("none", "scalar", "routes", "buffered", "table")
_MEMORY_STEPS = 20


@dataclasses.dataclass
class Measured:
    """One contestant with one number of stddevs.

    Attributes:
      name: one of `CONTESTANTS`.
      stddevs: how many.
      step_ms: median milliseconds of a step, and quartiles.
      ratio: median over blocks of the time relative to no noise in the same round.
      persistent_bytes: held beside the model and the optimizer.
      peak_memory_mb: of a fresh process that trains with it, 10^6 bytes; None if it failed.
      graph_nodes: of the compiled function, functions that it calls included; of a TF1 graph what a
        plain step runs, or could.
      build_seconds: to make data, model and, with --graph=v1, the graph; else the first call does.
      first_call_seconds: to build, trace, optimise and run it once.
    """

    name: str
    stddevs: int
    step_ms: float = 0.0
    step_ms_quartiles: tuple[float, float] = (0.0, 0.0)
    ratio: float = 1.0
    persistent_bytes: int = 0
    peak_memory_mb: float | None = None
    graph_nodes: int = 0
    build_seconds: float = 0.0
    first_call_seconds: float = 0.0


def stddevs(count: int) -> tuple[float, ...]:
    """So many stddevs from 1e-5 to 1e-2, evenly spaced in their logarithm."""
    if count == 1:
        return (1e-3,)
    return tuple(10 ** (-5 + 3 * i / (count - 1)) for i in range(count))


def configured(config: Config, name: str, count: int) -> Config:
    """The configuration of a contestant."""
    special: dict[str, dict[str, Any]] = {
        "none": {"stddevs": (0.0,), "strategy": "scalar"},
        "table": {"strategy": "scalar", "noise_source": "table"},
    }
    noise = special.get(name, {"strategy": name, "noise_source": "stateless"})
    changes: dict[str, Any] = {"stddevs": stddevs(count), "profile_steps": "", **noise}
    return dataclasses.replace(config, **changes)


def contestants(config: Config) -> tuple[str, ...]:
    """Those that the kind of graph has."""
    return tuple(n for n in CONTESTANTS if n != "table" or config.graph != "v1")


def _assembled(config: Config, noise: bool) -> Any:
    if config.graph == "v1":
        from tracker import session

        return session.assemble(config, noise_=noise)
    from tracker import experiment

    return experiment.assemble(config, noise_=noise)


class Contestant:
    """A compiled training loop that can be run for so many steps."""

    def __init__(self, config: Config, name: str, count: int):
        started = time.perf_counter()
        self._experiment = _assembled(configured(config, name, count), name != "none")
        built = time.perf_counter()
        self._iterator = iter(self._experiment.batches())
        self._step = 0
        self.measured = Measured(name, count, build_seconds=built - started)
        self.run(1)
        self.measured.first_call_seconds = time.perf_counter() - started
        function = self._experiment.functions.plain_function.get_concrete_function()
        graph = function.graph.as_graph_def()
        self.measured.graph_nodes = len(graph.node) + sum(
            len(f.node_def) for f in graph.library.function
        )
        self.measured.persistent_bytes = self._experiment.noise_bytes()

    def run(self, steps: int) -> float:
        """Runs steps in one call; returns seconds a step."""
        start = time.perf_counter()
        self._experiment.functions.plain(self._iterator, self._step, steps)
        self._step += steps
        return (time.perf_counter() - start) / steps


def measure(config: Config, counts: Sequence[int], repeats: int, seconds: float, show) -> list:
    """Measures all contestants, their blocks interleaved.

    Args:
      config: of the experiment.
      counts: numbers of stddevs.
      repeats: blocks of each contestant.
      seconds: about how long a block takes.
      show: called with (blocks done, text).

    Returns:
      `Measured` of each, in the order of `contestants` for each count.
    """
    found = []
    for number, count in enumerate(counts):
        racers = [Contestant(config, name, count) for name in contestants(config)]
        steps = [_block(racer, seconds) for racer in racers]
        times: list[list[float]] = [[] for _ in racers]
        for block in range(repeats):
            for racer, length, taken in zip(racers, steps, times, strict=True):
                taken.append(racer.run(length))
            show(number * repeats + block + 1, f"{count} stddevs")
        for racer, taken in zip(racers, times, strict=True):
            low, middle, high = statistics.quantiles(taken, n=4)
            racer.measured.step_ms = 1e3 * middle
            racer.measured.step_ms_quartiles = (1e3 * low, 1e3 * high)
            racer.measured.ratio = statistics.median(
                t / none for t, none in zip(taken, times[0], strict=True)
            )
            racer.measured.peak_memory_mb = _peak_memory(racer.measured.name, count)
            found.append(racer.measured)
    return found


def _block(racer: Contestant, seconds: float) -> int:
    """Steps that take about so long, found by doubling: a call of few steps costs more a step."""
    steps = 1
    while True:
        racer.run(steps)  # what is still cold is not timed
        each = racer.run(steps)
        if each * steps >= seconds / 2:
            return max(1, round(seconds / each))
        steps *= 2


def _peak_memory(name: str, count: int) -> float | None:
    """Peak memory of a fresh process that trains with one contestant, 10^6 bytes."""
    command = [sys.executable, "-m", "tracker.compare_strategies", *sys.argv[1:]]
    done = subprocess.run(
        [*command, f"--memory_of={name}/{count}"], capture_output=True, text=True, check=False
    )
    return float(done.stdout) if done.returncode == 0 else None


def _own_peak_memory() -> float:
    """Peak resident memory of this process, 10^6 bytes.

    From Linux's own account: `getrusage` would start from what the parent process had.
    """
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 / 1e6


def advice(found: Sequence[Measured]) -> list[str]:
    """One sentence for each number of stddevs, from what was measured."""
    sentences = []
    for count in dict.fromkeys(m.stddevs for m in found):
        exact = [m for m in found if m.stddevs == count and m.name not in ("none", "table")]
        order = sorted(exact, key=lambda m: m.ratio)
        best, *rest = order
        others = ", ".join(f"{m.name} takes {m.ratio / best.ratio - 1:+.0%}" for m in rest)
        lean = min(exact, key=lambda m: (m.persistent_bytes, m.graph_nodes, m.ratio))
        sentence = (
            f"With {count} stddevs {best.name} is fastest ({best.step_ms:.2f} ms a step; "
            f"{others}), {lean.name} holds least ({_bytes(lean.persistent_bytes)}, "
            f"{lean.graph_nodes:,} nodes)"
        )
        for table in (m for m in found if m.stddevs == count and m.name == "table"):
            taken = f"{table.ratio / best.ratio - 1:+.0%}"
            sentence += f"; the table source takes {taken} for {_bytes(table.persistent_bytes)}"
        sentences.append(f"{sentence}.")
    return sentences


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e3:,.0f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"


_COLUMNS = (
    ("stddevs", lambda m: str(m.stddevs)),
    ("noise", lambda m: m.name),
    ("ms/step", lambda m: f"{m.step_ms:.3f}"),
    ("spread", lambda m: "{:.2f}-{:.2f}".format(*m.step_ms_quartiles)),
    ("x none", lambda m: f"{m.ratio:.2f}"),
    ("held", lambda m: _bytes(m.persistent_bytes).replace("bytes", "B")),
    ("peak MB", lambda m: "?" if m.peak_memory_mb is None else f"{m.peak_memory_mb:,.0f}"),
    ("nodes", lambda m: f"{m.graph_nodes:,}"),
    ("build", lambda m: f"{m.build_seconds:.1f} s"),
    ("1st call", lambda m: f"{m.first_call_seconds:.1f} s"),
)


def table(found: Sequence[Measured]) -> Any:
    """The table for the terminal."""
    import rich.table

    made = rich.table.Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for title, _ in _COLUMNS:
        made.add_column(title, justify="left" if title == "noise" else "right")
    for one in found:
        made.add_row(*(cell(one) for _, cell in _COLUMNS))
    return made


def markdown(found: Sequence[Measured]) -> str:
    """The table for TensorBoard's Text tab, and the advice."""
    rows = [" | ".join(cell(m) for _, cell in _COLUMNS) for m in found]
    head = " | ".join(title for title, _ in _COLUMNS)
    rule = "|".join("---" for _ in _COLUMNS)
    lines = [f"| {head} |", f"|{rule}|", *(f"| {r} |" for r in rows), "", *advice(found)]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Measures and prints; returns the exit status."""
    del argv
    try:
        config = config_lib.validate(app_flags.config_from_flags())
        counts = _counts(_STDDEV_COUNTS.value)
        sys.path.insert(0, os.getcwd())
        quiet.import_tensorflow(config.logical_cpus)
        # TensorFlow takes the contestants' step functions for one that is traced again and again.
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        if _MEMORY_OF.value:
            name, _, count = _MEMORY_OF.value.partition("/")
            Contestant(config, name, int(count)).run(_MEMORY_STEPS)
            print(_own_peak_memory())
            return 0
        with Console(quiet=_JSON.value) as console:
            with console.progress(_REPEATS.value * len(counts)) as show:
                repeats, seconds = _REPEATS.value, _BLOCK_SECONDS.value
                found = measure(config, counts, repeats, seconds, show)
            console.show(table(found))
            for sentence in advice(found):
                console.say(sentence)
            if app_flags.LOGDIR.value:
                _into_tensorboard(found)
                logdir = shlex.quote(app_flags.LOGDIR.value)
                console.say(f"tensorboard --logdir {logdir}")
    except ValueError as error:
        return app_flags.fail(str(error))
    if _JSON.value:
        document = {"results": [dataclasses.asdict(m) for m in found], "advice": advice(found)}
        print(json.dumps(document, indent=2))
    return 0


def _counts(texts: Sequence[str]) -> list[int]:
    if not texts or not all(t.strip().isdecimal() and int(t) for t in texts):
        raise ValueError(
            f"--stddev_counts={','.join(texts)}: should be numbers from 1, such as 6,60"
        )
    return [int(t) for t in texts]


def _into_tensorboard(found: Sequence[Measured]) -> None:
    from tracker import summaries, tags

    run = rundir.claim(app_flags.LOGDIR.value, app_flags.RUN.value, "compare-strategies")
    with summaries.EventWriter(run.train) as writer:
        writer.summary(0, summaries.text(tags.COMPARE_STRATEGIES, markdown(found)))


if __name__ == "__main__":
    app.run(main, flags_parser=app_flags.parse)
