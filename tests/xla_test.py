"""XLA compiles each function once for each shape of batch, whatever the steps and their stddevs.

What XLA compiles it logs; a trace count would not show it: an index that is a tensor is a constant
to XLA, which then compiles for each of its values (the control below).
"""

import collections
import os
import re
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from tracker import quiet
quiet.import_tensorflow()
import keras, numpy as np, tensorflow as tf, tracker
from tests import experiments

def control(logdir):
    stddevs = tf.constant([0.0, 1e-3, 1e-2])
    @tf.function(jit_compile=True)
    def noisy(x, choice):
        return x + stddevs[choice]
    for step in range(6):
        noisy(tf.ones([4]), tf.constant(step % 3))

def app(logdir):
    experiment = experiments.make(jit_compile=True, stddevs=(0.0, 1e-3, 1e-2), steps=200)
    iterator = iter(experiment.batches())
    for call in range(4):  # 15 batches an epoch, the last one smaller
        experiment.functions.plain(iterator, 50 * call, 20)
        experiment.functions.tracked(iterator, 50 * call + 20, 10, 2)

def model():
    made = keras.Sequential([keras.Input([6]), keras.layers.Dense(3)])
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                 jit_compile=True)
    return made

def data():
    numbers = np.random.default_rng(0)
    return numbers.normal(size=[60, 6]).astype("float32"), numbers.integers(0, 3, [60])

SETTINGS = dict(noise=(0.0, 1e-3, 1e-2), summary_every=3, profile_steps="", verbose=False)

def fit(logdir):
    follow = tracker.keras.Tracker(logdir, "r", **SETTINGS)
    model().fit(*data(), batch_size=16, epochs=12, verbose=0, callbacks=[follow])

def loop(logdir):
    made = model()
    @tf.function(jit_compile=True)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = made.compute_loss(y=y, y_pred=made(x, training=True))
        made.optimizer.apply(tape.gradient(loss, made.trainable_variables))
        return loss
    with tracker.Run(logdir, "r", **SETTINGS) as run:
        train = tracker.TrainStep(run, step, made.trainable_variables, made.optimizer)
        for x, y in tf.data.Dataset.from_tensor_slices(data()).batch(16).repeat(12):
            train(x, y)

globals()[sys.argv[1]](sys.argv[2])
"""


def compiled(what, logdir):
    """How often XLA compiled each function, by name."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, what, str(logdir)],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "device_compiler=3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    names = re.findall(r"Instantly compiling for signature: (\w+)", done.stderr)
    return collections.Counter(names)


def test_the_control_is_compiled_for_each_index(tmp_path):
    assert list(compiled("control", tmp_path).values()) == [3]


# The plain function's steps, and the plain and the instrumented ones of the other; in `fit` without
# Keras' own function, as noise is added at every step.
FUNCTIONS = {"app": 3, "fit": 2, "loop": 2}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_each_function_is_compiled_once_for_each_shape_of_batch(tmp_path, what):
    counts = compiled(what, tmp_path)
    assert list(counts.values()) == [2] * FUNCTIONS[what]
