"""Which layers a run has, in model order, and under which tags its numbers stand.

TensorBoard's default loader lists tags by the alphabet. Our own runs say the place of a variable in
the description of its tag ('12 of 80. ...'); the tags of other writers are put in an order in which
layer_2 comes before layer_10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tracker import tags

PREFIXES = {
    "total": tags.wur(""),
    "gradient": tags.wur_gradient(""),
    "noise": tags.wur_noise(""),
    "norm_change": tags.norm_change(""),
}

# Of each tag beside the layers the one to take: what is written on summary steps alone comes
# first, since TensorBoard keeps the same steps of it as of the layers.
_BESIDE = {
    "loss": (tags.WUR_ALL_LOSS, tags.LOSS),
    "stddev": (tags.WUR_ALL_STDDEV, tags.NOISE_STDDEV),
    "skipped": (tags.WUR_ALL_SKIPPED,),
}
_PLACE = re.compile(r"(\d+) of \d+\. ")


def has_any(listed: Mapping[str, Any]) -> bool:
    """Whether tags of a run hold the ratio of a layer.

    Args:
      listed: the run's tags.

    Returns:
      True if one begins with `wur/`.
    """
    return any(tag.startswith(PREFIXES["total"]) for tag in listed)


def describe(listed: Mapping[str, Any]) -> dict[str, Any]:
    """What the page must know of a run before it asks for numbers.

    Args:
      listed: TensorBoard's ScalarTimeSeries of each tag of the run.

    Returns:
      `layers`: the names of its variables, in model order. `families`: of each family that some
      layer has ('total', 'gradient', 'noise', 'norm_change') the prefix of its tags. `beside`: the
      tags of 'loss', 'stddev' and 'skipped', where there are any. `version`: changes when
      TensorBoard has read more of the run. `last_step`: of the newest ratio.
    """
    prefix = PREFIXES["total"]
    ratios = {
        t.removeprefix(prefix): series for t, series in listed.items() if t.startswith(prefix)
    }
    families = {
        name: start
        for name, start in PREFIXES.items()
        if any(tag.startswith(start) for tag in listed)
    }
    beside = {
        name: next(tag for tag in candidates if tag in listed)
        for name, candidates in _BESIDE.items()
        if any(tag in listed for tag in candidates)
    }
    last_step = max((series.max_step for series in ratios.values()), default=0)
    last_wall = max((series.max_wall_time for series in ratios.values()), default=0.0)
    return {
        "layers": sorted(ratios, key=lambda name: (*_place(ratios[name]), _natural(name))),
        "families": families,
        "beside": beside,
        "version": f"{len(listed)}/{last_step}/{last_wall!r}",
        "last_step": last_step,
    }


def _place(series: Any) -> tuple[bool, int]:
    """What sorts layers by their place in the model; those without one come last."""
    found = _PLACE.match(series.description or "")
    return (found is None, int(found[1]) if found else 0)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """What sorts names as people do: by the numbers in them, not by their digits."""
    parts = re.split(r"([0-9]+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
