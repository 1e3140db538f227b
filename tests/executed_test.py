"""Counts the ops that really ran, from profiler traces of the compiled functions."""

import collections
import re
import time

import pytest
import tensorflow as tf
from etils import epath

from tests import experiments
from tracker import captures, graphs, noise, profiling, steps

STEPS = 30
# Small variables draw normal numbers by TensorFlow's kernel, large ones from uniform numbers.
DRAWS = (":StatelessRandomNormalV2", ":StatelessRandomUniformV2")
# What only measuring needs. TensorFlow leaves cheap ops out of traces of functions that have run
# some hundred times, so every test captures a function that has hardly run.
MEASURING = ("diagnostics", "Timestamp")


def executed(experiment, directory, run):
    """Counts of (part of the name, op type) in a trace of `run(iterator)`."""
    warnings = []
    iterator = iter(experiment.batches())
    profiler = profiling.Profiler(epath.Path(directory), warnings.append)
    profiler.start()
    with profiling.step_marker(1):
        run(iterator)
        time.sleep(0.05)
    capture = profiler.stop()
    assert not warnings
    (file,) = epath.Path(capture).glob("*.xplane.pb")
    return captures.executed_ops(file)


def count(ops, *parts):
    return sum(n for name, n in ops.items() if all(p in name for p in parts))


def draws(ops, part):
    return sum(count(ops, part, kind) for kind in DRAWS)


def check_plain(ops, variables, routes):
    """A plain step draws for one route, and measures nothing."""
    by_route = collections.Counter()
    for route in range(routes):
        by_route[route] = draws(ops, f"/route_{route}_")
    assert sum(by_route.values()) == STEPS * variables, by_route
    assert all(n % variables == 0 for n in by_route.values()), by_route
    assert sum(n > 0 for n in by_route.values()) > 1, by_route
    for part in MEASURING:
        assert count(ops, part) == 0, [n for n in ops if part in n]
    assert count({n: c for n, c in ops.items() if "/route_" not in n}, ":Sqrt") == 0
    assert count(ops, ":L2Loss") == 0
    return by_route


SETTINGS = {"optimizer": "sgd", "steps": 1000, "strategy": "routes", "model": "mlp"}


def test_a_plain_step_runs_one_route_and_no_measuring(tmp_path):
    experiment = experiments.make(**SETTINGS, summary_every=100)
    results = []
    ops = executed(
        experiment, tmp_path, lambda it: results.append(experiment.functions.plain(it, 0, STEPS))
    )
    by_route = check_plain(ops, variables=6, routes=3)
    chosen = collections.Counter(results[0].plain.choice.tolist())
    assert {r: n // 6 for r, n in by_route.items()} == {r: chosen[r] for r in range(3)}
    forward = {n: c for n, c in ops.items() if graphs.part(n) == "forward"}
    assert count(forward, ":_FusedMatMul") + count(forward, "MatMul") == 3 * STEPS, forward


def test_an_instrumented_step_measures_once(tmp_path):
    experiment = experiments.make(**SETTINGS, summary_every=10)
    ops = executed(experiment, tmp_path, lambda it: experiment.functions.tracked(it, 0, 3, 9))
    norms = count(ops, "diagnostics", ":L2Loss")
    assert norms == 3 * 6 * 5  # intervals, variables, and before, after, update and its two parts
    assert draws(ops, "/route_") == STEPS * 6


class _WithNorm:
    """A rule that computes a norm on every step, as a careless change would."""

    def __init__(self, rule):
        self._rule = rule

    def __getattr__(self, name):
        return getattr(self._rule, name)

    def update(self, *arguments):
        update = self._rule.update(*arguments)
        with tf.name_scope("diagnostics"):
            size = tf.sqrt(tf.reduce_sum(tf.square(self._rule.trainable[0].value)))
            return update._replace(loss=update.loss + 0 * size)


class _TwoRoutes(noise.Adder):
    """An adder that runs a second route at every step."""

    def add(self, step, index, *others):
        super().add(step, index, *others)
        super().add(step, (index + 1) % 3)


@pytest.mark.parametrize("fault", ["a norm", "a second route"])
def test_the_count_finds_a_broken_step(tmp_path, fault):
    experiment = experiments.make(**SETTINGS, summary_every=100)
    body = experiment.functions.body
    if fault == "a norm":
        body = body._replace(rule=_WithNorm(body.rule))
    else:
        around = body.instrument
        adder = _TwoRoutes("routes", noise.Stateless(0), (0.0, 1e-3, 1e-2), around.targets)
        body = body._replace(instrument=around._replace(adder=adder))
    functions = steps.Steps(body, experiment.batches().element_spec)
    ops = executed(experiment, tmp_path, lambda it: functions.plain(it, 0, STEPS))
    with pytest.raises(AssertionError):
        check_plain(ops, variables=6, routes=3)


# The pipeline of the data runs beside the step, and has no scope of a step in its names.
PIPELINE = re.compile(
    r"^(GatherV2(_\d+)?|add|sub|stack|Identity|stateless_shuffle.*|[\w/]*Dataset\w*):"
)


@pytest.mark.parametrize("kind", ["plain", "tracked"])
def test_every_op_that_runs_is_a_node_of_the_exported_graph_in_its_part(tmp_path, kind):
    experiment = experiments.make(**SETTINGS, summary_every=10)
    functions = experiment.functions
    function = functions.plain_function if kind == "plain" else functions.tracked_function
    graph = graphs.step_graph(function.get_concrete_function())

    def run(iterator):
        if kind == "plain":
            functions.plain(iterator, 0, 3)
        else:
            functions.tracked(iterator, 0, 1, 2)

    ops = executed(experiment, tmp_path, run)
    missing = [n for n in ops if not PIPELINE.match(n) and graphs.find(graph, n) is None]
    assert missing == []
    # The iterator's own op runs on another thread, which the trace does not name for it.
    parts = {graphs.part(n) for n in ops} - {None} | {"data"}
    wanted = {"data", "forward", "gradients", "update", "noise"}
    assert parts == (wanted if kind == "plain" else wanted | {"diagnostics"})
    other = experiments.make(**{**SETTINGS, "model": "tests.architectures:conv"})
    changed = graphs.step_graph(other.functions.plain_function.get_concrete_function())
    assert any("Conv2D" in node.op for node in changed.node)
    assert not any("Conv2D" in node.op for node in graph.node)
