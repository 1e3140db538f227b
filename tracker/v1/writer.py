"""A writer for TF1 loops: what `wur.summary` gives becomes records that TensorBoard shows.

As `tf.compat.v1.summary.FileWriter`, with three differences: each writer has a file of its own
(two FileWriters of one second share one, and the first one's records are gone), tags have their
descriptions, and what was added is on disk when `flush` returns.

    with tracker.v1.SummaryWriter('logdir/train') as writer:
        writer.add_graph(graph)
        writer.add_summary(summary, step)
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from etils import epath
from tensorboard.compat.proto import summary_pb2

from tracker import summaries


class SummaryWriter(summaries.EventWriter):
    """Writes summaries of a session to a new event file.

    Args:
      logdir: directory of the file, made if missing.
    """

    def __init__(self, logdir: str | os.PathLike):
        super().__init__(epath.Path(logdir))

    def add_summary(self, summary: bytes, global_step: Any) -> None:
        """Adds a serialised Summary, of ours or of others.

        Args:
          summary: as `sess.run` returns it.
          global_step: number of the step, any integer scalar from 0.

        Raises:
          ValueError: the step is no such number.
        """
        parsed = summary_pb2.Summary.FromString(summary)
        step = _whole(global_step, [v.tag for v in parsed.value])
        plain = {v.tag: v.simple_value for v in parsed.value if v.HasField("simple_value")}
        others = [v for v in parsed.value if not v.HasField("simple_value")]
        if plain:
            self.scalars(step, plain)
        if others:
            self.summary(step, summary_pb2.Summary(value=others))

    def add_graph(self, graph: Any) -> None:
        """Adds a tf.Graph for the Graphs tab."""
        self.graph(graph.as_graph_def(add_shapes=True).SerializeToString())


def _whole(step: Any, tags_: list[str]) -> int:
    array = np.asarray(step)
    if array.shape or array.dtype.kind not in "iu" or array < 0:
        raise ValueError(
            f"The step of {', '.join(tags_[:3])} is {step!r}; should be one whole number from 0"
        )
    return int(array)
