"""Runs that are killed and resumed: the same weights, each step once, nothing lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tensorboard.backend.event_processing import event_accumulator

from tests import browser, experiments
from tests.main_test import checkpoint, record, same, values
from tracker import events, tags

SETTINGS = (
    "--model=tests.resume_test:everything", "--steps=60", "--batch_size=96", "--selector=bandit",
    "--stddevs=0,1e-3,1e-2", "--summary_every=10", "--validate_every=20", "--checkpoint_every=7",
    "--profile_steps=", "--optimizer_args=gradient_accumulation_steps=2", "--steps_per_call=1",
)  # fmt: skip


def everything(input_shape, classes):
    """Dropout, noise, batch normalisation; dies after as many updates as DIE_AT says."""
    import keras
    import tensorflow as tf

    layers = keras.layers

    class Fuse(layers.Layer):
        """Kills the process when it has run so often in training."""

        def build(self, shape):
            self.count = self.add_weight(shape=(), dtype="int64", trainable=False)

        def call(self, x, training=False):
            limit = int(os.environ.get("DIE_AT", "0"))
            if training and limit:
                with tf.control_dependencies([self.count.value.assign_add(1)]):
                    tf.py_function(lambda n: _die() if n >= limit else None, [self.count], [])
            elif training:
                self.count.value.assign_add(1)
            return x

    return keras.Sequential(
        [
            keras.Input(input_shape), layers.Flatten(), layers.GaussianNoise(0.1), layers.Dense(16),
            layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.3), Fuse(),
            layers.Dense(classes),
        ]
    )  # fmt: skip


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def run(*arguments, die_at=0):
    environment = {**os.environ, "DIE_AT": str(die_at), "COLUMNS": "100"}
    return experiments.command(*arguments, env=environment)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """One run in peace, and one that is killed twice and resumed."""
    logdir = tmp_path_factory.mktemp("resume")
    peace = run(f"--logdir={logdir}", "--run=peace", *SETTINGS)
    assert peace.returncode == 0, peace.stderr
    first = run(f"--logdir={logdir}", "--run=killed", *SETTINGS, die_at=48)
    assert first.returncode == -9, first.stderr
    second = run(f"--logdir={logdir}", "--resume=kil", die_at=91)
    assert second.returncode == -9, second.stdout + second.stderr
    assert record(logdir / "killed")["status"] == "running"
    third = run(f"--logdir={logdir}", "--resume=latest")
    assert third.returncode == 0, third.stdout + third.stderr
    return logdir, third


def test_the_state_is_bit_identical_to_that_of_a_run_in_peace(killed):
    logdir, _ = killed
    assert same(checkpoint(logdir / "peace"), checkpoint(logdir / "killed"))


def test_it_says_where_it_went_on(killed):
    assert "resumed at step 42 of 60" in killed[1].stdout


def test_every_step_is_there_once_with_the_value_of_the_run_in_peace(killed):
    logdir, _ = killed
    for part in ("train", "validation"):
        count = {}
        for file in events.event_files(logdir / "killed" / part):
            for _, event in events.read(file):
                for tag, _ in events.scalars(event):
                    count[tag, event.step] = count.get((tag, event.step), 0) + 1
        assert set(count.values()) == {1}
        peace, other = values(logdir / "peace" / part), values(logdir / "killed" / part)
        timed = ("perf/", "tracker/", "noise/loss_change/")
        for tag in peace:
            if not tag.startswith(timed):
                assert peace[tag] == other[tag], tag


def test_both_loaders_show_each_step_once(killed):
    logdir, _ = killed
    for flags in ([], ["--load_fast=false"]):
        with browser.tensorboard(logdir, *flags) as url:
            for tag, steps in ((tags.LOSS, 60), (tags.WUR_ALL_RATIO, 7)):
                query = f"run=killed%2Ftrain&tag={tag}"
                points = browser.fetch(f"{url}/data/plugin/scalars/scalars?{query}")
                found = [int(p[1]) for p in points]
                assert len(found) == steps
                assert found == sorted(set(found))
            assert set(browser.fetch(f"{url}/data/runs")) == {
                "peace/train", "peace/validation", "killed/train", "killed/validation",
            }  # fmt: skip


def test_what_was_cut_is_kept(killed):
    orphans = list((killed[0] / "killed/orphaned").iterdir())
    assert orphans
    assert not any("tfevents" in p.name for p in orphans)
    steps = {e.step for p in orphans for _, e in events.read(p) if e.summary.value}
    assert steps
    assert min(steps) > 14


def test_every_attempt_is_recorded(killed):
    written = record(killed[0] / "killed")
    assert written["status"] == "completed"
    attempts = written["attempts"]
    assert [a["status"] for a in attempts] == ["stale", "stale", "completed"]
    assert [a["first_step"] for a in attempts] == [1, 22, 43]
    assert attempts[-1]["last_step"] == 60


def test_more_steps_are_allowed_and_other_weights_are_not(killed, tmp_path):
    logdir = tmp_path / "copy"
    shutil.copytree(killed[0], logdir)
    done = run(f"--logdir={logdir}", "--resume=killed")
    assert done.returncode == 2
    assert "complete at step 60; give more --steps" in done.stderr
    refused = run(f"--logdir={logdir}", "--resume=killed", "--steps=70", "--seed=3")
    assert refused.returncode == 2
    assert "--seed=3: the run to resume has 0" in refused.stderr
    assert record(logdir / "killed") == record(killed[0] / "killed")
    more = run(f"--logdir={logdir}", "--resume=killed", "--steps=70", "--summary_every=5")
    assert more.returncode == 0, more.stderr
    assert sorted(values(logdir / "killed/train")[tags.LOSS]) == list(range(1, 71))
    longer = run(f"--logdir={logdir}", "--run=longer", *SETTINGS, "--steps=70")
    assert longer.returncode == 0
    assert same(checkpoint(logdir / "longer"), checkpoint(logdir / "killed"))


def test_annealing_over_the_run_refuses_another_length(tmp_path):
    first = experiments.command(
        f"--logdir={tmp_path}", "--run=a", "--steps=20", "--model=linear", "--selector=anneal"
    )
    assert first.returncode == 0
    done = experiments.command(f"--logdir={tmp_path}", "--resume=a", "--steps=30")
    assert done.returncode == 2
    assert "depends on the number of steps" in done.stderr


def test_a_corrupt_checkpoint_falls_back_to_the_one_before(killed, tmp_path):
    logdir = tmp_path / "copy"
    shutil.copytree(killed[0], logdir)
    (newest,) = (logdir / "killed/checkpoints").glob("step-60.data*")
    newest.write_bytes(b"")
    done = run(f"--logdir={logdir}", "--resume=killed")
    assert done.returncode == 0, done.stderr
    assert "step-60 cannot be read, trying the one before" in done.stderr
    assert "resumed at step 56 of 60" in done.stdout
    assert same(checkpoint(killed[0] / "peace"), checkpoint(logdir / "killed"))


def test_a_run_without_a_checkpoint_cannot_go_on_and_is_left_alone(tmp_path):
    first = experiments.command(
        f"--logdir={tmp_path}", "--run=a", "--steps=5", "--model=linear", "--checkpoint_every=0"
    )
    assert first.returncode == 0
    before = {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}
    done = experiments.command(f"--logdir={tmp_path}", "--resume=a", "--steps=9")
    assert done.returncode == 2
    assert "there is no whole checkpoint" in done.stderr
    assert before == {p: p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()}


def test_a_run_that_lives_is_not_resumed(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "tracker.main", f"--logdir={tmp_path}", "--run=r", "--steps=9999999",
         "--model=linear", "--profile_steps=", "--checkpoint_every=500", "--log_every=100"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("r/checkpoints/*.index")) and time.monotonic() < deadline:
            time.sleep(0.2)
        done = experiments.command(f"--logdir={tmp_path}", "--resume=r")
        assert done.returncode == 2
        assert f"still running, as process {process.pid}" in done.stderr
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 143


@pytest.mark.parametrize("name", ["nothing", "../killed"])
def test_a_run_that_is_not_there(killed, name):
    done = experiments.command(f"--logdir={killed[0]}", f"--resume={name}")
    assert done.returncode == 2
    assert "There is no run" in done.stderr


def test_tensorboards_own_reader_agrees(killed):
    found = event_accumulator.EventAccumulator(str(killed[0] / "killed/train"), {"tensors": 0})
    found.Reload()
    steps = [p.step for p in found.Tensors(tags.LOSS)]
    assert steps == list(range(1, 61))
    assert json.loads((killed[0] / "killed/run.json").read_text())["format"] == 1
