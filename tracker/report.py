"""What a run says of itself: its configuration as text, and the table it ends with.

>>> console.show(closing_table(experiment, recorder, outcome))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import rich.console
import rich.table

from tracker import tags, wur
from tracker.recorder import Recorder

if TYPE_CHECKING:
    from tracker.experiment import Experiment


@dataclasses.dataclass
class Outcome:
    """How a run ended.

    Attributes:
      status: as in run.json.
      step: the last step done.
      reason: one sentence on why it ended early; '' if it did not.
      signal: number of the signal that ended it, if one did.
      validation: steps and metrics of every validation.
      missing: the steps whose events could not be written; '' if all were.
      table: the closing table, for `Console.show`.
    """

    status: str = "running"
    step: int = 0
    reason: str = ""
    signal: int | None = None
    validation: list[tuple[int, dict[str, float]]] = dataclasses.field(default_factory=list)
    missing: str = ""
    table: Any = None


def settings(experiment: Experiment) -> dict[str, Any]:
    """The configuration with what is in force where it was left open."""
    optimizer = experiment.rule.optimizer
    rate = float(experiment.rule.learning_rate())
    used = {} if optimizer is None else {
        "optimizer": type(optimizer).__name__,
        "learning_rate": None if np.isnan(rate) else rate,
    }  # fmt: skip
    return dataclasses.asdict(experiment.config) | {
        "steps": experiment.steps,
        "loss": experiment.loss_name,
        **used,
    }


def configuration(experiment: Experiment) -> str:
    """The configuration as a Markdown table."""
    fields = settings(experiment) | {
        "trainable parameters": f"{experiment.parameters:,}",
        "training examples": f"{len(experiment.data.x):,}",
        "validation examples": f"{len(experiment.data.validation_x):,}",
        "variables with noise": ", ".join(experiment.instrument.noised),
    }
    return table(fields)


def table(fields: Mapping[str, Any]) -> str:
    """Settings as a Markdown table."""
    rows = [f"| {name} | {_shown(value)} |" for name, value in fields.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_shown(v) for v in value)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def best(
    validation: Sequence[tuple[int, dict[str, float]]], metric: str
) -> tuple[int, float] | None:
    """Step and value of the best validation of a metric; values that are not finite never win.

    Losses and errors are best when small, all else when large.
    """
    found = [(s, m[metric]) for s, m in validation if metric in m and np.isfinite(m[metric])]
    if not found:
        return None
    return (
        min(found, key=lambda p: p[1])
        if tags.best_when_small(metric)
        else max(found, key=lambda p: p[1])
    )


def results(
    validation: Sequence[tuple[int, dict[str, float]]], recorder: Recorder, missing: str = ""
) -> dict[str, Any]:
    """The figures that go into run.json.

    Args:
      validation: steps and metrics of every validation, in order.
      recorder: of the training side.
      missing: the steps whose events could not be written.
    """
    found: dict[str, Any] = {}
    for metric in validation[-1][1] if validation else ():
        found[f"validation/{metric}"] = validation[-1][1][metric]
        top = best(validation, metric)
        if top is not None:
            found[f"best/{metric}"], found[f"best/{metric}_step"] = top[1], top[0]
    if recorder.seconds:
        found["steps_per_second"] = recorder.steps / recorder.seconds
    if (kept := recorder.accepted_fraction()) is not None:
        found["accepted_fraction"] = kept
    if recorder.skipped:
        found["skipped_batches"] = recorder.skipped
    if missing:
        found["missing_steps"] = missing
    return found


def closing_table(experiment: Experiment, recorder: Recorder, outcome: Outcome) -> Any:
    """What a run ends with: metrics, speed, stddevs, and WUR against the healthy band."""
    table = rich.table.Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("steps", f"{outcome.step:,} of {experiment.steps:,}")
    for metric, value in outcome.validation[-1][1].items() if outcome.validation else ():
        top = best(outcome.validation, metric)
        at = "" if top is None else f"  (best {top[1]:.4g} at step {top[0]:,})"
        table.add_row(f"validation {metric}", f"{value:.4g}{at}")
    if recorder.seconds:
        rate = recorder.steps / recorder.seconds
        table.add_row("speed", f"{rate:,.0f} steps/s, {1e3 / rate:.2f} ms a step")
    if (kept := recorder.accepted_fraction()) is not None:
        table.add_row("steps kept", f"{kept:.0%}")
    if recorder.skipped:
        table.add_row("batches without an update", f"{recorder.skipped:,}")
    if outcome.missing:
        table.add_row("not written", f"events of {outcome.missing}")
    total = max(int(recorder.counts.sum()), 1)
    shares = [
        f"{tags.number(s)}: {n / total:.0%}"
        for s, n in zip(experiment.config.stddevs, recorder.counts, strict=True)
    ]
    table.add_row("steps per stddev", ", ".join(shares))
    if recorder.measured is None:
        return table
    return rich.console.Group(
        table, "", _ratio_table(experiment.instrument.names, recorder.measured)
    )


def _ratio_table(names: Sequence[str], measured: wur.Measured, most: int = 20) -> Any:
    """One row a variable; of large models the ones furthest from 1e-3."""
    found = wur.ratios(measured)
    chosen: Sequence[int] = range(len(names))
    caption = "Last summary step; healthy is 1e-4 to 1e-2."
    if len(names) > most:
        chosen = sorted(wur.overall(measured, worst=most).worst)
        caption += f" The {most} of {len(names)} variables furthest from 1e-3."
    table = rich.table.Table(
        box=None, pad_edge=False, caption=caption, caption_justify="left", caption_style=""
    )
    table.add_column("variable")
    for title in ("WUR", "gradient part", "noise part"):
        table.add_column(title, justify="right")
    table.add_column("")
    for i in chosen:
        parts = (found.total[i], found.gradient[i], found.noise[i])
        table.add_row(names[i], *(_ratio(p) for p in parts), _judged(parts[0]))
    return table


def _ratio(value: float) -> str:
    return "undefined" if np.isnan(value) else f"{value:.1e}"


def _judged(ratio: float) -> str:
    if np.isnan(ratio):
        return ""
    if ratio < tags.HEALTHY_LOW:
        return "low"
    return "high" if ratio > tags.HEALTHY_HIGH else "healthy"


def ranges(steps: Sequence[int]) -> str:
    """'steps 3 to 7, 12' of sorted step numbers."""
    groups: list[list[int]] = []
    for step in steps:
        if groups and step == groups[-1][1] + 1:
            groups[-1][1] = step
        else:
            groups.append([step, step])
    shown = [str(a) if a == b else f"{a} to {b}" for a, b in groups]
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(shown)}"
