"""The record of a run: complete, whole at any moment, and true about dead owners."""

import json
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from tracker import rundir
from tracker.record import Record, RecordError, RunVanishedError, alive, owner, read, status


def test_a_record_is_complete_and_json(tmp_path):
    run = rundir.claim(tmp_path, "a")
    flags = {"stddevs": (0, 0.1), "seed": np.int64(3), "rate": np.float32(0.5), "path": tmp_path}
    record = Record.create(run, ["main.py", "--x=\udc80"], flags, {"devices": ["CPU"]})
    record.update(results={"loss": float("nan"), "best": np.array([1.0, np.inf])}, note="模型")
    text = run.run_json.read_text()
    fields = json.loads(text, parse_constant=pytest.fail)
    assert fields == read(run) == record.fields
    assert "模型" in text and fields["argv"] == ["main.py", "--x=\udc80"]
    assert fields["flags"] == {"stddevs": [0, 0.1], "seed": 3, "rate": 0.5, "path": str(tmp_path)}
    assert fields["results"] == {"loss": "NaN", "best": [1.0, "Infinity"]}
    assert fields["format"] == 1 and fields["status"] == "running" and fields["devices"] == ["CPU"]
    assert fields["created"].endswith("+00:00") and fields["packages"]["tensorflow"]
    assert fields["owner"]["pid"] == os.getpid() and fields["host"] == socket.gethostname()
    [attempt] = fields["attempts"]
    assert (attempt["status"], attempt["first_step"], attempt["ended"]) == ("running", 1, None)
    record.finish("diverged", last_step=7, results={})
    [attempt] = read(run)["attempts"]
    assert status(record.fields) == attempt["status"] == "diverged"
    assert attempt["last_step"] == 7 and attempt["ended"] >= attempt["started"]
    assert {p.name for p in run.path.iterdir()} <= {"run.json", "source.diff"}


def test_a_record_refuses_wrong_fields_and_statuses(tmp_path):
    run = rundir.claim(tmp_path, "a")
    with pytest.raises(ValueError, match="sets owner, status itself"):
        Record.create(run, [], {}, {"status": "x", "owner": 1, "fine": 2})
    assert not list(run.path.iterdir())
    with pytest.raises(ValueError, match="not as 'done'"):
        Record.create(run, [], {}, {}).finish("done")


def test_what_others_add_to_the_record_stays(tmp_path):
    run = rundir.claim(tmp_path, "a")
    record = Record.create(run, [], {}, {})
    run.run_json.write_text(json.dumps({**read(run), "note": "good one"}))
    record.update(results={"loss": 1.0})
    assert read(run)["note"] == "good one" and read(run)["results"] == {"loss": 1.0}
    run.run_json.write_text("{ damaged")
    record.finish("completed")
    assert read(run)["note"] == "good one" and read(run)["status"] == "completed"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "not the record"),
        ("{}", "not the record"),
        ('{"format": 2}', "newer version"),
        ('{"format": 1, "created": "", "status": "failed"}', "lacks owner, attempts"),
        (None, "no run.json"),
    ],
)
def test_an_unreadable_record_is_one_sentence(content, why, tmp_path):
    run = rundir.claim(tmp_path, "a")
    if content is not None:
        run.run_json.write_text(content)
    with pytest.raises(RecordError, match=why) as caught:
        read(run)
    assert "\n" not in str(caught.value) and str(run.path) in str(caught.value)


def test_a_deleted_or_replaced_run_is_noticed(tmp_path):
    run = rundir.claim(tmp_path, "a")
    record = Record.create(run, [], {}, {})
    run.run_json.unlink()
    with pytest.raises(RunVanishedError, match="was deleted"):
        record.update(results={})
    run.path.rmdir() if not run.source_diff.exists() else run.path.rmtree()
    with pytest.raises(RunVanishedError, match="was deleted"):
        record.finish("completed")
    assert not run.path.exists()
    again = rundir.claim(tmp_path, "a")
    with pytest.raises(RunVanishedError):
        record.update(results={})
    new = Record.create(again, [], {}, {})
    with pytest.raises(RunVanishedError, match="taken over"):
        record.update(results={"loss": 1})
    assert read(again) == new.fields


def test_readers_never_see_half_a_record(tmp_path):
    run = rundir.claim(tmp_path, "a")
    record = Record.create(run, [], {}, {})
    code = (
        "import json, sys\n"
        "print('ready', flush=True)\n"
        "while 'stop' not in json.load(open(sys.argv[1])): pass\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run.run_json)], stdout=subprocess.PIPE
    ) as reader:
        reader.stdout.readline()
        for n in range(200):
            record.update(results={str(i): i for i in range(n * 20)})
        record.update(stop=True)
    assert reader.returncode == 0


OWNER = """
import sys, time
from tracker import rundir
from tracker.record import Record
run = rundir.claim(sys.argv[1], 'a')
Record.create(run, sys.argv, {}, {})
print('ready', flush=True)
time.sleep(60)
"""


def test_a_living_run_is_running_a_killed_one_stale_and_resumable(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    run = rundir.find(tmp_path, "a")
    record = read(run)
    assert alive(record["owner"]) is True and status(record) == "running"
    with pytest.raises(ValueError, match=f"still running, as process {child.pid} on"):
        Record.resume(run, first_step=11)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, not yet reaped
    assert alive(record["owner"]) is False
    child.communicate()
    assert alive(record["owner"]) is False and status(record) == "stale"
    resumed = Record.resume(run, first_step=11)
    resumed.finish("completed", last_step=20)
    first, second = read(run)["attempts"]
    assert (first["status"], first["owner"]["pid"]) == ("stale", child.pid)
    assert (second["status"], second["first_step"], second["last_step"]) == ("completed", 11, 20)


def test_another_process_under_the_same_number_is_not_the_owner():
    me = owner()
    assert alive(me) is True
    assert alive({**me, "start_time": me["start_time"] - 100}) is False
    assert alive({**me, "boot_id": "another boot"}) is False
    assert alive({**me, "host": "another host"}) is None
    assert status({"status": "running", "owner": {**me, "host": "other"}}) == "running"
