"""Which runs have something to show, known without asking.

TensorBoard asks every plugin at every load of its page whether it is active, and waits. Listing the
tags of hundreds of runs takes it up to a second; so a thread lists them, soon after the start and
then when somebody has asked, and the answer is what it found last.
"""

from __future__ import annotations

import logging
import threading
import time

from tensorboard import context as tb_context
from tensorboard.data import provider
from tensorboard.plugins.scalar import metadata

from tracker.plugin import layers

_FIRST, _LONGEST = 0.5, 30.0  # seconds between looks as long as nothing was found
_FRESH = 5.0  # seconds for which what was found is not looked up again
_SHARE = 20  # a look is followed by at least so many times its own duration


class Watch:
    """Looks for runs with ratios in the background; starts its thread at once."""

    def __init__(self, data: provider.DataProvider):
        self._data = data
        self._runs: tuple[str, ...] = ()
        self._took = 0.0
        self._said = ""
        self._asked = threading.Event()
        self._looked = threading.Condition()
        self._looks = 0
        threading.Thread(target=self._forever, name="tracker-updates", daemon=True).start()

    def active(self) -> bool:
        """Whether a run had ratios at the last look; never waits."""
        self._asked.set()
        return bool(self._runs)

    def runs(self, seconds: float = 20.0) -> tuple[str, ...]:
        """The runs with ratios, oldest first, as of the last look.

        Args:
          seconds: how long to wait for the very first look.

        Returns:
          Their names.
        """
        self._asked.set()
        with self._looked:
            self._looked.wait_for(lambda: self._looks, timeout=seconds)
        return self._runs

    def _forever(self) -> None:
        pause = _FIRST
        while True:
            began = time.monotonic()
            self._asked.clear()
            self._look()
            self._took = time.monotonic() - began
            pause = _FRESH if self._runs else min(2 * pause, _LONGEST)
            if self._runs:
                self._asked.wait()
                time.sleep(max(_FRESH, _SHARE * self._took))
            else:
                time.sleep(max(_FIRST, _SHARE * self._took))
                self._asked.wait(timeout=pause)

    def _look(self) -> None:
        try:
            self._runs = self._found()
        except Exception as error:  # a provider's error of any kind: the tab waits, people go on
            if self._said != (said := f"{type(error).__name__}: {error}".splitlines()[0]):
                self._said = said
                logging.getLogger("tensorboard").warning("The tab Updates has no data: %s", said)
        with self._looked:
            self._looks += 1
            self._looked.notify_all()

    def _found(self) -> tuple[str, ...]:
        context = tb_context.RequestContext()
        listed = self._data.list_scalars(
            context, experiment_id="", plugin_name=metadata.PLUGIN_NAME
        )
        started = {
            run.run_name: run.start_time or 0.0
            for run in self._data.list_runs(context, experiment_id="")
        }
        found = [run for run, series in listed.items() if layers.has_any(series)]
        return tuple(sorted(found, key=lambda run: (started.get(run, 0.0), run)))
