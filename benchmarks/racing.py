"""Times contestants against each other: interleaved blocks in one process, medians of ratios."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Race:
    """Seconds a step of each contestant in each round.

    Attributes:
      seconds: by name, one number a round.
    """

    seconds: Mapping[str, np.ndarray]

    def median(self, name: str) -> float:
        """Median seconds a step."""
        return float(np.median(self.seconds[name]))

    def ratio(self, name: str, to: str) -> tuple[float, float, float]:
        """Median over rounds of the ratio of two contestants, with a 90 % bootstrap interval."""
        return interval(self.seconds[name] / self.seconds[to])


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Median, and the interval that holds 90 % of the medians of resampled values."""
    random = np.random.default_rng(0)
    drawn = random.choice(values, size=(2000, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.05, 0.95])
    return float(np.median(values)), float(low), float(high)


def race(contestants: Mapping[str, Any], rounds: int, block_seconds: float = 0.3) -> Race:
    """Runs all contestants in turn, so many rounds; the first round is not counted.

    Args:
      contestants: things with `run(steps)`.
      rounds: that count.
      block_seconds: about how long each runs at a time.
    """
    steps = {name: _length(c, block_seconds) for name, c in contestants.items()}
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant.run(steps[name])
            taken[name].append((time.perf_counter() - start) / steps[name])
    return Race({name: np.array(values[1:]) for name, values in taken.items()})


def _length(contestant: Any, seconds: float) -> int:
    """Steps that take about so long, found by doubling: calls of few steps cost more a step.

    What is compiled on first use is run before, and not timed.
    """
    contestant.run(128)
    steps = 1
    while True:
        contestant.run(steps)
        start = time.perf_counter()
        contestant.run(steps)
        taken = time.perf_counter() - start
        if taken >= seconds / 2:
            return max(1, round(steps * seconds / taken))
        steps *= 2
