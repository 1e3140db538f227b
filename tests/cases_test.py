"""Situations that break tools of this kind, each with the right answer in numbers."""

import contextlib
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import browser, experiments
from tests.main_test import record, values
from tracker import events, graphs, instrument, noise, selectors, steps, tags, updates, wur


def toy(optimizer, scale=1.0):
    """Kernel 3x2 of ones, bias 2 of zeros, x of ones, loss = scale * sum(y)."""
    keras.backend.clear_session()
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, kernel_initializer="ones")])
    model.compile(optimizer, loss=lambda y, p: scale * tf.reduce_sum(p, axis=-1))
    rule = updates.Gradient(model, model.optimizer)
    adder = noise.Adder("scalar", noise.Stateless(0), (0.0,), [])
    selector = selectors.make("cycle", (0.0,), 0, 10)
    around = instrument.Instrument(adder, [], selector, model.trainable_variables)
    body = steps.Body(model, rule, around)
    data = tf.data.Dataset.from_tensors((tf.ones([1, 3]), tf.zeros([1, 2]))).repeat()
    functions = steps.Steps(body, data.element_spec)
    rows = functions.tracked(iter(data), 0, 4, 0).instrumented.measured
    return [wur.Measured.from_rows(row) for row in rows]


def test_e1_a_zero_bias_has_no_ratio_until_it_has_a_size():
    measured = toy(keras.optimizers.SGD(0.1))
    found = [wur.ratios(m) for m in measured]
    np.testing.assert_allclose([f.total[0] for f in found], [0.1, 0.1111, 0.125, 0.1429], atol=5e-5)
    assert np.isnan(found[0].total[1])
    np.testing.assert_allclose([f.total[1] for f in found[1:]], [1, 0.5, 0.3333], atol=5e-5)
    assert measured[0].update[1] == pytest.approx(0.1414, abs=5e-5)
    assert measured[0].before[1] == 0


def test_e7_the_ratio_is_of_the_update_not_of_the_gradient():
    first = wur.ratios(toy(keras.optimizers.Adam(0.001), scale=100.0)[0])
    assert first.total[0] == pytest.approx(0.001, rel=1e-3)


def test_e7_decay_constraints_and_ema_are_in_the_number():
    decayed = wur.ratios(toy(keras.optimizers.SGD(0.1, weight_decay=0.5))[0])
    assert decayed.total[0] == pytest.approx(0.15, rel=1e-4)
    averaged = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=1)
    plain = wur.ratios(toy(keras.optimizers.SGD(0.1))[2]).total[0]
    assert wur.ratios(toy(averaged)[2]).total[0] == pytest.approx(plain / 2, rel=0.1)


def overflowing(input_shape, classes):
    """mixed_float16 with a loss scale that overflows some forty times before it fits."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input(input_shape),
                layers.Flatten(),
                layers.Dense(classes, dtype="mixed_float16"),
                layers.Activation("linear", dtype="float32"),
            ]
        )
    finally:
        keras.config.set_dtype_policy(policy)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**60)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(scaled, loss=loss, metrics=["accuracy"])
    return model


def test_e9_batches_skipped_by_loss_scaling_are_counted_and_get_no_noise(tmp_path):
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", "--model=tests.cases_test:overflowing", "--steps=8",
        "--summary_every=1", "--stddevs=0.1", "--profile_steps=",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = values(tmp_path / "r/train")
    skipped = found[tags.WUR_ALL_SKIPPED]
    assert list(skipped) == list(range(1, 9))
    assert skipped[1] > 10
    assert done.stderr.count("made no update") == 1
    noise_size = found[tags.wur_noise("sequential/dense/kernel")][1]
    kernel = found[tags.weight_norm("sequential/dense/kernel")][1]
    assert noise_size * kernel == pytest.approx(0.1 * np.sqrt(640), rel=0.15)


def never_finite(input_shape, classes):
    """Every gradient is NaN, so loss scaling never lets an update through."""
    model = overflowing(input_shape, classes)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model.compile(scaled, loss=lambda y, p: tf.reduce_sum(p, axis=-1) * np.nan)
    return model


def test_e9_a_run_that_never_updates_fails_and_says_why(tmp_path):
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", "--model=tests.cases_test:never_finite", "--steps=8",
        "--on_nonfinite=warn", "--profile_steps=",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1000 batches in a row after step 0 made no update" in done.stderr
    assert record(tmp_path / "r")["status"] == "failed"


@pytest.mark.parametrize("summary_every", [0, 1])
def test_h5_summaries_do_not_change_the_training(summary_every):
    settings = {"model": "tests.architectures:dropout", "steps": 10, "seed": 7}
    one = experiments.make(**settings, summary_every=summary_every)
    experiments.run_steps(one)
    other = experiments.make(**settings, summary_every=3)
    experiments.run_steps(other)
    assert experiments.equal(experiments.weights(one), experiments.weights(other))


@pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions")
def test_c1_functions_run_eagerly_are_compiled_all_the_same():
    """A step that ran eagerly would show no graph and run every branch of Python's."""
    tf.config.run_functions_eagerly(True)
    try:
        experiment = experiments.make(steps=3, model="mlp")
        function = experiment.functions.plain_function.get_concrete_function()
    finally:
        tf.config.run_functions_eagerly(False)
    names = {node.name for node in graphs.step_graph(function).node}
    assert any(name.startswith("noise/route/route_2_0.01/") for name in names)


def odd(input_shape, classes):
    class Odd(keras.layers.Layer):
        def call(self, x):
            return x + tf.random.normal(tf.shape(x)) * tf.constant([0.01] * 10)

    model = experiments.make(model="linear").model
    return keras.Sequential([keras.Input(input_shape), *model.layers, Odd()])


def test_c3_the_graph_of_a_layer_that_draws_and_of_a_loaded_model(tmp_path, page):
    first = experiments.command(
        f"--logdir={tmp_path}/a", "--run=one", "--model=tests.cases_test:odd", "--steps=5"
    )
    assert first.returncode == 0, first.stderr
    saved = experiments.command(
        f"--logdir={tmp_path}/b", "--run=two", "--model=linear", "--steps=5"
    )
    assert saved.returncode == 0, saved.stderr
    loaded = experiments.command(
        f"--logdir={tmp_path}/b", "--run=three", f"--model={tmp_path}/b/two/model.keras",
        "--steps=5",
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr
    for logdir, run in (("a", "one/train"), ("b", "three/train")):
        with browser.tensorboard(tmp_path / logdir) as url:
            browser.open_graph(page, url, run)
            assert {"forward", "gradients", "noise"} <= set(browser.graph_nodes(page))


class TestShortRuns:
    """Case I4: nothing of a short run is lost, however it ends."""

    ARGUMENTS = ("--steps=3", "--summary_every=1", "--model=linear", "--profile_steps=")

    def losses(self, run):
        return sorted(values(run / "train").get(tags.LOSS, ()))

    def test_a_normal_exit(self, tmp_path):
        done = experiments.command(f"--logdir={tmp_path}", "--run=r", *self.ARGUMENTS)
        assert done.returncode == 0
        assert self.losses(tmp_path / "r") == [1, 2, 3]

    def test_an_exception_at_step_3(self, tmp_path):
        done = experiments.command(
            f"--logdir={tmp_path}", "--run=r", *self.ARGUMENTS, "--steps_per_call=1",
            "--selector=tests.cases_test:fails_at_3",
        )  # fmt: skip
        assert done.returncode == 1
        assert self.losses(tmp_path / "r") == [1, 2]
        assert record(tmp_path / "r")["status"] == "failed"

    def test_kill_9_after_step_3(self, tmp_path):
        done = experiments.command(
            f"--logdir={tmp_path}", "--run=r", "--steps=9", *self.ARGUMENTS[1:],
            "--steps_per_call=1", "--selector=tests.cases_test:dies_at_4",
        )  # fmt: skip
        assert done.returncode == -9
        assert self.losses(tmp_path / "r") == [1, 2, 3]
        assert record(tmp_path / "r")["status"] == "running"  # nobody could say otherwise


def fails_at_3(step):
    if step == 3:
        raise RuntimeError("on purpose")
    return 0


def dies_at_4(step):
    if step == 4:
        os.kill(os.getpid(), 9)
    return 0


@pytest.mark.parametrize("name", ["a b", "lr=1e+3", "Größe-模型", "x/y"])
def test_j1_names_of_runs_work_in_every_tab(name, tmp_path):
    done = experiments.command(
        f"--logdir={tmp_path}", f"--run={name}", "--steps=20", "--model=linear"
    )
    assert done.returncode == 0, done.stderr
    with browser.tensorboard(tmp_path) as url:
        import urllib.parse

        run = urllib.parse.quote(f"{name}/train", safe="")
        plugin = f"{url}/data/plugin"
        assert len(browser.fetch(f"{plugin}/scalars/scalars?run={run}&tag=loss")) == 20
        assert browser.fetch(f"{plugin}/graphs/info?run={run}")[f"{name}/train"]["run_graph"]
        assert len(browser.captures(url)) == 1
        assert browser.captures(url)[0].startswith(f"{name}/train")


@pytest.mark.parametrize("name", ["10:30", "..", "x" * 300, "CON", "-x", ".hidden", "a//b"])
def test_j1_other_names_are_refused_before_anything_is_made(name, tmp_path):
    done = experiments.command(f"--logdir={tmp_path}/runs", f"--run={name}", "--steps=20")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_j1_a_home_directory(tmp_path):
    done = experiments.command(
        "--logdir=~/runs", "--run=r", "--steps=5", "--model=linear", "--profile_steps=",
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/r/run.json").exists()


def test_i2_a_full_disk_is_said_once_and_fails_the_run(small_disk):
    """The disk has 2 MB: enough to begin, not for the events of every step."""
    disk = small_disk("2m")
    done = experiments.command(
        f"--logdir={disk}", "--run=r", "--steps=16000", "--model=linear", "--profile_steps=",
        "--checkpoint_every=0",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("Cannot write events") == 1, done.stderr
    assert "16,000 of 16,000" in done.stdout  # training went on
    assert record(disk / "r")["status"] == "failed"
    missing = record(disk / "r")["results"]["missing_steps"]
    kept = sorted(values(disk / "r/train")[tags.LOSS])
    assert kept == list(range(1, len(kept) + 1))
    assert str(len(kept) + 1) in missing


def test_i3_a_run_whose_directory_is_deleted_says_so(tmp_path):
    import shutil
    import time

    process = subprocess.Popen(
        [sys.executable, "-m", "tracker.main", f"--logdir={tmp_path}", "--run=r",
         "--steps=100000000", "--model=linear", "--profile_steps=", "--log_every=100"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = pathlib.Path(tmp_path / "r")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, events.CorruptRecordError):
            if len(values(run / "train").get(tags.LOSS, ())) > 5:
                break
        time.sleep(0.2)
    shutil.rmtree(run)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "deleted" in err
    assert "Traceback" not in err
