"""Goes on with a run that was stopped: its settings, its newest whole checkpoint, its events.

The state of a checkpoint decides everything that follows, so a run that was killed and resumed ends
with the weights of one that was not. What the events hold beyond the checkpoint is moved aside, not
deleted: every curve then has each step once.

    >>> run = rundir.find('logdir', 'latest')
    >>> config = merged(settings(run), given={'steps': 2000})
    >>> start = restore(assemble(config), run, console)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tracker import events, record
from tracker.checkpoints import Checkpoints
from tracker.config import Config
from tracker.rundir import RunDir

# What changes nothing in the weights of the steps to come.
HARMLESS = frozenset(
    {
        *("summary_every", "histogram_every", "validate_every", "log_every", "overhead_budget"),
        *("wur", "wur_variables", "profile_steps", "checkpoint_every", "keep_checkpoints"),
        *("profile_every", "profile_captures", "profile_workers", "profiler_port"),
        *("worker_timeout", "steps_per_call", "on_nonfinite", "steps", "epochs"),
    }
)


class Start(NamedTuple):
    """Where an attempt begins: steps and batches behind, and the validations so far."""

    step: int = 0
    batches: int = 0
    validation: tuple[tuple[int, dict[str, float]], ...] = ()


BEGINNING = Start()


def settings(run: RunDir) -> Config:
    """The configuration that a run recorded.

    Raises:
      record.RecordError: run.json cannot be read.
      ValueError: it is not of a run of the app.
    """
    recorded = record.read(run).get("flags", {})
    known = {f.name for f in dataclasses.fields(Config)}
    if not known & recorded.keys():
        raise ValueError(f"--resume={run.name}: this run was not made by tracker.main")
    values: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in recorded.items() if k in known
    }
    return Config(**values)


def merged(recorded: Config, given: Mapping[str, Any]) -> Config:
    """The recorded configuration with the flags given now.

    Args:
      recorded: from `settings`.
      given: values of the flags on the command line.

    Raises:
      ValueError: a flag that would make another run, with both values.
    """
    changed = {k: v for k, v in given.items() if v != getattr(recorded, k)}
    for name, value in changed.items():
        if name not in HARMLESS:
            raise ValueError(
                f"--{name}={value}: the run to resume has {getattr(recorded, name)}; another value "
                "makes another run"
            )
    if "steps" in changed or "epochs" in changed:
        if recorded.selector == "anneal" and recorded.anneal_schedule == "linear":
            raise ValueError(
                "--steps: the run to resume has --selector=anneal, which depends on the number of "
                "steps; another number makes another run"
            )
        length = {"steps": None, "epochs": None}
        changed = {**length, **changed}
    return dataclasses.replace(recorded, **changed)


def restore(
    checkpoints: Checkpoints, run: RunDir, steps: int, warn: Callable[[str], None]
) -> tuple[int, int]:
    """Puts the state of the newest whole checkpoint into the experiment's variables.

    Returns:
      Steps and batches that are behind.

    Raises:
      ValueError: there is no checkpoint to go on from, or the run is complete.
    """
    found = checkpoints.restore(warn)
    if found is None:
        raise ValueError(f"--resume={run.name}: there is no whole checkpoint in {run.checkpoints}")
    if found[0] >= steps:
        raise ValueError(
            f"--resume={run.name}: the run is complete at step {found[0]}; give more --steps"
        )
    return found


def trim(run: RunDir, step: int) -> tuple[int, tuple[tuple[int, dict[str, float]], ...]]:
    """Moves the events after a step to `orphaned`.

    Returns:
      How many records were moved, and the validations that stay.
    """
    moved = sum(events.trim(d, step, run.orphaned) for d in (run.train, run.validation))
    found: dict[int, dict[str, float]] = {}
    kinds = events.Kinds()
    for path in events.event_files(run.validation):
        for _, event in events.read(path):
            for tag, value in events.scalars(event, kinds):
                found.setdefault(event.step, {})[tag] = value
    return moved, tuple(sorted(found.items()))
