"""What the first GPU is doing: memory by TensorFlow's own figures, utilisation by NVML.

NVML comes with the extra `gpu` (nvidia-ml-py) and the driver. Where either is missing there are no
figures, and nothing else is lost. TensorFlow must have been imported.

    >>> usage()
    {'perf/device_memory_mb': 412.0, 'perf/device_memory_peak_mb': 530.5}
"""

from __future__ import annotations

import functools
import os
from typing import Any

from tracker import tags


def usage() -> dict[str, float]:
    """Figures of the first GPU by tag; none without one."""
    import tensorflow as tf

    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        return {}
    memory = tf.config.experimental.get_memory_info(devices[0].name)
    found = {
        tags.PERF_DEVICE_MEMORY_MB: memory["current"] / 1e6,
        tags.PERF_DEVICE_PEAK_MB: memory["peak"] / 1e6,
    }
    percent = utilisation()
    if percent is not None:
        found[tags.PERF_DEVICE_UTILISATION] = percent
    return found


def utilisation() -> float | None:
    """Percent of about a second in which the GPU ran kernels; None where NVML cannot tell."""
    nvml = _nvml()
    if nvml is None:
        return None
    library, handle = nvml
    try:
        return float(library.nvmlDeviceGetUtilizationRates(handle).gpu)
    except library.NVMLError:
        return None


@functools.cache
def _nvml() -> tuple[Any, Any] | None:
    """NVML and its handle of the GPU; None without NVML, a driver, or a GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml, _handle(pynvml)
    except pynvml.NVMLError:
        return None


def _handle(pynvml: Any) -> Any:
    """The first GPU of CUDA_VISIBLE_DEVICES, which may name it by number or by UUID."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if first.isdecimal() or not first:
        return pynvml.nvmlDeviceGetHandleByIndex(int(first or 0))
    return pynvml.nvmlDeviceGetHandleByUUID(first)
