import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import experiments
from tracker import wur

ARCHITECTURES = ("dense", "conv", "batch_norm", "dropout", "recurrent")
LAST = 1437 % 96  # the last batch of an epoch is smaller, and comes within 50 steps


def final(most=1000, **settings):
    experiment = experiments.make(**settings)
    done = experiments.run_steps(experiment, most)
    return experiments.weights(experiment), done, experiment


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_strategies_and_chunks_give_the_same_bits(architecture):
    """50 steps with a smaller last batch: any strategy, any chunks, with and without summaries."""
    settings = {
        "model": f"tests.architectures:{architecture}", "steps": 50, "validate_every": 0,
    }  # fmt: skip
    assert 0 < LAST < 96
    reference, _, _ = final(strategy="routes", summary_every=0, **settings)
    for other, most in [
        ({"strategy": "scalar", "summary_every": 0}, 7),
        ({"strategy": "buffered", "summary_every": 0}, 50),
        ({"strategy": "routes", "summary_every": 10}, 50),
        ({"strategy": "scalar", "summary_every": 1}, 13),
    ]:
        weights, _, _ = final(most, **settings, **other)
        assert experiments.equal(reference, weights), (other, most)


def test_each_function_is_traced_once_whatever_the_chunks():
    experiment = experiments.make(steps=200, summary_every=10)
    iterator = iter(experiment.batches())
    step = 0
    for most in (1, 2, 3, 50, 7, 1000):
        if step >= 200:
            break
        for _ in range(4):
            call = experiment.schedule.call(step, most)
            if not call.steps:
                break
            run = experiment.functions
            result = (
                run.tracked(iterator, step, call.intervals, call.plain)
                if call.intervals
                else run.plain(iterator, step, call.plain)
            )
            step += result.steps
    assert step == 200
    assert experiment.functions.plain_function.experimental_get_tracing_count() == 1
    assert experiment.functions.tracked_function.experimental_get_tracing_count() == 1


def test_every_step_comes_back_with_its_loss_and_choice():
    _, done, experiment = final(steps=40, summary_every=10, selector="cycle")
    loss = np.concatenate([r.plain.loss for _, _, r in done])
    choice = np.concatenate([r.plain.choice for _, _, r in done])
    assert len(loss) == 40
    assert np.all(np.isfinite(loss))
    assert choice.tolist() == [k % 3 for k in range(40)]
    rows = sum(len(r.instrumented.measured) for _, c, r in done if c.intervals)
    assert rows == sum(experiment.schedule.is_summary(k) for k in range(1, 41)) == 5


def test_stddev_zero_is_exactly_the_plain_optimizer():
    """Against Keras' own `train_on_batch` on the same batches."""
    weights, _, experiment = final(steps=20, stddevs=(0.0,), model="mlp", summary_every=5)
    other = experiments.make(steps=20, model="mlp")
    other.model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    for x, y in other.batches().take(20):
        other.model.train_on_batch(x, y)
    for mine, right in zip(weights, experiments.weights(other), strict=True):
        np.testing.assert_allclose(mine, right, atol=2e-6)


@pytest.mark.parametrize("strategy", ["scalar", "routes", "buffered"])
def test_the_noise_is_really_applied_and_is_that_of_the_choice(strategy):
    experiment = experiments.make(
        steps=6, stddevs=(0.0, 0.01, 0.1), learning_rate=0.0, optimizer="sgd", model="mlp",
        strategy=strategy, summary_every=1, selector="cycle",
    )  # fmt: skip
    before = experiments.weights(experiment)
    for _, _, result in experiments.run_steps(experiment, most=1):
        stddev = experiment.config.stddevs[int(result.plain.choice[0])]
        after = wur.Measured.from_rows(result.instrumented.measured[0])
        sizes = [w.size for w in before]
        whole = np.sqrt(np.sum(after.update**2)) / np.sqrt(sum(sizes))
        assert whole == pytest.approx(stddev, rel=0.05, abs=0)
        assert np.all(after.gradient == 0)


def test_frozen_variables_have_no_noise_and_no_series():
    experiment = experiments.make(
        model="tests.architectures:frozen", steps=5, summary_every=1, stddevs=(0.1,)
    )
    kept = [v.numpy() for v in experiment.model.layers[1].variables]
    experiments.run_steps(experiment)
    assert experiments.equal(kept, [v.numpy() for v in experiment.model.layers[1].variables])
    assert experiment.instrument.names == ["sequential/dense_1/kernel", "sequential/dense_1/bias"]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_variables_without_gradient():
    settings = {"model": "tests.architectures:unused", "steps": 2, "summary_every": 1}
    _, done, experiment = final(**settings, stddevs=(0.0,))
    spare = [i for i, n in enumerate(experiment.instrument.names) if "dense_1/kernel" in n]
    assert len(spare) == 1
    found = wur.ratios(wur.Measured.from_rows(done[-1][2].instrumented.measured[0]))
    assert found.total[spare[0]] == 0
    _, done, _ = final(**settings, stddevs=(0.1,))
    measured = wur.Measured.from_rows(done[0][2].instrumented.measured[0])
    assert measured.update[spare[0]] == pytest.approx(0.1 * np.sqrt(64 * 5), rel=0.2)


def test_tied_weights_are_one_series_with_one_noise():
    _, done, experiment = final(
        model="tests.architectures:tied", steps=1, summary_every=1, stddevs=(0.1,),
        learning_rate=0.0, optimizer="sgd",
    )  # fmt: skip
    assert len(experiment.instrument.names) == len(set(experiment.instrument.names)) == 6
    measured = wur.Measured.from_rows(done[0][2].instrumented.measured[0])
    at = experiment.instrument.names.index("dense_1/kernel")
    assert measured.update[at] == pytest.approx(0.1 * 8, rel=0.25)


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
def test_an_embedding_reports_its_touched_rows():
    _, done, experiment = final(
        model="tests.architectures:embedding", steps=2, summary_every=1, stddevs=(0.0,),
        optimizer="sgd", learning_rate=0.5,
    )  # fmt: skip
    measured = wur.Measured.from_rows(done[0][2].instrumented.measured[0])
    assert measured.touched_rows[0] == 17  # of 40: the digits' values are 0 to 16
    found = wur.ratios(measured)
    assert found.touched[0] > found.total[0] > 0
    assert np.isnan(found.touched[1])
    assert experiment.instrument.names[0] == "sequential/embedding/embeddings"


class TestSkippedBatches:
    """A step is one applied update; batches that make none are counted, and get no noise."""

    SETTINGS = {
        "optimizer": "sgd", "learning_rate": 0.1, "steps": 6, "summary_every": 2,
        "optimizer_args": "gradient_accumulation_steps=4", "model": "mlp",
    }  # fmt: skip

    def test_accumulation(self):
        weights, done, experiment = final(**self.SETTINGS, stddevs=(0.0,))
        assert sum(r.steps for _, _, r in done) == 6
        assert all(np.all(r.plain.skipped == 3) for _, _, r in done)
        assert int(experiment.rule.updates_done()) == 6
        other = experiments.make(**{**self.SETTINGS, "optimizer_args": "", "batch_size": 4 * 96})
        x = np.concatenate([b[0] for b in experiment.batches().take(4)])
        y = np.concatenate([b[1] for b in experiment.batches().take(4)])
        with tf.GradientTape() as tape:
            loss = other.model.compute_loss(x=x, y=y, y_pred=other.model(x, training=True))
        assert float(done[0][2].plain.loss[0]) == pytest.approx(float(loss), rel=1e-5)
        gradient = tape.gradient(loss, other.model.trainable_variables[0].value)
        first = wur.Measured.from_rows(done[0][2].instrumented.measured[0])
        assert first.update[0] == pytest.approx(0.1 * float(tf.norm(gradient)), rel=1e-4)

    def test_noise_comes_once_an_update(self):
        _, done, _ = final(**{**self.SETTINGS, "learning_rate": 0.0}, stddevs=(0.1,))
        measured = wur.Measured.from_rows(done[0][2].instrumented.measured[0])
        assert measured.update[0] == pytest.approx(0.1 * np.sqrt(64 * 128), rel=0.05)

    def test_bits_do_not_depend_on_chunks_or_summaries(self):
        one, _, _ = final(**self.SETTINGS)
        other, _, _ = final(2, **{**self.SETTINGS, "summary_every": 1, "strategy": "buffered"})
        assert experiments.equal(one, other)


def test_a_loss_that_is_not_finite_ends_the_call_at_its_step():
    _, done, experiment = final(
        steps=50, optimizer="sgd", learning_rate=1e30, summary_every=0, model="mlp"
    )
    steps = sum(r.steps for _, _, r in done)
    loss = done[-1][2].plain.loss
    assert steps < 10
    assert len(loss) == done[-1][2].steps
    assert not np.isfinite(loss[-1])
    assert np.all(np.isfinite(loss[:-1]))


def test_steps_beyond_32_bits():
    experiment = experiments.make(steps=10)
    first = 2**31 - 2
    result = experiment.functions.plain(iter(experiment.batches()), first, 5)
    again = experiments.make(steps=10)
    for i in range(5):
        one = again.functions.plain(iter(again.batches(i)), first + i, 1)
        assert one.plain.choice[0] == result.plain.choice[i]
    assert experiments.equal(experiments.weights(experiment), experiments.weights(again))


def test_metrics_of_the_batch():
    _, done, experiment = final(steps=1, summary_every=1, stddevs=(0.0,))
    assert experiment.functions.metric_names == ["accuracy"]
    fresh = experiments.make(steps=1)
    x, y = next(iter(fresh.batches()))
    right = np.mean(np.argmax(fresh.model(x), axis=-1) == y.numpy())
    assert done[0][2].instrumented.metrics[0, 0] == pytest.approx(right)
    assert done[0][2].instrumented.seconds[0] >= done[0][2].instrumented.input_wait[0] >= 0
