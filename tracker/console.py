"""What a run says to people: lines and tables on the terminal, kept in console.log as well.

The progress bar is for a terminal alone: with stderr in a file or a pipe there is none, and it
never goes into the log.

    >>> with Console(run.console_log) as console:
    ...     console.say('Training 100 steps.')
    ...     with console.progress(total=100) as show:
    ...         show(50, 'loss 0.31')
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import rich.console
import rich.progress


class Console:
    """Says things on the terminal and in a log file.

    Args:
      log: path of the log, appended to; None for none.
      quiet: whether to keep the terminal silent (the log is written all the same).
    """

    def __init__(self, log: Any = None, quiet: bool = False):
        self._terminal = rich.console.Console(
            file=sys.stdout, soft_wrap=True, quiet=quiet, highlight=False
        )
        self._errors = rich.console.Console(
            stderr=True, soft_wrap=True, quiet=quiet, highlight=False
        )
        self._file = None if log is None else log.open("a")
        self._log = rich.console.Console(file=self._file, width=100, no_color=True, highlight=False)

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def say(self, line: str) -> None:
        """One line on stdout, printed as it is."""
        self._print(self._terminal, line, markup=False)

    def warn(self, line: str) -> None:
        """One line of warning, on stderr."""
        self._print(self._errors, f"Warning: {line}", markup=False)

    def show(self, table: Any) -> None:
        """A rich table (or anything that rich can print), on stdout."""
        self._print(self._terminal, table)

    @contextlib.contextmanager
    def progress(self, total: int, done: int = 0) -> Iterator[Callable[[int, str], None]]:
        """A progress bar on stderr; yields a function of (steps done, text beside the bar)."""
        if not self._errors.is_terminal:
            yield lambda done, text: None
            return
        columns = (
            rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.TimeRemainingColumn(compact=True),
        )
        with rich.progress.Progress(*columns, console=self._errors, transient=True) as bar:
            task = bar.add_task("", total=total, completed=done)
            yield lambda done, text: bar.update(task, completed=done, description=text)

    def _print(self, where: rich.console.Console, what: Any, **options: Any) -> None:
        where.print(what, **options)
        if self._file is not None:
            # A log that cannot be written is no reason to stop.
            with contextlib.suppress(OSError):
                self._log.print(what, **options)
                self._file.flush()
