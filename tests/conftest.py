"""Fixtures that tests share."""

import contextlib
import fcntl
import subprocess
import time

import pytest

from tests import browser, experiments


@pytest.fixture(autouse=True)
def _company(request, tmp_path_factory, worker_id):
    """Lets a test that is marked `alone` have the machine to itself; the others run side by side.

    Whoever comes next waits at the gate, so that a test that wants to be alone gets its turn.
    """
    place = tmp_path_factory.getbasetemp()
    place = (place if worker_id == "master" else place.parent) / "company"
    kind = fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH
    with contextlib.ExitStack() as stack:
        gate, room = (stack.enter_context(open(f"{place}.{n}", "w")) for n in ("gate", "room"))
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, kind)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium, one for all tests."""
    with browser.chromium() as started:
        yield started


@pytest.fixture
def page(chromium):
    """A page of its own for each test."""
    with browser.page_of(chromium) as opened:
        yield opened


@pytest.fixture(scope="session")
def default_run(tmp_path_factory):
    """The run that the README's first command makes: its logdir, directory, process, seconds."""
    logdir = tmp_path_factory.mktemp("logdir")
    start = time.monotonic()
    done = experiments.command(f"--logdir={logdir}")
    seconds = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    (name,) = [p.name for p in logdir.iterdir() if not p.name.startswith(".")]
    return logdir, logdir / name, done, seconds


@pytest.fixture
def small_disk(tmp_path):
    """Makes a file system of a given size ('100k'); gives its directory."""
    mounted = []

    def make(size):
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs the right to mount a small file system: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield make
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)
