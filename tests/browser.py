"""A real TensorBoard seen by a real Chromium, for tests that look at what people see.

    with tensorboard(logdir) as url, page_of(chromium) as page:
        open_graph(page, url)
        open_node(page, "noise")
        assert "noise/route" in graph_nodes(page)
        screenshot(page, "graph")

Without a browser such a test is skipped with what to install; where TRACKER_REQUIRE_BROWSER=1 it
fails. TRACKER_CHROMIUM names the browser, TRACKER_ARTIFACTS the folder for screenshots.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PROFILE = "/data/plugin/profile"
SECONDS = 60  # a loaded machine starts TensorBoard slowly


def find_chromium() -> str | None:
    """Path of a browser, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    given = os.environ.get("TRACKER_CHROMIUM")
    return given or next(filter(None, map(shutil.which, names)), None)


def no_browser(reason: str) -> None:
    """Skips the test, or fails it where a browser is required."""
    if os.environ.get("TRACKER_REQUIRE_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A headless Chromium."""
    path = find_chromium()
    if path is None:
        no_browser("no Chromium found: apt-get install chromium, or set TRACKER_CHROMIUM")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        no_browser("no playwright found: pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def page_of(browser: Any) -> Iterator[Any]:
    """A new page in a profile of its own."""
    context = browser.new_context(viewport={"width": 1600, "height": 1000})
    context.set_default_timeout(SECONDS * 1000)
    yield context.new_page()
    context.close()


@contextlib.contextmanager
def tensorboard(logdir: Any, *flags: str) -> Iterator[str]:
    """Runs TensorBoard; gives its URL, without a slash at the end, once it has loaded runs."""
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}"]
    command += ["--port=0", "--host=localhost", *flags]
    log = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"tensorboard-{time.time_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield _serving(process, log)
        finally:
            process.terminate()
            process.wait()
            log.unlink()


def _serving(process: subprocess.Popen, log: pathlib.Path) -> str:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        said = re.search(r"(http://\S+?)/? \(Press", log.read_text())
        if said and fetch(f"{said[1]}/data/runs"):
            return said[1]
        time.sleep(0.2)
    raise RuntimeError(f"TensorBoard shows no runs: {log.read_text()}")


def fetch(url: str) -> Any:
    """JSON of a URL; None while the server does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            body = answer.read()
    except urllib.error.URLError:
        return None
    return json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)


def screenshot(page: Any, name: str) -> pathlib.Path:
    """Keeps a picture of the page as `artifacts/<name>.png`."""
    root = pathlib.Path(__file__).parent.parent
    folder = pathlib.Path(os.environ.get("TRACKER_ARTIFACTS", root / "artifacts"))
    path = folder / f"{name}.png"
    page.screenshot(path=path)
    return path


def open_graph(page: Any, url: str, run: str | None = None) -> None:
    """Opens the Graphs tab and waits until the graph is drawn."""
    page.goto(f"{url}/#graphs" + (f"&run={urllib.parse.quote(run, safe='')}" if run else ""))
    page.wait_for_selector("g.node")
    _settle(page)


def graph_nodes(page: Any) -> list[str]:
    """Names of the nodes that are drawn, without the anchors that TensorBoard adds for edges."""
    names = page.eval_on_selector_all("g.node", "all => all.map(e => e.dataset.name)")
    return [n for n in names if n and "~~" not in n]


def graph_labels(page: Any) -> list[str]:
    """The texts that are drawn on and beside nodes, as cut by TensorBoard."""
    script = "all => all.map(e => e.firstChild.textContent.trim())"  # the second is its tooltip
    return page.eval_on_selector_all("g.node text.nodelabel", script)


def open_node(page: Any, name: str) -> None:
    """Opens a box of the graph, as a double click does, and waits for what is in it."""
    page.locator(f'g.node[data-name="{name}"] > .nodeshape').first.dblclick(force=True)
    page.wait_for_selector(f'g.node[data-name^="{name}/"]')
    _settle(page)


def fit_graph(page: Any) -> None:
    """Zooms so that the whole graph is seen."""
    page.get_by_text("Fit to screen").click()
    _settle(page)


def _settle(page: Any) -> None:
    page.wait_for_timeout(1200)  # drawing and zooming are animated


def captures(url: str) -> list[str]:
    """Names of the profiler captures that the Profile tab lists."""
    return fetch(f"{url}{PROFILE}/runs") or []


def open_trace(page: Any, url: str, capture: str) -> None:
    """Opens the Trace Viewer of a capture, and waits until its rows are drawn.

    It is the page that the Profile tab frames. The tab around it loads scripts from the network.
    """
    query = urllib.parse.urlencode({"run": capture, "tag": "trace_viewer@"})
    hosts = fetch(f"{url}{PROFILE}/hosts?{query}")
    data = f"{PROFILE}/data?{query}&host={hosts[0]['hostname']}"  # a path, not a URL
    query = urllib.parse.urlencode(
        {"is_streaming": "true", "is_oss": "true", "trace_data_url": data}
    )
    page.goto(f"{url}{PROFILE}/trace_viewer_index.html?{query}")
    page.wait_for_function("document.body.innerText.includes('/host:CPU')")
    _settle(page)


def trace_events(page: Any, text: str, most: int = 20) -> list[str]:
    """Finds events by the Trace Viewer's own search; what its panel says of each, in order."""
    control = page.locator("tr-ui-find-control")
    page.get_by_placeholder("Find Events...").fill(text)
    control.get_by_text(re.compile(r"\b0 of [1-9]")).wait_for()
    found = int(control.inner_text().split(" of ")[1].split()[0])
    said = []
    for number in range(min(found, most)):
        control.get_by_text("→").click()
        control.get_by_text(f"{number + 1} of {found}").wait_for()
        page.wait_for_timeout(300)  # the panel follows
        said.append(page.inner_text("tr-ui-a-analysis-view"))
    return said
