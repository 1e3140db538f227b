"""What a run is made of: one frozen record, and the checks that need nothing but it.

Field names are the names of the app's flags, and the defaults here are the flags' defaults.
`validate` raises before anything is loaded or created; what depends on the data or the model is
checked where these are made.

    >>> config = validate(Config(stddevs=(0.0, 0.1), steps=100))
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import math
import re
import socket
from typing import Any

from tracker import tags

SELECTORS = ("random", "cycle", "weighted", "anneal", "bandit")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16", "bfloat16")
UPDATES = ("gradient", "random_walk", "hill_climb", "spsa", "evolution")
ESTIMATORS = ("spsa", "evolution")  # rules that estimate a gradient for an optimizer
WUR_KINDS = ("update", "norm_change")
DEFAULT_STEPS = 3000

PROFILED_STEPS = 5  # of a window that nobody gave
MOST_PROFILED = 1000  # steps of a window: XProf shows a million events of it

_SUM_TOLERANCE = 1e-6
_LARGEST = 1e38  # about what float32 holds


@dataclasses.dataclass(frozen=True)
class Config:
    """The configuration of a run. Steps count applied updates, from 1."""

    seed: int = 0
    # Data.
    dataset: str = "digits"
    label: str = ""
    validation_fraction: float = 0.2
    batch_size: int = 64
    # Model and update rule.
    model: str = "mlp"
    loss: str = "auto"
    precision: str = "float32"
    jit_compile: bool = False
    distribute: str = "none"
    logical_cpus: int = 1
    worker_timeout: float = 300.0  # seconds
    update: str = "gradient"
    temperature: float = 0.0  # of hill_climb
    population: int = 16  # of evolution, pairs
    optimizer: str | None = None  # None: adam, or what a compiled model brings
    learning_rate: float | None = None  # None: 1e-3, or what a compiled model brings
    optimizer_args: str = ""
    steps: int | None = None  # None: DEFAULT_STEPS, or epochs
    epochs: float | None = None
    steps_per_call: str = "auto"  # or a number; auto: about half a second
    graph: str = "v2"  # or v1: a TF1 graph that a session runs
    # Noise.
    stddevs: tuple[float, ...] = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    selector: str = "random"
    selector_weights: tuple[float, ...] = ()
    anneal_schedule: str = "linear"
    strategy: str = "routes"
    noise_source: str = "stateless"
    noise_distribution: str = "normal"
    noise_scale: str = "absolute"
    table_size: int = 0  # 0: from the model's size
    variables: str = ""
    sparse_noise: str = "all"  # rows of a variable with a sparse gradient; or touched
    # What is written, and when.
    summary_every: int = 50
    histogram_every: int = 0
    validate_every: int = 100
    log_every: int = 1
    wur: tuple[str, ...] = ("update",)
    wur_variables: str = ""
    profile_steps: str = "auto"
    profile_every: int = 0
    profile_captures: int = 10
    profile_workers: bool = False
    profiler_port: int = 0
    overhead_budget: float = 0.0  # percent; 0: no budget
    checkpoint_every: str = "60s"
    keep_checkpoints: int = 3
    # Faults.
    on_nonfinite: str = "stop"
    deterministic: bool = True


@dataclasses.dataclass(frozen=True)
class Window:
    """A profile window: steps start to stop − 1, as in a Python slice."""

    start: int
    stop: int


def validate(config: Config) -> Config:
    """Checks what can be checked without data and model.

    Returns:
      The config, unchanged.

    Raises:
      ValueError: one sentence that names the flag, its value, and what would be right.
    """
    _check_stddevs(config)
    _check_selector(config)
    _check_update(config)
    _check_workers(config)
    if config.steps is not None and config.epochs is not None:
        raise ValueError(f"--steps={config.steps} and --epochs={config.epochs:g}: give one of them")
    if config.epochs is not None and not 0 < config.epochs < math.inf:
        raise ValueError(f"--epochs={config.epochs}: should be more than 0, and finite")
    if config.table_size and config.noise_source != "table":
        raise ValueError(
            f"--table_size={config.table_size} with --noise_source={config.noise_source}: only "
            "--noise_source=table uses it"
        )
    if config.label and not config.dataset.endswith(".csv"):
        raise ValueError(
            f"--label={config.label} with --dataset={config.dataset}: only .csv files have columns"
        )
    for flag in ("variables", "wur_variables"):
        pattern = getattr(config, flag)
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"--{flag}={pattern}: should be a regular expression: {error}"
            ) from None
    if not config.wur or set(config.wur) - set(WUR_KINDS):
        raise ValueError(
            f"--wur={','.join(config.wur)}: should be one or both of {', '.join(WUR_KINDS)}"
        )
    if config.learning_rate is not None and not 0 <= config.learning_rate < math.inf:
        raise ValueError(f"--learning_rate={config.learning_rate}: should be 0 or more, and finite")
    if config.histogram_every and not config.summary_every:
        raise ValueError(
            f"--histogram_every={config.histogram_every} with --summary_every=0: histograms are "
            "taken on summary steps only"
        )
    if config.summary_every and config.histogram_every % config.summary_every:
        raise ValueError(
            f"--histogram_every={config.histogram_every}: should be a multiple of "
            f"--summary_every={config.summary_every}, as histograms are taken on summary steps"
        )
    parse_args(config.optimizer_args)
    steps_per_call(config.steps_per_call)
    checkpoint_interval(config.checkpoint_every)
    if config.profile_steps != "auto":
        windows(config.profile_steps, None)
    _check_profiling(config)
    return config


def _check_workers(config: Config) -> None:
    """Checks what several processes cannot do together."""
    if config.distribute != "multi_worker":
        return
    for flag, wanted in (("graph", "v2"), ("logical_cpus", 1), ("profiler_port", 0)):
        value = getattr(config, flag)
        if value != wanted:
            raise ValueError(f"--{flag}={value} with --distribute=multi_worker: should be {wanted}")


def _check_stddevs(config: Config) -> None:
    if not config.stddevs:
        raise ValueError("--stddevs is empty; should be one or more numbers, such as 0,1e-3")
    for stddev in config.stddevs:
        if not 0 <= stddev < _LARGEST:
            raise ValueError(
                f"--stddevs: {stddev} is not a standard deviation; should be 0 or more"
            )
    labels = [tags.number(s) for s in config.stddevs]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise ValueError(
            f"--stddevs: {twice[0]} stands there {labels.count(twice[0])} times, to six digits; "
            "each should be there once"
        )


def _check_selector(config: Config) -> None:
    if config.selector not in SELECTORS and ":" not in config.selector:
        raise ValueError(
            f"--selector={config.selector} is unknown; should be {', '.join(SELECTORS)}, or "
            "module:function"
        )
    weights = config.selector_weights
    if config.selector != "weighted":
        if weights:
            raise ValueError(
                f"--selector_weights={_joined(weights)} with --selector={config.selector}: only "
                "--selector=weighted uses them"
            )
        return
    if len(weights) != len(config.stddevs):
        raise ValueError(
            f"--selector_weights={_joined(weights)}: {len(weights)} weights for "
            f"{len(config.stddevs)} stddevs; should be as many"
        )
    total = sum(weights)
    if not all(0 <= w <= 1 for w in weights) or not abs(total - 1) <= _SUM_TOLERANCE:
        raise ValueError(
            f"--selector_weights={_joined(weights)}: add to {total:g}; should be probabilities "
            "that add to 1"
        )


def _check_profiling(config: Config) -> None:
    if 0 < config.profile_every <= PROFILED_STEPS:
        raise ValueError(
            f"--profile_every={config.profile_every}: should be 0, or more than {PROFILED_STEPS}, "
            "which is how many steps each capture takes"
        )
    if config.profile_workers and config.distribute != "multi_worker":
        raise ValueError(
            f"--profile_workers with --distribute={config.distribute}: should be with "
            "--distribute=multi_worker, as there is no other worker"
        )
    if not config.profiler_port:
        return
    with socket.socket() as listening:  # the profiler's server would share a port without a word
        try:
            listening.bind(("", config.profiler_port))
        except OSError as error:
            raise ValueError(
                f"--profiler_port={config.profiler_port}: cannot be listened on "
                f"({error.strerror}); should be a free port"
            ) from error


def _check_update(config: Config) -> None:
    """Checks what belongs to some update rules only."""
    rule = config.update
    for flag, default, wanted in (
        ("temperature", 0.0, ("hill_climb",)),
        ("population", 16, ("evolution",)),
        ("optimizer", None, ("gradient", *ESTIMATORS)),
        ("learning_rate", None, ("gradient", *ESTIMATORS)),
        ("optimizer_args", "", ("gradient", *ESTIMATORS)),
    ):
        value = getattr(config, flag)
        if value != default and rule not in wanted:
            raise ValueError(
                f"--{flag}={value} with --update={rule}: only --update={', '.join(wanted)} uses it"
            )
    if config.sparse_noise == "touched" and rule != "gradient":
        raise ValueError(
            f"--sparse_noise=touched with --update={rule}: only a gradient touches some rows and "
            "not others; should be all"
        )
    if rule not in ESTIMATORS:
        return
    if 0.0 in config.stddevs:
        raise ValueError(
            f"--stddevs={_joined(config.stddevs)} with --update={rule}: 0 perturbs nothing, so "
            "nothing is learned from it; should be more than 0"
        )
    if config.selector == "bandit" or config.noise_scale == "relative":
        flag = "selector=bandit" if config.selector == "bandit" else "noise_scale=relative"
        raise ValueError(f"--{flag} with --update={rule}: should be another; this is not built")


def _joined(values: tuple[float, ...]) -> str:
    return ",".join(f"{v:g}" for v in values)


def parse_args(text: str) -> dict[str, Any]:
    """Parses 'beta_2=0.99,weight_decay=1e-4' into a dictionary of Python literals.

    Raises:
      ValueError: in one sentence.
    """
    result: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(
                f"--optimizer_args={text}: '{part}' should be name=value, such as beta_2=0.99"
            )
        try:
            result[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            result[name] = value
    return result


def steps_per_call(text: str) -> int:
    """Parses how many steps one call runs at most; 0 for 'auto'.

    Raises:
      ValueError: in one sentence.
    """
    if text == "auto":
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--steps_per_call={text}: should be auto, or a number from 1")
    return int(text)


def checkpoint_interval(text: str) -> tuple[str, int]:
    """Parses when to checkpoint: '60s' into ('seconds', 60), '500' into ('steps', 500).

    Raises:
      ValueError: in one sentence.
    """
    match = re.fullmatch(r"(\d+)(s?)", text.strip())
    if not match:
        raise ValueError(
            f"--checkpoint_every={text}: should be a number of steps such as 500, of seconds such "
            "as 60s, or 0 for none"
        )
    return ("seconds" if match[2] else "steps"), int(match[1])


def windows(text: str, steps: int | None) -> tuple[Window, ...]:
    """Parses profile windows.

    Args:
      text: '20:25' for steps 20 to 24; several with commas between; '' for none; 'auto' for five
        steps after step 200, or from the middle of a shorter run.
      steps: of the run; None to check the form alone.

    Raises:
      ValueError: in one sentence: malformed, backwards, overlapping, or outside the run.
    """
    if text == "auto":
        if steps is None or steps < 2:
            return ()
        start = min(200, steps // 2) + 1
        return (Window(start, min(start + PROFILED_STEPS, steps + 1)),)
    found = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = re.fullmatch(r"(\d+):(\d+)", part)
        if not match:
            raise ValueError(
                f"--profile_steps={text}: '{part}' should be FIRST:STOP, such as 20:25"
            )
        start, stop = int(match[1]), int(match[2])
        if stop <= start or start < 1:
            raise ValueError(
                f"--profile_steps={text}: '{part}' holds no step; should be FIRST:STOP with "
                "1 <= FIRST < STOP, and means FIRST to STOP - 1"
            )
        if stop - start > MOST_PROFILED:
            raise ValueError(
                f"--profile_steps={text}: '{part}' holds {stop - start} steps; should be "
                f"{MOST_PROFILED} at most, of which XProf shows a million events"
            )
        if steps is not None and stop > steps + 1:
            raise ValueError(
                f"--profile_steps={text}: '{part}' ends after step {steps}, the last of the run"
            )
        found.append(Window(start, stop))
    found.sort(key=lambda w: w.start)
    for one, other in itertools.pairwise(found):
        if other.start < one.stop:
            raise ValueError(f"--profile_steps={text}: two windows overlap")
    return tuple(found)


def profile_windows(config: Config, steps: int) -> tuple[Window, ...]:
    """All windows that a run profiles.

    Those of `profile_steps`, then five steps from every `profile_every`-th on that overlap none of
    them, until there are `profile_captures`; 'auto' is no window beside `profile_every`.

    Args:
      config: validated.
      steps: of the run.

    Raises:
      ValueError: as for `windows`.
    """
    auto = config.profile_every and config.profile_steps == "auto"
    found = list(windows("" if auto else config.profile_steps, steps))
    if config.profile_every:
        for start in range(config.profile_every, steps + 1, config.profile_every):
            window = Window(start, min(start + PROFILED_STEPS, steps + 1))
            if len(found) >= config.profile_captures:
                break
            if not any(w.start < window.stop and window.start < w.stop for w in found):
                found.append(window)
    return tuple(sorted(found, key=lambda w: w.start))


def resolved_steps(config: Config, examples: int) -> int:
    """How many steps the run has, with `examples` training examples."""
    if config.epochs is not None:
        return max(1, round(config.epochs * -(-examples // config.batch_size)))
    return DEFAULT_STEPS if config.steps is None else config.steps
