"""What needs a GPU: a short run on it, its profile, and its figures."""

import pytest
import tensorflow as tf

from tests import experiments
from tests.main_test import record, values
from tracker import captures, gpu, tags

GPUS = tf.config.list_physical_devices("GPU")
needs_gpu = pytest.mark.skipif(not GPUS, reason="TensorFlow finds no GPU on this machine")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with one capture of ten steps, of which one is a summary step."""
    logdir = tmp_path_factory.mktemp("logdir")
    done = experiments.command(
        f"--logdir={logdir}", "--run=r", "--steps=120", "--summary_every=20",
        "--profile_steps=96:106",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return logdir / "r"


@needs_gpu
def test_a_profile_has_steps_device_rows_and_the_scopes_of_kernels(run):
    (capture,) = captures.find(run)
    found = captures.numbers(capture)
    assert found.device_type == "GPU" and found.devices >= 1 and found.busy
    assert len(found.steps) >= 8 and all(ms > 0 for ms in found.step_ms)
    kernels = [e for e in captures.executions(capture.path) if not e.on_host and not e.is_copy]
    assert len(kernels) > 100
    assert sum(bool(kernel.op) for kernel in kernels) > 0.8 * len(kernels)
    assert {"forward", "gradients", "update", "diagnostics"} <= set(found.scopes)
    assert any(op.scope.startswith("noise/route/") for op in found.ops.values())
    assert found.device_percent > 0 and found.noise_percent > 0
    assert sum(found.scopes.values()) == pytest.approx(100)


@needs_gpu
def test_memory_is_written(run):
    found = values(run / "train")
    assert all(mb > 0 for mb in found[tags.PERF_DEVICE_MEMORY_MB].values())
    peak = found[tags.PERF_DEVICE_PEAK_MB]
    assert all(peak[s] >= mb for s, mb in found[tags.PERF_DEVICE_MEMORY_MB].items())
    assert record(run)["captures"][0]["device_type"] == "GPU"


@needs_gpu
def test_utilisation_is_a_percentage_where_nvml_is_present(run):
    pytest.importorskip("pynvml", reason="needs the extra gpu: nvidia-ml-py")
    assert 0 <= gpu.utilisation() <= 100
    assert values(run / "train")[tags.PERF_DEVICE_UTILISATION]


@needs_gpu
def test_memory_grows_as_it_is_needed(run):
    """A run of 17 thousand weights does not take the whole of the GPU."""
    assert max(values(run / "train")[tags.PERF_DEVICE_PEAK_MB].values()) < 1000


@pytest.mark.skipif(bool(GPUS), reason="this machine has a GPU")
def test_without_a_gpu_there_are_no_figures_of_one():
    assert gpu.usage() == {}
    assert gpu.utilisation() is None
