"""Fixtures that tests share."""

import time

import pytest

from tests import browser, experiments


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
