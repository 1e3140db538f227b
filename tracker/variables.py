"""Names of a model's variables that are the same in every process, run and way of training.

Keras numbers layers per process: the second `Sequential` of a process is `sequential_1`, its layers
`dense_2`, `dense_3`. Here the automatic numbers count from 0 in model order again, and given names
stay as they are. These canonical paths key the noise and name the tags.

    >>> paths(model.trainable_variables, model)
    ['sequential/dense/kernel', 'sequential/dense/bias', 'sequential/dense_1/kernel', ...]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

_NUMBER = re.compile(r"_\d+$")


def paths(variables: Sequence[Any], model: Any = None) -> list[str]:
    """Canonical paths of variables, each different.

    Args:
      variables: Keras or TensorFlow variables, in model order.
      model: the Keras model that holds them, if any; its layers tell which names are automatic.

    Returns:
      One path a variable: Keras' `path` with automatic numbers counted from 0, or TensorFlow's
      `name` without `:0`. A path that occurs again gets `_1`, `_2`, ... at its end.
    """
    renamed = _renamed(model) if model is not None else {}
    result, seen = [], Counter[str]()
    for variable in variables:
        path = getattr(variable, "path", None) or re.sub(r":\d+$", "", variable.name)
        path = "/".join(renamed.get(part, part) for part in path.split("/"))
        repeat = seen[path]
        seen[path] += 1
        result.append(f"{path}_{repeat}" if repeat else path)
    return result


def _renamed(model: Any) -> dict[str, str]:
    """Maps each automatic layer name of the model to the one it would have in a new process."""
    result: dict[str, str] = {}
    count = Counter[str]()
    for layer in model._flatten_layers(include_self=True, recursive=True):
        base = _snake_case(type(layer).__name__)
        if layer.name in result or _NUMBER.sub("", layer.name) != base:
            continue
        result[layer.name] = f"{base}_{count[base]}" if count[base] else base
        count[base] += 1
    return result


def _snake_case(name: str) -> str:
    """A class name as Keras writes it in automatic layer names: Conv2DTranspose, conv2d_transpose.

    The rule of `keras.src.utils.naming.to_snake_case`.
    """
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def matching(names: Sequence[str], pattern: str) -> list[int]:
    """Indices of the names that a regular expression finds (`re.search`); '' finds all."""
    found = re.compile(pattern)
    return [i for i, name in enumerate(names) if found.search(name)]
