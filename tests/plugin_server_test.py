"""The server's part of the tab, in real TensorBoards with each of its loaders."""

import base64
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest

import tracker
from tests import browser, plugin_logdir
from tests.plugin_logdir import LAYERS, LOSS, SKIPPED, STEPS, TOTAL
from tracker import tags
from tracker.plugin import layers, series

ROUTE = "data/plugin/tracker_updates"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    root = tmp_path_factory.mktemp("logdir")
    plugin_logdir.small(root / "small/train")
    plugin_logdir.sampled(root / "sampled")
    plugin_logdir.foreign(root / "foreign")
    plugin_logdir.write(root / "other", [(1, {"loss": 1.0}, {})])
    return root


@pytest.fixture(scope="module", params=["default", "--load_fast=false"])
def site(request, logdir):
    """A TensorBoard by each of its loaders."""
    flags = [] if request.param == "default" else [request.param]
    with browser.tensorboard(logdir, *flags) as url:
        plugin_logdir.wait_until_active(url)
        yield url


def get(site, route, **query):
    return browser.fetch(f"{site}/{ROUTE}/{route}?{urllib.parse.urlencode(query)}")


def post(site, body):
    request = urllib.request.Request(f"{site}/{ROUTE}/series", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def read(site, run, *wanted, points=10**6):
    """{tag: (steps, values)} of a run."""
    status, answer = post(site, {"run": run, "tags": wanted, "points": points})
    assert status == 200, answer
    return {
        tag: (answer["steps"][one[0]], np.frombuffer(base64.b64decode(one[1]), "<f4").tolist())
        for tag, one in zip(wanted, answer["series"], strict=True)
        if one
    }


class TestBothLoaders:
    def test_only_runs_with_ratios(self, site):
        assert set(get(site, "runs")["runs"]) == {"small/train", "sampled", "foreign"}

    def test_layers_come_in_model_order_with_their_families(self, site):
        found = get(site, "layers", run="small/train")
        assert found["layers"] == LAYERS
        assert set(found["families"]) == {"total", "gradient", "noise", "norm_change"}
        assert found["families"]["gradient"] + LAYERS[0] == tags.wur_gradient(LAYERS[0])
        assert found["beside"] == {
            "loss": tags.WUR_ALL_LOSS,
            "stddev": tags.WUR_ALL_STDDEV,
            "skipped": tags.WUR_ALL_SKIPPED,
        }
        assert found["last_step"] == STEPS[-1]
        assert found["kept"] == 1000

    def test_layers_of_other_writers_come_as_people_count(self, site):
        found = get(site, "layers", run="foreign")
        assert found["layers"] == ["layer_2", "layer_10"]
        assert set(found["families"]) == {"total"}
        assert found["beside"] == {"loss": "loss"}

    def test_the_numbers_are_those_that_were_written(self, site):
        found = read(site, "small/train", *map(tags.wur, LAYERS), tags.WUR_ALL_LOSS, "absent")
        for name, row in zip(LAYERS, TOTAL, strict=True):
            kept = ~np.isnan(row)
            steps, values = found[tags.wur(name)]
            assert steps == np.array(STEPS)[kept].tolist()
            assert values == row[kept].astype(np.float32).tolist()
        assert found[tags.WUR_ALL_LOSS][1] == np.array(LOSS, np.float32).tolist()
        assert "absent" not in found

    def test_skipped_batches_stand_on_steps_of_their_own_too(self, site):
        steps, values = read(site, "small/train", tags.WUR_ALL_SKIPPED)[tags.WUR_ALL_SKIPPED]
        assert {s: v for s, v in zip(steps, values, strict=True) if v} == SKIPPED

    def test_few_points_end_with_the_newest(self, site):
        steps, _ = read(site, "sampled", tags.wur("often"), points=20)[tags.wur("often")]
        assert len(steps) == 20
        assert steps[-1] == 1200

    def test_tensorboard_keeps_a_thousand(self, site):
        found = read(site, "sampled", tags.wur("often"), tags.wur("half"))
        assert len(found[tags.wur("often")][0]) == 1000
        assert found[tags.wur("half")][0] == list(range(1, 1201, 2))


class TestRequests:
    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ([], "POSTed JSON"),
            ({"run": "x"}, "POSTed JSON"),
            ({"run": 1, "tags": [], "points": 1}, "run should be"),
            ({"run": "x", "tags": "wur/a", "points": 1}, "tags"),
            ({"run": "x", "tags": [1], "points": 1}, "list of tags"),
            ({"run": "x", "tags": ["t"] * 2001, "points": 1}, "at most 2000"),
            ({"run": "x", "tags": [], "points": 0}, "points=0 should be"),
            ({"run": "x", "tags": [], "points": "9"}, "points='9' should be"),
        ],
    )
    def test_wrong_ones_are_told_so(self, site, body, said):
        status, answer = post(site, body)
        assert status == 400
        assert said in answer

    def test_a_run_that_is_not_there_has_no_series(self, site):
        assert read(site, "nowhere", "wur/a") == {}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{site}/{ROUTE}/layers?run=nowhere", timeout=60)

    @pytest.mark.parametrize(
        "path", ["../tab.py", "../../record.py", "%2e%2e/tab.py", "..%2ftab.py", "/etc/passwd",
                 "%2fetc%2fpasswd", "", "index.js/../../tab.py", "nothing.js"],
    )  # fmt: skip
    def test_only_the_page_is_served(self, site, path):
        host = urllib.parse.urlparse(site).netloc
        import http.client

        connection = http.client.HTTPConnection(host, timeout=60)  # sends the path as it stands
        connection.request("GET", f"/{ROUTE}/static/{path}")
        answer = connection.getresponse()
        assert answer.status == 404
        assert b"import" not in answer.read()
        connection.close()

    def test_every_file_of_the_page_is_served_as_what_it_is(self, site):
        for name, kind in (("index.js", "text/javascript"), ("style.css", "text/css")):
            with urllib.request.urlopen(f"{site}/{ROUTE}/static/{name}", timeout=60) as answer:
                assert answer.headers["Content-Type"].startswith(kind)
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


class TestOddLogdirs:
    @pytest.mark.parametrize("flags", [(), ("--load_fast=false",)])
    def test_an_empty_one_has_no_tab_until_a_run_comes(self, tmp_path, flags):
        logdir = tmp_path / "logdir"
        logdir.mkdir()
        flags = (*flags, "--reload_interval=1")
        with plugin_logdir.tensorboard(logdir, tmp_path / "log", *flags) as url:
            assert plugin_logdir.listed(url)["enabled"] is False
            assert get(url, "runs") == {"runs": []}
            plugin_logdir.small(logdir / "late")
            plugin_logdir.wait_until_active(url)
            assert get(url, "runs") == {"runs": ["late"]}

    def test_a_broken_tab_costs_a_line_and_nothing_else(self, tmp_path, logdir):
        copy = tmp_path / "path"
        shutil.copytree(tracker.__path__[0], copy / "tracker")
        module = copy / "tracker/plugin/tab.py"
        module.write_text(f"{module.read_text()}\nimport a_package_that_is_not_there\n")
        log = tmp_path / "log"
        with plugin_logdir.tensorboard(logdir, log, cwd=copy) as url:
            assert plugin_logdir.listed(url) is None
            assert browser.fetch(f"{url}/data/plugins_listing")["scalars"]
        said = [line for line in log.read_text().splitlines() if "Updates" in line]
        assert len(said) == 1
        assert "off: ModuleNotFoundError: No module named 'a_package_that_is_not_there'" in said[0]
        assert "Traceback" not in log.read_text()


def test_the_entry_point_loads_nothing_but_itself():
    code = (
        "import sys; from tracker.plugin import loader; loader.Loader(); "
        "sys.exit(bool({'tensorflow', 'tracker.plugin.tab'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


class _Point:
    def __init__(self, step, value):
        self.step, self.value = step, value


def test_packing_shares_steps_and_keeps_what_is_no_number():
    found = {
        "a": [_Point(1, 0.5), _Point(2, float("nan"))],
        "b": [_Point(1, float("inf")), _Point(2, 1e300)],
        "c": [_Point(3, -0.0)],
    }
    packed = series.pack(found, ["a", "b", "missing", "c"])
    assert packed["steps"] == [(1, 2), (3,)]
    assert [one and one[0] for one in packed["series"]] == [0, 0, None, 1]
    values = [np.frombuffer(base64.b64decode(one[1]), "<f4") for one in packed["series"] if one]
    np.testing.assert_array_equal(values[0], [0.5, np.nan])
    np.testing.assert_array_equal(values[1], [np.inf, np.inf])


def test_what_has_ratios():
    assert layers.has_any(["loss", "wur/a"])
    assert not layers.has_any(["loss", "wur_all/ratio", "xwur/a"])
