"""The state of the source code that a run is made from: git's commit, and what it lacks.

Never the reason that a run fails or waits: without git, or with one that hangs, there is no state.

    >>> git, diff = state()
    >>> git['commit'], git['dirty'], len(diff)
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from typing import Any

DIFF_BYTES = 10 * 10**6
GIT_SECONDS = 10.0


def state() -> tuple[dict[str, Any] | None, bytes]:
    """The repository that the current directory is in, and what it does not have.

    Returns:
      (git, diff): git is None outside of a repository and where git is missing or hangs, else
      {commit, branch, dirty, diff}, each None where unknown or none; diff is the text of
      source.diff, which `git apply` takes: the changes since the commit, at most `DIFF_BYTES` of
      them, below the names of the files that git does not know. Contents of those are not read.
    """
    deadline = time.monotonic() + GIT_SECONDS
    commit = _git(deadline, "rev-parse", "--verify", "HEAD")
    if commit is None and _git(deadline, "rev-parse", "--git-dir") is None:
        return None, b""
    branch = _git(deadline, "symbolic-ref", "--short", "-q", "HEAD")
    diff = _git(deadline, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv")
    listing = "ls-files --others --exclude-standard --directory --no-empty-directory --full-name -z"
    untracked = _git(deadline, *listing.split(), "--", ":/") or b""
    names = b"".join(b"# untracked: %s\n" % name for name in untracked.split(b"\0") if name)
    text = names[:DIFF_BYTES] + (diff or b"")
    if len(text) > DIFF_BYTES:
        text = text[:DIFF_BYTES] + b"\n# cut at %d bytes; the rest is not kept\n" % DIFF_BYTES
    state = {
        "commit": None if commit is None else commit.decode().strip(),
        "branch": None if branch is None else branch.decode("utf-8", "replace").strip(),
        "dirty": None if diff is None else bool(diff),
        "diff": "source.diff" if text else None,
    }
    return state, text


def _git(deadline: float, *arguments: str) -> bytes | None:
    """What a git command prints, at most a little past the bound; None if it fails or hangs."""
    seconds = deadline - time.monotonic()
    with tempfile.TemporaryFile() as output:  # a diff may be larger than memory
        try:
            subprocess.run(
                ["git", "-c", "color.ui=false", "-c", "core.quotePath=false", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                timeout=max(seconds, 0.01),
                check=True,
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            )
        except (OSError, subprocess.SubprocessError):
            return None
        output.seek(0)
        return output.read(DIFF_BYTES + 1)
