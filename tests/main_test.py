import copy
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from tests import experiments
from tracker import app_flags, events, tags
from tracker.config import Config

SHORT = ("--steps=30", "--batch_size=96", "--summary_every=10", "--validate_every=10")


def record(run):
    return json.loads((run / "run.json").read_text())


def values(directory):
    """{tag: {step: value}} of the scalars of a directory."""
    found = {}
    kinds = events.Kinds()
    for file in events.event_files(directory):
        for _, event in events.read(file):
            for tag, value in events.scalars(event, kinds):
                found.setdefault(tag, {})[event.step] = value
    return found


class TestTheDefaultRun:
    def test_it_learns_and_ends_with_the_command_to_look_at_it(self, default_run):
        logdir, run, done, seconds = default_run
        lines = done.stdout.strip().splitlines()
        assert lines[-1] == f"tensorboard --logdir {logdir}"
        assert seconds < 60
        written = record(run)
        assert written["status"] == "completed"
        assert written["results"]["validation/accuracy"] >= 0.95
        assert done.stderr == ""

    def test_its_table(self, default_run):
        out = default_run[2].stdout
        for part in (
            "3,000 of 3,000", "validation accuracy", "steps/s", "steps per stddev", "gradient part",
            "sequential/dense_2/bias",
        ):  # fmt: skip
            assert part in out

    def test_its_directory(self, default_run):
        run = default_run[1]
        here = {p.name for p in run.iterdir()}
        assert {
            "run.json", "flags.txt", "console.log", "model.keras", "train", "validation",
            "checkpoints",
        } <= here  # fmt: skip
        assert default_run[2].stdout.splitlines()[0] in (run / "console.log").read_text()
        assert len(list((run / "train/plugins/profile").iterdir())) == 1

    def test_loss_and_stddev_of_every_step(self, default_run):
        found = values(default_run[1] / "train")
        assert sorted(found[tags.LOSS]) == list(range(1, 3001))
        assert sorted(found[tags.NOISE_STDDEV]) == list(range(1, 3001))
        chosen = np.array(list(found[tags.NOISE_CHOICE].values()))
        assert np.all(np.bincount(chosen.astype(int), minlength=6) > 400)
        stddevs = np.float32(Config.stddevs)
        given = np.float32(list(found[tags.NOISE_STDDEV].values()))
        assert np.array_equal(given, stddevs[chosen.astype(int)])

    def test_summary_steps(self, default_run):
        found = values(default_run[1] / "train")
        steps = [1, *range(50, 3001, 50)]
        first = "sequential/dense/kernel"
        for tag in (
            *(tags.wur(first), tags.wur_noise(first), tags.WUR_ALL_RATIO, tags.WUR_ALL_STDDEV),
            *(tags.LEARNING_RATE, "accuracy", tags.PERF_INPUT_WAIT_MS),
        ):
            assert sorted(found[tag]) == steps, tag
        bias = found[tags.wur("sequential/dense/bias")]
        assert 1 not in bias  # it was zero before step 1
        assert found[tags.WUR_ALL_UNDEFINED][1] == 3
        assert found[tags.update_norm("sequential/dense/bias")][1] > 0

    def test_speed_is_that_of_all_steps_since_the_last_summary(self, default_run):
        found = values(default_run[1] / "train")[tags.PERF_STEP_MS]
        assert 1 not in found  # it was compiled then
        later = [ms for step, ms in found.items() if step > 500]
        assert max(later) < 3 * min(later)

    def test_validation_of_the_untrained_state_and_after(self, default_run):
        found = values(default_run[1] / "validation")
        assert sorted(found["loss"]) == [0, 1, *range(100, 3001, 100)]
        assert found["accuracy"][0] < 0.3

    def test_the_model_can_be_loaded_and_predicts(self, default_run):
        import keras

        from tracker import data

        model = keras.saving.load_model(default_run[1] / "model.keras")
        digits = data.load("digits")
        right = np.argmax(model.predict(digits.validation_x, verbose=0), axis=1)
        accuracy = np.mean(right == digits.validation_y)
        expected = record(default_run[1])["results"]["validation/accuracy"]
        assert accuracy == pytest.approx(expected, abs=1e-6)


def checkpoint(run):
    """All arrays of the newest checkpoint of a run, by name; but how often it was saved."""
    reader = tf.train.load_checkpoint(str(run / "checkpoints"))
    return {
        name: reader.get_tensor(name)
        for name in sorted(reader.get_variable_to_shape_map())
        if "/.ATTRIBUTES/" in name and not name.startswith("save_counter")
    }


def same(one, other):
    return one.keys() == other.keys() and all(
        np.asarray(one[k]).tobytes() == np.asarray(other[k]).tobytes() for k in one
    )


def test_the_recorded_flags_repeat_the_run_bit_for_bit(tmp_path):
    first = experiments.command(
        f"--logdir={tmp_path}", "--run=one", *SHORT, "--model=tests.architectures:dropout",
        "--stddevs=0,1e-3,1e-2", "--selector=bandit", "--optimizer_args=beta_2=0.99",
        "--variables=kernel", "--seed=7",
    )  # fmt: skip
    assert first.returncode == 0, first.stderr
    again = experiments.command(
        f"--flagfile={tmp_path}/one/flags.txt", f"--logdir={tmp_path}", "--run=two",
        "--summary_every=0", "--steps_per_call=4",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert same(checkpoint(tmp_path / "one"), checkpoint(tmp_path / "two"))
    assert "logdir" not in (tmp_path / "one/flags.txt").read_text()
    other = experiments.command(
        f"--flagfile={tmp_path}/one/flags.txt", f"--logdir={tmp_path}", "--run=three", "--seed=8"
    )
    assert other.returncode == 0
    assert not same(checkpoint(tmp_path / "one"), checkpoint(tmp_path / "three"))


BAD = {
    "--dataset=digit": "--dataset=digit is unknown",
    "--model=resnet": "--model=resnet is unknown",
    "--optimizer=adm": "--optimizer=adm is unknown",
    "--optimizer_args=beta_9=1": "--optimizer_args",
    "--variables=conv": "--variables=conv matches none of the variables sequential/dense/kernel",
    "--wur_variables=conv": "--wur_variables=conv matches none",
    "--stddevs=-1": "-1.0 is not a standard deviation",
    "--stddevs=nan": "nan is not a standard deviation",
    "--stddevs=": "--stddevs is empty",
    "--stddevs=a": "--stddevs=a: should be numbers",
    "--steps=0": "--steps=0",
    "--steps_per_call=0": "--steps_per_call=0: should be auto, or a number from 1",
    "--steps=many": "--steps=many: should be a whole number",
    "--steps=99999999999999999999": "--steps=99999999999999999999",
    "--epochs=nan": "--epochs",
    "--epochs=inf": "--epochs=inf",
    "--flagfile=missing.flags": "--flagfile=missing.flags",
    "--stddevs=0.1,0.1": "0.1 stands there 2 times",
    "--stddevs=1e39": "is not a standard deviation",
    "--label=x": "only .csv files have columns",
    "--table_size=9": "only --noise_source=table uses it",
    "--histogram_every=20": "should be a multiple of --summary_every=50",
    "--optimizer_args=weight_decay=abc": "weight_decay=abc should be a number",
    "--optimizer_args=clipnorm=-1": "clipnorm=-1 should be more than 0",
    "--loss=mean_squared_error": "--loss=mean_squared_error: does not fit the labels",
    "--selector=tests.selectors_test:out_of_range": "returned 7 for step 1",
    "--seed=-5": "--seed=-5",
    "--strategy=magic": "--strategy=magic",
    "--profile_steps=2990:3010": "ends after step 3000",
    "--profile_steps=9:5": "holds no step",
    "--model=tests.architectures:wrong_output": "does not fit 10 classes",
    "--model=tests.architectures:not_a_model": "should return a keras.Model",
    "--model=nowhere:f": "could not be imported",
    "--selector=nowhere:f": "could not be imported",
    "--validation_fraction=1": "--validation_fraction=1",
    "--stepz=4": "Did you mean: steps",
    "--run=a/../../b": "..",
    "stray": "'stray' is not a flag",
    "--noise_source=table --table_size=9": "--table_size=9: should be at least 8192",
}


@pytest.mark.parametrize("flag", BAD)
def test_bad_input_is_one_sentence_and_status_2(flag, tmp_path):
    done = experiments.command(f"--logdir={tmp_path}/runs", *flag.split())
    assert done.returncode == 2, done.stderr
    assert BAD[flag] in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_log_dir_is_answered_with_logdir(tmp_path):
    done = experiments.command(f"--log_dir={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.strip() == f"--log_dir={tmp_path}: did you mean --logdir?"
    nothing = experiments.command()
    assert nothing.returncode == 2
    assert "--logdir is missing" in nothing.stderr


def test_a_logdir_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    done = experiments.command(f"--logdir={tmp_path}/file")
    assert done.returncode == 2
    assert f"{tmp_path}/file" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_name_mentions_resuming(tmp_path):
    first = experiments.command(f"--logdir={tmp_path}", "--run=a b", *SHORT, "--model=linear")
    assert first.returncode == 0, first.stderr
    before = sorted(p.name for p in tmp_path.rglob("*"))
    done = experiments.command(f"--logdir={tmp_path}", "--run=a b", *SHORT, "--model=linear")
    assert done.returncode == 2
    assert "--resume=" in done.stderr
    assert before == sorted(p.name for p in tmp_path.rglob("*"))


def test_two_processes_in_the_same_second_get_two_runs(tmp_path):
    argv = [sys.executable, "-m", "tracker.main", f"--logdir={tmp_path}", *SHORT, "--model=linear"]
    started = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(2)]
    assert [p.wait(timeout=120) for p in started] == [0, 0]
    for process in started:
        process.stdout.close()
    runs = [p for p in tmp_path.iterdir() if (p / "run.json").exists()]
    assert len(runs) == 2
    assert all(record(r)["status"] == "completed" for r in runs)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_cleanly(number, status, tmp_path):
    run = tmp_path / "r"
    process = subprocess.Popen(
        [sys.executable, "-m", "tracker.main", f"--logdir={tmp_path}", "--run=r",
         "--steps=100000000", "--model=linear", "--profile_steps=", "--log_every=1000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(values(run / "train").get(tags.LOSS, ())) < 5:
        time.sleep(0.2)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == status, err
    written = record(run)
    assert written["status"] == "interrupted"
    last = written["attempts"][-1]["last_step"]
    assert last >= 1000
    assert checkpoint(run)["step/.ATTRIBUTES/VARIABLE_VALUE"] == last
    assert (run / "model.keras").exists()
    assert out.strip().splitlines()[-1] == f"tensorboard --logdir {tmp_path}"
    assert "Traceback" not in err


def test_a_loss_that_is_not_a_number_ends_the_run_as_diverged(tmp_path):
    arguments = (
        f"--logdir={tmp_path}", *SHORT, "--optimizer=sgd", "--learning_rate=1e30",
        "--checkpoint_every=1",
    )  # fmt: skip
    done = experiments.command(*arguments, "--run=stop")
    assert done.returncode == 1
    written = record(tmp_path / "stop")
    assert written["status"] == "diverged"
    last = written["attempts"][-1]["last_step"]
    losses = values(tmp_path / "stop/train")[tags.LOSS]
    assert sorted(losses) == list(range(1, last + 1))
    assert not np.isfinite(losses[last])
    assert f"at step {last}" in done.stderr
    kept = checkpoint(tmp_path / "stop")
    assert kept["step/.ATTRIBUTES/VARIABLE_VALUE"] < last
    warned = experiments.command(*arguments, "--run=warn", "--on_nonfinite=warn")
    assert warned.returncode == 0, warned.stderr
    assert warned.stderr.count("training goes on") == 1
    assert record(tmp_path / "warn")["attempts"][-1]["last_step"] == 30


def test_a_function_of_the_user_that_fails_later_fails_the_run(tmp_path):
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", *SHORT, "--model=linear", "--steps_per_call=1",
        "--selector=tests.cases_test:fails_at_3", "--profile_steps=2:9",
    )  # fmt: skip
    assert done.returncode == 1
    assert "failed for step 3: RuntimeError: on purpose" in done.stderr
    assert "Traceback" not in done.stderr
    written = record(tmp_path / "r")
    assert written["status"] == "failed"
    assert written["attempts"][-1]["last_step"] == 2


def test_a_model_that_keras_cannot_save_is_trained_all_the_same(tmp_path):
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", *SHORT, "--model=tests.main_test:not_saved"
    )
    assert done.returncode == 0, done.stderr
    assert "model.keras was not written" in done.stderr
    assert record(tmp_path / "r")["status"] == "completed"
    assert not (tmp_path / "r/model.keras").exists()


def not_saved(input_shape, classes):
    import keras

    class Own(keras.Model):
        def __init__(self, width):
            super().__init__()
            self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(width)

        def call(self, x):
            return self.dense(self.flatten(x))

    return Own(classes)


def test_a_compiled_model_keeps_what_it_brings(tmp_path):
    model = "--model=tests.architectures:compiled"
    done = experiments.command(f"--logdir={tmp_path}", "--run=r", *SHORT, model)
    assert done.returncode == 0, done.stderr
    assert values(tmp_path / "r/train")[tags.LEARNING_RATE][1] == pytest.approx(0.05)
    refused = experiments.command(f"--logdir={tmp_path}", *SHORT, model, "--optimizer=adam")
    assert refused.returncode == 2
    assert "keeps its own optimizer" in refused.stderr


def test_one_step_is_a_run(tmp_path):
    done = experiments.command(f"--logdir={tmp_path}", "--run=r", "--steps=1", "--model=linear")
    assert done.returncode == 0, done.stderr
    assert list(values(tmp_path / "r/train")[tags.LOSS]) == [1]


def test_swallowed_updates_are_warned_about(tmp_path):
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", *SHORT, "--model=linear", "--optimizer=sgd",
        "--learning_rate=1e-12", "--stddevs=0",
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr.count("left bit-identical") == 1
    assert values(tmp_path / "r/train")[tags.WUR_ALL_UNCHANGED][10] > 0.5


def test_histograms_on_their_steps(tmp_path):
    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", *SHORT, "--model=linear", "--histogram_every=20"
    )
    assert done.returncode == 0, done.stderr
    kinds, steps = events.Kinds(), set()
    for file in events.event_files(tmp_path / "r/train"):
        for _, event in events.read(file):
            for value in event.summary.value:
                if kinds.of(value) == "histograms" and value.tag == "weights/sequential/dense/bias":
                    steps.add(event.step)
    assert steps == {1, 20, 30}


def test_the_flags_are_the_fields_of_the_config():
    text = app_flags.flags_text(Config(), _parsed([]))
    assert "--stddevs=0.0,0.0001,0.0003,0.001,0.003,0.01\n" in text
    values_ = _parsed(["--stddevs=0.1,0.30000000000000004", "--wur=update,norm_change"])
    config = app_flags.config_from_flags(values_)
    assert config.wur == ("update", "norm_change")
    assert "--stddevs=0.1,0.30000000000000004\n" in app_flags.flags_text(config, values_)
    assert app_flags.given(values_).keys() == {"stddevs", "wur"}


def _parsed(arguments):
    from absl import flags

    values_ = flags.FlagValues()
    for name in list(flags.FLAGS):
        if name in Config.__dataclass_fields__:
            values_[name] = copy.deepcopy(flags.FLAGS[name])
    values_(["test", *arguments])
    return values_
