import json
import subprocess
import sys

import pytest

from tracker import events, tags

QUICK = ("--repeats=3", "--block_seconds=0.05", "--batch_size=32")


def compare(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tracker.compare_strategies", *QUICK, *arguments],
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip


@pytest.fixture(scope="module")
def document():
    done = compare("--json", "--stddev_counts=3,9", "--model=mlp")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def by_name(document, count):
    return {m["name"]: m for m in document["results"] if m["stddevs"] == count}


def test_bytes_and_nodes_are_exact(document):
    three, nine = by_name(document, 3), by_name(document, 9)
    parameters = 17226
    for found in (three, nine):
        assert set(found) == {"none", "scalar", "routes", "buffered", "table"}
        held = {name: m["persistent_bytes"] for name, m in found.items()}
        assert held["none"] == held["scalar"] == held["routes"] == 0
        assert held["buffered"] == 4 * parameters
        assert held["table"] == 4 * 2**20
    assert three["scalar"]["graph_nodes"] == nine["scalar"]["graph_nodes"]
    assert nine["routes"]["graph_nodes"] > three["routes"]["graph_nodes"]


def test_every_figure_was_measured(document):
    for one in document["results"]:
        low, high = one["step_ms_quartiles"]
        assert 0 < low <= one["step_ms"] <= high
        assert one["first_call_seconds"] > 0
        assert one["peak_memory_mb"] > 200
        assert one["name"] != "none" or one["ratio"] == 1


def test_the_advice_is_what_was_measured(document):
    from tracker import compare_strategies

    found = [compare_strategies.Measured(**m) for m in document["results"]]
    for count, sentence in zip((3, 9), document["advice"], strict=True):
        exact = [m for m in found if m.stddevs == count and m.name not in ("none", "table")]
        fastest = min(exact, key=lambda m: m.ratio)
        assert sentence.startswith(f"With {count} stddevs {fastest.name} is fastest")
    slow = next(m for m in found if m.stddevs == 3 and m.name == fastest.name)
    slow.ratio *= 100
    changed = compare_strategies.advice([m for m in found if m.stddevs == 3])
    assert not changed[0].startswith(f"With 3 stddevs {fastest.name} ")


def test_the_table_also_goes_into_tensorboard(tmp_path):
    done = compare("--stddev_counts=2", "--model=linear", f"--logdir={tmp_path}", "--run=c")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"tensorboard --logdir {tmp_path}"
    assert "buffered" in done.stdout
    (file,) = events.event_files(tmp_path / "c/train")
    found = [v for _, e in events.read(file) for v in e.summary.value]
    assert [v.tag for v in found] == [tags.COMPARE_STRATEGIES]
    assert b"buffered" in found[0].tensor.string_val[0]


@pytest.fixture(scope="module")
def of_sessions():
    done = compare("--json", "--graph=v1", "--stddev_counts=3", "--model=mlp")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_tf1_graphs_are_measured_too(of_sessions):
    found = by_name(of_sessions, 3)
    held = {name: m["persistent_bytes"] for name, m in found.items()}
    assert held == {"none": 0, "scalar": 4, "routes": 0, "buffered": 4 * 17226}
    for one in found.values():
        assert 0 < one["build_seconds"] < one["first_call_seconds"]
        assert one["peak_memory_mb"] > 200
    assert "table" not in of_sessions["advice"][0]


def test_routes_of_a_tf1_graph_grow_with_their_number(of_sessions):
    from tracker import compare_strategies
    from tracker.config import Config

    config = Config(graph="v1", model="mlp")
    for name, measured in by_name(of_sessions, 3).items():
        nodes = compare_strategies.Contestant(config, name, 9).measured.graph_nodes
        if name == "routes":
            each = (nodes - measured["graph_nodes"]) / 6
            assert each == int(each)  # all routes are alike
            assert each > 6 * 5  # ops that draw and add, for each variable
        else:
            assert nodes == measured["graph_nodes"]


@pytest.mark.parametrize("bad", ["--stddev_counts=0", "--stddev_counts=a", "--model=resnet"])
def test_bad_input(bad):
    done = compare(bad)
    assert done.returncode == 2
    assert bad.split("=")[0] in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
