"""The app's flags, defined once, and the parsing that answers a mistake with one sentence.

Names and defaults are those of `config.Config`. Importing this module defines flags, so only entry
points do, and adopt them with `flags.adopt_module_key_flags`.

    >>> app.run(main, flags_parser=parse)
"""

from __future__ import annotations

import copy
import dataclasses
import re
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from tracker import config as config_lib
from tracker.config import Config

USAGE_ERROR = 2

_PLAINLY = {
    r"invalid literal for int\(\) with base 10: .*": "should be a whole number",
    r"could not convert string to float: .*": "should be a number",
    r"ERROR:: Unable to open flagfile: .*?: '(.*)'$": r"--flagfile=\1: cannot be read",
    r"Unknown command line flag '(\w+) ([^']*)'.*": r"'\1 \2': should be --\1=\2",
    r"Non-boolean argument to boolean flag:? .*": "should be true or false",
}


class _Numbers(flags.ArgumentParser):
    """Numbers with commas between."""

    syntactic_help = "numbers separated by commas"

    def parse(self, argument: Any) -> tuple[float, ...]:
        if isinstance(argument, tuple):
            return argument
        parts = [p.strip() for p in argument.split(",")]
        if parts == [""]:
            return ()
        try:
            return tuple(float(p) for p in parts)
        except ValueError:
            raise ValueError("should be numbers with commas between, such as 0,1e-3") from None

    def flag_type(self) -> str:
        return "comma separated list of numbers"


class _NumbersSerializer(flags.ArgumentSerializer):
    def serialize(self, value: tuple[float, ...]) -> str:
        return ",".join(repr(v) for v in value)


class _Names(flags.ArgumentParser):
    """Words with commas between."""

    syntactic_help = "words separated by commas"

    def parse(self, argument: Any) -> tuple[str, ...]:
        if isinstance(argument, tuple):
            return argument
        return tuple(p.strip() for p in argument.split(",") if p.strip())

    def flag_type(self) -> str:
        return "comma separated list of words"


class _NamesSerializer(flags.ArgumentSerializer):
    def serialize(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


def _numbers(name: str, help_: str) -> None:
    flags.DEFINE(_Numbers(), name, getattr(Config, name), help_, serializer=_NumbersSerializer())


def _string(name: str, help_: str) -> None:
    flags.DEFINE_string(name, getattr(Config, name), help_)


def _integer(name: str, help_: str, lower: int = 0, upper: int = 2**62) -> None:
    flags.DEFINE_integer(name, getattr(Config, name), help_, lower_bound=lower, upper_bound=upper)


def _number(name: str, help_: str, lower: float = 0.0, upper: float | None = None) -> None:
    flags.DEFINE_float(name, getattr(Config, name), help_, lower_bound=lower, upper_bound=upper)


def _choice(name: str, values: Sequence[str], help_: str) -> None:
    flags.DEFINE_enum(name, getattr(Config, name), list(values), help_)


LOGDIR = flags.DEFINE_string(
    "logdir", None, "Directory of runs; each run is a directory below it. Required."
)
RUN = flags.DEFINE_string(
    "run", None, "Name of the run, a path below logdir. Default: date, time, data set and model."
)
RESUME = flags.DEFINE_string(
    "resume", None, "Run to go on with: its name, the beginning of it, or latest."
)

_integer("seed", "Seed of everything random: split, order, weights, noise, choices.")
_string(
    "dataset",
    "digits (embedded); mnist, fashion_mnist, cifar10, cifar100 (downloaded by Keras "
    "on first use); tfds:NAME (needs the extra 'data'); a path to an .npz with x and y, or to a "
    ".csv with a header line.",
)
_string("label", "Column of the labels in a .csv data set.")
_number("validation_fraction", "Share of the examples held out for validation.", 0.0, 0.99)
_integer("batch_size", "Examples a batch.", 1, 2**31 - 1)
_string(
    "model",
    "linear, mlp, cnn; module:function, called as function(input_shape, classes) and "
    "returning a Keras model; or a path to a .keras file.",
)
_string("loss", "A Keras loss by name; auto: cross-entropy for classes, mean squared error else.")
_choice(
    "precision",
    config_lib.PRECISIONS,
    "Keras' dtype policy for the model: mixed_ computes in the lower precision and keeps float32 "
    "variables.",
)
flags.DEFINE_bool(
    "jit_compile",
    Config.jit_compile,
    "Compile the update by XLA; noise and diagnostics stay outside of it.",
)
_choice(
    "distribute",
    ("none", "mirrored", "multi_worker"),
    "Replicas of the model, each of which takes its part of every batch. mirrored: one on each "
    "GPU, or on each logical CPU device; multi_worker: on the machines of the environment variable "
    "TF_CONFIG, where the same command is started with a logdir that all of them see.",
)
_number("worker_timeout", "Seconds to wait for the others of --distribute=multi_worker.", 0.1)
_integer("logical_cpus", "Logical devices to divide the CPU into, to try --distribute.", 1)
_choice(
    "update",
    config_lib.UPDATES,
    "What makes the update of a step: the gradient and an optimizer; or no gradient at all: the "
    "noise alone; the noise if the loss falls; an estimate from two losses, or from a population, "
    "and an optimizer.",
)
_number(
    "temperature",
    "Of --update=hill_climb, in units of the loss: a rise of d is kept with probability "
    "exp(-d/temperature); 0: never.",
    0.0,
)
_integer("population", "Pairs of tries of a step of --update=evolution.", 1)
_string("optimizer", "A Keras optimizer by class name, any case. Default: adam.")
flags.DEFINE_float("learning_rate", Config.learning_rate, "Learning rate. Default: 1e-3.")
_string(
    "optimizer_args", "More of the optimizer's arguments, such as beta_2=0.99,weight_decay=1e-4."
)
_integer("steps", f"Steps (applied updates) of the run. Default: {config_lib.DEFAULT_STEPS}.", 1)
_number("epochs", "Length of the run in epochs, in place of --steps.", 1e-9)
_string(
    "steps_per_call",
    "Steps that one call of a compiled function runs at most; auto: about half a second's. "
    "Weights do not depend on it.",
)
_choice(
    "graph",
    ("v2", "v1"),
    "v2: compiled functions run the steps; v1: the session of a TF1 graph does.",
)
_numbers("stddevs", "Standard deviations of the noise, of which each step uses one; 0: no noise.")
_string(
    "selector",
    f"What picks the stddev of a step: {', '.join(config_lib.SELECTORS)}, or "
    "module:function (step -> index).",
)
_numbers("selector_weights", "Probabilities of the stddevs for --selector=weighted; they add to 1.")
_choice(
    "anneal_schedule",
    ("linear", "neelakantan"),
    "How --selector=anneal goes from the largest "
    "stddev to the smallest: as many steps on each, or the decay of Neelakantan et al. 2015.",
)
_choice(
    "strategy",
    ("scalar", "routes", "buffered"),
    "How noise reaches the variables: one scalar "
    "chooses its scale, one branch of the graph for each stddev, or a noise variable beside each "
    "variable. Weights do not depend on it.",
)
_choice(
    "noise_source",
    ("stateless", "table"),
    "Where the noise comes from: exact generator keyed "
    "by seed, step and variable, or a shared table read at random offsets.",
)
_choice(
    "noise_distribution",
    ("normal", "uniform"),
    "Distribution of the noise; a stddev means the same in both.",
)
_choice(
    "noise_scale",
    ("absolute", "relative"),
    "Unit of the stddevs: that of the weights, or the root mean square of each variable.",
)
_integer("table_size", "Numbers in the table of --noise_source=table; 0: from the model's size.")
_string("variables", "Regular expression over variable paths: which variables get noise.")
_choice(
    "sparse_noise",
    ("all", "touched"),
    "Rows that get noise of a variable whose gradient is sparse (an embedding).",
)
_integer(
    "summary_every",
    "Steps between summary steps, on which WUR and the other diagnostics are "
    "computed; also step 1 and the last. 0: none.",
)
_integer(
    "histogram_every",
    "Steps between histograms of weights and updates, on summary steps only; 0: none.",
)
_integer(
    "validate_every", "Steps between validations; also before step 1 and after the last. 0: none."
)
_number(
    "overhead_budget",
    "Most that summaries and writing may cost, percent of the time: summaries are put further "
    "apart to keep it. 0: no budget.",
    0.0,
    100.0,
)
_integer("log_every", "Steps between the scalars that every step has: loss and stddev.", 1)
flags.DEFINE(
    _Names(),
    "wur",
    Config.wur,
    "Which ratios are written: update, norm_change, or both.",
    serializer=_NamesSerializer(),
)
_string("wur_variables", "Regular expression over variable paths: which variables are measured.")
_string(
    "profile_steps",
    "Windows of steps to profile: 20:25 means steps 20 to 24; several with "
    "commas between; empty: none; auto: five steps after step 200.",
)
_integer("profile_every", "Also profile five steps from every so many steps on; 0: no.")
_integer("profile_captures", "Most captures of a run, for --profile_every.")
flags.DEFINE_bool(
    "profile_workers",
    Config.profile_workers,
    "Profile the other workers of --distribute=multi_worker as well as the chief. TensorFlow 2.21 "
    "can crash while it ends such a capture, which ends the run as failed.",
)
_integer(
    "profiler_port",
    "Port on which TensorBoard's Capture Profile and `python -m tracker.profiles capture` reach "
    "the run while it goes on; 0: none.",
    0,
    65535,
)
_string(
    "checkpoint_every",
    "When to save the state: a number of seconds such as 60s, of steps such "
    "as 500, or 0 for never; else always at the end too.",
)
_integer("keep_checkpoints", "How many of the newest checkpoints to keep.", 1)
_choice("on_nonfinite", ("stop", "warn"), "What to do when the loss is NaN or infinite.")
flags.DEFINE_boolean(
    "deterministic",
    Config.deterministic,
    "On a GPU: use only operations that give the same bits each time. On a CPU they all do.",
)


def config_from_flags(values: flags.FlagValues = flags.FLAGS) -> Config:
    """The configuration that the flags say, not yet validated."""
    given: dict[str, Any] = {f.name: values[f.name].value for f in dataclasses.fields(Config)}
    return Config(**given)


def given(values: flags.FlagValues = flags.FLAGS) -> dict[str, Any]:
    """Values of the configuration's flags that stand on the command line or in a flagfile."""
    names = (f.name for f in dataclasses.fields(Config))
    return {name: values[name].value for name in names if values[name].present}


def flags_text(config: Config, values: flags.FlagValues = flags.FLAGS) -> str:
    """The flags that make a run, as a flagfile; without logdir and run."""
    lines = []
    for field in dataclasses.fields(Config):
        value = getattr(config, field.name)
        if value is None:
            continue
        flag = copy.deepcopy(values[field.name])
        flag.value = value
        lines.append(flag.serialize() or f"--{flag.name}=")
    return "".join(f"{line}\n" for line in lines)


def parse(argv: Sequence[str]) -> list[str]:
    """Parses a command line for `app.run`; a mistake is one sentence on stderr and status 2."""
    try:
        rest = flags.FLAGS(list(argv), known_only=False)
    except flags.Error as error:
        raise SystemExit(fail(_sentence(error))) from None
    except UnicodeDecodeError:
        raise SystemExit(fail("--flagfile: is not UTF-8 text")) from None
    if len(rest) > 1:
        raise SystemExit(
            fail(f"'{rest[1]}' is not a flag; flags begin with --, such as --logdir=logdir")
        )
    return rest


def check_logdir_given() -> None:
    """Refuses a run without --logdir, and the typing mistake that absl takes for its own flag.

    Raises:
      ValueError: in one sentence.
    """
    if LOGDIR.value:
        return
    given = flags.FLAGS["log_dir"]
    if given.present and given.value:
        raise ValueError(f"--log_dir={given.value}: did you mean --logdir?")
    raise ValueError(
        "--logdir is missing; should be the directory of runs, such as --logdir=logdir"
    )


def fail(sentence: str) -> int:
    """Says what is wrong, in one line on stderr; returns the exit status of a usage error."""
    print(sentence if sentence.endswith(("?", ".")) else f"{sentence}.", file=sys.stderr)
    return USAGE_ERROR


def _sentence(error: Exception) -> str:
    """absl's error as one sentence with the flag's name and value first."""
    text = " ".join(str(error).split())
    for python, plain in _PLAINLY.items():
        text = re.sub(python, plain, text)
    if isinstance(error, flags.UnrecognizedFlagError):
        return text.removeprefix("FATAL Flags parsing error: ")
    if not text.startswith("flag --"):
        return text
    name, _, why = text.removeprefix("flag ").partition(": ")
    return f"{name}: {why}"
