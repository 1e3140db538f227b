"""Event files: read, written and trimmed by us, by TensorFlow and by TensorBoard alike."""

import math
import os
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator, event_file_loader
from tensorboard.compat.proto import event_pb2, summary_pb2, types_pb2
from tensorboard.summary.writer import event_file_writer

from tracker import events


def _scalar(step, tag="loss", value=None):
    number = float(step) if value is None else value
    summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=number)])
    return event_pb2.Event(wall_time=1e9 + step, step=step, summary=summary)


def _file(directory, steps, now=1, start=0, tail=b""):
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / events.file_name(now, "host", 1, 0)
    events.write(path, [*events.start_records(start), *map(_scalar, steps)])
    with open(path, "ab") as file:
        file.write(tail)
    return path


def _steps(*paths):
    return [e.step for p in paths for _, e in events.read(p) if e.summary.value]


def _loader(path):
    return list(event_file_loader.LegacyEventFileLoader(str(path)).Load())


def _accumulated(directory, tag="loss"):
    accumulator = event_accumulator.EventAccumulator(str(directory), {"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return [(e.step, e.value) for e in accumulator.Scalars(tag)]


def test_our_file_is_read_alike_by_us_and_by_tensorboard(tmp_path):
    path = _file(tmp_path, range(1, 301))
    ours = [event for _, event in events.read(path)]
    assert ours == _loader(path) and len(ours) == 302
    assert ours[0].file_version == "brain.Event:2"
    assert ours[1].session_log.status == event_pb2.SessionLog.START and ours[1].step == 0
    assert _accumulated(tmp_path) == [(step, float(step)) for step in range(1, 301)]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_tensorflows_files_are_read_by_us(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        for step in range(20):
            tf.summary.scalar("loss", step / 4, step=step)
            tf.summary.histogram("weights", [1.0, 2.0, step], step=step)
            tf.summary.text("run", "hello", step=step)
            tf.summary.image("picture", np.zeros((1, 2, 2, 1)), step=step)
    [path] = events.event_files(tmp_path)
    kinds = events.Kinds()
    found = [pair for _, e in events.read(path) for pair in scalars_at(e, kinds)]
    assert found == [(step, "loss", step / 4) for step in range(20)]
    assert kinds.plugins == {
        "loss": "scalars",
        "weights": "histograms",
        "run": "text",
        "picture": "images",
    }


def scalars_at(event, kinds=None):
    return [(event.step, tag, value) for tag, value in events.scalars(event, kinds)]


def test_tensorboards_and_the_old_writers_files_are_read_by_us(tmp_path):
    writer = event_file_writer.EventFileWriter(str(tmp_path / "board"))
    with tf.Graph().as_default():
        old = tf.compat.v1.summary.FileWriter(str(tmp_path / "old"))
    for step in range(1, 6):
        writer.add_event(_scalar(step))
        value = [tf.compat.v1.Summary.Value(tag="loss", simple_value=float(step))]
        old.add_summary(tf.compat.v1.Summary(value=value), step)
    writer.close()
    old.close()
    for name in ("board", "old"):
        [path] = events.event_files(tmp_path / name)
        found = [pair for _, e in events.read(path) for pair in scalars_at(e, events.Kinds())]
        assert found == [(step, "loss", float(step)) for step in range(1, 6)]


FLOATS = [
    *(tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("value", [0, 1, 3, 100])
def test_tensor_scalars_of_every_type(dtype, value):
    tensor = tf.make_tensor_proto(value, dtype)  # in the field of the type
    content = tf.make_tensor_proto(np.array(value, dtype.as_numpy_dtype))
    content.ClearField("float_val")
    content.tensor_content = np.array(value, dtype.as_numpy_dtype).tobytes()
    empty = tf.make_tensor_proto(0, dtype)
    for field in ("float", "double", "half", "int", "int64", "uint32", "uint64"):
        empty.ClearField(f"{field}_val")
    for proto, expected in ((tensor, value), (content, value), (empty, 0)):
        event = event_pb2.Event()
        event.summary.value.add(tag="x").tensor.ParseFromString(proto.SerializeToString())
        [(tag, number)] = events.scalars(event)
        assert (tag, number) == ("x", expected)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("value", [-1.5, 2.0**-14, math.inf, -math.inf, math.nan])
def test_fractions_and_non_finite_numbers(dtype, value):
    event = event_pb2.Event()
    proto = tf.make_tensor_proto(value, dtype)
    event.summary.value.add(tag="x").tensor.ParseFromString(proto.SerializeToString())
    [(_, number)] = events.scalars(event)
    assert number == value or (math.isnan(number) and math.isnan(value))


def test_what_is_no_scalar_is_none():
    event = event_pb2.Event()
    for proto in (tf.make_tensor_proto([1.0, 2.0]), tf.make_tensor_proto("text")):
        event.summary.value.add(tag="x").tensor.ParseFromString(proto.SerializeToString())
    short = event.summary.value.add(tag="x").tensor
    short.dtype, short.tensor_content = types_pb2.DT_FLOAT, b"abc"
    number = event.summary.value.add(tag="x")
    number.tensor.dtype = types_pb2.DT_FLOAT
    number.metadata.plugin_data.plugin_name = "mine"
    event.summary.value.add(tag="x").histo.num = 1
    assert not list(events.scalars(event))


def test_kinds_remember_the_first_plugin_of_a_tag():
    event = event_pb2.Event()
    first, later, unknown = (event.summary.value.add(tag=tag) for tag in ("a", "a", "b"))
    for value in (first, later, unknown):
        value.tensor.dtype = types_pb2.DT_FLOAT
    first.metadata.plugin_data.plugin_name = "mine"
    kinds = events.Kinds()
    assert [kinds.of(v) for v in event.summary.value] == ["mine", "mine", ""]
    assert kinds.of(summary_pb2.Summary.Value(tag="a", simple_value=1)) == "mine"
    assert not list(events.scalars(event, kinds))
    again = events.Kinds(kinds.plugins)
    assert again.of(later) == "mine"


def test_reading_goes_on_where_it_stopped(tmp_path):
    path = _file(tmp_path, [1])
    whole = path.read_bytes()
    *_, (end, _) = events.read(path)
    assert end == len(whole) and not list(events.read(path, end))
    with open(path, "ab") as file:
        for step in (2, 3):
            record = events.frame(_scalar(step).SerializeToString())
            file.write(record[:7])
            file.flush()
            assert not list(events.read(path, end))
            file.write(record[7:])
            file.flush()
            [(end, event)] = events.read(path, end)
            assert event.step == step
    path.write_bytes(whole[:10])  # shorter than before: nothing new
    assert not list(events.read(path, end))


def test_a_file_cut_at_every_byte_of_its_last_record(tmp_path):
    path = _file(tmp_path, [1, 2, 3])
    whole = path.read_bytes()
    last = len(events.frame(_scalar(3).SerializeToString()))
    for size in range(len(whole) - last, len(whole)):
        path.write_bytes(whole[:size])
        assert _steps(path) == [1, 2]
    path.write_bytes(b"")
    assert _steps(path) == []


def test_every_flipped_bit_is_found_with_its_offset(tmp_path):
    path = _file(tmp_path, [1, 2, 3])
    whole = path.read_bytes()
    size = len(events.frame(_scalar(2).SerializeToString()))
    begin = len(whole) - 2 * size
    for bit in range(size * 8):
        flipped = bytearray(whole)
        flipped[begin + bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(events.CorruptRecordError) as caught:
            _steps(path)
        assert f"{path} is corrupt at byte {begin}: " in str(caught.value)
        assert "\n" not in str(caught.value) and caught.value.offset == begin
        found = []
        rest = [e.step for _, e in events.read(path, on_corrupt=found.append) if e.summary.value]
        assert [error.offset for error in found] == [begin]
        in_length = bit < 12 * 8
        assert rest == ([1] if in_length else [1, 3])
        assert caught.value.end == (None if in_length else begin + size)


def test_zeros_other_records_and_absurd_lengths_are_corrupt(tmp_path):
    path = _file(tmp_path, [1])
    whole = path.read_bytes()
    length = struct.pack("<Q", 2**62)
    endless = length + struct.pack("<I", events._masked(length))
    for tail, why in [
        (bytes(100), "length is wrong"),
        (events.frame(b"\xff\xff\xff"), "not an Event"),
        (endless, "longer than"),
    ]:
        path.write_bytes(whole + tail)
        with pytest.raises(events.CorruptRecordError, match=why) as caught:
            _steps(path)
        assert caught.value.offset == len(whole)


def test_frame_equals_tensorflows(tmp_path):
    payloads = [b"", b"a", bytes(range(256)) * 100]
    with tf.io.TFRecordWriter(str(tmp_path / "file")) as writer:
        for payload in payloads:
            writer.write(payload)
    assert (tmp_path / "file").read_bytes() == b"".join(map(events.frame, payloads))


def test_write_replaces_whole_and_leaves_the_old_file_if_it_fails(tmp_path):
    path = _file(tmp_path, [1])

    def broken():
        yield _scalar(5)
        raise KeyError("source")

    with pytest.raises(KeyError):
        events.write(path, broken())
    assert _steps(path) == [1] and list(tmp_path.iterdir()) == [path]


def test_names_are_unique_and_sort_by_time():
    names = [events.file_name(t, "host", 7, n) for t in (9.9, 10, 1e9) for n in (0, 9, 10)]
    assert names == sorted(names) and len(set(names)) == 9
    assert names[-1] == "events.out.tfevents.1000000000.host.7.0010.v2"
    assert "/" not in events.file_name(1, "a/b", 1, 0)


def test_a_name_comes_after_the_existing_ones_when_the_clock_goes_back(tmp_path):
    path = _file(tmp_path, [1], now=2000)
    for now, pid in ((1000, 1), (2000, 0), (2000, 1)):
        name = events.file_name(now, "host", pid, 0, events.event_files(tmp_path))
        assert name > path.name and name.startswith("events.out.tfevents.0000002001.")
    assert events.file_name(3000, "h", 1, 0, [path]).startswith("events.out.tfevents.0000003000.")
    events.file_name(1, "h", 1, 0, ["zz.tfevents"])  # a stranger's name is no error


def test_event_files_in_order_without_placeholders_and_directories(tmp_path):
    for name in ("b.tfevents", "a.tfevents.1", "x.tfevents.profile-empty", "other.txt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "tfevents").mkdir()
    (tmp_path / "link.tfevents").symlink_to(tmp_path / "b.tfevents")
    found = [path.name for path in events.event_files(tmp_path)]
    assert found == ["a.tfevents.1", "b.tfevents", "link.tfevents"]
    assert events.event_files(tmp_path / "nowhere") == []


def test_trim_keeps_the_steps_up_to_the_checkpoint_and_moves_the_others(tmp_path):
    train, orphaned = tmp_path / "train", tmp_path / "orphaned"
    paths = [_file(train, [*range(1, 8), 3, 6], now=1), _file(train, [8, 9], now=2, start=8)]
    before = [event for path in paths for _, event in events.read(path)]
    mode = os.stat(paths[0]).st_mode
    moved = events.trim(train, 5, orphaned)
    assert moved == 6  # 6, 7, 6, the second START at 8, 8, 9
    assert _steps(*paths) == [1, 2, 3, 4, 5, 3] and os.stat(paths[0]).st_mode == mode
    kept = [event for path in paths for _, event in events.read(path)]
    names = sorted(path.name for path in orphaned.iterdir())
    assert names == [f"train.000000000{n}.host.1.0000.v2.after-5" for n in (1, 2)]
    cut = [event for name in names for _, event in events.read(orphaned / name)]
    assert sorted(map(repr, kept + cut)) == sorted(map(repr, before))
    assert not events.event_files(orphaned) and len(events.event_files(train)) == 2
    state = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert events.trim(train, 5, orphaned) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == state
    assert events.trim(tmp_path / "nowhere", 5, orphaned) == 0


def test_trim_of_nothing_makes_nothing(tmp_path):
    path = _file(tmp_path / "train", [1, 2])
    before = os.stat(path)
    assert events.trim(tmp_path / "train", 2, tmp_path / "orphaned") == 0
    assert os.stat(path) == before and not (tmp_path / "orphaned").exists()


def test_a_second_trim_to_the_same_step_keeps_both_orphans(tmp_path):
    train, orphaned = tmp_path / "train", tmp_path / "orphaned"
    path = _file(train, [1, 2, 3])
    assert events.trim(train, 1, orphaned) == 2
    with open(path, "ab") as file:
        file.write(events.frame(_scalar(2, value=9.0).SerializeToString()))
    assert events.trim(train, 1, orphaned) == 1
    first, second = sorted(orphaned.iterdir())
    assert second.name == f"{first.name}-2"
    assert _steps(first, second) == [2, 3, 2]


@pytest.mark.parametrize("kind", ["torn", "zeros", "flipped", "length"])
def test_trim_takes_out_what_cannot_be_read_and_keeps_its_bytes(kind, tmp_path):
    train, orphaned = tmp_path / "train", tmp_path / "orphaned"
    path = _file(train, [1, 2, 3])
    whole = bytearray(path.read_bytes())
    size = len(events.frame(_scalar(2).SerializeToString()))
    begin = len(whole) - 2 * size
    if kind == "torn":
        whole = whole[:-3]
    elif kind == "zeros":
        whole += bytes(64)
    else:
        whole[begin + (20 if kind == "flipped" else 2)] ^= 1
    path.write_bytes(whole)
    moved = events.trim(train, 3, orphaned)
    [orphan] = orphaned.iterdir()
    expected = {
        "torn": (0, [1, 2], whole[begin + size :]),
        "zeros": (0, [1, 2, 3], bytes(64)),
        "flipped": (1, [1, 3], whole[begin : begin + size]),
        "length": (0, [1], whole[begin:]),
    }
    assert (moved, _steps(path), orphan.read_bytes()) == expected[kind]
    assert _loader(path) == [event for _, event in events.read(path)]


KILLED = """
import os, signal, sys
from tracker import events
directory, orphaned, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
seen = 0
def hook(name, arguments):
    global seen
    if name in ('open', 'os.rename', 'os.mkdir', 'os.chmod', 'os.remove'):
        seen += 1
        if seen == count:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
events.trim(directory, 2, orphaned)
"""


def test_trim_killed_at_every_moment_loses_and_doubles_nothing(tmp_path):
    for count in range(1, 100):
        train, orphaned = tmp_path / f"{count}" / "train", tmp_path / f"{count}" / "orphaned"
        _file(train, range(1, 6), now=1, tail=b"torn")
        _file(train, range(3, 5), now=2, start=3)
        command = [sys.executable, "-c", KILLED, str(train), str(orphaned), str(count)]
        code = subprocess.run(command, check=False).returncode
        assert code in (0, -signal.SIGKILL)
        visible = _steps(*events.event_files(train))
        assert visible[:2] == [1, 2]  # whatever the moment, what stays is there
        events.trim(train, 2, orphaned)
        assert _steps(*events.event_files(train)) == [1, 2]
        assert sorted(_steps(*orphaned.iterdir())) == [3, 3, 4, 4, 5]
        assert not [p for p in (*train.iterdir(), *orphaned.iterdir()) if p.name.startswith(".")]
        if code == 0:
            break
    assert count > 8  # it was killed at that many moments


def test_a_resumed_run_has_each_step_once_in_tensorboard_live_and_cold(tmp_path):
    train = tmp_path / "train"
    _file(train, range(1, 10), now=1, start=0)
    live = event_accumulator.EventAccumulator(str(train), {"scalars": 0})
    live.Reload()
    events.trim(train, 6, tmp_path / "orphaned")
    path = train / events.file_name(0, "host", 2, 0, events.event_files(train))
    resumed = [_scalar(step, value=-1.0) for step in range(7, 13)]
    events.write(path, [*events.start_records(7), *resumed])
    live.Reload()
    right = [(s, float(s)) for s in range(1, 7)] + [(s, -1.0) for s in range(7, 13)]
    assert [(e.step, e.value) for e in live.Scalars("loss")] == right
    assert _accumulated(train) == right


def test_events_imports_no_tensorflow():
    code = "import sys; from tracker import events; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
