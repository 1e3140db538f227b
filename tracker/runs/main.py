"""Finds your way in a logdir of many runs, whoever wrote them.

  python -m tracker.runs list --logdir=logdir --where "best.accuracy > 0.95" --sort=-best.accuracy
  python -m tracker.runs diff RUN latest --logdir=logdir

A RUN is the name of a run, the beginning of one name only, or 'latest'. A filter compares what
`list --fields` prints: name, status, step, age, tags, flags by their names, and metrics as
last.METRIC and best.METRIC. Every command prints JSON with --json. Exit status: 0; 1 what was asked
for failed; 2 a mistake in the command.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from tracker.runs import output

USAGE_ERROR = 2
FAILURE = 1
_PROGRAM = "python -m tracker.runs"
_WORD = "\0"  # no argument of a process can hold it


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(fail(_taught(message, [*self._option_string_actions])))


def _taught(message: str, known: list[str]) -> str:
    """argparse's error, with what was probably meant."""
    match = re.match(r"unrecognized arguments: (-[^\s=]*)", message)
    if match is None:
        return message.replace("the following arguments are required", "Missing")
    close = difflib.get_close_matches(match[1].replace("log_dir", "logdir"), known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see --help"
    return f"There is no flag {match[1]}; {hint}"


def fail(sentence: str, status: int = USAGE_ERROR) -> int:
    """Says what is wrong, in one line on stderr; returns the exit status."""
    line = output.safe(" ".join(sentence.split()))
    print(line if line.endswith("?") else f"{line.rstrip('.')}.", file=sys.stderr)
    return status


def _top() -> argparse.ArgumentParser:
    """The parser that prints help when no command is named."""
    return _Parser(
        prog=_PROGRAM,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"{_PROGRAM} COMMAND --logdir=LOGDIR ...",
        epilog="commands:\n" + "".join(f"  {n:10}{h}\n" for n, (_, h, _) in _COMMANDS.items()),
    )


def _parser(name: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    _, help_, add = _COMMANDS[name]
    command = _Parser(
        prog=f"{_PROGRAM} {name}",
        description=f"{help_[0].upper()}{help_[1:]}.",
        allow_abbrev=False,
    )
    command.add_argument("--logdir", required=True, help="directory of all runs")
    command.add_argument("--json", action="store_true", help="print JSON")
    add(command)
    return command


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a command line; a mistake ends the process with one sentence and status 2."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        _top().print_help(sys.stdout if arguments else sys.stderr)
        raise SystemExit(0 if arguments else USAGE_ERROR)
    if name not in _COMMANDS:
        close = difflib.get_close_matches(name, _COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(_COMMANDS)}"
        raise SystemExit(fail(f"There is no command {name!r}; {hint}"))
    rest = list(arguments[1:])
    if "--" in rest:  # what follows are words, even if they begin with a dash
        end = rest.index("--")
        rest[end:] = [_WORD + word for word in rest[end + 1 :]]
    args = _parser(name).parse_intermixed_args(rest)
    args.command = name
    for key, value in vars(args).items():
        if isinstance(value, list):
            setattr(args, key, [word.removeprefix(_WORD) for word in value])
        elif isinstance(value, str):
            setattr(args, key, value.removeprefix(_WORD))
    return args


def _runs(command: argparse.ArgumentParser, many: str = "*") -> None:
    command.add_argument("runs", nargs=many, metavar="RUN", help="name, prefix, or latest")
    command.add_argument("--where", metavar="FILTER", help="only runs for which this holds")
    command.add_argument("--sort", metavar="FIELD", help="a field; -FIELD: greatest first")
    command.add_argument("--limit", type=_count, metavar="N", help="at most so many runs")


def _list(command: argparse.ArgumentParser) -> None:
    _runs(command)
    command.add_argument("--metrics", metavar="A,B", help="metrics to show; default: common ones")
    command.add_argument("--fields", action="store_true", help="print what a filter can compare")


def _show(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="name, prefix, or latest")
    command.add_argument("--all", action="store_true", help="also flags left at their defaults")


def _diff(command: argparse.ArgumentParser) -> None:
    command.add_argument("a", metavar="A", help="name, prefix, or latest")
    command.add_argument("b", metavar="B", help="name, prefix, or latest")


def _best(command: argparse.ArgumentParser) -> None:
    _runs(command)
    command.add_argument("--metric", required=True, help="such as validation/accuracy")
    command.add_argument("--mode", choices=("min", "max"), help="default: min for losses, errors")


def _export(command: argparse.ArgumentParser) -> None:
    _runs(command)
    command.add_argument(
        "--what",
        choices=("scalars", "runs"),
        default="scalars",
        help="every point, or one row a run with its flags; default: scalars",
    )
    command.add_argument(
        "--format",
        choices=("csv", "jsonl", "parquet"),
        help="default: from the ending of --output, else csv",
    )
    command.add_argument("--output", metavar="FILE", help="default: standard output")
    command.add_argument("--metrics", metavar="A,B", help="only these; default: all")


def _sql(command: argparse.ArgumentParser) -> None:
    command.add_argument("query", help="over the tables runs, flags and scalars")


def _note(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="name, prefix, or latest")
    command.add_argument("text", nargs="?", help="the new note, '' for none; default: show it")


def _tag(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="name, prefix, or latest")
    command.add_argument("tags", nargs="*", metavar="TAG", help="tags to add")
    command.add_argument(
        "--remove", action="append", default=[], metavar="TAG", help="a tag to drop"
    )


def _rename(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="name, prefix, or latest")
    command.add_argument("name", metavar="NAME", help="the new name, a path below logdir")
    _force(command)


def _trash(command: argparse.ArgumentParser) -> None:
    _runs(command)
    command.add_argument("--list", action="store_true", help="only list what is in the trash")
    _force(command)


def _restore(command: argparse.ArgumentParser) -> None:
    command.add_argument("runs", nargs="+", metavar="RUN", help="name in the trash, or a prefix")
    command.add_argument("--name", metavar="NAME", help="another name than it had")


def _purge(command: argparse.ArgumentParser) -> None:
    command.add_argument("runs", nargs="*", metavar="RUN", help="in the trash; default: all of it")
    command.add_argument("--yes", action="store_true", help="do not ask")


def _group(command: argparse.ArgumentParser) -> None:
    _runs(command)
    command.add_argument("--by", required=True, metavar="A,B", help="flags that runs share")
    command.add_argument("--metric", help="such as validation/accuracy; default: a common one")
    command.add_argument("--write", metavar="NAME", help="its name in logdir; '' for none")


def _view(command: argparse.ArgumentParser) -> None:
    _runs(command)
    command.add_argument("--port", type=_count, help="where TensorBoard listens; default: its own")
    command.add_argument("--print", action="store_true", help="only print the command")


def _force(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--force",
        action="store_true",
        help="also if the run cannot be told from one that is going on",
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


_COMMANDS = {
    "list": ("listing", "list runs: status, step, age, metrics, tags", _list),
    "show": ("listing", "show one run: record, flags, metrics", _show),
    "best": ("listing", "name the best runs by a metric", _best),
    "diff": ("comparison", "show how two runs differ: flags, versions, code, metrics", _diff),
    "export": ("exports", "write every scalar, or a table of runs, to a file", _export),
    "sql": ("sql", "query runs, flags and scalars, read-only", _sql),
    "note": ("notes", "show or set the note of a run", _note),
    "tag": ("notes", "show, add or remove the tags of a run", _tag),
    "rename": ("trash", "rename a run", _rename),
    "trash": ("trash", "move runs to the trash; nothing is deleted", _trash),
    "restore": ("trash", "bring runs back from the trash", _restore),
    "group": ("groups", "show mean and stddev of a metric over runs that share flags", _group),
    "view": ("views", "start TensorBoard on some runs, nothing sampled away", _view),
    "doctor": ("doctor", "find what is wrong, and say what to do about it", _runs),
    "purge": ("trash", "delete what is in the trash for good", _purge),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    args = parse(sys.argv[1:] if arguments is None else arguments)
    args.logdir = os.path.expanduser(args.logdir)
    if "://" in args.logdir:
        return fail(f"The logdir {args.logdir} is remote; copy it, and name the copy")
    if not os.path.isdir(args.logdir):
        return fail(f"There is no directory {args.logdir}; name one with --logdir")
    module = importlib.import_module(f"tracker.runs.{_COMMANDS[args.command][0]}")
    try:
        return getattr(module, f"{args.command}_command")(args)
    except ValueError as error:
        return fail(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        return fail(_reason(error), FAILURE)


def _reason(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    return f"Failed{where}: {error.strerror or error}"


def run() -> None:
    """Entry point of `python -m tracker.runs`."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # `... | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)
