"""Data sets: arrays in memory, split and shuffled by seed, and the batches that a step takes.

In-memory data is shuffled by index: which examples step k sees is a function of (seed, k), so a
checkpoint holds no data and a resumed run continues at the very batch.

    >>> data = load('digits', seed=0)
    >>> batches = data.batches(batch_size=64, seed=0, first=0)   # endless tf.data.Dataset
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.resources
import os
import pathlib
import re
from typing import Any

import numpy as np

KERAS_NAMES = ("mnist", "fashion_mnist", "cifar10", "cifar100")


@dataclasses.dataclass(frozen=True)
class Data:
    """A supervised data set in memory, split into training and validation.

    Attributes:
      x, y: training examples, float32 [n, ...] scaled to about 0 to 1, and labels, int32 [n] (or
        float32 for regression).
      validation_x, validation_y: likewise; may be empty.
      classes: number of classes; 0 for regression.
    """

    x: np.ndarray
    y: np.ndarray
    validation_x: np.ndarray
    validation_y: np.ndarray
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.x.shape[1:])

    def batches(self, batch_size: int, seed: int, first: int = 0) -> Any:
        """Endless batches, shuffled anew each epoch, the last of an epoch smaller where it must.

        Args:
          batch_size: examples a batch.
          seed: of the order.
          first: how many batches to leave out: those that a run has already had.

        Returns:
          A tf.data.Dataset of (x, y).
        """
        import tensorflow as tf

        from tracker import noise

        count = len(self.x)
        each = -(-count // batch_size)
        x, y = tf.constant(self.x), tf.constant(self.y)
        key = noise.key(seed, "shuffle")

        def epoch(number):
            seed = tf.stack([tf.constant(key, tf.int64), number])
            order = tf.random.experimental.stateless_shuffle(tf.range(count), seed)
            return tf.data.Dataset.from_tensor_slices(order).batch(batch_size)

        epochs = tf.data.Dataset.range(first // each, np.iinfo(np.int64).max)
        indices = epochs.flat_map(epoch).skip(first % each)
        gathered = indices.map(
            lambda i: (tf.gather(x, i), tf.gather(y, i)), num_parallel_calls=1, deterministic=True
        )
        return gathered.prefetch(4)

    def validation_batches(self, batch_size: int) -> Any:
        """The validation examples once, in order, as a tf.data.Dataset of (x, y)."""
        import tensorflow as tf

        whole = tf.data.Dataset.from_tensor_slices((self.validation_x, self.validation_y))
        return whole.batch(batch_size).prefetch(2)


def load(name: str, seed: int = 0, validation_fraction: float = 0.2, label: str = "") -> Data:
    """Loads a data set.

    Args:
      name: 'digits' (embedded), one of `KERAS_NAMES` (downloaded by Keras on first use),
        'tfds:NAME', or the path of an `.npz` with x and y or of a `.csv` with a header line.
      seed: of the split into training and validation.
      validation_fraction: share of the examples held out, 0 to below 1.
      label: for a CSV file, the name of the label's column.

    Raises:
      ValueError: in one sentence: unknown name, unreadable file, or data that cannot be trained on.
    """
    if name == "digits":
        with importlib.resources.files("tracker").joinpath("digits.npz").open("rb") as file:
            arrays = np.load(file)
            x, y = arrays["x"].astype(np.float32) / 16.0, arrays["y"]
    elif name in KERAS_NAMES:
        x, y = _keras(name)
    elif name.startswith("tfds:"):
        x, y = _tfds(name.removeprefix("tfds:"))
    elif name.endswith(".npz"):
        x, y = _npz(name)
    elif name.endswith(".csv"):
        x, y = _csv(name, label)
    else:
        raise ValueError(
            f"--dataset={name} is unknown; should be digits, {', '.join(KERAS_NAMES)}, "
            "tfds:NAME, or the path of an .npz or .csv file"
        )
    x, y, classes = _checked(name, x, y)
    return _split(x, y, classes, seed, validation_fraction)


def _checked(name: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    x, y = np.asarray(x), np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    where = f"--dataset={name}"
    if x.ndim < 2 or y.ndim != 1:
        raise ValueError(
            f"{where}: x has shape {list(x.shape)} and y {list(y.shape)}; should be [examples, "
            "features...] and [examples]"
        )
    if len(x) != len(y) or len(x) < 2:
        raise ValueError(
            f"{where}: x has {len(x)} examples and y {len(y)}; should be equally many, at least 2"
        )
    if x.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
        raise ValueError(f"{where}: x holds {x.dtype} and y {y.dtype}; both should hold numbers")
    scale = 255.0 if x.dtype == np.uint8 else 1.0  # images as they are stored
    x = x.astype(np.float32) / scale
    for which, values in (("x", x), ("y", y)):
        bad = int(np.count_nonzero(~np.isfinite(values)))
        if bad:
            raise ValueError(f"{where}: {which} has {bad} values that are NaN or infinite")
    if y.dtype.kind == "f":
        return x, y.astype(np.float32), 0
    if y.min() < 0 or y.max() >= np.iinfo(np.int32).max:
        raise ValueError(
            f"{where}: labels go from {y.min():g} to {y.max():g}; classes should count from 0"
        )
    if y.max() >= len(y):
        raise ValueError(
            f"{where}: labels go up to {y.max()} with {len(y)} examples; classes should count from "
            "0, and numbers to predict should be stored as floats"
        )
    return x, y.astype(np.int32), int(y.max()) + 1


def _split(x, y, classes: int, seed: int, fraction: float) -> Data:
    order = np.random.default_rng([seed, 0x5EED]).permutation(len(x))
    held_out = round(len(x) * fraction)
    validation, training = order[:held_out], order[held_out:]
    if not len(training):
        raise ValueError(
            f"--validation_fraction={fraction}: leaves none of {len(x)} examples to train on"
        )
    return Data(x[training], y[training], x[validation], y[validation], classes)


def _npz(path: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["x"], arrays["y"]
    except FileNotFoundError:
        raise ValueError(f"--dataset={path}: there is no such file") from None
    except KeyError:
        raise ValueError(f"--dataset={path}: should hold the arrays x and y") from None
    except Exception:
        raise ValueError(
            f"--dataset={path} cannot be read as .npz; should hold the arrays x and y, of numbers"
        ) from None


def _csv(path: str, label: str) -> tuple[np.ndarray, np.ndarray]:
    """A label column of whole numbers holds classes, one with decimal points numbers to predict."""
    where = f"--dataset={path}"
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"{where} cannot be read: {reason}") from None
    if len(rows) < 2:
        raise ValueError(f"{where}: should have a header line and examples below it")
    header, *body = rows
    if len(set(header)) < len(header):
        raise ValueError(f"{where}: two columns of its header have the same name")
    if label not in header:
        raise ValueError(
            f"--label='{label}' is no column of {path}; should be one of {', '.join(header)}"
        )
    for number, row in enumerate(body, 2):
        if len(row) != len(header):
            raise ValueError(
                f"{where}: line {number} has {len(row)} values; should have {len(header)}"
            )
    at = header.index(label)
    try:
        values = np.array([[float(cell) for cell in row] for row in body])
    except ValueError as error:
        raise ValueError(f"{where}: should hold numbers below its header: {error}") from None
    y = values[:, at]
    whole = all(re.fullmatch(r"[+-]?\d+", row[at]) for row in body)
    return np.delete(values, at, axis=1), y.astype(np.int64) if whole else y


def _keras(name: str) -> tuple[np.ndarray, np.ndarray]:
    import keras

    home = os.environ.get("KERAS_HOME") or pathlib.Path.home() / ".keras"
    cache = pathlib.Path(home) / "datasets"
    try:
        (x, y), (more_x, more_y) = getattr(keras.datasets, name).load_data()
    except Exception as error:
        raise ValueError(
            f"--dataset={name}: is downloaded to {cache} on first use, and that failed: "
            f"{_first_line(error)}"
        ) from None
    return np.concatenate([x, more_x]), np.concatenate([y, more_y])


def _tfds(name: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise ValueError(
            f"--dataset=tfds:{name}: needs the extra 'data': pip install 'tf-tracker[data]'"
        ) from None
    try:
        x, y = tfds.as_numpy(tfds.load(name, split="train", batch_size=-1, as_supervised=True))
    except Exception as error:
        raise ValueError(
            f"--dataset=tfds:{name}: could not be loaded: {_first_line(error)}"
        ) from None
    return x, y


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
