"""Saves and restores everything that decides how a run goes on.

The list is explicit: every variable of the model (the states of Dropout's and noise layers' seed
generators are among them, which Keras' and TensorFlow's own ways leave out), of the optimizer and
of the selector, and how many steps and batches are behind. The data holds no state: what a batch
contains follows from the seed and its number.

    >>> checkpoints = Checkpoints(run.checkpoints, {'model': variables}, keep=3)
    >>> checkpoints.save(step=100, batches=100)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf


class Checkpoints:
    """The checkpoints of a run, the newest `keep` of them.

    Args:
      directory: of the checkpoints.
      variables: lists of tf.Variable by what they belong to.
      keep: how many to keep.
    """

    def __init__(self, directory: Any, variables: Mapping[str, Sequence[tf.Variable]], keep: int):
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._batches = tf.Variable(0, dtype=tf.int64, trainable=False)
        parts = {name: list(values) for name, values in variables.items()}
        self._checkpoint = tf.train.Checkpoint(step=self._step, batches=self._batches, **parts)
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, os.fspath(directory), max_to_keep=keep, checkpoint_name="step"
        )
        self._directory = directory
        self.last_step: int | None = None

    def save(self, step: int, batches: int) -> None:
        """Saves the state after `step` steps that took `batches` batches.

        Raises:
          tf.errors.OpError, OSError: it could not be written; older checkpoints are untouched.
        """
        self._step.assign(step)
        self._batches.assign(batches)
        self._manager.save(checkpoint_number=step)
        self.last_step = step

    def restore(self, warn: Callable[[str], None]) -> tuple[int, int] | None:
        """Restores the newest checkpoint that is whole.

        Args:
          warn: called with one sentence for each checkpoint that is not.

        Returns:
          Steps and batches behind it, or None if there is none.
        """
        found = [p.name.removesuffix(".index") for p in self._directory.glob("step-*.index")]
        for name in sorted(found, key=lambda n: int(n.partition("-")[2]), reverse=True):
            try:
                status = self._checkpoint.read(os.fspath(self._directory / name))
                status.assert_existing_objects_matched()
            except Exception as error:  # TensorFlow raises many kinds for damaged files
                first = str(error).splitlines()[0] if str(error) else type(error).__name__
                warn(f"Checkpoint {name} cannot be read, trying the one before: {first}")
                continue
            self.last_step = int(self._step)
            return int(self._step), int(self._batches)
        return None
