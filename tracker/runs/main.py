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

from tracker.runs.commands import Program, count


def _runs(command: argparse.ArgumentParser, many: str = "*") -> None:
    command.add_argument("runs", nargs=many, metavar="RUN", help="name, prefix, or latest")
    command.add_argument("--where", metavar="FILTER", help="only runs for which this holds")
    command.add_argument("--sort", metavar="FIELD", help="a field; -FIELD: greatest first")
    command.add_argument("--limit", type=count, metavar="N", help="at most so many runs")


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
    command.add_argument("--port", type=count, help="where TensorBoard listens; default: its own")
    command.add_argument("--print", action="store_true", help="only print the command")


def _force(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--force",
        action="store_true",
        help="also if the run cannot be told from one that is going on",
    )


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


PROGRAM = Program("python -m tracker.runs", "tracker.runs", __doc__, _COMMANDS)
main = PROGRAM.main
