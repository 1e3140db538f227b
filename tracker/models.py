"""Models: the built-in ones, and those that users name.

>>> model = make('mlp', input_shape=(8, 8), classes=10, seed=0)
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence
from typing import Any

import keras

from tracker.selectors import load_function

NAMES = ("linear", "mlp", "cnn")


def make(name: str, input_shape: Sequence[int], classes: int, seed: int) -> keras.Model:
    """Makes a model that is built on one kind of input.

    Args:
      name: one of `NAMES`; `module:function`, called as function(input_shape, classes); or the path
        of a `.keras` file, loaded in Keras' safe mode.
      input_shape: of one example.
      classes: number of classes; 0 for regression to one number.
      seed: of the initial weights.

    Returns:
      A built model. Those made by name give logits, [batch, classes], or [batch, 1].

    Raises:
      ValueError: in one sentence: unknown name, a function that fails or returns something else, a
        file that cannot be loaded.
    """
    keras.utils.set_random_seed(seed % 2**32)
    if name in NAMES:
        return _built_in(name, tuple(input_shape), max(classes, 1))
    if name.endswith(".keras"):
        return _loaded(name)
    if ":" in name:
        return _users(name, tuple(input_shape), classes)
    raise ValueError(
        f"--model={name} is unknown; should be {', '.join(NAMES)}, module:function, or the path of "
        "a .keras file"
    )


def _built_in(name: str, input_shape: tuple[int, ...], outputs: int) -> keras.Model:
    layers = keras.layers
    dense = [layers.Flatten(), layers.Dense(outputs)]
    if name == "mlp":
        dense[1:1] = [layers.Dense(128, activation="relu"), layers.Dense(64, activation="relu")]
    if name == "cnn":
        image = (*input_shape, 1) if len(input_shape) == 2 else input_shape
        if len(image) != 3:
            raise ValueError(
                f"--model=cnn: examples have shape {list(input_shape)}; should be [height, width] "
                "or [height, width, channels]"
            )
        dense[0:0] = [
            layers.Reshape(image),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2, padding="same"),
        ]
    return keras.Sequential([keras.Input(input_shape), *dense])


def _loaded(path: str) -> keras.Model:
    if not pathlib.Path(path).is_file():
        raise ValueError(f"--model={path}: there is no such file")
    try:
        return keras.saving.load_model(path, safe_mode=True)
    except Exception as error:
        raise ValueError(f"--model={path}: Keras cannot load it: {_first_line(error)}") from None


def _users(name: str, input_shape: tuple[int, ...], classes: int) -> keras.Model:
    try:
        function = load_function(name)
    except ValueError as error:
        raise ValueError(f"--model={error}") from None
    try:
        model = function(input_shape, classes)
    except Exception as error:
        raise ValueError(
            f"--model={name}: called with {input_shape}, {classes}: {_first_line(error)}"
        ) from error
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"--model={name}: returned {type(model).__name__}; should return a keras.Model"
        )
    return model


_OF_LOGITS = {
    "sparse_categorical_crossentropy": keras.losses.SparseCategoricalCrossentropy,
    "categorical_crossentropy": keras.losses.CategoricalCrossentropy,
    "binary_crossentropy": keras.losses.BinaryCrossentropy,
}


def prepare(model: keras.Model, x: Any, y: Any, classes: int, loss: str, optimizer: Any) -> str:
    """Builds and compiles a model for a data set, and checks that its output fits the labels.

    Args:
      model: any Keras model; one that is compiled keeps its loss and its metrics.
      x, y: a few examples, [n, ...], and their labels, [n].
      classes: of the labels; 0 for regression.
      loss: a Keras loss by name, or 'auto': cross-entropy for classes, mean squared error for
        regression. Cross-entropies take logits, or probabilities where the last layer is a softmax.
      optimizer: to compile with; a compiled model has its own.

    Returns:
      The name of the loss in force.

    Raises:
      ValueError: output or loss that does not fit the labels, a loss that contradicts a compiled
        model's, no trainable variables.
    """
    _check_output(model, x, classes)
    if not model.trainable_variables:
        raise ValueError("--model: has no trainable variables; nothing would be updated")
    if model.compiled:
        if loss != "auto":
            raise ValueError(f"--loss={loss}: the model is compiled and keeps its own loss")
        name, where = "the model's own", "--model"
    else:
        name = (
            ("sparse_categorical_crossentropy" if classes else "mean_squared_error")
            if (loss == "auto")
            else loss
        )
        where = f"--loss={name}"
        _compile(model, name, classes, optimizer)
    try:
        model.compute_loss(x=x, y=y, y_pred=model(x, training=False), training=False)
    except Exception as error:
        raise ValueError(f"{where}: does not fit the labels: {_first_line(error)}") from None
    return name


def _check_output(model: keras.Model, x: Any, classes: int) -> None:
    try:
        output = model(x, training=False)
    except Exception as error:
        raise ValueError(
            f"--model: cannot be called on examples of shape {list(x.shape[1:])}: "
            f"{_first_line(error)}"
        ) from None
    shape = getattr(output, "shape", None)
    wanted = max(classes, 1)
    if shape is None:
        raise ValueError("--model: should have one output; this one has several")
    if len(shape) != 2 or shape[-1] < wanted or (not classes and shape[-1] != 1):
        raise ValueError(
            f"--model: its output has shape {[None, *shape[1:]]} and does not fit {wanted} "
            f"{'classes' if classes else 'number to predict'}; should be [None, {wanted}]"
        )


def _compile(model: keras.Model, loss: str, classes: int, optimizer: Any) -> None:
    last: list = getattr(model, "layers", [])
    probabilities = bool(last) and (
        isinstance(last[-1], keras.layers.Softmax)
        or getattr(last[-1], "activation", None) is keras.activations.softmax
    )
    try:
        known = _OF_LOGITS.get(loss)
        chosen = known(from_logits=not probabilities) if known else keras.losses.get(loss)
        metrics = ["accuracy"] if classes else ["mae"]
        model.compile(optimizer, loss=chosen, metrics=metrics, jit_compile=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"--loss={loss}: Keras refuses it: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """The first line of an error, without the colours that Keras puts in."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__
