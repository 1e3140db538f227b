"""What TensorBoard makes of the default run: by its own data paths, and as people see it."""

import re
import urllib.parse

import pytest

from tests import browser
from tracker import captures, tags

FIRST = "sequential/dense/kernel"
SUMMARY_STEPS = [1, *range(50, 3001, 50)]
ROUTES = [f"route_{i}_{s}" for i, s in enumerate(("0", "1e-4", "3e-4", "0.001", "0.003", "0.01"))]


@pytest.fixture(scope="module", params=["default", "--load_fast=false"])
def server(request, default_run):
    """A TensorBoard on the default run's logdir, by each of its two loaders."""
    logdir, run = default_run[:2]
    flags = [] if request.param == "default" else [request.param]
    # Of 0, which should mean all, the scalars plugin makes none.
    with browser.tensorboard(logdir, "--samples_per_plugin=scalars=100000", *flags) as url:
        yield url, run.name


def get(server, path, **query):
    url, _ = server
    return browser.fetch(f"{url}/data/plugin/{path}?{urllib.parse.urlencode(query)}")


def series(server, tag, part="train"):
    points = get(server, "scalars/scalars", run=f"{server[1]}/{part}", tag=tag)
    return {int(step): float(value) for _, step, value in points}


class TestBothLoaders:
    def test_only_two_runs_with_the_same_tags_for_the_same_things(self, server):
        found = get(server, "scalars/tags")
        assert set(found) == {f"{server[1]}/train", f"{server[1]}/validation"}
        train, validation = found[f"{server[1]}/train"], found[f"{server[1]}/validation"]
        assert set(validation) == {"loss", "accuracy"}
        assert {"loss", "accuracy", "learning_rate", *_expected()} <= set(train)
        for tag, info in train.items():
            assert len(info["description"]) > 20, tag

    def test_every_step_has_its_loss_and_stddev(self, server):
        assert list(series(server, tags.LOSS)) == list(range(1, 3001))
        assert list(series(server, tags.NOISE_STDDEV)) == list(range(1, 3001))

    def test_summary_steps(self, server):
        ratio = series(server, tags.wur(FIRST))
        assert list(ratio) == SUMMARY_STEPS
        gradient = series(server, tags.wur_gradient(FIRST))
        noise = series(server, tags.wur_noise(FIRST))
        for step in SUMMARY_STEPS:  # the parts are the two legs of the way the weights went
            assert ratio[step] <= (gradient[step] + noise[step]) * (1 + 1e-5)
        chosen = series(server, tags.WUR_ALL_STDDEV)
        assert list(chosen) == SUMMARY_STEPS
        assert all(noise[s] == 0 for s in SUMMARY_STEPS if chosen[s] == 0)
        assert all(0 <= p < 100 for p in series(server, tags.OVERHEAD).values())

    def test_descriptions_give_unit_and_place(self, server):
        info = get(server, "scalars/tags")[f"{server[1]}/train"]
        assert "1 of 6. Weight-update ratio" in info[tags.wur(FIRST)]["description"]
        assert "milliseconds" in info[tags.PERF_STEP_MS]["description"]

    def test_text(self, server):
        found = get(server, "text/tags")[f"{server[1]}/train"]
        assert {tags.RUN, tags.WUR_ALL_WORST} <= set(found)
        (first, *_) = get(server, "text/text", run=f"{server[1]}/train", tag=tags.RUN)
        assert "stddevs" in first["text"]
        assert "17,226" in first["text"]

    def test_the_histogram_over_variables(self, server):
        found = get(server, "histograms/tags")
        assert tags.WUR_ALL_LOG10 in found[f"{server[1]}/train"]

    def test_hparams_have_types_metrics_and_no_extra_run(self, server):
        answer = _hparams(server[0])
        (group,) = answer["sessionGroups"]
        hparams = group["hparams"]
        assert hparams["batch_size"] == 64
        assert hparams["model"] == "mlp"
        assert hparams["deterministic"] is True
        values = {m["name"]["tag"]: m["value"] for m in group["metricValues"]}
        assert set(values) == {"loss", "accuracy"}
        assert values["accuracy"] >= 0.95
        assert len(group["sessions"]) == 1

    def test_the_layout(self, server):
        layout = get(server, "custom_scalars/layout")
        titles = [c["title"] for category in layout["category"] for c in category["chart"]]
        assert any("healthy band" in t for t in titles)
        chart = layout["category"][0]["chart"][0]
        for pattern in chart["multiline"]["tag"]:
            answer = get(server, "custom_scalars/scalars", run=f"{server[1]}/train", tag=pattern)
            assert answer["regex_valid"]
            assert len(answer["tag_to_events"]) == 1, pattern

    def test_the_op_graph_is_there(self, server):
        info = get(server, "graphs/info")
        assert info[f"{server[1]}/train"]["run_graph"] is True


def _expected():
    names = [f"sequential/{d}/{p}" for d in ("dense", "dense_1", "dense_2")
             for p in ("kernel", "bias")]  # fmt: skip
    families = (
        tags.wur, tags.wur_gradient, tags.wur_noise, tags.weight_norm, tags.update_norm,
    )  # fmt: skip
    return {f(n) for f in families for n in names} | {
        tags.NOISE_STDDEV, tags.NOISE_CHOICE, tags.loss_change(0.01), tags.WUR_ALL_RATIO,
        tags.WUR_ALL_OUT_OF_BAND, tags.WUR_ALL_UNDEFINED, tags.WUR_ALL_SKIPPED,
        tags.WUR_ALL_UNCHANGED, tags.WUR_ALL_UNCHANGED_BY_NOISE, tags.WUR_ALL_BAND_LOW,
        tags.WUR_ALL_BAND_HIGH, tags.WUR_ALL_LOSS, tags.NONFINITE_LOSS, tags.OVERHEAD,
        tags.PERF_STEP_MS, tags.PERF_STEPS_PER_SECOND, tags.PERF_EXAMPLES_PER_SECOND,
        tags.PERF_INPUT_WAIT_MS, tags.PERF_HOST_MEMORY_MB,
    }  # fmt: skip


def _hparams(url):
    import json
    import urllib.request

    def ask(route, body):
        request = urllib.request.Request(
            f"{url}/data/plugin/hparams/{route}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    metrics = ask("experiment", {"experimentName": ""})["metricInfos"]
    columns = [{"metric": m["name"]} for m in metrics]
    statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    return ask(
        "session_groups",
        {
            "experimentName": "", "allowedStatuses": statuses, "colParams": columns,
            "startIndex": 0, "sliceSize": 10,
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(default_run):
    """A TensorBoard as people start it."""
    with browser.tensorboard(default_run[0]) as url:
        yield url


class TestAsPeopleSeeIt:
    def test_the_graph_shows_the_parts_and_six_routes(self, site, page, default_run):
        browser.open_graph(page, site)
        top = set(browser.graph_nodes(page))
        assert {"data", "forward", "gradients", "update", "noise"} <= top
        browser.open_node(page, "noise")
        browser.open_node(page, "noise/route")
        shown = browser.graph_nodes(page)
        for route in ROUTES:
            assert f"noise/route/{route}" in shown
        labels = set(browser.graph_labels(page))
        assert set(ROUTES) <= labels, labels
        browser.fit_graph(page)
        browser.screenshot(page, "graph_routes")
        browser.open_node(page, f"noise/route/{ROUTES[3]}")
        inside = [n for n in browser.graph_nodes(page) if n.startswith(f"noise/route/{ROUTES[3]}/")]
        assert inside

    def test_the_trace_viewer_shows_the_profiled_steps(self, site, page, default_run):
        (name,) = browser.captures(site)
        browser.open_trace(page, site, name)
        found = browser.trace_events(page, "train")
        browser.screenshot(page, "trace")
        steps = {int(n) for text in found for n in re.findall(r"step_num\s+(\d+)", text)}
        assert steps == {201, 202, 203, 204, 205}, found

    def test_xprof_gives_every_step_a_time_and_names_the_routes(self, default_run):
        (capture,) = captures.find(default_run[1] / "train")
        numbers = captures.numbers(capture)
        assert numbers.steps == (201, 202, 203, 204, 205)
        assert all(ms > 0 for ms in numbers.step_ms)
        assert any("/route_" in op for op in numbers.ops)

    def test_the_scalars_are_drawn(self, site, page):
        page.goto(f"{site}/#timeseries")
        page.wait_for_selector("scalar-card svg, scalar-card canvas, line-chart canvas")
        page.wait_for_timeout(2500)
        for tag in ("accuracy", "learning_rate"):  # those that fit on the page
            assert page.locator("scalar-card", has_text=tag).count() == 1
        lines = page.locator("scalar-card line-chart").first
        assert lines.is_visible()
        browser.screenshot(page, "scalars")

    def test_the_custom_scalars_are_drawn(self, site, page):
        page.goto(f"{site}/#custom_scalars")
        page.wait_for_selector("tf-custom-scalar-multi-line-chart-card")
        page.wait_for_timeout(4000)
        lines = page.locator("tf-custom-scalar-multi-line-chart-card path.line, "
                             "tf-custom-scalar-multi-line-chart-card .line path")  # fmt: skip
        series = page.evaluate(_DRAWN)
        assert max([lines.count(), *series]) >= 6
        browser.screenshot(page, "custom_scalars")

    def test_hparams_are_shown(self, site, page):
        page.goto(f"{site}/#hparams")
        page.wait_for_selector("tf-hparams-main")
        page.wait_for_timeout(2500)
        assert page.get_by_text("batch_size").first.is_visible()
        assert page.get_by_text("0.96").first.is_visible()  # validation accuracy
        browser.screenshot(page, "hparams")


_DRAWN = """() => {
  const found = [];
  const walk = (root) => root.querySelectorAll('*').forEach((e) => {
    if (e.shadowRoot) walk(e.shadowRoot);
    if (e.tagName === 'VZ-LINE-CHART2' || e.tagName === 'TF-LINE-CHART-DATA-LOADER') {
      found.push((e.dataToLoad || e._visibleSeriesCache || []).length);
    }
  });
  walk(document);
  return found.length ? found : [0];
}"""
