"""The command doctor: each finding in a logdir that real tools made, none in a healthy one."""

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.plugins.hparams import api

from tests.runs_logdir import (
    COMMAND,
    DATA,
    append,
    data,
    one_sentence,
    recorded,
    runs,
    trained,
    write,
)
from tracker import xplane


def findings(logdir, *arguments):
    done = subprocess.run(
        [*COMMAND, "doctor", "--json", *arguments, f"--logdir={logdir}"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert done.returncode == bool(found) and done.stderr == ""
    for one in found:
        one_sentence(one["cure"] + ".\n")
    return {one["check"]: one for one in found}


def only(logdir, check, text, run="run"):
    """The logdir has this one finding, which names the run and says `text`."""
    found = findings(logdir)
    assert list(found) == [check], found
    assert found[check]["run"] == run and text in found[check]["problem"], found
    return found[check]


def test_healthy_runs_have_none(tmp_path):
    logdir = trained(tmp_path)
    with tf.summary.create_file_writer(str(logdir / "plain")).as_default():
        for step in range(5):
            tf.summary.scalar("loss", np.nan if step else 1.0, step=step)
            tf.summary.histogram("weights", [1.0, step], step=step)
        api.hparams({"seed": 1.0, "model": "x"})
    assert findings(logdir) == {}
    assert runs(logdir, "doctor") == "0 findings in 3 runs\n"


def test_two_writers(tmp_path):
    code = (
        "import sys, time, tensorflow as tf\n"
        "with tf.summary.create_file_writer(sys.argv[1]).as_default():\n"
        "    tf.summary.scalar('loss', 1.0, step=int(sys.argv[2]))\n"
        "    print('ready', flush=True); sys.stdin.readline()\n"
        "    tf.summary.scalar('loss', 1.0, step=int(sys.argv[2]) + 5)\n"
    )
    processes = []
    for step in ("1", "3"):
        command = [sys.executable, "-c", code, str(tmp_path / "run"), step]
        processes.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL)
        )  # fmt: skip
        processes[-1].stdout.readline()
    for process in processes:
        process.communicate(b"\n")
    found = findings(tmp_path)
    assert "written at the same time" in found["two_writers"]["problem"]
    assert set(found) == {"two_writers", "steps_back"}


def test_steps_that_go_back(tmp_path):
    for first in (1, 6):
        with tf.summary.create_file_writer(str(tmp_path / "run")).as_default():
            for step in range(first, first + 10):
                tf.summary.scalar("loss", 1.0, step=step)
        time.sleep(1.1)  # the next file's name is a second later
    only(tmp_path, "steps_back", "The steps of loss go back")


def test_a_tag_of_two_kinds(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path / "run")).as_default():
        tf.summary.scalar("weights", 1.0, step=1)
        tf.summary.histogram("weights", [1.0], step=2)
    only(tmp_path, "two_kinds", "used for scalars and for histograms")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_poisoned_histogram(tmp_path, bad):
    with tf.summary.create_file_writer(str(tmp_path / "run")).as_default():
        tf.summary.histogram("weights", [1.0, 2.0], step=1)
        tf.summary.histogram("weights", [1.0, bad], step=7)
    only(tmp_path, "nan_histogram", "weights has buckets that are not finite from step 7 on")


def test_hyperparameters_of_two_types(tmp_path):
    for name, value in (("a", 0.1), ("run", "none")):
        with tf.summary.create_file_writer(str(tmp_path / name)).as_default():
            api.hparams({"rate": value, "batch": 32})
            tf.summary.scalar("loss", 1.0, step=1)
    only(tmp_path, "hparams_types", "rate is text here and number in a")


def test_captures(tmp_path):
    path = recorded(tmp_path, "run")
    capture = path / "train" / "plugins" / "profile" / "2026_01_02_03_04_05"
    capture.mkdir(parents=True)
    only(tmp_path, "capture", "holds no .xplane.pb file")
    whole = gzip.decompress((DATA / "gpu.xplane.pb.gz").read_bytes())
    (capture / "host.xplane.pb").write_bytes(whole)
    assert findings(tmp_path) == {}
    (capture / "host.xplane.pb").write_bytes(whole[:-1000])
    only(tmp_path, "capture", "is truncated or not a capture")
    space = xplane.XSpace.FromString(whole)
    for plane in space.planes:
        if plane.name.startswith("/device:"):
            del plane.lines[:]  # what a GPU leaves whose counters are not allowed
    (capture / "host.xplane.pb").write_bytes(space.SerializeToString())
    found = only(tmp_path, "no_device_events", "of a GPU but holds no event of it")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found["cure"]


def test_corrupt_and_torn_records_with_their_places(tmp_path):
    path = write(tmp_path / "run", [(step, 1.0) for step in range(1, 5)])
    good, size = path.read_bytes(), path.stat().st_size
    append(path, (5, 1.0))
    record = path.stat().st_size - size
    path.write_bytes(good + path.read_bytes()[size:-3])
    assert findings(tmp_path) == {}  # it may still be written to
    os.utime(path, (time.time() - 100,) * 2)
    only(tmp_path, "truncated", f"at byte {size}, {record - 3} bytes long")
    flipped = bytearray(good)
    flipped[-5] ^= 1
    path.write_bytes(bytes(flipped))
    only(tmp_path, "corrupt", f"is corrupt at byte {size - record}: the checksum of a record")
    flipped = bytearray(good)
    flipped[-record + 1] ^= 1
    path.write_bytes(bytes(flipped))
    only(tmp_path, "corrupt", "All that follows is out of reach")


def test_stale_runs_and_damaged_records(tmp_path):
    code = (
        "import sys; from tracker import rundir; from tracker.record import Record\n"
        "Record.create(rundir.claim(sys.argv[1], 'run'), [], {}, {}); print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert findings(tmp_path) == {}
        process.send_signal(signal.SIGKILL)
    only(tmp_path, "stale", f"its process {process.pid} is dead")
    (tmp_path / "run" / "run.json").write_text("{")
    only(tmp_path, "record", "cannot be read")


def test_an_index_that_disagrees_with_the_disk(tmp_path):
    write(tmp_path / "run", [(1, 1.0), (2, 2.0)])
    runs(tmp_path, "list")
    with sqlite3.connect(tmp_path / ".tracker" / "index.sqlite3") as index:
        index.execute("UPDATE series SET points = 7")
    index.close()
    only(tmp_path, "index", "says something else")


def test_a_plugin_that_cannot_be_imported_and_versions_that_do_not_fit(tmp_path):
    packages = tmp_path / "packages"
    for name, version, more in (
        ("broken-plugin", "1.0", "[tensorboard_plugins]\nbroken = broken_plugin\n"),
        ("tensorboard", "1.15.0", ""),
    ):
        folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        (folder / "entry_points.txt").write_text(more)
    (packages / "broken_plugin.py").write_text("import not_installed\n")
    write(tmp_path / "logdir" / "run", [(1, 1.0)])
    done = subprocess.run(
        [*COMMAND, "doctor", "--json", f"--logdir={tmp_path / 'logdir'}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(packages)},
    )
    found = {one["check"]: one["problem"] for one in json.loads(done.stdout)}
    assert "broken cannot be imported: ModuleNotFoundError" in found["plugin"]
    assert found["versions"].startswith("tensorboard is 1.15.0 but tensorflow is 2.")


def test_it_is_one_line_a_finding_and_needs_no_flags(tmp_path):
    path = write(tmp_path / "a\x1b[2Jb", [(1, 1.0)])
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    done = subprocess.run([*COMMAND, "doctor", f"--logdir={tmp_path}"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and lines[-1] == "1 finding in 1 run" and "\x1b" not in done.stdout
    assert data(tmp_path, "list")[0]["step"] is None
