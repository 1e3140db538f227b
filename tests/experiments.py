"""Small experiments for tests, and what comes out of them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tracker import config as config_lib
from tracker import experiment as experiment_lib
from tracker import schedule as schedule_lib

QUICK = {
    "stddevs": (0.0, 1e-3, 1e-2),
    "batch_size": 96,
    "profile_steps": "",
    "checkpoint_every": "0",
    "model": "linear",
}


def make(**settings: Any) -> experiment_lib.Experiment:
    """An experiment; Keras' global state starts anew, as in a new process."""
    keras.backend.clear_session()
    config = config_lib.Config(**{**QUICK, **settings})
    return experiment_lib.assemble(config_lib.validate(config))


def run_steps(experiment: experiment_lib.Experiment, most: int = 1000) -> list[Any]:
    """Runs all steps as the loop does, at most so many a call; returns (step, call, result)."""
    iterator = iter(experiment.batches())
    step, done = 0, []
    while step < experiment.steps:
        call = experiment.schedule.call(step, most)
        if call.intervals:
            result = experiment.functions.tracked(iterator, step, call.intervals, call.plain)
        else:
            result = experiment.functions.plain(iterator, step, call.plain)
        done.append((step, call, result))
        step += result.steps
        if result.steps < call.steps:
            break
    return done


def weights(experiment: experiment_lib.Experiment) -> list[np.ndarray]:
    """All trainable weights."""
    return [v.numpy() for v in experiment.model.trainable_variables]


def equal(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Whether two lists of arrays are bit-identical."""
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True)
    )


def schedule(experiment: experiment_lib.Experiment, **changes: Any) -> schedule_lib.Schedule:
    """The experiment's schedule with changes."""
    return dataclasses.replace(experiment.schedule, **changes)


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess:
    """Runs `python -m tracker.main` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tracker.main", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **{"env": {**os.environ, "COLUMNS": "100"}, **options},
    )
