"""How fast the tab Updates is, on a model of many layers: its server, and its page in Chromium.

    python -m benchmarks.tab_speed --layers=500 --steps=1000

Writes a run, starts a TensorBoard with each loader, and times the requests that the page makes (the
first picture, then all of the ratios in slices as the page asks for them and in one request), how
long `is_active` takes as TensorBoard's list of plugins waits for it, and in the page the first
picture, each drawing and each movement of the cursor. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import tempfile
import time
import urllib.request

from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer

from tests import browser, plugin_logdir
from tracker import tags
from tracker.plugin import watch

ROUTE = "data/plugin/tracker_updates"

_HOVER = """async () => {
  const holder = document.querySelector('.holder');
  const box = holder.getBoundingClientRect();
  const times = [];
  for (let i = 0; i < 200; i++) {
    const began = performance.now();
    holder.dispatchEvent(new MouseEvent('mousemove', {
      clientX: box.left + 260 + 3 * i, clientY: box.top + 200 + i, bubbles: true,
    }));
    times.push(performance.now() - began);
    await new Promise(requestAnimationFrame);
  }
  return times.slice(5);
}"""
_DRAWN = "() => performance.getEntriesByName('updates-draw').map((e) => [e.startTime, e.duration])"
_ASKED = """() => performance.getEntriesByType('resource')
  .filter((e) => e.name.endsWith('/series')).map((e) => [e.startTime, e.duration])"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        logdir = pathlib.Path(directory) / "logdir"
        plugin_logdir.wide(logdir / "wide", args.layers, args.steps)
        plugin_logdir.small(pathlib.Path(directory) / "other/small")
        figures = {"is_active_us": round(1e6 * _active(pathlib.Path(directory) / "other"), 1)}
        for name, flags in (("default", ()), ("load_fast=false", ("--load_fast=false",))):
            with browser.tensorboard(logdir, *flags) as url:
                _wait(url, args)
                figures[name] = _server(url, args) | (_page(url) if name == "default" else {})
    print(json.dumps(figures, indent=2))


def _wait(url: str, args: argparse.Namespace) -> None:
    """Waits until TensorBoard has read the whole run."""
    plugin_logdir.wait_until_active(url)
    while _ask(url, "layers?run=wide")["last_step"] < 10 * args.steps:
        time.sleep(0.5)


def _ask(url: str, route: str, body: object = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{url}/{ROUTE}/{route}", data, timeout=600) as answer:
        return json.loads(answer.read())


def _median(repeats: int, act: object) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return round(statistics.median(times), 3)


def _server(url: str, args: argparse.Namespace) -> dict:
    names = [tags.wur(layer) for layer in _ask(url, "layers?run=wide")["layers"]]
    size = max(1, 100_000 // args.steps)

    def series(wanted: list[str], points: int) -> None:
        _ask(url, "series", {"run": "wide", "tags": wanted, "points": points})

    return {
        "layers_s": _median(args.repeats, lambda: _ask(url, "layers?run=wide")),
        "first_picture_s": _median(args.repeats, lambda: series(names, 200)),
        "one_slice_s": _median(args.repeats, lambda: series(names[:size], 20_000)),
        "all_at_once_s": _median(args.repeats, lambda: series(names, 20_000)),
        "list_of_plugins_s": _median(args.repeats, lambda: plugin_logdir.listed(url)),
    }


def _page(url: str) -> dict:
    with browser.chromium() as chromium, browser.page_of(chromium) as page:
        page.goto(f"{url}/#tracker_updates")
        frame = page.frame_locator("iframe").first
        frame.locator("body[data-state=ready]").wait_for()
        body = frame.locator("body")
        drawn, asked, hover = body.evaluate(_DRAWN), body.evaluate(_ASKED), body.evaluate(_HOVER)
    arrived = sum(asked[1])  # the first request is for loss and stddev, the second is the picture
    filled = next(start + took for start, took in drawn if start >= arrived)
    return {
        "page_first_picture_after_its_data_ms": round(filled - arrived),
        "page_first_picture_after_opening_ms": round(filled),
        "page_all_data_ms": round(sum(asked[-1])),
        "page_draw_ms": round(statistics.median(took for _, took in drawn)),
        "page_draw_most_ms": round(max(took for _, took in drawn)),
        "page_hover_ms": round(statistics.median(hover), 2),
        "page_hover_most_ms": round(max(hover), 2),
    }


def _active(logdir: pathlib.Path) -> float:
    """Seconds of one call of `is_active`, which reads what the background thread found."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    watched = watch.Watch(data_provider.MultiplexerDataProvider(multiplexer, str(logdir)))
    if watched.runs() != ("small",):
        raise RuntimeError(f"found {watched.runs()}")
    began = time.perf_counter()
    for _ in range(1000):
        watched.active()
    return (time.perf_counter() - began) / 1000


if __name__ == "__main__":
    main()
