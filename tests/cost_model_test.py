"""The cost model lists the operations, bytes and records that there are, no more and no fewer."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import cost_model, scale
from tracker import noise, tags, wur

# Not work: TensorFlow drops them, or they only order others.
IDLE = "Const", "Placeholder", "NoOp", "Identity"


def types(nodes):
    return collections.Counter(n.op for n in nodes if n.op not in IDLE)


def noise_graph(parameters, variables, strategy, source):
    adder = scale.Subject(parameters, variables).adder(strategy, source)
    count = len(scale.STDDEVS)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)], autograph=False)
    def step(number):
        adder.add(number, tf.cast(number % count, tf.int32))

    return step.get_concrete_function().graph.as_graph_def()


@pytest.mark.parametrize("source", ["stateless", "table"])
@pytest.mark.parametrize("elements", [100, 4096, 4097, 4128])
class TestNoise:
    @pytest.mark.parametrize("strategy", ["scalar", "buffered"])
    def test_a_variable_more_has_the_operations_that_the_model_lists(
        self, elements, strategy, source
    ):
        one, two = (types(noise_graph(n * elements, n, strategy, source).node) for n in (1, 2))
        assert two - one == cost_model.op_counts(cost_model.noise_ops(elements, strategy, source))

    def test_so_has_each_branch_of_routes(self, elements, source):
        branches = noise_graph(2 * elements, 2, "routes", source).library.function
        assert len(branches) == len(scale.STDDEVS)
        expected = cost_model.op_counts(2 * cost_model.noise_ops(elements, "routes", source))
        assert all(types(branch.node_def) == expected for branch in branches)


def measure_types(sizes):
    def measure(before, middle, after, gradients):
        return wur.measure(before, middle, after, gradients, tf.constant(True), False)

    function = tf.function(measure, autograph=False)
    arrays = [[tf.zeros([n]) for n in sizes] for _ in range(4)]
    return types(function.get_concrete_function(*arrays).graph.as_graph_def().node)


def test_a_measured_variable_more_has_the_operations_that_the_model_lists():
    one, two = (measure_types([100] * n) for n in (1, 2))
    assert two - one == cost_model.op_counts(cost_model.measure_ops(100))


@pytest.mark.parametrize("small", [63, 64])
def test_variables_are_measured_together_where_the_model_says(small):
    sizes = [cost_model.SMALL_VARIABLE] * small + [cost_model.SMALL_VARIABLE + 1]
    apart, together = cost_model.groups(sizes)
    found = measure_types(sizes)
    assert len(apart) + len(together) == small + 1
    assert found["L2Loss"] == 5 * len(apart)
    listed = cost_model.op_counts(cost_model.together_ops(together) if together else [])
    assert bool(together) == (small == 64)
    assert found["UnsortedSegmentSum"] == listed["UnsortedSegmentSum"]


@pytest.mark.parametrize("strategy", ["scalar", "routes", "buffered"])
@pytest.mark.parametrize("source", ["stateless", "table"])
def test_what_is_held_beside_the_model(strategy, source):
    subject = scale.Subject(300_000, 7)
    adder = subject.adder(strategy, source)
    held = [*adder.variables, *adder.source.variables]
    assert sum(v.dtype.size * int(np.prod(v.shape)) for v in held) == cost_model.persistent_bytes(
        subject.sizes, strategy, source
    )


def test_bytes_of_a_summary_step_in_the_event_file(tmp_path):
    record = scale.recording(8, tmp_path)
    record(2)
    (file,) = (tmp_path / "8").iterdir()
    before = file.stat().st_size
    record(1)
    grown = file.stat().st_size - before
    names = [f"sequential/dense_{i // 2}/{'kernel' if i % 2 else 'bias'}" for i in range(8)]
    expected = cost_model.summary_bytes(names, (0.0,), ["accuracy"], step=3)
    assert grown == expected - cost_model.value_bytes(tags.OVERHEAD)  # which the loop adds


def test_its_limits_are_those_of_the_code():
    assert cost_model.VECTORISED == noise.VECTORISED
    assert len(wur.Measured._fields) == cost_model.FIELDS
    assert cost_model.table_size([5, 10**6]) == noise.table_size(10**6, 10**6 + 5)
