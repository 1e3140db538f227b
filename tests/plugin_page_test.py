"""The tab Updates as people see it: a real TensorBoard in a real Chromium."""

import csv
import io
import re
import struct
import urllib.parse

import numpy as np
import pytest

from tests import browser, plugin_logdir
from tests.plugin_logdir import HOSTILE, LAYERS, LOSS, STDDEV, STEPS, TOTAL
from tracker import tags

FIELDS = ("step", "WUR", "gradient part", "noise part", "stddev", "loss")
COLOURS = {1e-6: "#08306b", 1e-5: "#2171b5", 1e-3: "#f5f5f3", 1e-1: "#d4570b", 1.0: "#6b1d00"}

DEEP = ["stem/kernel", "stem/bias"] + [
    f"block_{block}_{part}"
    for block in range(1, 5)
    for part in ("in/kernel", "in/bias", "norm/gamma", "norm/beta", "out/kernel", "out/bias")
]
DEEP += ["classes/kernel", "classes/bias"]  # in model order


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    root = tmp_path_factory.mktemp("logdir")
    plugin_logdir.small(root / "small")
    plugin_logdir.sampled(root / "sampled")
    plugin_logdir.foreign(root / "foreign")
    plugin_logdir.hostile(root / "hostile <b>run</b>")
    plugin_logdir.app(root, "app")
    return root


@pytest.fixture(scope="module")
def site(logdir):
    """A TensorBoard as people start it, but quicker to see what is new."""
    with browser.tensorboard(logdir, "--reload_interval=1") as url:
        plugin_logdir.wait_until_active(url)
        yield url


@pytest.fixture(scope="module")
def shared(chromium, site):
    with browser.page_of(chromium) as page:
        tab = Tab(page, site)
        yield tab


@pytest.fixture
def tab(shared):
    """The tab on the small run; whatever the console says fails the test."""
    shared.open(run="small")
    yield shared
    assert shared.complaints == []


class Tab:
    """The tab in a page."""

    def __init__(self, page, site):
        self.page, self.site = page, site
        self.frame = page.frame_locator("iframe").first
        self.complaints = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _said(self, message):
        # TensorBoard's own page warns of its own libraries.
        if message.type == "error" or "Security" in message.text:
            self.complaints.append(message.text)

    def open(self, dark=False, **choice):
        parts = [
            f"&u.{name}={urllib.parse.quote(value, safe='')}" for name, value in choice.items()
        ]
        self.page.goto("about:blank")
        query = "?darkMode=true" if dark else ""
        self.page.goto(f"{self.site}/{query}#tracker_updates{''.join(parts)}")
        self.ready()

    def ready(self):
        self.frame.locator("body[data-state=ready]").wait_for()
        self.settle()

    def settle(self):
        self.frame.locator("body").evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def canvas(self, panel=0):
        return self.frame.locator("canvas.base").nth(panel)

    def box(self, panel=0):
        """Place of the heat map on its canvas, and what is drawn, in CSS pixels."""
        found = self.canvas(panel).evaluate("canvas => ({...canvas.dataset})")
        return {k: v if k in ("run", "show") else float(v) for k, v in found.items()}

    def middle(self, row, column, panel=0, steps=STEPS, log=False):
        """Middle of a cell on the canvas: columns meet half way between their steps."""
        box = self.box(panel)
        scaled = np.log10(steps) if log else np.array(steps, float)
        edges = [scaled[0], *(scaled[:-1] + scaled[1:]) / 2, scaled[-1]]
        places = (np.array(edges) - edges[0]) / (edges[-1] - edges[0]) * box["width"]
        x = box["x"] + (places[column] + places[column + 1]) / 2
        return x, box["y"] + (row + 0.5) / box["rows"] * box["height"]

    def colour(self, row, column, **options):
        """Colour of a cell, 0 to 255."""
        x, y = self.middle(row, column, **options)
        return self.pixels(x, y, 1)[0]

    def pixels(self, x, y, size, panel=0, height=None):
        """Colours of a square of the canvas, or of what is `size` wide."""
        data = self.canvas(panel).evaluate(
            "(c, box) => Array.from(c.getContext('2d').getImageData(...box).data)",
            [int(x), int(y), size, height or size],
        )
        return np.array(data).reshape(-1, 4)[:, :3]

    def move(self, x, y, panel=0, click=False):
        around = self.canvas(panel).bounding_box()
        act = self.page.mouse.click if click else self.page.mouse.move
        act(around["x"] + x, around["y"] + y)
        self.settle()

    def hover(self, row, column, **options):
        """What the tip says over a cell."""
        self.move(*self.middle(row, column, **options), panel=options.get("panel", 0))
        return self.tip()

    def tip(self):
        tip = self.frame.locator("#tip")
        if not tip.is_visible():
            return {}
        lines = tip.locator("div").all()
        said = {d.get_attribute("data-field"): d.locator("span").last.inner_text() for d in lines}
        title = tip.locator("b")
        return {"layer": title.inner_text() if title.count() else "", **said}

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def choose(self, name):
        self.frame.locator(f"#{name}").click()
        self.settle()

    def address(self):
        """The choice in the address."""
        parts = urllib.parse.urlparse(self.page.url).fragment.split("&")
        assert parts[0] == "tracker_updates"
        pairs = (part.split("=", 1) for part in parts[1:])
        return {name.removeprefix("u."): urllib.parse.unquote(value) for name, value in pairs}

    def table(self):
        """Rows of the list of layers at a step."""
        rows = self.frame.locator("#step tbody tr").all()
        return [
            (r.get_attribute("data-layer"), r.locator("td").all_inner_texts()[1:]) for r in rows
        ]

    def download(self, kind):
        with self.page.expect_download() as waiting:
            self.choose(kind)
        return waiting.value.suggested_filename, waiting.value.path().read_bytes()


def rgb(colour):
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def ratio(value):
    """A number as the tip writes it, by Python's own formatting."""
    if value == 0:
        return 0
    return float(f"{np.float32(value):.3g}")


class TestThePicture:
    def test_colours_are_those_of_the_numbers(self, tab):
        box = tab.box()
        assert (box["rows"], box["columns"], box["show"]) == (4, 5, "total")
        for row, column in zip(*np.nonzero(np.isin(TOTAL, list(COLOURS))), strict=True):
            expected = rgb(COLOURS[TOTAL[row, column]])
            assert np.abs(tab.colour(row, column) - expected).max() <= 8, (row, column)
        browser.screenshot(tab.page, "updates_small")

    def test_the_band_is_quiet_and_what_is_outside_is_loud(self, tab):
        def saturation(row, column):
            colour = tab.colour(row, column)
            return int(colour.max()) - int(colour.min())

        for row, column in ((0, 0), (0, 2), (0, 4), (3, 4)):  # in the band
            assert saturation(row, column) < 45
        red, _, blue = tab.colour(3, 2)  # 1.05e-2, just above
        assert saturation(3, 2) > 90 and red > blue
        red, _, blue = tab.colour(3, 3)  # 0.95e-4, just below
        assert saturation(3, 3) > 90 and blue > red

    def test_undefined_is_hatched_and_zero_is_the_smallest(self, tab):
        x, y = tab.middle(2, 0)
        found = {tuple(p) for p in tab.pixels(tab.box()["x"] + 2, y, 10)}
        assert len(found) == 2  # stripes, of no colour of the scale
        assert (tab.colour(2, 3) == tab.colour(3, 0)).all()
        x, y = tab.middle(2, 1)
        assert len({tuple(p) for p in tab.pixels(x, y, 10)}) == 1
        assert tab.frame.locator("footer .key.undefined").first.is_visible()
        assert not tab.frame.locator("footer .key.kept").is_visible()

    def test_every_cell_says_its_numbers(self, tab):
        for row, name in enumerate(LAYERS):
            for column in (0, 2, 4):
                said = tab.hover(row, column)
                assert said["layer"] == name
                assert said["step"] == str(STEPS[column])
                assert float(said["stddev"]) == STDDEV[column]
                assert float(said["loss"]) == pytest.approx(LOSS[column], rel=1e-3)
                total = TOTAL[row, column]
                for field, value in zip(
                    FIELDS[1:4], (total, 0.6 * total, 0.8 * total), strict=True
                ):
                    if np.isnan(total):
                        assert said[field] == "undefined"
                    else:
                        assert float(said[field]) == pytest.approx(ratio(value), rel=1e-6)

    def test_skipped_batches_are_marked_where_they_were(self, tab):
        assert tab.hover(0, 2)["skipped before"] == "3 batches"
        assert tab.hover(0, 3)["skipped before"] == "2 batches"
        assert "skipped before" not in tab.hover(0, 1)
        box = tab.box()
        for column, marked in ((1, False), (2, True), (3, True)):
            x, _ = tab.middle(0, column)
            dark = (tab.pixels(x - 2, box["y"] - 7, 4).max(axis=1) < 90).any()
            assert dark == marked, column

    def test_the_strip_of_stddevs(self, tab):
        box = tab.box()
        strip = box["y"] + box["height"] + 10
        colours = [tuple(tab.pixels(tab.middle(0, c)[0], strip, 1)[0]) for c in range(5)]
        assert colours[0] == colours[3] and colours[1] == colours[4]
        assert len(set(colours)) == len(set(STDDEV))
        light = {s: sum(map(int, c)) for s, c in zip(STDDEV, colours, strict=True)}
        assert light[0] > light[1e-3] > light[1e-2]

    def test_the_loss_falls(self, tab):
        box = tab.box()
        heights = []
        for column in range(5):
            x, _ = tab.middle(0, column)
            line = tab.pixels(x, 0, 1, height=int(box["y"]) - 10)
            heights.append(int(np.argmin(line.max(axis=1))))
        assert heights == sorted(heights) and heights[0] < heights[-1] - 30


class TestControls:
    @pytest.mark.parametrize(
        ("show", "part"), [("gradient", 0.6), ("noise", 0.8), ("norm_change", 0.1)]
    )
    def test_parts(self, tab, show, part):
        tab.choose(f"show-{show}")
        assert tab.box()["show"] == show
        assert tab.address()["show"] == show
        red, _, blue = map(int, tab.colour(0, 2))  # 5e-3 times the part: in the band
        assert abs(red - blue) < 45
        red, _, blue = map(int, tab.colour(1, 2))  # 0.1 times the part: on or above its edge
        assert red > blue
        if show == "norm_change":
            assert float(tab.hover(1, 2)["norm change"]) == pytest.approx(0.02, rel=1e-3)

    def test_noise_share(self, tab):
        tab.choose("show-share")
        assert tab.hover(1, 1)["noise share"] == f"{100 * 0.8 / 1.4:.1f} %"
        assert tab.hover(2, 3)["noise share"] == "undefined"  # nothing moved
        assert (tab.colour(1, 1) == tab.colour(0, 4)).all()

    def test_filter_takes_a_regular_expression(self, tab):
        tab.page.keyboard.press("/")
        tab.page.keyboard.type("^net/.*kernel$")
        tab.settle()
        assert tab.frame.locator("#matched").inner_text() == "3 of 4"
        assert tab.box()["rows"] == 3
        assert tab.hover(2, 1)["layer"] == LAYERS[3]
        assert tab.address()["layers"] == "^net/.*kernel$"
        tab.press("/")  # in the field it is a letter
        assert tab.frame.locator("#layers").input_value().endswith("/")
        tab.frame.locator("#layers").fill("(")
        tab.settle()
        assert "wrong" in tab.frame.locator("#layers").get_attribute("class")
        assert tab.box()["rows"] == 4
        tab.frame.locator("#layers").fill("nothing matches")
        tab.settle()
        assert tab.frame.locator("#matched").inner_text() == "0 of 4"

    def test_step_axis(self, tab):
        x, _ = tab.middle(0, 1)
        tab.choose("axis-log")
        assert tab.address()["axis"] == "log"
        logged, _ = tab.middle(0, 1, log=True)
        assert logged > x + 50
        assert tab.hover(0, 1, log=True)["step"] == "10"

    def test_two_runs_on_the_same_scale(self, tab):
        tab.frame.locator("#compare").select_option("foreign")
        tab.frame.locator("canvas.base[data-run=foreign]").wait_for()
        tab.ready()
        one, other = tab.box(0), tab.box(1)
        assert (one["run"], other["run"]) == ("small", "foreign")
        assert one["rows"] == other["rows"] == 6  # layers of both
        assert abs(one["width"] - other["width"]) <= 2
        around = tab.canvas(1).bounding_box()
        x = other["x"] + 2 / 39 * other["width"]  # step 3 of 1 to 40
        tab.page.mouse.move(around["x"] + x - 2, around["y"] + tab.middle(5, 0)[1])
        tab.settle()
        assert tab.tip()["layer"] == "layer_10"
        assert float(tab.tip()["WUR"]) == pytest.approx(3e-3, rel=1e-3)
        assert tab.address()["compare"] == "foreign"
        tab.choose("show-gradient")  # which the other has not
        assert tab.box(1)["show"] == "gradient"
        browser.screenshot(tab.page, "updates_two_runs")

    def test_choosing_a_run(self, tab):
        tab.frame.locator("#run").select_option("foreign")
        tab.frame.locator("canvas.base[data-run=foreign]").wait_for()
        assert tab.address() == {"run": "foreign"}
        assert tab.frame.locator("#show-gradient").is_disabled()
        assert float(tab.hover(0, 1, steps=[1, 2, 3])["WUR"]) == pytest.approx(2e-3, rel=1e-3)

    def test_an_address_brings_the_view_back(self, tab):
        tab.frame.locator("#layers").fill("kernel")
        tab.choose("show-noise")
        tab.choose("axis-log")
        tab.move(*tab.middle(1, 2, log=True), click=True)
        sent = tab.page.url
        assert tab.address() == {
            "run": "small", "layers": "kernel", "show": "noise", "axis": "log",
            "layer": LAYERS[1], "step": "20",
        }  # fmt: skip
        before = tab.table()
        tab.page.goto("about:blank")
        tab.page.goto(sent)
        tab.ready()
        assert tab.page.url == sent
        assert tab.box()["show"] == "noise" and tab.box()["rows"] == 3
        assert tab.table() == before
        assert tab.frame.locator("#layer h2 span").inner_text() == LAYERS[1]

    def test_the_address_survives_other_tabs(self, tab):
        tab.choose("show-noise")
        tab.page.locator("[role=tab]", has_text=re.compile(r"^\s*scalars\s*$", re.I)).click()
        tab.page.wait_for_url(re.compile("#scalars"))
        tab.page.locator("[role=tab]", has_text="Updates").click()
        tab.page.wait_for_url(re.compile("#tracker_updates"))
        tab.settle()
        assert tab.address() == {"run": "small", "show": "noise"}
        assert tab.box()["show"] == "noise"


class TestDetails:
    def test_a_layer_over_time(self, tab):
        box = tab.box()
        tab.move(box["x"] - 20, tab.middle(1, 0)[1], click=True)
        assert tab.address() == {"run": "small", "layer": LAYERS[1]}
        assert not tab.frame.locator("#step").is_visible()
        assert tab.frame.locator("#layer [data-line]").count() == 3
        rows = tab.frame.locator("#layer canvas").evaluate(_LINE_ROWS)
        assert set(rows) == {"#1f2328", "#0072b2", "#d55e00"}  # three lines, all of them level
        assert rows["#1f2328"] < rows["#d55e00"] < rows["#0072b2"]  # 0.1, 0.08, 0.06

    def test_all_layers_at_a_step_worst_first(self, tab):
        box = tab.box()
        x, _ = tab.middle(0, 2)
        tab.move(x, box["y"] + box["height"] + 10, click=True)  # on the strip
        assert tab.address() == {"run": "small", "step": "20"}
        column = TOTAL[:, 2]
        order = np.argsort(-np.abs(np.log10(column) + 3), kind="stable")
        assert [name for name, _ in tab.table()] == [LAYERS[i] for i in order]
        for name, texts in tab.table():
            total = TOTAL[LAYERS.index(name), 2]
            expected = [ratio(total), ratio(0.6 * total), ratio(0.8 * total)]
            assert [float(t) for t in texts] == pytest.approx(expected, rel=1e-6)

    def test_zero_comes_first_and_undefined_last(self, tab):
        tab.move(*tab.middle(0, 3), click=True)
        assert tab.table()[0] == (LAYERS[2], ["0", "0", "0"])
        tab.move(*tab.middle(0, 0), click=True)
        assert tab.table()[-1] == (LAYERS[2], ["undefined"] * 3)

    def test_a_row_of_the_list_chooses_the_layer(self, tab):
        tab.move(*tab.middle(0, 1), click=True)
        tab.frame.locator(f'#step tr[data-layer="{LAYERS[3]}"]').click()
        tab.settle()
        assert tab.address()["layer"] == LAYERS[3]
        tab.frame.locator("#layer .close").click()
        tab.settle()
        assert tab.address() == {"run": "small", "step": "10"}


class TestKeyboard:
    def test_arrows_move_the_cursor(self, tab):
        tab.hover(1, 1)
        tab.press("ArrowRight", "ArrowDown")
        assert (tab.tip()["layer"], tab.tip()["step"]) == (LAYERS[2], "20")
        tab.press(*["ArrowLeft"] * 9, *["ArrowUp"] * 9)  # it stays inside
        assert (tab.tip()["layer"], tab.tip()["step"]) == (LAYERS[0], "1")
        tab.press("Enter")
        assert tab.address() == {"run": "small", "layer": LAYERS[0], "step": "1"}
        tab.press("Escape")
        assert tab.address() == {"run": "small"}


class TestDownloads:
    def test_csv(self, tab):
        tab.frame.locator("#layers").fill("z_first|m_third")
        name, content = tab.download("csv")
        assert name == "updates-small.csv"
        rows = list(csv.DictReader(io.StringIO(content.decode(), newline="")))
        assert len(rows) == 2 * len(STEPS)
        found = {(r["layer"], int(r["step"])): r for r in rows}
        assert found[LAYERS[2], 1]["state"] == "undefined"
        assert found[LAYERS[2], 1]["wur"] == ""
        one = found[LAYERS[0], 20]
        assert float(one["wur"]) == pytest.approx(5e-3, rel=1e-6)
        assert float(one["wur_gradient"]) == pytest.approx(3e-3, rel=1e-6)
        assert float(one["wur_noise"]) == pytest.approx(4e-3, rel=1e-6)
        assert float(one["noise_share"]) == pytest.approx(4 / 7, rel=1e-6)
        assert float(one["norm_change"]) == pytest.approx(5e-4, rel=1e-6)
        assert float(one["stddev"]) == pytest.approx(1e-2, rel=1e-6)
        assert float(one["loss"]) == pytest.approx(1.5, rel=1e-6)

    def test_png(self, tab):
        name, content = tab.download("png")
        assert name == "updates-small.png"
        assert content.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", content[16:24])
        box = tab.box()
        assert width > box["x"] + box["width"] and height > box["y"] + box["height"]


class TestOtherRuns:
    def test_sampled_ones_say_so(self, tab):
        tab.open(run="sampled")
        note = tab.frame.locator("#note")
        assert "1,000 points" in note.inner_text()
        assert "--samples_per_plugin=scalars=100000" in note.inner_text()
        assert tab.frame.locator("footer .key.kept").is_visible()
        assert tab.frame.locator("footer .key.undefined").first.is_visible()
        name, content = tab.download("csv")
        rows = list(csv.DictReader(io.StringIO(content.decode(), newline="")))
        assert {r["layer"]: r["state"] for r in rows if r["state"]} == {
            "often": "not kept", "half": "undefined",
        }  # fmt: skip

    def test_unsampled_ones_do_not(self, tab):
        assert not tab.frame.locator("#note").is_visible()

    def test_hostile_names_are_text(self, tab):
        tab.open(run="hostile <b>run</b>")
        assert tab.hover(0, 1, steps=[1, 2, 3])["layer"] == HOSTILE
        tab.move(*tab.middle(0, 1, steps=[1, 2, 3]), click=True)
        assert tab.frame.locator("#layer h2 span").inner_text() == HOSTILE
        assert tab.table()[0][0] == HOSTILE
        for kind in ("img", "b b", "h2 b", "option b", "td b"):
            assert tab.frame.locator(kind).count() == 0
        assert tab.page.title() != "owned"
        assert tab.frame.locator("body").evaluate("() => document.title") != "owned"
        _, content = tab.download("csv")
        rows = list(csv.DictReader(io.StringIO(content.decode(), newline="")))
        assert rows[0]["layer"] == HOSTILE

    def test_a_run_of_the_app(self, tab, logdir):
        tab.open(run="app/train")
        steps = [1, *range(3, 301, 3)]
        written = _written(logdir / "app/train")
        for row, column in ((0, 0), (1, 0), (4, 7), (27, 100)):
            name = DEEP[row]
            said = tab.hover(row, column, steps=steps)
            assert (said["layer"], said["step"]) == (name, str(steps[column]))
            for field, tag in (("WUR", tags.wur), ("noise part", tags.wur_noise)):
                value = written.get((steps[column], tag(name)))
                if value is None:
                    assert said[field] == "undefined"
                else:
                    assert float(said[field]) == pytest.approx(ratio(value), rel=1e-6)
            stddev = written[steps[column], tags.WUR_ALL_STDDEV]
            assert float(said["stddev"]) == pytest.approx(stddev, rel=1e-3)

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_as_the_readme_shows_it(self, tab, theme):
        tab.page.set_viewport_size({"width": 1440, "height": 860})
        chosen = {"layer": "block_3_norm/gamma", "step": "102"}
        tab.open(run="app/train", dark=theme == "dark", **chosen)
        steps = [1, *range(3, 301, 3)]
        assert tab.hover(13, 60, steps=steps)["layer"] == DEEP[13]
        assert tab.box()["rows"] == len(DEEP) == len(tab.table())
        x, y = tab.middle(0, 0, steps=steps)
        box = tab.box()
        colours = tab.pixels(x, y, int(box["width"]) - 8, height=1)
        assert len({tuple(c) for c in colours}) > 12  # a picture, not an empty page
        browser.screenshot(tab.page, "updates" if theme == "light" else "updates_dark")
        tab.page.set_viewport_size({"width": 1600, "height": 1000})

    def test_dark_is_dark(self, tab):
        light = tab.colour(0, 0).mean()
        tab.open(run="small", dark=True)
        assert tab.colour(0, 0).mean() < 70
        assert light > 200
        assert tab.colour(1, 0).max() > 200  # what is loud stays loud
        colour = tab.frame.locator("body").evaluate("b => getComputedStyle(b).backgroundColor")
        assert max(map(int, re.findall(r"\d+", colour))) < 60

    def test_a_running_training_is_followed(self, tab, logdir):
        values = {tags.wur("a"): 1e-3, tags.wur("b"): 1e-1}
        plugin_logdir.write(logdir / "running", [(s, values, {}) for s in (1, 2, 3)])
        tab.frame.locator("#run option", has_text="running").wait_for(state="attached")
        tab.frame.locator("#run").select_option("running")
        tab.frame.locator("canvas.base[data-run=running]").wait_for()
        tab.ready()
        tab.choose("axis-log")
        tab.move(*tab.middle(1, 1, steps=[1, 2, 3], log=True), click=True)
        before = tab.address()
        plugin_logdir.write(logdir / "running", [(s, values, {}) for s in (4, 5)])
        tab.frame.locator("canvas.base[data-columns='5']").wait_for()
        assert tab.address() == before
        assert tab.hover(1, 4, steps=[1, 2, 3, 4, 5], log=True)["step"] == "5"
        assert tab.frame.locator("#layer h2 span").inner_text() == "b"


def _written(directory):
    """{(step, tag): value} of the event files, by our own reader."""
    from tracker import events

    kinds, found = events.Kinds(), {}
    for file in events.event_files(directory):
        for _, event in events.read(file):
            found |= {(event.step, tag): value for tag, value in events.scalars(event, kinds)}
    return found


class TestLoaders:
    def test_the_python_loader_shows_the_same(self, chromium, logdir):
        with (
            browser.tensorboard(logdir, "--load_fast=false") as url,
            browser.page_of(chromium) as page,
        ):
            plugin_logdir.wait_until_active(url)
            other = Tab(page, url)
            other.open(run="small")
            assert other.hover(3, 1)["WUR"] == "1.00"
            assert np.abs(other.colour(1, 0) - rgb(COLOURS[0.1])).max() <= 8
            assert other.complaints == []

    def test_without_a_run_it_says_what_is_missing(self, chromium, tmp_path):
        logdir = tmp_path / "logdir"
        logdir.mkdir()
        with (
            plugin_logdir.tensorboard(logdir, tmp_path / "log") as url,
            browser.page_of(chromium) as page,
        ):
            other = Tab(page, url)
            page.goto(f"{url}/#tracker_updates")
            other.frame.get_by_text("No run here has a tag that begins with wur/").wait_for()
            assert other.complaints == []

    def test_500_layers_and_1000_steps(self, chromium, tmp_path):
        plugin_logdir.wide(tmp_path / "logdir/wide")
        with (
            browser.tensorboard(tmp_path / "logdir") as url,
            browser.page_of(chromium) as page,
        ):
            plugin_logdir.wait_until_active(url)
            other = Tab(page, url)
            other.open(run="wide", layer="net/block_25/dense_250/kernel", step="5010")
            box = other.box()
            assert (box["rows"], box["columns"]) == (500, 1000)
            steps = range(10, 10001, 10)
            x, y = other.middle(250, 500, steps=steps)
            assert (np.ptp(other.pixels(x - 1, y - 1, 3).astype(int), axis=1) > 90).any()
            assert float(other.table()[0][1][0]) == pytest.approx(0.9, rel=1e-3)
            assert len(other.table()) == 500
            other.hover(100, 300, steps=steps)
            other.press("ArrowDown")
            assert other.tip()["WUR"]
            assert other.complaints == []
            browser.screenshot(page, "updates_wide")


_LINE_ROWS = """canvas => {
  const context = canvas.getContext('2d');
  const {width, height} = canvas;
  const {data} = context.getImageData(0, 0, width, height);
  const counts = {};
  for (let y = 0; y < height; y++) {
    for (let x = 50; x < width - 12; x++) {
      const i = 4 * (y * width + x);
      const hex = '#' + [0, 1, 2].map((k) => data[i + k].toString(16).padStart(2, '0')).join('');
      if (['#1f2328', '#0072b2', '#d55e00'].includes(hex)) {
        counts[hex] ??= {};
        counts[hex][y] = (counts[hex][y] ?? 0) + 1;
      }
    }
  }
  const most = (rows) => Number(Object.entries(rows).sort((a, b) => b[1] - a[1])[0][0]);
  return Object.fromEntries(Object.entries(counts).map(([hex, rows]) => [hex, most(rows)]));
}"""
