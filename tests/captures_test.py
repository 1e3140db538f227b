"""Captures: real ones of this TensorFlow on a CPU, and a real one of eight GPUs."""

import gzip
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from etils import epath
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tracker import captures

DATA = pathlib.Path(__file__).parent / "data"


def _capture(directory, call, steps=range(20, 25), **options):
    options = tf.profiler.experimental.ProfilerOptions(**options)
    tf.profiler.experimental.start(str(directory), options)
    try:
        for step in steps:
            with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                call()
    finally:
        tf.profiler.experimental.stop()
    return captures.find(directory)[-1]


def _model():
    """Two fresh functions, of one step and of many, with one of three branches a step."""
    weights, count = tf.Variable(tf.ones([64, 64])), tf.Variable(0)

    def route(k):
        def draw():
            with tf.name_scope(f"route_{k}"):
                return tf.random.stateless_normal([64, 64], tf.stack([1, count])) * 0.1

        return draw

    def one():
        with tf.name_scope("forward"):
            product = tf.matmul(weights, weights)
        with tf.name_scope("noise"):
            noise = tf.switch_case(count % 3, [route(k) for k in range(3)])
        weights.assign(tf.tanh(product) + noise)
        count.assign_add(1)

    @tf.function
    def single():
        one()

    @tf.function
    def many(n):
        for _ in tf.range(n):
            one()

    single()
    many(tf.constant(2))  # three steps are made: the next draws from route 0
    return single, lambda n: many(tf.constant(n))


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    """A capture of five calls of three steps each, in a loop of the graph."""
    _, many = _model()
    return _capture(tmp_path_factory.mktemp("loop"), lambda: many(3), host_tracer_level=1)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    path = epath.Path(tmp_path_factory.mktemp("gpu")) / "plugins" / "profile" / "2020_07_07"
    path.mkdir(parents=True)
    content = gzip.decompress((DATA / "gpu.xplane.pb.gz").read_bytes())
    (path / "worker0.xplane.pb").write_bytes(content)
    [capture] = captures.find(path.parent.parent.parent)
    return capture


def test_ten_steps_have_their_numbers_and_times(tmp_path):
    single, _ = _model()
    capture = _capture(tmp_path, single, steps=range(20, 30))
    found = captures.numbers(capture)
    assert found.device_type == "CPU" and found.steps == tuple(range(20, 30))
    assert all(0 < ms < 1000 for ms in found.step_ms)
    assert min(found.step_ms) <= found.step_ms_mean <= max(found.step_ms)
    assert found.step_ms_median == pytest.approx(np.median(found.step_ms))
    assert found.step_ms_p95 == pytest.approx(np.percentile(found.step_ms, 95))
    assert sum(found.parts.values()) == pytest.approx(100) and found.device_percent == 0
    assert os.listdir(capture.path) == [capture.files[0].name]


def test_a_loop_in_the_function_does_not_hide_the_steps(loop):
    found = captures.numbers(loop)
    assert found.steps == (20, 21, 22, 23, 24) and all(ms > 0 for ms in found.step_ms)
    assert found.parts["host"] > 50


def test_ops_are_counted_inside_loops_and_branches(loop):
    ops = captures.executed_ops(loop.path)
    assert ops == captures.executed_ops(loop.files[0])
    drawn = {name: n for name, n in ops.items() if name.endswith(":StatelessRandomNormalV2")}
    assert sorted(name.split("/")[-3] for name in drawn) == ["route_0", "route_1", "route_2"]
    assert set(drawn.values()) == {5}
    [products] = [n for name, n in ops.items() if "/forward/MatMul:" in name]
    assert products == 15
    found = captures.numbers(loop).ops
    assert {name: op.count for name, op in found.items()} == dict(ops)
    assert all(op.total_us >= 0 for op in found.values())
    assert not captures.executed_ops(loop.path, host_tracer=False)


def test_a_second_branch_would_be_counted(tmp_path):
    single, _ = _model()

    @tf.function
    def both():
        tf.raw_ops.StatelessRandomNormalV2(shape=[64, 64], key=[1], counter=[1, 2], alg=1)
        single()

    both()
    capture = _capture(tmp_path, both, steps=range(6))
    names = captures.executed_ops(capture.path)
    assert sum(n for name, n in names.items() if "route_" in name and "NormalV2" in name) == 6


@pytest.mark.parametrize("inside", ["eager", "function", "loop"])
def test_waiting_for_input_is_input(inside, tmp_path):
    def slow(x):
        time.sleep(0.02)
        return x

    data = tf.data.Dataset.range(100).map(
        lambda x: tf.ensure_shape(tf.py_function(slow, [x], tf.int64), [])
    )
    iterator = iter(data)
    weights = tf.Variable(tf.ones([64, 64]))

    def step(_):
        weights.assign(tf.tanh(tf.matmul(weights, weights)))

    @tf.function
    def function():
        step(next(iterator))

    @tf.function
    def repeated(n):
        for _ in tf.range(n):
            step(next(iterator))

    call = {
        "eager": lambda: step(next(iterator)),
        "function": function,
        "loop": lambda: repeated(tf.constant(2)),
    }[inside]
    call()
    found = captures.numbers(_capture(tmp_path, call))
    assert found.input_percent >= 80 and found.step_ms_mean >= 15


def test_show_steps_changes_the_iterations_alone(loop, tmp_path):
    path = epath.Path(tmp_path) / "host.xplane.pb"
    original = loop.files[0].read_bytes()
    path.write_bytes(original)
    assert captures.show_steps(tmp_path) is True
    before, after = (xplane_pb2.XSpace.FromString(b) for b in (original, path.read_bytes()))
    changed = 0
    for plane in before.planes:
        ids = {key for key, value in plane.stat_metadata.items() if value.name == "iter_num"}
        for stat in (s for line in plane.lines for e in line.events for s in e.stats):
            if stat.metadata_id in ids and getattr(stat, stat.WhichOneof("value")):
                stat.int64_value = 0
                changed += 1
    assert changed > 5 and before == after
    assert captures.show_steps(path) is False  # nothing is left to change
    assert os.listdir(tmp_path) == ["host.xplane.pb"]


XPROF = """
import json, sys
from xprof.convert import raw_to_tool_data
options = {'use_saved_result': False}
page, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], 'overview_page', options)
[table] = [t for t in json.loads(page) if t.get('cols') and t['cols'][0]['id'] == 'stepnum']
print([row['c'][0]['v'] for row in table['rows']])
"""


def test_xprof_itself_finds_the_steps_after_show_steps_and_not_before(loop, tmp_path):
    def steps(path):
        command = [sys.executable, "-c", XPROF, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    path = epath.Path(tmp_path) / "host.xplane.pb"
    path.write_bytes(loop.files[0].read_bytes())
    assert steps(path) == "[]\n"
    captures.show_steps(path)
    assert steps(path) == f"{[f'train {step}' for step in range(20, 25)]}\n"


def test_a_capture_without_steps_says_so(tmp_path):
    single, _ = _model()
    tf.profiler.experimental.start(str(tmp_path / "a"))
    single()
    tf.profiler.experimental.stop()
    tf.profiler.experimental.start(str(tmp_path / "b"))
    tf.profiler.experimental.stop()
    for name, some in (("a", True), ("b", False)):
        [capture] = captures.find(tmp_path / name)
        found = captures.numbers(capture)
        assert (found.steps, found.step_ms, found.parts, found.scopes) == ((), (), {}, {})
        assert found.step_ms_median is found.step_ms_p95 is found.noise_percent is None
        assert found.step_ms_mean is found.input_percent is found.device_percent is None
        assert bool(found.ops) is some
        assert captures.show_steps(capture.path) is False


def test_a_gpu_capture(gpu):
    found = captures.numbers(gpu)
    assert found.device_type == "GPU" and len(found.steps) == 1
    compute = found.device_percent / 100 * found.step_ms_mean
    assert compute == pytest.approx(14.9, abs=0.05)
    assert found.parts["other"] / 100 * found.step_ms_mean == pytest.approx(6.4, abs=0.05)
    name, top = max(found.ops.items(), key=lambda item: item[1].total_us)
    assert "FillPhiloxRandomKernelLaunch" in name and "half" in name
    assert top.count == 194 and top.total_us == pytest.approx(7908, abs=0.5)
    assert captures.executed_ops(gpu.path, host_tracer=False)[name] == 194
    assert found.devices == 8 and sorted(found.busy) == ["/device:GPU:4", "/device:GPU:6"]
    assert found.busy["/device:GPU:6"] == pytest.approx(found.device_percent, abs=0.1)
    assert top.op.endswith("random_uniform/RandomUniform:RandomUniform")
    assert top.scope == "bert_span_labeler/bert_encoder_1"
    assert sum(found.scopes.values()) == pytest.approx(100)
    assert max(found.scopes, key=found.scopes.get) == top.scope


def test_kernels_know_the_op_that_launched_them(gpu):
    on_device = [e for e in captures.executions(gpu.path) if e.plane.startswith("/device:")]
    kernels = [event for event in on_device if "(Compute)" in event.line]
    assert len(kernels) == 1330 and all(event.op for event in kernels)
    dropout = [e for e in kernels if "Philox" in e.name]
    assert all(event.op.endswith("random_uniform/RandomUniform:RandomUniform") for event in dropout)


def test_with_every_duration_doubled_every_time_doubles(gpu, loop, tmp_path):
    for name, capture in (("gpu", gpu), ("loop", loop)):
        space = xplane_pb2.XSpace.FromString(capture.files[0].read_bytes())
        for line in (line for plane in space.planes for line in plane.lines):
            line.timestamp_ns *= 2
            for event in line.events:
                event.duration_ps *= 2
                event.offset_ps *= 2
        path = epath.Path(tmp_path) / name
        path.mkdir()
        (path / "host.xplane.pb").write_bytes(space.SerializeToString())
        once = captures.numbers(capture)
        twice = captures.numbers(captures.Capture(path, ()))
        assert twice.steps == once.steps
        assert twice.step_ms == pytest.approx([2 * ms for ms in once.step_ms], rel=1e-3)
        assert twice.scopes == pytest.approx(once.scopes, abs=1e-3)
        assert twice.busy == pytest.approx(once.busy, rel=1e-6)
        for op, found in once.ops.items():
            assert twice.ops[op].total_us == pytest.approx(2 * found.total_us, rel=1e-6)
            assert twice.ops[op].count == found.count


def test_find(gpu, tmp_path):
    paths = [tmp_path / run / "plugins" / "profile" / name for run in "ab" for name in ("2", "1")]
    for path in paths:
        path.mkdir(parents=True)
        (path / "h2.xplane.pb").write_bytes(b"")
        (path / "h1.xplane.pb").write_bytes(b"")
        (path / "ALL_HOSTS.op_stats_v2.pb").write_bytes(b"")
    (paths[0] / "h1.xplane.pb").unlink()
    (paths[0] / "h2.xplane.pb").unlink()
    found = captures.find(tmp_path)
    assert [c.path for c in found] == [epath.Path(p) for p in sorted(paths)]
    assert [c.name for c in found] == ["1", "2", "1", "2"]
    assert [f.name for f in found[0].files] == ["h1.xplane.pb", "h2.xplane.pb"]
    assert found[1].files == ()
    assert captures.find(tmp_path / "nowhere") == []


@pytest.mark.parametrize("kind", ["empty", "truncated", "half", "noise", "text", "missing", "none"])
def test_an_unreadable_capture_is_one_sentence(kind, gpu, tmp_path):
    content = gpu.files[0].read_bytes()
    bad = {
        "empty": b"",
        "truncated": content[:-1],
        "half": content[: len(content) // 2],
        "noise": bytes(range(255, -1, -1)) * 4,
        "text": b"not a capture\n" * 5,
    }
    path = epath.Path(tmp_path) / "h.xplane.pb"
    if kind in bad:
        path.write_bytes(bad[kind])
    place = path.parent if kind == "none" else path
    for act in (
        lambda: captures.numbers(captures.Capture(place, (path,))),
        lambda: captures.executed_ops(place),
        lambda: captures.show_steps(place),
    ):
        with pytest.raises(captures.CaptureError) as caught:
            act()
        message = str(caught.value)
        assert str(place) in message and "\n" not in message and message.endswith(".")


def test_a_capture_in_the_form_of_a_newer_xprof_says_so(tmp_path):
    (tmp_path / "host.xplane.riegeli").write_bytes(b"\x83\xaf\x70\xd1")
    with pytest.raises(captures.CaptureError, match=r"xplane\.riegeli, the form of a newer XProf"):
        captures.numbers(captures.Capture(epath.Path(tmp_path), ()))


def test_xprofs_log_lines_are_not_heard_but_others_are(gpu):
    code = (
        "import os, sys, threading\n"
        "from tracker import captures\n"
        "thread = threading.Timer(0.03, os.write, (2, b'from a thread\\n'))\n"
        "thread.start()\n"
        "for _ in range(3): captures.numbers(captures.find(sys.argv[1])[0])\n"
        "thread.join()\n"
        "print('tensorflow' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(gpu.path.parent.parent.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "from a thread\n" and done.stdout == "False\n"


def test_a_capture_of_two_hosts(gpu, tmp_path):
    content = gpu.files[0].read_bytes()
    for host in ("a", "b"):
        (tmp_path / f"{host}.xplane.pb").write_bytes(content)
    found = captures.numbers(captures.Capture(epath.Path(tmp_path), ()))
    assert found.device_type == "GPU" and max(op.count for op in found.ops.values()) == 2 * 588
    assert len(os.listdir(tmp_path)) == 2
