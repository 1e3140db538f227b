"""Low precision, XLA, and noise on the rows that a batch touched."""

import numpy as np
import pytest
import tensorflow as tf

from tests import experiments
from tests.main_test import record, values
from tracker import wur

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16", "bfloat16")


def rows(done):
    """What every instrumented step measured."""
    return [
        wur.Measured.from_rows(row)
        for _, _, r in done
        if r.instrumented is not None
        for row in r.instrumented.measured
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_ratio_of_any_precision_is_that_of_float64(policy):
    experiment = experiments.make(
        precision=policy, optimizer="sgd", learning_rate=0.1, steps=8, summary_every=1,
        stddevs=(1e-2,), model="mlp",
    )  # fmt: skip
    variables = experiment.model.trainable_variables
    assert variables[0].dtype == ("bfloat16" if policy == "bfloat16" else "float32")
    iterator = iter(experiment.batches())
    for step in range(8):
        before = [v.value.numpy().astype(np.float64) for v in variables]
        result = experiment.functions.tracked(iterator, step, 1, 0)
        found = wur.ratios(wur.Measured.from_rows(result.instrumented.measured[0])).total
        for v, old, ratio in zip(variables, before, found, strict=True):
            change = np.linalg.norm(v.value.numpy().astype(np.float64) - old)
            size = np.linalg.norm(old)
            if size:
                assert ratio == pytest.approx(change / size, rel=1e-5), v.path


@pytest.mark.parametrize("stddevs", [(0.0,), (1e-2,)], ids=["silent", "noisy"])
def test_swallowed_updates_of_bfloat16_adam_are_seen_with_noise_and_without(stddevs):
    settings = {"steps": 3, "summary_every": 1, "model": "mlp", "stddevs": stddevs}
    experiment = experiments.make(precision="bfloat16", optimizer="adam", **settings)
    for measured in rows(experiments.run_steps(experiment)):
        assert wur.overall(measured).unchanged_fraction == 1.0
    healthy = experiments.make(precision="mixed_bfloat16", optimizer="adam", **settings)
    for measured in rows(experiments.run_steps(healthy)):
        assert wur.overall(measured).unchanged_fraction < 0.2


def test_e10_noise_on_low_precision_is_drawn_in_float32_and_its_loss_is_reported():
    variable = tf.Variable(tf.ones([100_000], tf.bfloat16))
    from tracker import noise

    adder = noise.Adder("scalar", noise.Stateless(0), (1e-3,), [noise.Target("v", variable)])
    before = tf.identity(variable)
    adder.add(tf.constant(1, tf.int64), tf.constant(0))
    after = tf.identity(variable)
    found = wur.Measured.from_rows(wur.measure([before], [before], [after], [None]).numpy())
    assert wur.ratios(found).total[0] == pytest.approx(0.00062, abs=3e-5)
    assert wur.overall(found).unchanged_by_noise == pytest.approx(0.975, abs=0.005)


class TestXla:
    SETTINGS = {"jit_compile": True, "model": "mlp", "steps": 12, "stddevs": (0.0, 1e-2)}

    def test_weights_depend_on_neither_call_lengths_nor_summaries_nor_strategy(self):
        found = []
        for most, every, strategy in ((1, 1, "routes"), (5, 0, "scalar"), (100, 4, "buffered")):
            experiment = experiments.make(**self.SETTINGS, summary_every=every, strategy=strategy)
            experiments.run_steps(experiment, most)
            found.append(experiments.weights(experiment))
        assert experiments.equal(found[0], found[1])
        assert experiments.equal(found[0], found[2])

    def test_the_noise_is_that_of_a_run_without_xla(self):
        settings = {**self.SETTINGS, "optimizer": "sgd", "learning_rate": 0.0}
        compiled = experiments.make(**settings, summary_every=1)
        plain = experiments.make(**{**settings, "jit_compile": False}, summary_every=1)
        experiments.run_steps(compiled)
        experiments.run_steps(plain)
        assert experiments.equal(experiments.weights(compiled), experiments.weights(plain))

    def test_ratios_and_gradients_are_measured(self):
        settings = {**self.SETTINGS, "summary_every": 1}
        one = rows(experiments.run_steps(experiments.make(**settings)))
        settings["jit_compile"] = False
        other = rows(experiments.run_steps(experiments.make(**settings)))
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(wur.ratios(a).total, wur.ratios(b).total, rtol=2e-2)
            np.testing.assert_array_equal(a.with_gradient > 0, b.with_gradient > 0)

    def test_a1_a_run_is_whole(self, tmp_path):
        done = experiments.command(
            f"--logdir={tmp_path}", "--run=r", "--jit_compile", "--steps=20", "--summary_every=5",
            "--model=linear", "--profile_steps=",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert record(tmp_path / "r")["flags"]["jit_compile"] is True
        found = values(tmp_path / "r" / "train")
        assert sorted(found["wur/sequential/dense/kernel"]) == [1, 5, 10, 15, 20]
        assert sorted(found["loss"]) == list(range(1, 21))


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
class TestTouchedRows:
    SETTINGS = {
        "model": "tests.architectures:embedding", "optimizer": "sgd", "learning_rate": 0.0,
        "stddevs": (0.1,), "steps": 1, "summary_every": 1,
    }  # fmt: skip

    def moved(self, **settings):
        experiment = experiments.make(**{**self.SETTINGS, **settings})
        before = experiments.weights(experiment)[0]
        done = experiments.run_steps(experiment)
        return experiments.weights(experiment)[0] - before, rows(done)[0]

    @pytest.mark.parametrize("strategy", ["scalar", "routes", "buffered"])
    def test_only_they_move_and_by_the_same_numbers(self, strategy):
        every, _ = self.moved(strategy=strategy)
        some, measured = self.moved(strategy=strategy, sparse_noise="touched")
        touched = np.any(some != 0, axis=1)
        assert measured.touched_rows[0] == touched.sum() == 17  # of 40
        np.testing.assert_array_equal(some[touched], every[touched])
        assert np.all(np.any(every != 0, axis=1))
        assert measured.touched_update[0] == pytest.approx(measured.update[0], rel=1e-6)

    def test_the_gradient_stays_sparse(self):
        experiment = experiments.make(**self.SETTINGS, sparse_noise="touched")
        graph = experiment.functions.plain_function.get_concrete_function().graph.as_graph_def()
        nodes = [n for f in graph.library.function for n in f.node_def]
        assert not [n.name for n in nodes if "gradients" in n.name and n.op == "UnsortedSegmentSum"]

    def test_other_rules_and_accumulation_are_refused(self):
        with pytest.raises(ValueError, match="--sparse_noise=touched with --update=random_walk"):
            experiments.make(update="random_walk", sparse_noise="touched")
        with pytest.raises(ValueError, match="--sparse_noise=touched: the optimizer accumulates"):
            experiments.make(sparse_noise="touched", optimizer_args="gradient_accumulation_steps=2")
