"""Strategies of the user's own: `fit` and loops on replicas give what one device gives.

TensorFlow divides its CPU before it is first used, so every number of replicas is a process of its
own, which writes what it found as JSON. The batches are the same; each replica takes its half.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.main_test import values

BATCH = 16
CASES = (
    "fit", "fit with noise", "fit of several steps a call", "sparse fit", "fit with random updates",
    "loop", "loop with noise", "loop of undivided batches",
)  # fmt: skip
MEASURED = "wur", "update_norm", "weight_norm", "loss", "noise", "epoch", "learning_rate"


@pytest.fixture(scope="module")
def found():
    """What each case found, by the number of replicas; 0 is no strategy."""

    def one(replicas):
        done = subprocess.run(
            [sys.executable, "-m", "tests.strategy_test", str(replicas)],
            capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.partition("FOUND")[2])

    return {replicas: one(replicas) for replicas in (0, 1, 2)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_give_what_one_device_gives(found, case, replicas):
    single, several = found[0][case], found[replicas][case]
    assert several["copies"] == replicas
    assert several["same"]
    np.testing.assert_allclose(several["weights"], single["weights"], atol=1e-6)
    assert several["tags"].keys() == single["tags"].keys()
    assert len([t for t in single["tags"] if t.startswith("wur/")]) == 4
    for tag, expected in single["tags"].items():
        if tag.startswith(MEASURED):
            np.testing.assert_allclose(
                list(several["tags"][tag].values()), list(expected.values()), rtol=1e-3, atol=1e-6,
                err_msg=tag,
            )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_fifth_step_is_measured_in_full(found, case):
    tags = found[2][case]["tags"]
    gradients = [t for t in tags if t.startswith("wur_gradient/")]
    assert len(gradients) == 4
    for tag in gradients:
        first = set() if tag.endswith("bias") else {"1"}  # which is zero before its first update
        assert set(tags[tag]) == {*first, "5", "10", "15", "20"}
        assert np.isfinite(list(tags[tag].values())).all()


def test_noise_is_that_of_one_device_and_whole(found):
    for case in ("fit with noise", "loop with noise"):
        tags = found[2][case]["tags"]
        assert any(t.startswith("wur_noise/") for t in tags)
        assert max(tags["noise/stddev"].values()) == pytest.approx(1e-2)


def main(replicas: int) -> None:
    """Trains every case on so many replicas, and prints what was found."""
    from tracker import quiet

    quiet.import_tensorflow(2)
    import tempfile

    cases = {case: _train(case, replicas, tempfile.mkdtemp()) for case in CASES}
    print("FOUND" + json.dumps(cases))


def _train(case: str, replicas: int, logdir: str) -> dict:
    import tensorflow as tf

    strategy = None
    if replicas:
        devices = [f"cpu:{i}" for i in range(replicas)]
        strategy = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = _model(case)
    train = _fit if "fit" in case else _loop
    train(case, model, strategy, logdir)
    copies = [
        [c.numpy().tolist() for c in getattr(v.value, "values", [v.value])]
        for v in model.trainable_variables
    ]
    return {
        "weights": np.concatenate([np.ravel(c[0]) for c in copies]).tolist(),
        "copies": len(copies[0]),
        "same": all(copy == c[0] for c in copies for copy in c),
        "tags": values(pathlib.Path(logdir) / "r" / "train"),
    }


def _model(case: str):
    import keras

    keras.utils.set_random_seed(1)
    sparse = [keras.layers.Embedding(20, 5), keras.layers.GlobalAveragePooling1D()]
    first = [*sparse] if case == "sparse fit" else [keras.layers.Dense(8, "tanh")]
    layers = [keras.Input([6]), *first, keras.layers.Dense(3)]
    if case == "sparse fit":
        layers.append(keras.layers.Dense(3, use_bias=False))
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=3 if case == "fit of several steps a call" else 1,
        jit_compile=False,
    )
    return model


def _data():
    numbers = np.random.default_rng(0)
    return (
        numbers.integers(0, 20, [64, 6]).astype("float32"),
        numbers.integers(0, 3, [64]),
    )


def _settings(case: str) -> dict:
    return {
        "summary_every": 5,
        "noise": (0.0, 1e-2) if "noise" in case else None,
        "profile_steps": "",
        "verbose": False,
    }


def _fit(case: str, model, strategy, logdir: str) -> None:
    import tracker.keras

    callbacks = [tracker.keras.Tracker(logdir, "r", **_settings(case))]
    if "random" in case:
        callbacks.append(tracker.keras.RandomUpdate(-0.01, 0.01))
    x, y = _data()
    model.fit(x, y, batch_size=BATCH, epochs=5, shuffle=False, callbacks=callbacks, verbose=0)


def _loop(case: str, model, strategy, logdir: str) -> None:
    import keras
    import tensorflow as tf

    from tracker import Run, TrainStep

    compute = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def one(x, y, scale):
        with tf.GradientTape() as tape:
            loss = scale * compute(y, model(x, training=True)) / BATCH
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    def step(x, y, scale):
        if strategy is None:
            return one(x, y, scale)
        losses = strategy.run(part if whole else one, (x, y, scale))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    def part(x, y, scale):
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        size = BATCH // strategy.num_replicas_in_sync
        return one(*(t[number * size : (number + 1) * size] for t in (x, y)), scale)

    whole = case == "loop of undivided batches"
    batches = tf.data.Dataset.from_tensor_slices(_data()).batch(BATCH).repeat(5)
    scale = np.float32(1.0)
    if strategy and not whole:
        batches = strategy.experimental_distribute_dataset(batches)
        scale = strategy.experimental_distribute_values_from_function(lambda _: 1.0)
    with Run(logdir, "r", **_settings(case)) as run:
        train = TrainStep(run, step, model.trainable_variables, model.optimizer, model=model)
        for x, y in batches:
            train(x, y, scale)


if __name__ == "__main__":
    main(int(sys.argv[1]))
