"""How a step's time divides: on spaces written by hand, and on real captures of real steps."""

import collections
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from etils import epath
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tests import experiments
from tracker import captures, config, experiment, profiling, scopes, steps, xplane


def space(marked, threads):
    """An XSpace of one host: steps (number, start, end) and {thread: [(name, start, end)]}, in µs.

    Threads named `<device> <stream>` are streams of a device; an event may bring its op as a
    fourth.
    """
    made = xplane_pb2.XSpace()
    planes = {}

    def plane(name):
        if name not in planes:
            planes[name] = made.planes.add(name=name)
            for number, stat in enumerate(("step_num", "tf_op"), 1):
                planes[name].stat_metadata[number].name = stat
        return planes[name]

    def add(line, plane_, name, start, end, op=None):
        key = len(plane_.event_metadata) + 1
        plane_.event_metadata[key].name = name
        event = line.events.add(metadata_id=key, offset_ps=round(start * 1e6))
        event.duration_ps = round((end - start) * 1e6)
        if op:
            event.stats.add(metadata_id=2, str_value=op)
        return event

    python = plane("/host:CPU").lines.add(name="python")
    for number, start, end in marked:
        add(python, plane("/host:CPU"), "train", start, end).stats.add(
            metadata_id=1, int64_value=number
        )
    for thread, events in threads.items():
        device, _, stream = thread.rpartition(" Stream")
        owner = plane(device or "/host:CPU")
        line = owner.lines.add(name=f"Stream{stream}" if device else thread)
        for event in events:
            add(line, owner, *event)
    return xplane.XSpace.FromString(made.SerializeToString())


def test_each_moment_goes_to_the_innermost_op_and_is_shared_side_by_side():
    threads = {
        "a": [
            ("while:While", 0, 100),  # waits for what its body does
            ("while/body/_1/while/forward/MatMul:MatMul", 10, 40),
            ("while/body/_1/gradient_tape/while/forward/MatMul:MatMul", 50, 60),
        ],
        "b": [
            ("while/body/_1/while/update/adam/Mul:Mul", 30, 50),
            ("while/noise/route/route_1_0.1/Add:AddV2", 60, 80),
            ("while/noise/route/route_1_0.1/Cos:Cos", 65, 70),  # inside the one before
        ],
    }
    found = scopes.shares([space([(1, 0, 120)], threads)])
    wanted = {
        "forward": 20 + 10 / 2,
        "gradients": 10,
        "update": 10 / 2 + 10,
        "noise/route/route_1_0.1": 20,
        "other": 10 + 20,  # only the loop itself
        "runtime": 20,
    }
    assert found == pytest.approx({scope: 100 * us / 120 for scope, us in wanted.items()})
    assert scopes.total(found, "noise") == pytest.approx(100 * 20 / 120)
    assert scopes.total(found, "diagnostics") == 0 and scopes.total({}, "noise") is None


def test_waiting_for_input_counts_where_nothing_else_of_the_step_runs():
    threads = {
        "tf_data_iterator_get_next/1": [("IteratorGetNextOp::DoCompute", 0, 60)],
        "tf_data_private_threadpool/2": [("EagerPyFunc:EagerPyFunc", 0, 60)],  # the pipeline
        "a": [("forward/MatMul:MatMul", 40, 70)],
    }
    found = scopes.shares([space([(1, 0, 100)], threads)])
    assert found == pytest.approx({"data": 40, "forward": 30, "runtime": 30})


def test_kernels_come_before_what_launches_them():
    threads = {
        "/device:GPU:0 Stream #1(Compute)": [
            ("kernel", 20, 60, "noise/route/route_0_0.1/Normal:StatelessRandomNormalV2"),
            ("kernel of nobody", 60, 70),
        ],
        "/device:GPU:0 Stream #2(MemcpyH2D)": [("MemcpyH2D", 50, 80)],
        "a": [("forward/MatMul:MatMul", 0, 30)],
    }
    found = scopes.shares([space([(7, 0, 100)], threads)])
    assert found == pytest.approx(
        {"forward": 20, "noise/route/route_0_0.1": 40, "other": 10, "copies": 10, "runtime": 20}
    )
    assert list(found) == ["forward", "noise/route/route_0_0.1", "copies", "other", "runtime"]


def test_any_spans_add_up_to_the_whole():
    draw = np.random.default_rng(0)
    names = [
        "forward/a:Mul",
        "update/b:Mul",
        "noise/c:Mul",
        "while:While",
        "loose:Add",
        "x/y/z:Mul",
    ]
    for _ in range(30):
        threads = {}
        for thread in "abc":
            starts = np.sort(draw.integers(-20, 300, 12))
            threads[thread] = [
                (str(draw.choice(names)), int(s) + 20, int(s) + 20 + int(draw.integers(0, 80)))
                for s in starts
            ]
        marked = [(1, 30, 90), (2, 90, 200), (3, 210, 211)]
        found = scopes.shares([space(marked, threads)])
        assert sum(found.values()) == pytest.approx(100)
        assert all(percent >= 0 for percent in found.values())


def test_another_programs_scopes_are_its_first_two():
    op = "replica_4/bert/encoder/layer_5/dropout/random_uniform/RandomUniform:RandomUniform"
    assert scopes.of(op) == "bert/encoder"
    assert scopes.of("gradient_tape/bert/encoder/MatMul:MatMul") == "gradients"
    assert scopes.of("") == scopes.of("Identity_2:Identity") == "other"
    assert scopes.readable("while/body/_1/while/forward/Add:AddV2") == "forward/Add"
    assert scopes.readable(op) == op and scopes.readable("void kernel<x>") == "void kernel<x>"
    assert scopes.order(["runtime", "a/b", "noise", "data"]) == ["data", "noise", "a/b", "runtime"]


def embedding(input_shape, classes):
    """Eight million weights of which a step looks at few: adding noise to all is what costs."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(input_shape),
            layers.Flatten(),
            layers.Embedding(80_000, 100),
            layers.GlobalAveragePooling1D(),
            layers.Dense(classes),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss)
    return model


def profiled(directory, run, count=5):
    """The numbers of some steps; the call before them traces the function."""
    warnings = []
    profiler = profiling.Profiler(epath.Path(directory), warnings.append)
    run(0)
    profiler.start()
    for step in range(1, count + 1):
        with profiling.step_marker(step):
            run(step)
    capture = profiler.stop()
    assert not warnings
    return captures.numbers(captures.Capture(capture, ()))


@pytest.mark.parametrize("noisy", [True, False])
def test_a_step_of_nothing_but_noise_says_so_and_one_without_says_none(noisy, tmp_path):
    settings = {
        **experiments.QUICK,
        "model": "tests.profiles_scopes_test:embedding",
        "stddevs": (1e-3,),
        "noise_scale": "relative",
        "batch_size": 4,
        "steps": 100,
    }
    keras.backend.clear_session()
    made = experiment.assemble(config.validate(config.Config(**settings)))
    body = made.functions.body
    if not noisy:
        around = body.instrument._replace(adder=None, targets=[], selector=None)
        body = body._replace(instrument=around)
    functions = steps.Steps(body, made.batches().element_spec)
    iterator = iter(made.batches())
    found = profiled(tmp_path, lambda step: functions.plain(iterator, step, 1))
    assert sum(found.scopes.values()) == pytest.approx(100, abs=1)
    assert sum(found.parts.values()) == pytest.approx(100, abs=1)
    if noisy:
        assert found.noise_percent >= 80, found.scopes
    else:
        assert found.noise_percent == 0, found.scopes
    assert found.diagnostics_percent == 0


def test_a_slow_input_says_so(tmp_path):
    made = experiments.make(steps=100)

    def sleep():
        time.sleep(0.03)
        return 0

    def slow(x, y):
        with tf.control_dependencies([tf.py_function(sleep, [], tf.int32)]):
            return tf.identity(x), y

    iterator = iter(made.batches().map(slow))
    found = profiled(tmp_path, lambda step: made.functions.plain(iterator, step, 1))
    assert found.input_percent >= 80 and found.step_ms_median >= 25
    assert found.scopes["data"] >= 80
    assert found.noise_percent < 10


@pytest.mark.parametrize("strategy", ["scalar", "routes", "buffered"])
def test_every_scope_of_a_step_is_in_its_trace(strategy, tmp_path):
    made = experiments.make(steps=100, model="mlp", strategy=strategy, summary_every=1)
    iterator = iter(made.batches())
    result = []

    def run(step):
        result.append(made.functions.tracked(iterator, step, 1, 0))

    found = profiled(tmp_path, run)
    parts = collections.Counter()
    for scope, percent in found.scopes.items():
        parts[scopes.top(scope)] += percent
    assert {"data", "forward", "gradients", "update", "noise", "diagnostics"} <= set(parts)
    assert found.diagnostics_percent > 1
    if strategy == "routes":
        routes = {scope for scope in found.scopes if scope.startswith("noise/route/")}
        chosen = {int(r.plain.choice[0]) for r in result[1:]}
        assert {int(r.split("route_")[1].split("_")[0]) for r in routes} == chosen
