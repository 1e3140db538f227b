"""The commands view and group, in a real TensorBoard."""

import gzip
import json
import re
import signal
import subprocess
import time
import urllib.parse
import urllib.request

import numpy as np
import pytest

from tests import browser
from tests.runs_logdir import COMMAND, DATA, data, recorded, runs, trained, write


def get(url, path, **query):
    return browser.fetch(f"{url}/data/{path}?{urllib.parse.urlencode(query)}")


def post(url, path, body):
    request = urllib.request.Request(
        f"{url}/data/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = answer.read()
    return json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)


def wait_until_loaded(url, count):
    deadline = time.monotonic() + 60
    while len(get(url, "runs") or ()) < count:
        assert time.monotonic() < deadline, get(url, "runs")
        time.sleep(0.2)


def test_a_view_shows_the_chosen_runs_in_every_tab_at_full_resolution(tmp_path):
    logdir = trained(tmp_path)
    write(logdir / "foreign", [(1, 1.0)])
    write(logdir / "long", [(step, step / 2) for step in range(1, 5001)])
    capture = logdir / "alpha" / "train" / "plugins" / "profile" / "2026_01_02_03_04_05"
    capture.mkdir(parents=True)
    (capture / "host.xplane.pb").write_bytes(
        gzip.decompress((DATA / "gpu.xplane.pb.gz").read_bytes())
    )
    before = sorted(logdir.rglob("*"))
    command = [*COMMAND[:1], *COMMAND[3:], "view", "--where", "name != 'foreign'", "--port=0"]
    with subprocess.Popen(
        [*command, f"--logdir={logdir}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        said = process.stdout.readline()
        directory = re.search(r"--logdir (\S+)", said)[1]
        lines = iter(process.stderr.readline, "")
        url = next(
            found[1] for line in lines if (found := re.search(r"(http://\S+?)/? \(Press", line))
        )
        wait_until_loaded(url, 5)
        parts = ("alpha/train", "alpha/validation", "beta/one/train", "beta/one/validation")
        assert sorted(get(url, "runs")) == [*parts, "long"]
        points = get(url, "plugin/scalars/scalars", run="long", tag="loss")
        assert [(int(step), value) for _, step, value in points] == [
            (step, step / 2) for step in range(1, 5001)
        ]
        assert len(get(url, "plugin/scalars/scalars", run="alpha/train", tag="loss")) == 40
        assert len(get(url, "plugin/custom_scalars/layout")["category"]) > 0
        experiment = post(url, "plugin/hparams/experiment", {"experimentName": ""})
        columns = {info["name"] for info in experiment["hparamInfos"]}
        assert {"learning_rate", "stddevs", "batch_size"} <= columns  # only beta has the first
        assert [run.rpartition("/")[2] for run in browser.captures(url)] == [capture.name]
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not browser.pathlib.Path(directory).exists()
    assert {*before} ^ {*logdir.rglob("*")} <= {
        logdir / ".tracker",
        *(logdir / ".tracker").rglob("*"),
    }


def test_a_view_can_be_printed(tmp_path):
    recorded(tmp_path, "a b")
    shown = data(tmp_path, "view", "--port=6007")
    assert shown["runs"] == ["a b"] and shown["command"][-2:] == ["--port", "6007"]
    [link] = browser.pathlib.Path(shown["directory"]).rglob("*tfevents*")
    assert link.is_symlink() and not link.parent.is_symlink() and link.exists()
    assert runs(tmp_path, "view", "--print", "a").startswith("tensorboard --logdir ")
    assert "No run" in runs(tmp_path, "view", "--where", "step > 10", status=2)


def curve(seed, rate):
    """Values at the steps 1 to 30; one seed misses some steps and has a NaN."""
    rng = np.random.default_rng(seed)
    points = [(step, float(rate + rng.normal() / step)) for step in range(1, 31)]
    return [(s, np.nan if s == 9 else v) for s, v in points if s % 5] if seed == 2 else points


@pytest.fixture
def seeds(tmp_path):
    for rate in (0.1, 0.2):
        for seed in range(4):
            flags = {"rate": rate, "seed": seed}
            recorded(tmp_path, f"r{rate}-s{seed}", flags=flags, scalars=curve(seed, rate))
    return tmp_path


def test_groups_are_numpys_mean_and_deviation_in_a_margin_chart(seeds):
    found = data(seeds, "group", "--by=rate", "--metric=train/loss")
    assert found["written"] == "group_rate"
    with browser.tensorboard(seeds / "group_rate") as url:
        wait_until_loaded(url, 2)
        [category] = get(url, "plugin/custom_scalars/layout")["category"]
        [chart] = category["chart"]
        [series] = chart["margin"]["series"]
        served = {
            (run, part): get(url, "plugin/scalars/scalars", run=run, tag=series[part])
            for run in get(url, "runs")
            for part in ("value", "lower", "upper")
        }
    for group, rate in zip(found["groups"], (0.1, 0.2), strict=True):
        assert group["by"] == {"rate": f"{rate:g}"} and len(group["runs"]) == 4
        values = {}
        for seed in range(4):
            for step, value in curve(seed, rate):
                if np.isfinite(value):
                    values.setdefault(step, []).append(np.float32(value).astype(float))
        assert group["steps"] == sorted(values) and {3, 4} == set(group["counts"])
        for i, step in enumerate(group["steps"]):
            mean, stddev = np.mean(values[step]), np.std(values[step], ddof=1)
            assert group["counts"][i] == len(values[step])
            assert np.isclose(group["mean"][i], mean, rtol=1e-12)
            assert np.isclose(group["stddev"][i], stddev, rtol=1e-9)
            for part, expected in (
                ("value", mean),
                ("lower", mean - stddev),
                ("upper", mean + stddev),
            ):
                _, at, shown = served[f"rate={rate}", part][i]
                assert at == step and np.isclose(shown, expected, rtol=1e-5, atol=1e-6)


def test_groups_are_no_runs_and_are_replaced_only_by_groups(seeds):
    assert len(data(seeds, "list")) == 8
    text = runs(seeds, "group", "--by=rate", "--metric=loss")
    assert text.splitlines()[0].split()[:3] == ["rate", "runs", "step"]
    runs(seeds, "group", "--by=rate", "--metric=loss", "--where", "seed < 2")
    assert len(data(seeds, "list")) == 8
    for arguments, why in (
        (("--write=r0.1-s0",), "which is no group"),
        (("--write=../x",), "'.' or '..'"),
        (("--metric=nope",), "No run has the metric"),
    ):
        assert why in runs(seeds, "group", "--by=rate", *arguments, status=2)
    assert "No run has the field" in runs(seeds, "group", "--by=nope", status=2)
    found = data(seeds, "group", "--by=rate,seed", "--metric=loss", "--write=")
    assert found["written"] is None and len(found["groups"]) == 8
    assert {n for g in found["groups"] for n in g["stddev"]} == {0.0}
    assert not list(seeds.glob(".group*")) and not (seeds / "group_rate_seed").exists()
