import dataclasses

import pytest

from tracker import config as config_lib
from tracker.config import Config, Window


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"stddevs": ()}, "--stddevs is empty"),
        ({"stddevs": (0.1, -1.0)}, "-1.0 is not a standard deviation"),
        ({"stddevs": (float("nan"),)}, "nan is not a standard deviation"),
        ({"stddevs": (float("inf"),)}, "inf is not a standard deviation"),
        ({"selector": "dice"}, "--selector=dice is unknown"),
        ({"selector": "weighted"}, "0 weights for 6 stddevs"),
        (
            {"selector": "weighted", "stddevs": (0.0, 0.1), "selector_weights": (0.5, 0.6)},
            "--selector_weights=0.5,0.6: add to 1.1",
        ),
        (
            {"selector": "weighted", "stddevs": (0.0, 0.1), "selector_weights": (1.5, -0.5)},
            "should be probabilities",
        ),
        ({"selector_weights": (1.0,)}, "only --selector=weighted uses them"),
        ({"steps": 10, "epochs": 2.0}, "--steps=10 and --epochs=2: give one"),
        ({"variables": "("}, r"--variables=\(: should be a regular expression"),
        ({"wur": ("update", "ratio")}, "--wur=update,ratio"),
        ({"wur": ()}, "should be one or both"),
        ({"learning_rate": float("nan")}, "--learning_rate=nan"),
        ({"learning_rate": -1.0}, "--learning_rate=-1.0"),
        ({"histogram_every": 5, "summary_every": 0}, "on summary steps only"),
        ({"histogram_every": 75}, "should be a multiple of --summary_every=50"),
        ({"stddevs": (0.1, 0.1)}, "0.1 stands there 2 times"),
        ({"stddevs": (0.0012345671, 0.0012345672)}, "stands there 2 times"),
        ({"epochs": float("inf")}, "--epochs=inf"),
        ({"optimizer_args": "beta"}, "'beta' should be name=value"),
        ({"checkpoint_every": "often"}, "--checkpoint_every=often"),
        ({"profile_steps": "20-25"}, "'20-25' should be FIRST:STOP"),
        ({"profile_steps": "25:20"}, "'25:20' holds no step"),
        ({"profile_steps": "0:5"}, "'0:5' holds no step"),
        ({"profile_steps": "5:9,8:10"}, "two windows overlap"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_flag(settings, says):
    with pytest.raises(ValueError, match=says) as caught:
        config_lib.validate(Config(**settings))
    assert "\n" not in str(caught.value)


def test_the_defaults_are_valid_and_frozen():
    config = config_lib.validate(Config())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 3


def test_windows():
    assert config_lib.windows("20:25, 3:5", 100) == (Window(3, 5), Window(20, 25))
    assert config_lib.windows("", 100) == ()
    assert config_lib.windows("auto", 3000) == (Window(201, 206),)
    assert config_lib.windows("auto", 10) == (Window(6, 11),)
    assert config_lib.windows("auto", 1) == ()
    with pytest.raises(ValueError, match="ends after step 100"):
        config_lib.windows("90:102", 100)
    assert config_lib.windows("100:101", 100) == (Window(100, 101),)


def test_optimizer_args_and_checkpoint_intervals():
    parsed = config_lib.parse_args("beta_2=0.99, use_ema=True,name=x")
    assert parsed == {"beta_2": 0.99, "use_ema": True, "name": "x"}
    assert config_lib.checkpoint_interval("60s") == ("seconds", 60)
    assert config_lib.checkpoint_interval("500") == ("steps", 500)


def test_epochs_are_steps_of_whole_batches():
    assert config_lib.resolved_steps(Config(epochs=2, batch_size=10), 95) == 20
    assert config_lib.resolved_steps(Config(), 95) == config_lib.DEFAULT_STEPS
    assert config_lib.resolved_steps(Config(steps=7), 95) == 7
