"""One sentence on what costs a step the most, and what to do about it."""

from __future__ import annotations

from tracker import scopes
from tracker.captures import Numbers

INPUT = 20.0  # percent of a step from which each is worth a word
NOISE = 25.0
DIAGNOSTICS = 10.0
COMMUNICATION = 25.0
IDLE = 50.0


def advise(numbers: Numbers) -> str:
    """The advice that saves most, '' if there is none.

    Args:
      numbers: of a capture.
    """
    if not numbers.steps:
        return (
            "Mark each step, with tf.profiler.experimental.Trace(name, step_num=step, _r=1), to "
            "see where its time goes."
        )
    found = [(percent, text) for percent, least, text in _candidates(numbers) if percent >= least]
    return max(found)[1] if found else ""


def _candidates(numbers: Numbers) -> list[tuple[float, float, str]]:
    input_ = numbers.input_percent or 0.0
    noise = numbers.noise_percent or 0.0
    diagnostics = numbers.diagnostics_percent or 0.0
    communication = numbers.parts.get("communication", 0.0)
    runtime = scopes.total(numbers.scopes, scopes.RUNTIME) or 0.0
    found = [
        (
            input_,
            INPUT,
            f"Input takes {input_:.0f} % of a step: prefetch, decode in parallel, or cache data.",
        ),
        (
            noise,
            NOISE,
            f"Noise takes {noise:.0f} % of a step: --noise_source=table draws it faster, "
            "--variables leaves some out.",
        ),
        (
            diagnostics,
            DIAGNOSTICS,
            f"Diagnostics take {diagnostics:.0f} % of these steps: raise --summary_every, or give "
            "an --overhead_budget.",
        ),
        (
            communication,
            COMMUNICATION,
            f"Exchange between devices takes {communication:.0f} % of a step: larger batches on "
            "each device make it rarer.",
        ),
    ]
    if numbers.busy:
        idle = 100 - sum(numbers.busy.values()) / len(numbers.busy)
        text = f"The devices wait {idle:.0f} % of a step: larger batches or fewer, larger ops."
        return [*found, (idle, INPUT, text)]
    text = (
        f"No op runs in {runtime:.0f} % of a step: its ops are short, and starting them takes the "
        "time; larger batches cost little more."
    )
    return [*found, (runtime, IDLE, text)]
