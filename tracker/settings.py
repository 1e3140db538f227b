"""What people ask for in their own code, as the configuration that the app has by its flags.

>>> configuration(Noise((0.0, 1e-3), selector='cycle'), {'summary_every': 10}).selector
'cycle'
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from tracker import config as config_lib
from tracker.config import Config


@dataclasses.dataclass(frozen=True)
class Noise:
    """The noise of every step. The fields are flags of the app, and mean the same.

    Attributes:
      stddevs: standard deviations to choose from, in units of the weights.
      seed: of the choices and of the numbers.
      selector: random, cycle, weighted, anneal, bandit, or module:function.
      selector_weights: probabilities, for `weighted`.
      anneal_schedule: linear or neelakantan, for `anneal`.
      strategy: routes, scalar or buffered.
      source: stateless or table.
      distribution: normal or uniform.
      scale: absolute or relative (to each variable's root mean square).
      table_size: numbers in the table; 0: from the model's size.
      variables: regular expression of canonical paths; '' for all trainable variables.
    """

    stddevs: tuple[float, ...]
    seed: int = 0
    selector: str = "random"
    selector_weights: tuple[float, ...] = ()
    anneal_schedule: str = "linear"
    strategy: str = "routes"
    source: str = "stateless"
    distribution: str = "normal"
    scale: str = "absolute"
    table_size: int = 0
    variables: str = ""


_FLAGS = {"source": "noise_source", "distribution": "noise_distribution", "scale": "noise_scale"}


def configuration(noise: Noise | None, written: Mapping[str, Any]) -> Config:
    """The configuration that says the same.

    Args:
      noise: None for no noise.
      written: what to write and when, by field of `Config`.

    Raises:
      ValueError: one sentence that names the argument, its value, and what would be right.
    """
    try:
        return config_lib.validate(Config(**_fields(noise), **written))
    except ValueError as error:
        raise ValueError(without_dashes(error)) from error


def shown(config: Config, noise: Noise | None, written: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that were asked for, for people to read."""
    return {name: getattr(config, name) for name in (*_fields(noise), *written)}


def _fields(noise: Noise | None) -> dict[str, Any]:
    fields = {} if noise is None else dataclasses.asdict(noise)
    return {_FLAGS.get(k, k): tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


def without_dashes(error: ValueError) -> str:
    """The sentence about a flag, about the argument of the same name."""
    return re.sub(r"--(?=\w)", "", str(error))
