"""Command lines of the kind `python -m tracker.runs COMMAND --logdir=...`.

A mistake is one sentence on stderr and exit status 2; nothing is guessed from abbreviations.

    >>> PROGRAM = Program("python -m tracker.runs", "tracker.runs", __doc__, COMMANDS)
    >>> sys.exit(PROGRAM.run())
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import importlib
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from tracker.runs import output

USAGE_ERROR = 2
FAILURE = 1
_WORD = "\0"  # no argument of a process can hold it


Arguments = Callable[[argparse.ArgumentParser], None]


@dataclasses.dataclass(frozen=True)
class Program:
    """A program of several commands.

    Attributes:
      name: how it is called.
      package: of its commands; the command NAME is the function `NAME_command` of its module.
      description: its manual.
      commands: by name: the module, the help, and what adds its arguments to a parser.
      logdir: whether each command must name one.
    """

    name: str
    package: str
    description: str
    commands: Mapping[str, tuple[str, str, Arguments]]
    logdir: bool = True

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parses a command line; a mistake ends the process with one sentence and status 2."""
        name = arguments[0] if arguments else "--help"
        if name in ("-h", "--help"):
            self._top().print_help(sys.stdout if arguments else sys.stderr)
            raise SystemExit(0 if arguments else USAGE_ERROR)
        if name not in self.commands:
            close = difflib.get_close_matches(name, self.commands, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(self.commands)}"
            raise SystemExit(fail(f"There is no command {name!r}; {hint}"))
        rest = list(arguments[1:])
        if "--" in rest:  # what follows are words, even if they begin with a dash
            end = rest.index("--")
            rest[end:] = [_WORD + word for word in rest[end + 1 :]]
        args = self._parser(name).parse_intermixed_args(rest)
        args.command = name
        for key, value in vars(args).items():
            if isinstance(value, list):
                setattr(args, key, [word.removeprefix(_WORD) for word in value])
            elif isinstance(value, str):
                setattr(args, key, value.removeprefix(_WORD))
        return args

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Runs one command; returns the exit status."""
        args = self.parse(sys.argv[1:] if arguments is None else arguments)
        if args.logdir is not None:
            args.logdir = os.path.expanduser(args.logdir)
            if "://" in args.logdir:
                return fail(f"The logdir {args.logdir} is remote; copy it, and name the copy")
            if not os.path.isdir(args.logdir):
                return fail(f"There is no directory {args.logdir}; name one with --logdir")
        module = importlib.import_module(f"{self.package}.{self.commands[args.command][0]}")
        try:
            return getattr(module, f"{args.command}_command")(args)
        except ValueError as error:
            return fail(str(error))
        except BrokenPipeError:
            raise
        except OSError as error:
            return fail(_reason(error), FAILURE)

    def run(self) -> NoReturn:
        """Entry point of `python -m`."""
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        try:
            status = self.main()
            sys.stdout.flush()
        except BrokenPipeError:  # `... | head`
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 128 + signal.SIGPIPE
        except KeyboardInterrupt:
            status = 128 + signal.SIGINT
        sys.exit(status)

    def _top(self) -> argparse.ArgumentParser:
        """The parser that prints help when no command is named."""
        return _Parser(
            prog=self.name,
            description=self.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            usage=f"{self.name} COMMAND --logdir=LOGDIR ...",
            epilog="commands:\n"
            + "".join(f"  {n:10}{h}\n" for n, (_, h, _) in self.commands.items()),
        )

    def _parser(self, name: str) -> argparse.ArgumentParser:
        """The parser of one command."""
        _, help_, add = self.commands[name]
        command = _Parser(
            prog=f"{self.name} {name}",
            description=f"{help_[0].upper()}{help_[1:]}.",
            allow_abbrev=False,
        )
        command.add_argument("--logdir", required=self.logdir, help="directory of all runs")
        command.add_argument("--json", action="store_true", help="print JSON")
        add(command)
        return command


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(fail(_taught(message, [*self._option_string_actions])))


def fail(sentence: str, status: int = USAGE_ERROR) -> int:
    """Says what is wrong, in one line on stderr; returns the exit status."""
    line = output.safe(" ".join(sentence.split()))
    print(line if line.endswith("?") else f"{line.rstrip('.')}.", file=sys.stderr)
    return status


def count(text: str) -> int:
    """A whole number from 0 on, as the type of an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _taught(message: str, known: list[str]) -> str:
    """argparse's error, with what was probably meant."""
    match = re.match(r"unrecognized arguments: (-[^\s=]*)", message)
    if match is None:
        return message.replace("the following arguments are required", "Missing")
    close = difflib.get_close_matches(match[1].replace("log_dir", "logdir"), known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see --help"
    return f"There is no flag {match[1]}; {hint}"


def _reason(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    return f"Failed{where}: {error.strerror or error}"
