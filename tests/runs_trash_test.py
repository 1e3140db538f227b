"""The commands trash, restore, purge and rename: nothing is lost, and nothing runs away."""

import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tensorboard.backend.event_processing import io_wrapper

from tests.runs_logdir import COMMAND, data, recorded, runs, trained, write
from tracker import rundir
from tracker.record import read


def content(directory):
    """Every file below a directory but the index, and its bytes."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(pathlib.Path(directory).rglob("*"))
        if path.is_file() and ".tracker" not in path.relative_to(directory).parts
    }


def names(logdir):
    return [run["name"] for run in data(logdir, "list")]


def shown_by_tensorboard(logdir):
    return [d for d, files in io_wrapper.ListRecursivelyViaWalking(str(logdir))
            if any(io_wrapper.IsTensorFlowEventsFile(file) for file in files)]  # fmt: skip


def test_trash_and_restore_give_back_every_byte(tmp_path):
    logdir = trained(tmp_path)
    before = content(logdir)
    assert runs(logdir, "trash", "beta") == "beta/one is in the trash\n"
    assert names(logdir) == ["alpha"] and not (logdir / "beta").exists()
    assert not any("beta" in directory for directory in shown_by_tensorboard(logdir))
    assert (logdir / ".tracker-trash" / "beta" / "one" / "run.json").exists()
    [trashed] = data(logdir, "trash", "--list")
    assert trashed["name"] == "beta/one" and trashed["bytes"] > 10_000 and trashed["trashed"]
    runs(logdir, "restore", "bet")
    assert content(logdir) == before and names(logdir) == ["alpha", "beta/one"]
    assert data(logdir, "trash", "--list") == []


def test_runs_of_one_name_can_all_be_trashed_and_come_back_under_others(tmp_path):
    for n in range(3):
        recorded(tmp_path, "a", scalars=[(1, float(n))])
        runs(tmp_path, "trash", "a")
    assert [t["trash"] for t in data(tmp_path, "trash", "--list")] == ["a", "a~2", "a~3"]
    runs(tmp_path, "restore", "a~2")
    assert data(tmp_path, "list")[0]["metrics"]["loss"]["last"] == 1.0
    assert "There is already" in runs(tmp_path, "restore", "a~3", status=2)
    runs(tmp_path, "restore", "a~3", "--name=b")
    assert [r["metrics"]["loss"]["last"] for r in data(tmp_path, "list")] == [1.0, 2.0]
    assert "no run 'x' in the trash, which holds a" in runs(tmp_path, "restore", "x", status=2)


def test_a_restore_that_was_killed_half_way_can_be_repeated(tmp_path):
    path = recorded(tmp_path, "a")
    before = content(path)
    runs(tmp_path, "trash", "a")
    [hidden] = (tmp_path / ".tracker-trash").rglob("*tf-trashed-events*")
    hidden.rename(hidden.with_name(hidden.name.replace("tf-trashed-events", "tfevents")))
    runs(tmp_path, "restore", "a")
    assert content(path) == before


def test_trash_by_filter(tmp_path):
    recorded(tmp_path, "a", status="failed")
    recorded(tmp_path, "b")
    assert data(tmp_path, "trash", "--where", "status = 'failed'") == [
        {"name": "a", "trashed": "a"}
    ]
    assert names(tmp_path) == ["b"]
    assert runs(tmp_path, "trash", "--where", "status = 'failed'") == "No run was chosen.\n"
    assert "Name the runs" in runs(tmp_path, "trash", status=2)


OWNER = """
import sys
from tracker import rundir
from tracker.record import Record
Record.create(rundir.claim(sys.argv[1], "live"), [], {}, {})
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_run_that_is_going_on_stays(tmp_path):
    """Case I3."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        owner.stdout.readline()
        for command in (("trash", "live", "--force"), ("rename", "live", "x")):
            assert f"still running, as process {owner.pid}" in runs(tmp_path, *command, status=2)
        owner.send_signal(signal.SIGKILL)
    runs(tmp_path, "trash", "live")
    path = recorded(tmp_path, "elsewhere", status="running")
    record = json.loads((path / "run.json").read_text())
    record["owner"]["host"] = "another host"
    (path / "run.json").write_text(json.dumps(record))
    assert "may be running" in runs(tmp_path, "trash", "elsewhere", status=2)
    runs(tmp_path, "trash", "elsewhere", "--force")


def test_runs_of_others_that_were_just_written_stay(tmp_path):
    path = write(tmp_path / "foreign", [(1, 1.0)])
    assert "may be going on" in runs(tmp_path, "trash", "foreign", status=2)
    os.utime(path, (time.time() - 100,) * 2)
    runs(tmp_path, "trash", "foreign")
    runs(tmp_path, "restore", "foreign")
    assert names(tmp_path) == ["foreign"]


def test_directories_that_are_not_a_runs_own_stay(tmp_path):
    write(tmp_path / "logdir" / "outer", [(1, 1.0)])
    write(tmp_path / "logdir" / "outer" / "inner", [(1, 1.0)])
    write(tmp_path / "logdir", [(1, 1.0)])
    recorded(tmp_path / "elsewhere", "real")
    (tmp_path / "logdir" / "link").symlink_to(tmp_path / "elsewhere" / "real")
    before = content(tmp_path)
    for name, why in (
        ("outer", "holds the run outer/inner"),
        (".", "is the logdir itself"),
        ("link", "is a link to"),
    ):
        assert why in runs(tmp_path / "logdir", "trash", name, "--force", status=2)
        assert why in runs(tmp_path / "logdir", "rename", name, "new", "--force", status=2)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a:b", "", "..", "x/../../y", ".x", "b", "b/c"])
def test_names_cannot_leave_the_logdir(name, tmp_path):
    """Cases J1 and RUNS 7."""
    logdir = tmp_path / "logdir"
    recorded(logdir, "a")
    recorded(logdir, "b")
    runs(logdir, "trash", "a")
    before = content(tmp_path)
    runs(logdir, "rename", "b", name, status=2)
    if name:
        runs(logdir, "restore", "a", f"--name={name}", status=2)
    assert content(tmp_path) == before


def test_rename_moves_everything_and_keeps_notes(tmp_path):
    logdir = trained(tmp_path)
    runs(logdir, "note", "beta", "kept")
    assert runs(logdir, "rename", "beta", "x/best one") == "beta/one is now x/best one\n"
    assert names(logdir) == ["alpha", "x/best one"] and not (logdir / "beta").exists()
    assert data(logdir, "note", "x")["note"] == "kept"
    run = rundir.find(logdir, "x/best one")
    assert read(run)["name"] == "x/best one" and read(run)["status"] == "completed"
    runs(logdir, "rename", "alpha", "alpha/below", status=2)


def test_purge_deletes_the_trash_alone_and_asks(tmp_path):
    for name in ("a", "b", "kept"):
        recorded(tmp_path, name)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    (tmp_path / "a" / "link").symlink_to(outside)
    runs(tmp_path, "trash", "a", "b")
    assert "say --yes" in runs(tmp_path, "purge", status=2)
    assert "say --yes" in runs(tmp_path, "purge", "--json", status=2)
    command = [*COMMAND, "purge", f"--logdir={tmp_path}"]
    for answer, status in ((b"no\n", 1), (b"\n", 1)):
        main, terminal = pty.openpty()
        os.write(main, answer)
        done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, check=False)
        assert done.returncode == status and "Nothing was deleted" in done.stdout
        os.close(main)
        os.close(terminal)
    assert len(data(tmp_path, "trash", "--list")) == 2
    assert data(tmp_path, "purge", "b", "--yes")["deleted"] == ["b"]
    runs(tmp_path, "restore", "a")
    runs(tmp_path, "trash", "a")
    main, terminal = pty.openpty()
    os.write(main, b"yes\n")
    done = subprocess.run(command, stdin=terminal, capture_output=True, text=True, check=True)
    assert "1 run deleted" in done.stdout
    assert data(tmp_path, "trash", "--list") == [] and names(tmp_path) == ["kept"]
    assert (outside / "file").read_text() == "kept"


def test_a_full_disk_loses_nothing(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], check=True)
    try:
        path = recorded(disk, "run")
        with (
            open(disk / "filler", "wb", buffering=0) as filler,
            pytest.raises(OSError, match="space"),
        ):
            while True:
                filler.write(bytes(4096))
        before = content(disk)
        done = subprocess.run(
            [*COMMAND, "list", "--json", f"--logdir={disk}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout)[0]["metrics"]["loss"]["last"] == 0.5
        assert done.stderr.count("\n") == 1 and "disk is full" in done.stderr
        for command in (("note", "run", "hello"), ("trash", "run")):
            done = subprocess.run(
                [*COMMAND, *command, f"--logdir={disk}"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 1 and "No space left" in done.stderr
            assert content(disk) == before
        os.unlink(disk / "filler")
        runs(disk, "trash", "run")
        runs(disk, "restore", "run")
        assert path.exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    shutil.rmtree(disk)
