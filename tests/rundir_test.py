"""Run directories: names, paths, claims by real processes, and finding runs again."""

import pathlib
import subprocess
import sys
import time

import pytest
from etils import epath

from tracker import rundir
from tracker.record import Record, read

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
    Record.create(run, [], {}, {})
    assert run.path.is_dir() and run.name == name
    assert rundir.find(tmp_path, name) == run
    assert read(run)["name"] == name


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
    Record.create(run, [], {}, {})
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
    Record.create(rundir.claim(tmp_path, "a/b"), [], {}, {})
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
        Record.create(rundir.claim(tmp_path, name), [], {}, {})
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
    Record.create(rundir.claim(tmp_path / "a", "run"), [], {}, {})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a" / "run")
    assert rundir.find(tmp_path / "b", "latest").name == "link"


def test_run_directories_need_no_tensorflow():
    code = (
        "import sys; from tracker import record, rundir, source; print('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
