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
from collections.abc import Mapping, Sequence
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
