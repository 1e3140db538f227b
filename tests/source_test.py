"""The state of the source code in real git repositories, without git, and with one that hangs."""

import subprocess
import time

from tracker import rundir, source
from tracker.record import Record


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
        git = Record.create(run, [], {}, {}).fields["git"]
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
    assert git["dirty"] is True and len(diff) < source.DIFF_BYTES + 100
    assert diff.endswith(b"# cut at 10000000 bytes; the rest is not kept\n")
    _git("checkout", "-f", "--detach")
    assert state("detached")[0]["branch"] is None


def test_no_git_and_a_git_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    first = Record.create(rundir.claim(tmp_path / "logdir", "a"), [], {}, {})
    assert first.fields["git"] is None
    (tmp_path / "git").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setattr(source, "GIT_SECONDS", 0.5)
    began = time.monotonic()
    second = Record.create(rundir.claim(tmp_path / "logdir", "b"), [], {}, {})
    assert second.fields["git"] is None and time.monotonic() - began < 5
