"""Fixtures that tests share."""

import pytest

from tests import browser


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
