"""Runs every measurement and writes RESULTS.md: `python -m benchmarks.run [--rounds=40]`."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from absl import app, flags

from tracker import quiet

_ROUNDS = flags.DEFINE_integer("rounds", 40, "Interleaved rounds of each measurement.")
_ONLY = flags.DEFINE_list("only", [], "Names of the measurements to run; all by default.")
_OUT = flags.DEFINE_string(
    "out", str(pathlib.Path(__file__).parent / "RESULTS.md"), "Where the table goes."
)


_HEAD = """# Results

Measured {date} by `python -m benchmarks.run --rounds={rounds}` on {machine}.

Ratios are medians over interleaved rounds of one process; in brackets the interval that holds 90 %
of the medians of resampled rounds. Small is a model of 9 thousand parameters, large one of 1.1
million, both on the embedded digits with batches of 128 and six stddevs. The contestants are in
`contestants.py`.
"""


def _shown(ratio) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(*ratio)


def against_keras(rounds):
    """Whole tracked, noisy training, summaries every 100 steps, against what people use."""
    from benchmarks import contestants, racing

    for size, aims in (("small", ("0.25", "0.04")), ("large", ("", "0.30"))):
        made = {
            "tracked": contestants.Tracked(size, 100),
            "fit": contestants.KerasFit(size),
            "eager": contestants.EagerLoop(size),
        }
        found = racing.race(made, max(rounds // 2, 5))
        yield (
            f"tracked / (b) Keras fit with TensorBoard callback and noise callback, {size}",
            aims[0],
            _shown(found.ratio("tracked", "fit")),
        )
        yield (
            f"tracked / (a) eager noise loop, {size}",
            aims[1],
            _shown(found.ratio("tracked", "eager")),
        )


def summaries_every_100(rounds):
    """Cost of a summary step, as a share of 100 plain steps; and the whole runs side by side."""
    from benchmarks import contestants, racing

    for size, must in (("small", "1.04"), ("large", "1.02")):
        made = {
            "none": contestants.Tracked(size, 0),
            "every 100": contestants.Tracked(size, 100),
            "every step": contestants.Tracked(size, 1),
        }
        found = racing.race(made, rounds)
        one = found.seconds["none"]
        share = 1 + (found.seconds["every step"] - one) / (100 * one)
        yield (
            f"summaries every 100 steps / none, from the cost of one, {size}",
            must,
            _shown(racing.interval(share)),
        )
        yield (
            f"summaries every 100 steps / none, whole runs, {size}",
            "",
            _shown(found.ratio("every 100", "none")),
        )
        most = "1.12" if size == "large" else ""
        yield (
            f"a summary on every step / none, {size}",
            most,
            _shown(found.ratio("every step", "none")),
        )


def published_ways(rounds):
    """The published ways to the ratio, on every step, relative to the same loop without."""
    from benchmarks import contestants, racing

    ways = ("none", "allennlp", "lczero", "always", "record_if")
    made = {way: contestants.Published("large", way, every=1) for way in ways}
    found = racing.race(made, max(rounds // 2, 5))
    for letter, way in zip("cdef", ways[1:], strict=True):
        yield (
            f"({letter}) {way}, a summary on every step / none, large",
            "",
            _shown(found.ratio(way, "none")),
        )


def noise_cost(rounds):
    """What noise costs in a step, exact and from the table."""
    from benchmarks import contestants, racing
    from tracker import noise

    made = {
        "none": contestants.Steps("large", noisy=False, strategy="scalar"),
        "table": contestants.Steps("large", strategy="scalar", noise_source="table"),
        "exact": contestants.Steps("large", strategy="scalar"),
    }
    ours = noise.Stateless
    noise.Stateless = contestants.PerVariableNormal  # the source that an experiment is made with
    try:
        made["stateless_normal"] = contestants.Steps("large", strategy="scalar")
    finally:
        noise.Stateless = ours
    found = racing.race(made, rounds)
    yield "table noise / no noise, large", "1.08", _shown(found.ratio("table", "none"))
    yield "exact noise / no noise, large", "", _shown(found.ratio("exact", "none"))
    yield (
        "step with exact noise / with stateless_normal per variable, large",
        "1.0",
        _shown(found.ratio("exact", "stateless_normal")),
    )
    extra = (found.seconds["exact"] - found.seconds["none"]) / (
        found.seconds["stateless_normal"] - found.seconds["none"]
    )
    yield (
        "time that noise adds: exact / stateless_normal per variable, large",
        "1.0",
        _shown(racing.interval(extra)),
    )


def many_stddevs(rounds):
    """60 stddevs against 6."""
    from benchmarks import contestants, racing
    from tracker import compare_strategies

    for size in ("small", "large"):
        made = {
            f"{strategy} {count}": contestants.Steps(
                size, strategy=strategy, stddevs=compare_strategies.stddevs(count)
            )
            for strategy in ("scalar", "routes")
            for count in (6, 60)
        }
        found = racing.race(made, rounds)
        must = "1.05" if size == "large" else ""
        yield f"routes, 60 stddevs / 6, {size}", must, _shown(found.ratio("routes 60", "routes 6"))
        yield f"scalar, 60 stddevs / 6, {size}", "1.0", _shown(found.ratio("scalar 60", "scalar 6"))
        yield f"routes / scalar, 6 stddevs, {size}", "", _shown(found.ratio("routes 6", "scalar 6"))


def following_fit(rounds):
    """What tracker's callback costs a `fit` on steps without a summary."""
    from benchmarks import contestants, racing

    made = {name: contestants.Fit("large", name == "followed") for name in ("alone", "followed")}
    found = racing.race(made, max(rounds // 2, 5), block_seconds=4.0)
    figure = "fit followed by Tracker / fit without callbacks, large"
    yield figure, "1.02", _shown(found.ratio("followed", "alone"))


def without_gradients(rounds):
    """Updates at random, without gradients, against a learning rate of zero."""
    from benchmarks import contestants, racing

    for size, must in (("small", "0.1"), ("large", "0.2")):
        walk = {"update": "random_walk", "strategy": "scalar", "stddevs": (1e-3,)}
        made = {
            "recipe": contestants.ZeroRate(size),
            "fit, RandomUpdate": contestants.ForwardOnly(size, "stateless"),
            "fit, RandomUpdate from a table": contestants.ForwardOnly(size, "table"),
            "app, random_walk": contestants.Tracked(size, 100, **walk),
            "app, from a table": contestants.Tracked(size, 100, noise_source="table", **walk),
        }
        found = racing.race(made, max(rounds // 2, 5), block_seconds=1.0)
        for name in list(made)[1:]:
            yield (
                f"{name} / (g) zero-learning-rate train_on_batch, {size}",
                must,
                _shown(found.ratio(name, "recipe")),
            )


def writing(rounds):
    """Ten scalars a step."""
    from benchmarks import contestants, racing

    made = {way: contestants.Writing(way) for way in ("tracker", "tensorboardX", "tf.summary")}
    found = racing.race(made, rounds, block_seconds=0.1)
    for way in made:
        each = 1e6 * found.median(way) / contestants.Writing.VALUES
        yield (
            f"(h) writing by {way}, µs a value, ten values a step",
            "25" if way == "tracker" else "",
            f"{each:.1f}",
        )


def start(rounds):
    """Process start to the first step of the default run, against importing TensorFlow."""
    ready = (
        "import tracker.quiet as q; q.import_tensorflow(); from tracker import config, experiment; "
        "e = experiment.assemble(config.Config()); "
        "print(e.functions.plain(iter(e.batches()), 0, 1).steps)"
    )
    imports = "import tracker.quiet as q; q.import_tensorflow(); import keras"
    taken = []
    for _ in range(max(rounds // 5, 5)):
        pair = []
        for code in (ready, imports):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
            pair.append(time.perf_counter() - begin)
        taken.append(pair[0] / pair[1])
    from benchmarks import racing

    yield (
        "process start to first step / importing TensorFlow and Keras",
        "1.5",
        _shown(racing.interval(np.array(taken))),
    )


MEASUREMENTS: dict[str, Callable] = {
    f.__name__: f
    for f in (
        *(against_keras, summaries_every_100, published_ways, noise_cost, many_stddevs),
        *(following_fit, without_gradients, writing, start),
    )
}


def machine() -> str:
    """One line on the machine and the versions."""
    names = ("tensorflow", "keras", "numpy", "tensorboard", "tensorboardX")
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in names)
    return (
        f"{os.cpu_count()} cores of {_processor()}, {platform.system()}, Python "
        f"{platform.python_version()}, {versions}"
    )


def _processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main(argv):
    del argv
    quiet.import_tensorflow()
    chosen = _ONLY.value or list(MEASUREMENTS)
    lines = []
    for name in chosen:
        lines.append(f"\n### {MEASUREMENTS[name].__doc__.splitlines()[0]}\n")
        lines += ["| figure | must be at most | reached (90 % interval) |", "|---|---|---|"]
        for figure, must, reached in MEASUREMENTS[name](_ROUNDS.value):
            lines.append(f"| {figure} | {must} | {reached} |")
            print(f"{figure:80} {must:6} {reached}", flush=True)
    path = pathlib.Path(_OUT.value)
    old = path.read_text() if path.exists() else ""
    notes = old[old.find("## Notes") :] if "## Notes" in old else ""
    head = _HEAD.format(date=datetime.date.today(), rounds=_ROUNDS.value, machine=machine())
    path.write_text(head + "\n".join(lines) + "\n\n" + notes)


if __name__ == "__main__":
    app.run(main)
