"""Every tag that tracker writes, its unit, and the order in which a reader meets it.

A tag exists here and nowhere else; what writes summaries and what reads runs both import it, and
never each other.

    >>> from tracker import tags
    >>> tags.wur('sequential/dense/kernel')
    'wur/sequential/dense/kernel'
    >>> tags.description('perf/step_ms')
    'Mean wall time of one step since the last summary step, milliseconds.'
"""

from __future__ import annotations

LOSS = "loss"
LEARNING_RATE = "learning_rate"
NOISE_STDDEV = "noise/stddev"
NOISE_CHOICE = "noise/choice"
NOISE_ACCEPTED = "noise/accepted_fraction"
WUR_ALL_RATIO = "wur_all/ratio"
WUR_ALL_LOG10 = "wur_all/log10"
WUR_ALL_OUT_OF_BAND = "wur_all/out_of_band"
WUR_ALL_UNDEFINED = "wur_all/undefined"
WUR_ALL_SKIPPED = "wur_all/skipped"
WUR_ALL_UNCHANGED = "wur_all/unchanged_fraction"
WUR_ALL_UNCHANGED_BY_NOISE = "wur_all/unchanged_by_noise"
WUR_ALL_WORST = "wur_all/worst"
WUR_ALL_BAND_LOW = "wur_all/band_low"
WUR_ALL_BAND_HIGH = "wur_all/band_high"
WUR_ALL_STDDEV = "wur_all/stddev"
WUR_ALL_LOSS = "wur_all/loss"
NONFINITE_LOSS = "nonfinite/loss"
OVERHEAD = "tracker/overhead_percent"
PERF_STEP_MS = "perf/step_ms"
PERF_STEPS_PER_SECOND = "perf/steps_per_second"
PERF_EXAMPLES_PER_SECOND = "perf/examples_per_second"
PERF_INPUT_WAIT_MS = "perf/input_wait_ms"
PERF_HOST_MEMORY_MB = "perf/host_memory_mb"
PERF_DEVICE_MEMORY_MB = "perf/device_memory_mb"
PERF_DEVICE_PEAK_MB = "perf/device_memory_peak_mb"
PERF_DEVICE_UTILISATION = "perf/device_utilisation_percent"
PROFILE_STEP_MS = "profile/step_ms"
PROFILE_INPUT = "profile/input_percent"
PROFILE_HOST = "profile/host_percent"
PROFILE_DEVICE = "profile/device_percent"
PROFILE_NOISE = "profile/noise_percent"
PROFILE_DIAGNOSTICS = "profile/diagnostics_percent"
PROFILE_RUNTIME = "profile/runtime_percent"
RUN = "run"
COMPARE_STRATEGIES = "compare_strategies"

_BEST_WHEN_LARGE = ("acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "r2", "top_k",
                    "cosine", "true_", "sensitivity", "specificity")  # fmt: skip

HEALTHY_LOW = 1e-4
HEALTHY_HIGH = 1e-2

_DESCRIPTIONS = {
    LOSS: "Mean loss over the batches of the step, measured on the weights before the update.",
    LEARNING_RATE: "Learning rate that the step used, dimensionless.",
    NOISE_STDDEV: "Standard deviation of the noise added in the step, in units of the weights.",
    NOISE_CHOICE: "Index of the chosen stddev in the list of stddevs, from 0.",
    NOISE_ACCEPTED: "Share of the steps since the last summary step that were kept, 0 to 1.",
    WUR_ALL_RATIO: "Weight-update ratio of all variables as one vector, dimensionless.",
    WUR_ALL_LOG10: "Histogram over variables of log10 of the non-zero, finite ratios.",
    WUR_ALL_OUT_OF_BAND: "Number of variables whose ratio is outside 1e-4 to 1e-2.",
    WUR_ALL_UNDEFINED: "Number of variables without a ratio: zero before the update, not after.",
    WUR_ALL_SKIPPED: "Batches without an update since the step before.",
    WUR_ALL_UNCHANGED: (
        "Share of the elements with a non-zero gradient that the update rule left bit-identical, "
        "before noise, 0 to 1."
    ),
    WUR_ALL_UNCHANGED_BY_NOISE: "Share of the elements that the noise left bit-identical, 0 to 1.",
    WUR_ALL_WORST: "The variables whose ratio is furthest from 1e-3, worst first.",
    WUR_ALL_BAND_LOW: "Lower edge of the healthy band of the ratio, dimensionless, constant.",
    WUR_ALL_BAND_HIGH: "Upper edge of the healthy band of the ratio, dimensionless, constant.",
    WUR_ALL_STDDEV: "noise/stddev again, on summary steps only.",
    WUR_ALL_LOSS: "loss again, on summary steps only.",
    NONFINITE_LOSS: "Steps with a NaN or infinite loss since the last summary step.",
    OVERHEAD: "Share of wall time that the diagnostics and their writing cost, percent.",
    PERF_STEP_MS: "Mean wall time of one step since the last summary step, milliseconds.",
    PERF_STEPS_PER_SECOND: "Steps per second since the last summary step.",
    PERF_EXAMPLES_PER_SECOND: "Training examples per second since the last summary step.",
    PERF_INPUT_WAIT_MS: "Mean time one step waited for its batch, milliseconds.",
    PERF_HOST_MEMORY_MB: "Resident memory of the process, megabytes (10^6 bytes).",
    PERF_DEVICE_MEMORY_MB: "Memory in use on the first accelerator, megabytes (10^6 bytes).",
    PERF_DEVICE_PEAK_MB: "Most memory used so far on the first accelerator, megabytes (10^6).",
    PERF_DEVICE_UTILISATION: "Share of about a second in which the first GPU computed, percent.",
    PROFILE_STEP_MS: "Median time of a profiled step, milliseconds.",
    PROFILE_INPUT: "Share of the profiled steps spent waiting for the next batch, percent.",
    PROFILE_HOST: "Share of the profiled steps in which the host computed, percent.",
    PROFILE_DEVICE: "Share of the profiled steps in which an accelerator computed, percent.",
    PROFILE_NOISE: "Share of the profiled steps spent on choosing and adding noise, percent.",
    PROFILE_DIAGNOSTICS: (
        "Share of the profiled steps spent on diagnostics, percent; 0 if none was a summary step."
    ),
    PROFILE_RUNTIME: "Share of the profiled steps in which no op ran, percent.",
    RUN: "The configuration of the run.",
    COMPARE_STRATEGIES: "Cost of each way of building the noise, on this model and machine.",
}

_FAMILIES = {
    "wur": "Weight-update ratio ‖after − before‖₂ / ‖before‖₂ of the variable, dimensionless.",
    "wur_gradient": "Part of the ratio that the update rule made, before noise, dimensionless.",
    "wur_noise": "Part of the ratio that the noise made, as applied, dimensionless.",
    "wur_touched": "Weight-update ratio over the rows that the batch touched, dimensionless.",
    "wur_proposed": (
        "Weight-update ratio of what the step proposed, kept or taken back, dimensionless."
    ),
    "norm_change": "|‖after‖₂ − ‖before‖₂| / ‖before‖₂ of the variable, dimensionless.",
    "weight_norm": "‖before‖₂ of the variable, in units of the weights.",
    "update_norm": "‖after − before‖₂ of the variable, in units of the weights.",
    "noise/loss_change": (
        "Mean change of the loss from a step that used this stddev to the next, since the last "
        "summary step."
    ),
    "weights": "Histogram of the variable after the step.",
    "updates": "Histogram of after − before of the variable.",
    "nonfinite": "Number of NaN or infinite elements of the variable after the step.",
    "profile": "Number out of a profiler capture.",
}


def wur(variable: str) -> str:
    """Tag of the weight-update ratio of a variable, by its canonical path."""
    return f"wur/{variable}"


def wur_gradient(variable: str) -> str:
    """Tag of the ratio of the update rule's part."""
    return f"wur_gradient/{variable}"


def wur_noise(variable: str) -> str:
    """Tag of the ratio of the noise's part."""
    return f"wur_noise/{variable}"


def wur_touched(variable: str) -> str:
    """Tag of the ratio over the rows of an embedding that the batch touched."""
    return f"wur_touched/{variable}"


def wur_proposed(variable: str) -> str:
    """Tag of the ratio of the update that a step proposed, whether it was kept or not."""
    return f"wur_proposed/{variable}"


def norm_change(variable: str) -> str:
    """Tag of the relative change of the norm."""
    return f"norm_change/{variable}"


def weight_norm(variable: str) -> str:
    """Tag of the norm before the update."""
    return f"weight_norm/{variable}"


def update_norm(variable: str) -> str:
    """Tag of the norm of the whole update."""
    return f"update_norm/{variable}"


def weights(variable: str) -> str:
    """Tag of the histogram of a variable."""
    return f"weights/{variable}"


def updates(variable: str) -> str:
    """Tag of the histogram of an update."""
    return f"updates/{variable}"


def nonfinite(variable: str) -> str:
    """Tag of the count of non-finite elements of a variable."""
    return f"nonfinite/{variable}"


def loss_change(stddev: float) -> str:
    """Tag of the mean change of the loss over the steps that used a stddev."""
    return f"noise/loss_change/{number(stddev)}"


def number(value: float) -> str:
    """A number as it stands in tags and scope names: 0, 0.001, 1e-4, 1e10.

    Six significant digits, no `+` (scopes may not hold one), no needless zeros in exponents, and
    exponents where plain digits are long: TensorBoard cuts labels at 13 characters.
    """
    plain = f"{value:g}"
    mantissa, _, exponent = f"{value:.5e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    scientific = f"{mantissa}e{int(exponent)}"
    return scientific if "e" in plain or len(scientific) < len(plain) - 1 else plain


def best_when_small(metric: str) -> bool:
    """Whether a metric is best when small: losses and errors are, accuracies are not."""
    name = metric.rpartition("/")[2].lower()
    return not any(part in name for part in _BEST_WHEN_LARGE)


def is_own(tag: str) -> bool:
    """Whether tracker writes the tag itself."""
    return tag in _DESCRIPTIONS or any(tag.startswith(f + "/") for f in _FAMILIES)


def description(tag: str, place: str = "") -> str:
    """What a tag shows, with its unit.

    Args:
      tag: a tag of this module, or a metric's name.
      place: for a variable's tag its place in the model, such as '12 of 80', put in front so that
        readers that get tags in alphabetical order can restore the model's.

    Returns:
      One sentence; for an unknown tag, that it is the metric of that name.
    """
    known = _DESCRIPTIONS.get(tag)
    if known is None:
        families = (f for f in _FAMILIES if tag.startswith(f + "/"))
        family = max(families, key=len, default="")
        known = _FAMILIES.get(family, f"The metric {tag}.")
    return f"{place}. {known}" if place else known
