"""What users log: any integer is a step, four kinds of values, and clear refusals."""

import numpy as np
import pytest
import tensorflow as tf
from etils import epath

import tracker
from tests.main_test import values
from tracker import events, logbook, summaries


@pytest.fixture
def book(tmp_path):
    with summaries.EventWriter(epath.Path(tmp_path)) as writer:
        book = logbook.Logbook(writer, lambda: 7)
        logbook.opened(book)
        yield book
        logbook.closed(book)


STEPS = [3, np.int32(3), np.uint8(3), tf.constant(3), tf.constant(3, tf.int64), tf.Variable(3)]


@pytest.mark.parametrize("step", STEPS, ids=lambda s: type(s).__name__)
def test_a5_any_integer_is_a_step(book, tmp_path, step):
    book.log(step, {"mine": 0.5})
    assert values(epath.Path(tmp_path)) == {"mine": {3: 0.5}}


def test_a5_no_step_is_the_one_that_the_run_is_at_and_large_ones_are_kept(book, tmp_path):
    tracker.log(None, {"mine": 1.0})
    tracker.log(2**40, {"mine": 2.0})
    assert values(epath.Path(tmp_path)) == {"mine": {7: 1.0, 1099511627776: 2.0}}


@pytest.mark.parametrize("step", [3.0, [1, 2], -1, "3", np.float32(2), tf.constant([1])], ids=str)
def test_a5_what_is_no_step_is_refused_by_the_name_of_the_tag(book, tmp_path, step):
    with pytest.raises(ValueError, match=r"step of mine is .*should be an integer from 0"):
        book.log(step, {"mine": 0.5})
    assert values(epath.Path(tmp_path)) == {}


def test_text_histograms_and_images_are_what_tensorboard_reads(book, tmp_path):
    pixels = np.zeros([2, 3, 4, 1], np.float32)
    pixels[1, 2, 3] = 1.0
    data = np.array([1.0, 2.0, np.nan, 3.0])
    book.log(1, {"note": "**warm**", "spread": data, "picture": logbook.Image(pixels)})
    found = {
        value.tag: value
        for file in events.event_files(epath.Path(tmp_path))
        for _, event in events.read(file)
        for value in event.summary.value
    }
    assert found["note"].tensor.string_val[0] == b"**warm**"
    assert found["note"].metadata.plugin_data.plugin_name == "text"
    counts = tf.make_ndarray(found["spread"].tensor)[:, 2]
    assert counts.sum() == 3  # what is not finite is left out
    width, height, first, second = found["picture"].tensor.string_val
    assert (width, height) == (b"4", b"3")
    assert tf.io.decode_png(first).numpy().max() == 0
    np.testing.assert_array_equal(tf.io.decode_png(second).numpy()[2, 3], [255])


REFUSED = {
    "loss": (0.5, "one that tracker writes"),
    "wur/mine": (0.5, "one that tracker writes"),
    "thing": (object(), "should be a number, a string, an array of numbers, or an Image"),
    "strings": (np.array(["a"]), "should be a number, a string, an array of numbers, or an Image"),
    "flat": (logbook.Image(np.zeros([3])), r"has the shape \[3\]"),
}


@pytest.mark.parametrize("tag", REFUSED)
def test_what_cannot_be_logged_is_refused_whole(book, tmp_path, tag):
    value, message = REFUSED[tag]
    with pytest.raises(ValueError, match=message):
        book.log(1, {"fine": 1.0, tag: value})
    assert values(epath.Path(tmp_path)) == {}


def test_a_tensor_of_a_function_being_compiled_is_refused(book):
    @tf.function
    def step(x):
        book.log(1, {"inner": x})
        return x

    with pytest.raises(ValueError, match="value of inner is not known while a function is"):
        step(tf.constant(1.0))


def test_without_a_run_nothing_happens(tmp_path):
    tracker.log(1, {"mine": 1.0})
    run = tracker.Run(tmp_path, "r")
    with pytest.raises(RuntimeError, match="The run has not begun, or has ended"):
        run.log(1, {"mine": 1.0})


def model_that_logs(input_shape, classes):
    """A model whose layer logs from the host."""
    import keras

    class Noting(keras.layers.Layer):
        def call(self, x):
            tf.py_function(lambda m: tracker.log(None, {"mine/mean": m}), [tf.reduce_mean(x)], [])
            return x

    layers = [keras.layers.Flatten(), Noting(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input(input_shape), *layers])


def test_a_model_of_the_app_can_log_into_its_run(tmp_path):
    from tests import experiments

    done = experiments.command(
        f"--logdir={tmp_path}", "--run=r", "--model=tests.logbook_test:model_that_logs",
        "--steps=3", "--steps_per_call=1", "--validate_every=0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(values(epath.Path(tmp_path) / "r" / "train")["mine/mean"]) == {0, 1, 2}
