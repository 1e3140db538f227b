"""Measures loss and metrics of a model over a whole data set, in one compiled call.

>>> evaluate = Evaluation(model, batches)
>>> evaluate()
{'loss': 0.21, 'accuracy': 0.95}
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Evaluation:
    """Evaluates a model on one data set; compiled once.

    Args:
      model: compiled with its loss and metrics, which are built.
      batches: a finite tf.data.Dataset of (x, y); read from its start at each call.
      examples: examples in it.
    """

    def __init__(self, model: Any, batches: tf.data.Dataset, examples: int):
        self._model = model
        self._batches = batches
        self._examples = examples
        self._names: list[str] = []
        self._function = tf.function(self._run, autograph=False)

    def __call__(self) -> dict[str, float]:
        """Loss (mean over examples) and metrics; empty for an empty data set."""
        if not self._examples:
            return {}
        loss, metrics = self._function()
        return {
            "loss": float(loss),
            **dict(zip(self._names, metrics.numpy().tolist(), strict=True)),
        }

    def _run(self):
        model = self._model
        model.reset_metrics()

        iterator = iter(self._batches)

        def add(number, total):
            x, y = next(iterator)
            outputs = model(x, training=False)
            loss = model.compute_loss(x=x, y=y, y_pred=outputs, training=False)
            model.compute_metrics(x, y, outputs)
            size = tf.cast(tf.shape(x)[0], tf.float64)
            return number + 1, total + tf.cast(loss, tf.float64) * size

        count = self._batches.cardinality()
        start = tf.constant(0, tf.int64), tf.constant(0, tf.float64)
        _, total = tf.while_loop(lambda n, _: n < count, add, start, parallel_iterations=1)
        with tf.control_dependencies([total]):
            found = {k: v for k, v in model.get_metrics_result().items() if k != "loss"}
            self._names = list(found)
            values = [tf.cast(v, tf.float64) for v in found.values()]
        with tf.control_dependencies(values):
            model.reset_metrics()
            return total / self._examples, tf.stack(values) if values else tf.zeros([0])
