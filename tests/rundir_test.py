"""Run directories: names, claims by real processes, records, git states and dead owners."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from etils import epath

from tracker import rundir

ALLOWED = [
    *("a b", "lr=1e+3", "Größe-模型", "x/y", "it's", "a,b", "a.b", "x" * 255, "latest", "CONx"),
    *("a%20b", "a&b#c", "é" * 127, "train", "a'$(rm -r x)'"),
]
REFUSED = {
    "10:30": "':'",
    "": "empty",
    ".": "'.' or '..'",
    "..": "'.' or '..'",
    "a/../b": "'.' or '..'",
    "../a": "'.' or '..'",
    "/a": "absolute",
    "a//b": "empty part",
    "a/": "empty part",
    ".hidden": "hide",
    "-rf": "flag",
    "a/-b": "flag",
    "a\0b": "control",
    "a\nb": "control",
    "a\x1b[31m": "control",
    "a\udc80": "unencodable",
    " a": "space",
    "a\\b": "'\\\\'",
    "a?": "'?'",
    "*": "'*'",
    "<a": "'<'",
    "a>": "'>'",
    "a|b": "'|'",
    'a"b': "'\"'",
    "CON": "Windows",
    "a/nul.txt": "Windows",
    "x" * 300: "255 bytes",
    "é" * 128: "255 bytes",
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_names_are_made_found_and_listed_as_they_stand(name, tmp_path):
    run = rundir.claim(tmp_path, name)
    rundir.Record.create(run, [], {}, {})
    assert run.path.is_dir() and run.name == name
    assert rundir.find(tmp_path, name) == run
    assert rundir.read(run)["name"] == name


@pytest.mark.parametrize("name", REFUSED)
def test_refused_names_say_why_in_one_sentence_and_leave_nothing(name, tmp_path):
    with pytest.raises(ValueError) as caught:
        rundir.claim(tmp_path / "logdir", name)
    message = str(caught.value)
    assert REFUSED[name] in message and "\n" not in message and message.endswith("--run.")
    assert not list(tmp_path.iterdir())


def test_paths(tmp_path):
    run = rundir.RunDir(epath.Path(tmp_path) / "x" / "y", epath.Path(tmp_path))
    below = {
        p: getattr(run, p).relative_to(run.path).as_posix()
        for p in dir(rundir.RunDir)
        if isinstance(getattr(rundir.RunDir, p), property) and p != "name"
    }
    assert below == {
        "train": "train",
        "validation": "validation",
        "checkpoints": "checkpoints",
        "orphaned": "orphaned",
        "run_json": "run.json",
        "flags_txt": "flags.txt",
        "source_diff": "source.diff",
        "console_log": "console.log",
        "model_keras": "model.keras",
    }
    assert run.name == "x/y" and run.workers(3).relative_to(run.path).as_posix() == "workers/3"


def test_an_existing_run_is_not_claimed_again_and_the_message_says_resume(tmp_path):
    run = rundir.claim(tmp_path, "a")
    with pytest.raises(rundir.RunExistsError, match="holds no run"):
        rundir.claim(tmp_path, "a")
    rundir.Record.create(run, [], {}, {})
    with pytest.raises(
        rundir.RunExistsError, match=r"--resume=a or choose another name with --run"
    ):
        rundir.claim(tmp_path, "a")


def test_a_file_or_a_dangling_link_in_the_place_of_a_run_counts_as_taken(tmp_path):
    (tmp_path / "a").write_text("")
    (tmp_path / "b").symlink_to(tmp_path / "nowhere")
    for name in "ab":
        with pytest.raises(rundir.RunExistsError):
            rundir.claim(tmp_path, name)


def test_a_run_inside_a_run_is_refused(tmp_path):
    rundir.Record.create(rundir.claim(tmp_path, "a/b"), [], {}, {})
    rundir.claim(tmp_path, "a/c")
    with pytest.raises(ValueError, match="inside the run a/b"):
        rundir.claim(tmp_path, "a/b/c/d")
    with pytest.raises(ValueError, match="is itself a run"):
        rundir.claim(tmp_path / "a" / "b", "x")
    assert not (tmp_path / "a" / "b" / "c").exists()


def test_automatic_names_get_numbers_within_one_second(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda _: "20260102-030405")
    names = [rundir.claim(tmp_path, default="mlp").name for _ in range(3)]
    assert names == [f"20260102-030405-mlp{end}" for end in ("", "-2", "-3")]


CLAIM = """
import sys
from tracker import rundir
sys.stdin.readline()
try:
    print(rundir.claim(sys.argv[1], sys.argv[2] or None).name)
except rundir.RunExistsError:
    print('taken')
"""


def _race(logdir, name, count=6):
    command = [sys.executable, "-c", CLAIM, str(logdir), name]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    time.sleep(1.5)  # all are past their imports and wait at the line
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    return [racer.communicate()[0].strip() for racer in racers]


def test_of_processes_that_claim_one_name_at_once_one_gets_it(tmp_path):
    assert sorted(_race(tmp_path / "new", "x/same")) == ["taken"] * 5 + ["x/same"]


def test_processes_without_a_name_get_one_run_each(tmp_path):
    names = _race(tmp_path / "new", "")
    assert len(set(names)) == 6 and {n[:9] for n in names} == {time.strftime("%Y%m%d-")}


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rundir.check_logdir("~/runs") == epath.Path(tmp_path) / "runs"
    assert rundir.claim("~/runs", "a").path == epath.Path(tmp_path) / "runs" / "a"


def test_a_logdir_that_is_a_file_or_below_one_or_empty(tmp_path):
    (tmp_path / "file").write_text("kept")
    for logdir in (tmp_path / "file", tmp_path / "file" / "below"):
        for act in (rundir.check_logdir, rundir.claim):
            with pytest.raises(ValueError, match=r"file is not a directory\.$"):
                act(logdir)
    for logdir in ("", "a\0b"):
        with pytest.raises(ValueError, match="logdir"):
            rundir.check_logdir(logdir)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_check_logdir_makes_nothing(tmp_path):
    rundir.check_logdir(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())


def test_a_logdir_without_permission_is_refused_before_anything_exists(tmp_path):
    logdir = tmp_path / "locked"
    logdir.mkdir(mode=0o555)
    code = (
        "import os, sys\n"
        "from tracker import rundir\n"
        "os.getuid() or os.setuid(65534)\n"  # root may write anywhere, so become nobody
        "rundir.claim(sys.argv[1] + '/new', 'a')\n"
    )
    for parent in (*logdir.parents, logdir):
        if parent.is_relative_to("/tmp") and parent != pathlib.Path("/tmp"):
            parent.chmod(0o555 if parent == logdir else 0o755)
    command = [sys.executable, "-c", code, str(logdir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"ValueError: The logdir {logdir}/new is not writable: no permission in {logdir}."
    )
    assert not list(logdir.iterdir())


def test_parents_made_for_a_claim_that_fails_are_taken_back(tmp_path):
    name = "/".join(["x" * 250] * 20)  # longer than a path may be
    with pytest.raises(ValueError, match="cannot be made"):
        rundir.claim(tmp_path / "new", name)
    assert not list(tmp_path.iterdir())


def test_find_by_name_prefix_and_latest(tmp_path):
    for name in ("beta", "alpha-2", "alpha", "x/gamma"):
        rundir.Record.create(rundir.claim(tmp_path, name), [], {}, {})
    (tmp_path / "no run").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / ".tracker-trash" / "old").mkdir(parents=True)
    (tmp_path / ".tracker-trash" / "old" / "run.json").write_text("{}")
    assert [r.name for r in rundir.runs(tmp_path)] == ["alpha", "alpha-2", "beta", "x/gamma"]
    found = {n: rundir.find(tmp_path, n).name for n in ("alpha", "alpha-", "b", "x/", "latest")}
    assert list(found.values()) == ["alpha", "alpha-2", "beta", "x/gamma", "x/gamma"]
    with pytest.raises(ValueError, match=r"several runs: alpha, alpha-2\.$"):
        rundir.find(tmp_path, "al")
    for name in ("nope", "", "no run", ".."):
        with pytest.raises(ValueError, match=r"there are alpha, alpha-2, beta, x/gamma\.$"):
            rundir.find(tmp_path, name)
    with pytest.raises(ValueError, match="no run in"):
        rundir.find(tmp_path / "nowhere", "latest")


def test_a_linked_run_is_found(tmp_path):
    rundir.Record.create(rundir.claim(tmp_path / "a", "run"), [], {}, {})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a" / "run")
    assert rundir.find(tmp_path / "b", "latest").name == "link"


def test_a_record_is_complete_and_json(tmp_path):
    run = rundir.claim(tmp_path, "a")
    flags = {"stddevs": (0, 0.1), "seed": np.int64(3), "rate": np.float32(0.5), "path": tmp_path}
    record = rundir.Record.create(run, ["main.py", "--x=\udc80"], flags, {"devices": ["CPU"]})
    record.update(results={"loss": float("nan"), "best": np.array([1.0, np.inf])}, note="模型")
    text = run.run_json.read_text()
    fields = json.loads(text, parse_constant=pytest.fail)
    assert fields == rundir.read(run) == record.fields
    assert "模型" in text and fields["argv"] == ["main.py", "--x=\udc80"]
    assert fields["flags"] == {"stddevs": [0, 0.1], "seed": 3, "rate": 0.5, "path": str(tmp_path)}
    assert fields["results"] == {"loss": "NaN", "best": [1.0, "Infinity"]}
    assert fields["format"] == 1 and fields["status"] == "running" and fields["devices"] == ["CPU"]
    assert fields["created"].endswith("+00:00") and fields["packages"]["tensorflow"]
    assert fields["owner"]["pid"] == os.getpid() and fields["host"] == socket.gethostname()
    [attempt] = fields["attempts"]
    assert (attempt["status"], attempt["first_step"], attempt["ended"]) == ("running", 1, None)
    record.finish("diverged", last_step=7, results={})
    [attempt] = rundir.read(run)["attempts"]
    assert rundir.status(record.fields) == attempt["status"] == "diverged"
    assert attempt["last_step"] == 7 and attempt["ended"] >= attempt["started"]
    assert {p.name for p in run.path.iterdir()} <= {"run.json", "source.diff"}


def test_a_record_refuses_wrong_fields_and_statuses(tmp_path):
    run = rundir.claim(tmp_path, "a")
    with pytest.raises(ValueError, match="sets owner, status itself"):
        rundir.Record.create(run, [], {}, {"status": "x", "owner": 1, "fine": 2})
    assert not list(run.path.iterdir())
    with pytest.raises(ValueError, match="not as 'done'"):
        rundir.Record.create(run, [], {}, {}).finish("done")


def test_what_others_add_to_the_record_stays(tmp_path):
    run = rundir.claim(tmp_path, "a")
    record = rundir.Record.create(run, [], {}, {})
    run.run_json.write_text(json.dumps({**rundir.read(run), "note": "good one"}))
    record.update(results={"loss": 1.0})
    assert rundir.read(run)["note"] == "good one" and rundir.read(run)["results"] == {"loss": 1.0}
    run.run_json.write_text("{ damaged")
    record.finish("completed")
    assert rundir.read(run)["note"] == "good one" and rundir.read(run)["status"] == "completed"


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
    with pytest.raises(rundir.RecordError, match=why) as caught:
        rundir.read(run)
    assert "\n" not in str(caught.value) and str(run.path) in str(caught.value)


def test_a_deleted_or_replaced_run_is_noticed(tmp_path):
    run = rundir.claim(tmp_path, "a")
    record = rundir.Record.create(run, [], {}, {})
    run.run_json.unlink()
    with pytest.raises(rundir.RunVanishedError, match="was deleted"):
        record.update(results={})
    run.path.rmdir() if not run.source_diff.exists() else run.path.rmtree()
    with pytest.raises(rundir.RunVanishedError, match="was deleted"):
        record.finish("completed")
    assert not run.path.exists()
    again = rundir.claim(tmp_path, "a")
    with pytest.raises(rundir.RunVanishedError):
        record.update(results={})
    new = rundir.Record.create(again, [], {}, {})
    with pytest.raises(rundir.RunVanishedError, match="taken over"):
        record.update(results={"loss": 1})
    assert rundir.read(again) == new.fields


def test_readers_never_see_half_a_record(tmp_path):
    run = rundir.claim(tmp_path, "a")
    record = rundir.Record.create(run, [], {}, {})
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
run = rundir.claim(sys.argv[1], 'a')
rundir.Record.create(run, sys.argv, {}, {})
print('ready', flush=True)
time.sleep(60)
"""


def test_a_living_run_is_running_a_killed_one_stale_and_resumable(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    run = rundir.find(tmp_path, "a")
    record = rundir.read(run)
    assert rundir.alive(record["owner"]) is True and rundir.status(record) == "running"
    with pytest.raises(ValueError, match=f"still running, as process {child.pid} on"):
        rundir.Record.resume(run, first_step=11)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, not yet reaped
    assert rundir.alive(record["owner"]) is False
    child.communicate()
    assert rundir.alive(record["owner"]) is False and rundir.status(record) == "stale"
    resumed = rundir.Record.resume(run, first_step=11)
    resumed.finish("completed", last_step=20)
    first, second = rundir.read(run)["attempts"]
    assert (first["status"], first["owner"]["pid"]) == ("stale", child.pid)
    assert (second["status"], second["first_step"], second["last_step"]) == ("completed", 11, 20)


def test_another_process_under_the_same_number_is_not_the_owner():
    me = rundir.owner()
    assert rundir.alive(me) is True
    assert rundir.alive({**me, "start_time": me["start_time"] - 100}) is False
    assert rundir.alive({**me, "boot_id": "another boot"}) is False
    assert rundir.alive({**me, "host": "another host"}) is None
    assert rundir.status({"status": "running", "owner": {**me, "host": "other"}}) == "running"


def _git(*arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_git_states(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    work = tmp_path / "work"
    (work / "below").mkdir(parents=True)
    monkeypatch.chdir(work / "below")

    def state(name):
        run = rundir.claim(tmp_path / "logdir", name)
        git = rundir.Record.create(run, [], {}, {}).fields["git"]
        return git, run.source_diff.read_bytes() if run.source_diff.exists() else None

    assert state("no repository") == (None, None)
    _git("init", "-b", "main", "..")
    git, _ = state("no commit")
    assert (git["commit"], git["branch"], git["dirty"]) == (None, "main", None)
    (work / "a.py").write_text("one\n")
    _git("add", "../a.py")
    _git("commit", "-m", "x")
    git, diff = state("clean")
    assert len(git["commit"]) == 40 and git["dirty"] is False and diff is None
    (work / "a.py").write_text("two\n")
    (work / "b.bin").write_bytes(bytes(range(256)))
    _git("add", "../b.bin")
    (work / "größe.py").write_text("secret")
    git, diff = state("dirty")
    assert git["dirty"] is True and git["diff"] == "source.diff"
    assert "# untracked: größe.py\n" in diff.decode() and b"secret" not in diff
    _git("stash")
    _git("-C", "..", "apply", str(tmp_path / "logdir" / "dirty" / "source.diff"))
    assert (work / "a.py").read_text() == "two\n"
    assert (work / "b.bin").read_bytes() == bytes(range(256))
    (work / "a.py").write_text("long line\n" * 2 * 10**6)
    git, diff = state("huge")
    assert git["dirty"] is True and len(diff) < rundir.DIFF_BYTES + 100
    assert diff.endswith(b"# cut at 10000000 bytes; the rest is not kept\n")
    _git("checkout", "-f", "--detach")
    assert state("detached")[0]["branch"] is None


def test_no_git_and_a_git_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    first = rundir.Record.create(rundir.claim(tmp_path / "logdir", "a"), [], {}, {})
    assert first.fields["git"] is None
    (tmp_path / "git").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setattr(rundir, "GIT_SECONDS", 0.5)
    began = time.monotonic()
    second = rundir.Record.create(rundir.claim(tmp_path / "logdir", "b"), [], {}, {})
    assert second.fields["git"] is None and time.monotonic() - began < 5


def test_rundir_imports_no_tensorflow():
    code = "import sys; from tracker import rundir; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
