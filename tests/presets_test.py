"""Runs every preset, shortened, and checks what its second line tells people to look at."""

import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from tests import experiments
from tests.main_test import record, values
from tracker import events

FLAGS = pathlib.Path(__file__).parent.parent / "flags"
PRESETS = sorted(FLAGS.glob("*.flags"))
SHORT = {
    "profile": ("--steps=1600",),
    **dict.fromkeys(("hill_climb", "spsa", "evolution", "random_walk"), ()),
    **dict.fromkeys(("routes", "buffered", "session"), ("--steps=600",)),
}


def preset(path):
    return pytest.param(path, id=path.stem)


@pytest.mark.parametrize("path", [preset(p) for p in PRESETS])
def test_a_preset_runs_and_shows_what_it_says(path, tmp_path):
    question, look = path.read_text().splitlines()[:2]
    assert re.fullmatch(r"# .*\?", question)
    assert re.match(r"# About \d+ (s|min)\. Look at ", look)
    short = SHORT.get(path.stem, ("--steps=400",))
    arguments = (f"--flagfile={path}", f"--logdir={tmp_path}", "--run=r", *short)
    done = experiments.command(*arguments)
    assert done.returncode == 0, done.stderr
    assert record(tmp_path / "r")["status"] == "completed"
    found = values(tmp_path / "r/train")
    for tag in re.findall(r"`([^`]+)`", look):
        assert found.get(tag), tag
    CHECKS[path.stem](tmp_path / "r", found)


def captures(run):
    return list((run / "train/plugins/profile").iterdir())


def every_stddev(run, found):
    choices = np.array(list(found["noise/choice"].values()), int)
    assert np.all(np.bincount(choices, minlength=6) > len(choices) / 6 / 2)


def routes(run, found):
    every_stddev(run, found)
    assert len(captures(run)) == 1
    graphs = [e.graph_def for f in events.event_files(run / "train") for _, e in events.read(f)]
    assert b"noise/route/route_5_0.01" in max(graphs, key=len)


def session(run, found):
    routes(run, found)
    assert list(found["wur/sequential/dense/kernel"]) == [1, *range(50, 601, 50)]
    saved = tf.train.load_checkpoint(str(run / "checkpoints"))
    assert saved.get_tensor("tracker/step") == 600


def stairs(run, found):
    stddevs = list(found["noise/stddev"].values())
    assert stddevs == sorted(stddevs, reverse=True)
    assert len(set(stddevs)) == 6
    noise = found["wur_noise/sequential/dense/kernel"]
    assert noise[1] > noise[max(noise)] == 0


def bandit(run, found):
    change = {s: np.mean(list(found[f"noise/loss_change/{s}"].values())) for s in ("0", "0.1")}
    assert change["0.1"] > change["0"]
    choices = np.array(list(found["noise/choice"].values()), int)
    assert np.mean(choices == 2) < 1 / 3


def relative(run, found):
    noise, stddev = found["wur_noise/sequential/dense/kernel"], found["wur_all/stddev"]
    for step in noise:
        assert noise[step] == pytest.approx(stddev[step], rel=0.05)


def cnn(run, found):
    conv, dense = (found[f"wur_gradient/sequential/{n}/kernel"] for n in ("conv2d", "dense"))
    assert set(conv) == set(dense)


def accurate(least):
    def check(run, found):
        assert record(run)["results"]["validation/accuracy"] >= least

    return check


def climbed(run, found):
    accurate(0.90)(run, found)
    kept = list(found["noise/accepted_fraction"].values())
    assert np.mean(kept[-20:]) < np.mean(kept[1:6])


def walked(run, found):
    assert np.all(np.array(list(found["wur_gradient/sequential/dense/kernel"].values())) == 0)


def swallowed(run, found):
    assert set(found["wur_all/unchanged_fraction"].values()) == {1.0}
    assert set(found["wur_gradient/sequential/dense/kernel"].values()) == {0.0}
    assert "left bit-identical" in (run / "console.log").read_text()


CHECKS = {
    "swallowed_update": swallowed,
    "random_walk": walked,
    "hill_climb": climbed,
    "spsa": accurate(0.85),
    "evolution": accurate(0.92),
    "quickstart": every_stddev,
    "routes": routes,
    "session": session,
    "buffered": lambda run, found: every_stddev(run, found),
    "annealed": stairs,
    "bandit": bandit,
    "profile": lambda run, found: captures(run).__len__() == 2 or pytest.fail("two captures"),
    "cnn": cnn,
    "relative": relative,
}


def test_routes_and_buffered_give_the_same_bits(tmp_path):
    from tests.main_test import checkpoint

    for name in ("routes", "buffered"):
        done = experiments.command(
            f"--flagfile={FLAGS / name}.flags", f"--logdir={tmp_path}", f"--run={name}",
            "--steps=60", "--profile_steps=",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    one, other = (checkpoint(tmp_path / n) for n in ("routes", "buffered"))
    for name, array in one.items():
        assert np.asarray(array).tobytes() == np.asarray(other[name]).tobytes(), name
