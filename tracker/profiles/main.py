"""Says where the time of training goes, from profiler captures, whoever made them.

  python -m tracker.profiles show latest --logdir=logdir
  python -m tracker.profiles diff RUN/2026_01_31_12_00_00 RUN --logdir=logdir
  python -m tracker.profiles assert RUN --logdir=logdir --max_step_ms=20

A RUN is the name of a run, whose newest capture is taken, or of one capture, RUN/TIME; the
beginning of one name only; 'latest'; or the path of an .xplane.pb. Every command prints JSON with
--json. Exit status: 0; 1 a limit was not kept, or what was asked for failed; 2 a mistake in the
command.
"""

import argparse
import math

from tracker.runs.commands import Program, count

_RUN = "name, RUN/TIME, prefix, latest, or an .xplane.pb"


def _list(command: argparse.ArgumentParser) -> None:
    command.add_argument("runs", nargs="*", metavar="RUN", help="only captures of these runs")


def _run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", nargs="?", default="latest", metavar="RUN", help=f"{_RUN}; latest")


def _show(command: argparse.ArgumentParser) -> None:
    _run(command)
    command.add_argument(
        "--top", type=count, default=10, metavar="N", help="ops or kernels to show; default: 10"
    )


def _diff(command: argparse.ArgumentParser) -> None:
    command.add_argument("a", metavar="A", help=_RUN)
    command.add_argument("b", metavar="B", help=_RUN)
    command.add_argument(
        "--top", type=count, default=10, metavar="N", help="ops or kernels to show; default: 10"
    )


def _export(command: argparse.ArgumentParser) -> None:
    _run(command)
    command.add_argument(
        "--what",
        choices=("trace", "ops"),
        help="a Chrome trace for Perfetto, or a table of ops and kernels; default: by --output",
    )
    command.add_argument(
        "--output", required=True, metavar="FILE", help="FILE.json.gz, FILE.csv or FILE.parquet"
    )


def _plot(command: argparse.ArgumentParser) -> None:
    _run(command)
    command.add_argument("--output", required=True, metavar="FILE", help="FILE.svg")
    command.add_argument(
        "--step", type=count, metavar="N", help="the number of the step; default: the median one"
    )


def _assert(command: argparse.ArgumentParser) -> None:
    _run(command)
    command.add_argument("--max_step_ms", type=_limit, metavar="MS", help="of the median step")
    for flag in (
        "--max_input_percent",
        "--max_host_percent",
        "--max_noise_percent",
        "--max_diagnostics_percent",
        "--max_runtime_percent",
        "--min_device_percent",
    ):
        command.add_argument(flag, type=_limit, metavar="PERCENT", help="of the steps' time")


def _capture(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", nargs="?", default="latest", metavar="RUN", help="where to keep it")
    command.add_argument(
        "--port", type=_port, required=True, help="the run's --profiler_port, or HOST:PORT"
    )
    command.add_argument(
        "--seconds", type=_seconds, default=2.0, help="how long to capture; default: 2"
    )
    for flag, most, default, help_ in (
        ("--host_level", 3, 2, "0 nothing, 1 steps, 2 also ops, 3 everything; default: 2"),
        ("--python_level", 1, 0, "1: also every call of a Python function; default: 0"),
        ("--device_level", 1, 1, "0: nothing of GPUs; default: 1"),
    ):
        command.add_argument(flag, type=int, choices=range(most + 1), default=default, help=help_)


def _limit(text: str) -> float:
    return _number(text, 0.0)


def _seconds(text: str) -> float:
    seconds = _number(text, 0.1)
    if seconds > 60:
        raise argparse.ArgumentTypeError(f"{text!r} is more than a minute, which no viewer shows")
    return seconds


def _number(text: str, least: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} on")
    return number


def _port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, such as 6009, nor HOST:PORT")
    return f"{host or 'localhost'}:{port}"


_COMMANDS = {
    "list": ("listing", "list captures: device, steps, time of a step, input, noise", _list),
    "show": ("report", "show where a step's time goes, and the top ops or kernels", _show),
    "diff": ("comparison", "show what takes longer or shorter, largest difference first", _diff),
    "export": ("exports", "write a trace that Perfetto opens, or a table of ops", _export),
    "assert": ("limits", "check limits, for scripts: status 1 if one is not kept", _assert),
    "plot": ("timeline", "draw one step by thread and scope, as an SVG", _plot),
    "capture": ("capturing", "capture a run that goes on, through its port", _capture),
}

PROGRAM = Program(
    "python -m tracker.profiles", "tracker.profiles", __doc__, _COMMANDS, logdir=False
)
main = PROGRAM.main
