"""The index: incremental, right after every kind of change, safe with others, and expendable."""

import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from tests import runs_logdir
from tests.runs_logdir import append, data, runs, scalar, write
from tracker import events
from tracker.runs import bulk
from tracker.runs.catalog import Catalog


def by_records(path):
    """The scalars of a file, decoded one by one."""
    kinds, found = events.Kinds(), {}
    for _, event in events.read(path, 0, lambda error: None):
        for tag, value in events.scalars(event, kinds):
            found.setdefault(tag, []).append((event.step, event.wall_time, value))
    return found


def in_bulk(path):
    found = {}
    for block in bulk.read(str(path)):
        for tag, column in block.scalars.items():
            points = zip(*(part.tolist() for part in column), strict=True)
            found.setdefault(tag, []).extend(points)
    return found


def points(logdir, name="run", metric="loss"):
    """(step, value) of a metric, and how many bytes of event files were read for it."""
    with Catalog(str(logdir)) as catalog:
        run = catalog.find(name)
        found = run.metric(metric)
        column = run.points(found)
        pairs = list(zip(column.steps.tolist(), column.values.tolist(), strict=True))
        assert (found.points, found.last, found.last_step) == (
            len(pairs),
            pairs[-1][1],
            pairs[-1][0],
        )
        return pairs, catalog.index.read_bytes


def mixed(directory):
    """A file of many looks: tags of unequal length, steps of one to five bytes, other plugins."""
    with tf.summary.create_file_writer(str(directory)).as_default():
        for step in [*range(1, 140), 16383, 16384, 2**31 - 2, 2**31 + 1]:
            tf.summary.scalar("loss", 1 / step, step=step)
            tf.summary.scalar("accuracy/of/a/long/name", step / 7, step=step)
            if step % 10 == 0:
                tf.summary.histogram("weights", [1.0, 2.0, step], step=step)
                tf.summary.scalar("late", np.nan if step == 20 else step, step=step)
                tf.summary.text("note", "hello", step=step)
    [path] = events.event_files(directory)
    return pathlib.Path(path)


def test_bulk_reading_equals_reading_record_by_record(tmp_path, monkeypatch):
    path = mixed(tmp_path)
    expected = by_records(path)
    assert {tag: len(column) for tag, column in expected.items()} == {
        "loss": 143,
        "accuracy/of/a/long/name": 143,
        "late": 13,
    }
    assert repr(in_bulk(path)) == repr(expected)  # NaN too
    for size in (64, 1000, 4096):  # many blocks, some smaller than a record
        monkeypatch.setattr(bulk, "BLOCK", size)
        assert repr(in_bulk(path)) == repr(expected)


def test_bulk_reading_equals_for_runs_of_the_app(tmp_path):
    logdir = runs_logdir.trained(tmp_path)
    files = sorted(logdir.rglob("*tfevents*"))
    assert len(files) == 4
    for path in files:
        assert in_bulk(path) == by_records(path) != {}


def test_any_flipped_bit_gives_what_reading_record_by_record_gives(tmp_path):
    path = write(tmp_path, [(step, step / 3) for step in range(1, 12)])
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(good), 150):
        flipped = bytearray(good)
        flipped[position] ^= 1 << rng.integers(8)
        path.write_bytes(bytes(flipped))
        assert in_bulk(path) == by_records(path)
        assert sum(b.corrupt + b.dead for b in bulk.read(str(path))) == 1


def test_a_file_cut_at_every_byte_of_its_last_record_goes_on_from_there(tmp_path):
    path = write(tmp_path / "run", [(1, 1.0), (2, 2.0)])
    whole = path.read_bytes()
    last = len(events.frame(scalar(2, 2.0).SerializeToString()))
    for cut in range(1, last + 1):
        path.write_bytes(whole[:-cut])
        assert points(tmp_path)[0] == [(1, 1.0)]
        with open(path, "ab") as file:
            file.write(whole[-cut:])
        assert points(tmp_path) == ([(1, 1.0), (2, 2.0)], last)


def test_only_new_bytes_are_read(tmp_path):
    path = write(tmp_path / "run", [(step, 1.0) for step in range(1, 6000)])
    assert points(tmp_path)[1] == path.stat().st_size
    assert points(tmp_path)[1] == 0
    for step in range(6000, 6010):
        append(path, (step, 2.0))
        found, read = points(tmp_path)
        assert read == len(events.frame(scalar(step, 2.0).SerializeToString()))
        assert found[-1] == (step, 2.0) and len(found) == step
    with open(path, "ab") as file:
        file.write(b"torn")
    assert points(tmp_path)[1] == 0


def test_replaced_files_are_read_again(tmp_path):
    path = write(tmp_path / "run", [(1, 1.0), (2, 2.0)])
    assert points(tmp_path)[0] == [(1, 1.0), (2, 2.0)]
    other = write(tmp_path / "other", [(1, 7.0), (2, 8.0)]).read_bytes()
    assert len(other) == path.stat().st_size
    path.write_bytes(other)  # the same file, the same size, within a tick
    assert points(tmp_path)[0] == [(1, 7.0), (2, 8.0)]
    longer = write(tmp_path / "longer", [(1, 4.0), (2, 5.0), (3, 6.0)])
    path.write_bytes(longer.read_bytes())  # looks as if it had grown
    assert points(tmp_path)[0] == [(1, 4.0), (2, 5.0), (3, 6.0)]
    os.replace(write(tmp_path / "short", [(9, 9.0)]), path)
    assert points(tmp_path)[0] == [(9, 9.0)]
    stamp = path.stat()
    path.write_bytes(path.read_bytes().replace(b"loss", b"lost"))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as rsync -t leaves it
    with Catalog(str(tmp_path)) as catalog:
        assert catalog.find("run").metric("loss") is None


def test_moved_runs_keep_their_entries_and_deleted_ones_leave(tmp_path):
    path = write(tmp_path / "run", [(1, 1.0)])
    write(tmp_path / "gone", [(1, 1.0)])
    assert points(tmp_path)[1] > 0
    path.parent.rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "gone")
    assert points(tmp_path, "moved") == ([(1, 1.0)], 0)
    assert [run["name"] for run in data(tmp_path, "list")] == ["moved"]
    with sqlite3.connect(tmp_path / ".tracker" / "index.sqlite3") as index:
        counts = [index.execute(f"SELECT count(*) FROM {t}").fetchone()[0]
                  for t in ("files", "series", "chunks")]  # fmt: skip
    index.close()
    assert counts == [1, 1, 1]


def test_a_clock_that_goes_back_hides_nothing(tmp_path):
    path = write(tmp_path / "run", [(1, 1.0)])
    os.utime(path, (2e9, 2e9))  # written in the future
    assert points(tmp_path)[0] == [(1, 1.0)]
    append(path, (2, 2.0))
    os.utime(path, (1e9, 1e9))
    assert points(tmp_path)[0] == [(1, 1.0), (2, 2.0)]
    path.write_bytes(write(tmp_path / "other", [(1, 3.0), (2, 4.0)]).read_bytes())
    os.utime(path, (1e8, 1e8))
    assert points(tmp_path)[0] == [(1, 3.0), (2, 4.0)]


@pytest.mark.parametrize("content", [b"", b"no database", "version", "half"])
def test_an_unusable_index_is_built_again(tmp_path, content):
    write(tmp_path / "run", [(1, 1.0)])
    index = tmp_path / ".tracker" / "index.sqlite3"
    assert len(data(tmp_path, "list")) == 1
    if content == "version":
        with sqlite3.connect(index) as connection:
            connection.execute("UPDATE meta SET version = 'of old'")
        connection.close()
    else:
        index.write_bytes(index.read_bytes()[:6000] if content == "half" else content)
    assert points(tmp_path)[0] == [(1, 1.0)]
    assert points(tmp_path) == ([(1, 1.0)], 0)
    shutil.rmtree(tmp_path / ".tracker")
    assert points(tmp_path)[0] == [(1, 1.0)]


def test_a_step_that_comes_back_replaces_what_was_there(tmp_path):
    """Case I1 as others leave it: the rule of TensorBoard's default loader."""
    write(tmp_path / "run", [(step, 1.0) for step in range(0, 160, 10)])
    write(tmp_path / "run", [(step, 2.0) for step in range(110, 210, 10)])
    found, _ = points(tmp_path)
    assert found == [(s, 1.0) for s in range(0, 110, 10)] + [(s, 2.0) for s in range(110, 210, 10)]
    [run] = data(tmp_path, "list")
    assert run["step"] == 200 and run["metrics"]["loss"]["points"] == 21


def test_steps_beyond_32_bits(tmp_path):
    """Case J6."""
    steps = [2**31 - 2 + n for n in range(5)] + [2**62]
    write(tmp_path / "run", [(step, 1.0) for step in steps])
    assert [step for step, _ in points(tmp_path)[0]] == steps


def test_a_hundred_thousand_points_are_all_there(tmp_path):
    """Case J5: never a sample."""
    write(tmp_path / "run", [(step, 0.0 if step % 7 else step) for step in range(1, 100_001)])
    exported = runs(tmp_path, "export").splitlines()
    assert len(exported) == 100_001
    assert exported[50_001] == "run,,loss,50001,1000050001.0,50001.0"
    assert exported[50_002] == "run,,loss,50002,1000050002.0,0.0"


def test_ten_thousand_tags_in_one_run(tmp_path):
    write(tmp_path / "run", [(s, s + n, f"t/{n}") for s in (1, 2) for n in range(10_000)])
    [run] = data(tmp_path, "list", "--metrics=t/9999")
    assert run["metrics"]["t/9999"]["last"] == 10_001
    assert data(tmp_path, "sql", "select count(*) n from scalars") == [{"n": 20_000}]


WRITER = """
import sys, time
import tensorflow as tf
with tf.summary.create_file_writer(sys.argv[1], max_queue=0).as_default():
    for step in range(1, 10**6):
        tf.summary.scalar("loss", float(step), step=step)
        if step == 1:
            print("ready", flush=True)
"""


def test_two_commands_at_once_while_a_process_writes(tmp_path):
    for n in range(20):
        write(tmp_path / f"old-{n}", [(step, 1.0) for step in range(1, 2000)])
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "live")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as writer:
        writer.stdout.readline()
        command = [*runs_logdir.COMMAND, "list", f"--logdir={tmp_path}", "--json"]
        last = 0
        for _ in range(3):
            pair = [
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                for _ in range(3)
            ]
            for process in pair:
                out, err = process.communicate()
                assert process.returncode == 0 and err == b""
                listed = {r["name"]: r for r in json.loads(out)}
                assert len(listed) == 21 and listed["old-7"]["metrics"]["loss"]["points"] == 1999
                live = listed["live"]["metrics"]["loss"]
                assert live["last"] == live["last_step"] == live["points"]
            assert live["points"] > last
            last = live["points"]
        writer.send_signal(signal.SIGKILL)
    found, _ = points(tmp_path, "live")
    assert found == [(step, float(step)) for step in range(1, len(found) + 1)]


def test_a_killed_command_leaves_the_index_usable(tmp_path):
    for n in range(40):
        write(tmp_path / f"run-{n:02d}", [(step, 1.0) for step in range(1, 3000)])
    for delay in (0.15, 0.2, 0.25, 0.3):
        with subprocess.Popen([*runs_logdir.COMMAND, "list", f"--logdir={tmp_path}"],
                              stdout=subprocess.DEVNULL) as process:  # fmt: skip
            time.sleep(delay)
            process.kill()
    listed = data(tmp_path, "list")
    assert [run["metrics"]["loss"]["points"] for run in listed] == [2999] * 40
