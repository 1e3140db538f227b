"""The exported graph is the one that runs, and TensorBoard shows its parts and its routes."""

from __future__ import annotations

import re

import keras
import pytest
import tensorflow as tf
from keras import layers
from tensorboard.compat.proto.event_pb2 import Event
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tests import browser
from tracker import graphs

STDDEVS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
ROUTES = [f"route_{i}_{s:g}" for i, s in enumerate(STDDEVS)]
PARTS = {"data", "forward", "gradients", "update", "noise"}
# What a host plane shows beside ops: calls, thread pools, tf.data's own threads.
NOT_OPS = re.compile(r"::|^(EagerLocalExecute|tf\.)|^[^:]*$")


class Odd(layers.Layer):
    def call(self, x):
        return x + tf.random.normal(tf.shape(x)) * tf.constant([0.1] * 16)


class Nested(layers.Layer):
    @tf.function
    def inner(self, x):
        return tf.nn.relu(x) * 2

    def call(self, x):
        return self.inner(x)


class Either(layers.Layer):
    def call(self, x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x + tf.square(x))


MODELS = {
    "dense": lambda: [keras.Input((64,)), layers.Dense(32, activation="relu"), layers.Dropout(0.1)],
    "lstm": lambda: [keras.Input((8, 8)), layers.LSTM(16), Either()],
    "gru": lambda: [keras.Input((8, 8)), layers.GRU(16, recurrent_dropout=0.1)],
    "conv": lambda: [
        keras.Input((8, 8, 1)), layers.Conv2D(8, 3), layers.BatchNormalization(), layers.ReLU(),
        layers.MaxPooling2D(), layers.Flatten(), layers.Dense(16), Odd(), Nested(),
    ],
}  # fmt: skip


class Toy:
    """Training as the app does it: steps in a loop, noise by routes; and a nested loop."""

    def __init__(self, kind="dense", stddevs=STDDEVS, nested=False):
        self.model = keras.Sequential([*MODELS[kind](), layers.Dense(10)])
        self.model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        self.optimizer = keras.optimizers.Adam(1e-3)
        self.optimizer.build(self.model.trainable_variables)
        self.stddevs = stddevs
        x = tf.random.normal((96, *self.model.input_shape[1:]), seed=1)
        data = tf.data.Dataset.from_tensor_slices((x, tf.zeros([96], tf.int64))).repeat().batch(32)
        self.iterator = iter(data)
        function = tf.function(self._intervals if nested else self._steps, autograph=False)
        self.concrete = function.get_concrete_function(self.iterator, tf.TensorSpec([], tf.int32))

    def run(self, count):
        return self.concrete(self.iterator, tf.constant(count))

    def _steps(self, iterator, count):
        losses = tf.TensorArray(tf.float32, count)
        return tf.while_loop(
            lambda i, _: i < count,
            lambda i, losses: (i + 1, losses.write(i, self._step(iterator))),
            (0, losses),
        )[1].stack()

    def _intervals(self, iterator, count):
        """An instrumented step, then plain ones, so many times."""

        def interval(i, total):
            with tf.name_scope("diagnostics"):
                before = tf.norm(self.model.trainable_variables[0].value)
            loss = self._step(iterator) + before
            return i + 1, total + loss + tf.reduce_sum(self._steps(iterator, count))

        return tf.while_loop(lambda i, _: i < count, interval, (0, 0.0))

    def _step(self, iterator):
        variables = self.model.trainable_variables
        with tf.name_scope("data"):
            x, y = next(iterator)
        with tf.GradientTape() as tape, tf.name_scope("forward"):
            loss = self.model.compute_loss(x, y, self.model(x, training=True))
        with tf.name_scope("gradients"):
            gradients = tape.gradient(loss, variables)
        with tf.name_scope("update"):
            self.optimizer.apply(gradients, variables)
        with tf.name_scope("noise"):
            step = tf.cast(self.optimizer.iterations.value, tf.int32)
            index = step % len(self.stddevs)
            branches = [self._route(k, s, step) for k, s in enumerate(self.stddevs)]
            tf.switch_case(index, branches, name="route")
        return loss

    def _route(self, number, stddev, step):
        def run():
            with tf.name_scope(f"route_{number}_{stddev:g}"):
                for i, v in enumerate(self.model.trainable_variables):
                    draw = tf.random.stateless_normal(v.shape, tf.stack([step, i]))
                    v.value.assign_add(stddev * draw)
            return tf.constant(number)

        return run


def capture(run, folder, steps=(1,), level=2):
    """Captures calls of `run`, each marked as a step; returns the ops that the host plane names."""
    run()
    options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=level)
    tf.profiler.experimental.start(str(folder), options)
    for step in steps:
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            run()
    tf.profiler.experimental.stop()
    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    return {n for plane in space.planes if plane.name == "/host:CPU" for n in op_names(plane)}


def op_names(plane):
    """Names of ops: of what runs at once as `name:OpType`, of what runs on its own as a stat."""
    stats = plane.stat_metadata
    for line in plane.lines:
        for event in line.events:
            name = plane.event_metadata[event.metadata_id].name
            if name.startswith("ExecutorState::ProcessAsync"):
                named = (s for s in event.stats if stats[s.metadata_id].name == "name")
                yield from (s.str_value or stats[s.ref_value].name for s in named)
            elif not NOT_OPS.search(name):
                yield name


def write(folder, graph):
    folder.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / "events.out.tfevents.1.test")) as writer:
        for event in (Event(file_version="brain.Event:2"), Event(graph_def=graph)):
            writer.write(event.SerializeToString())


def graph_of(toy):
    """The graph of a toy, which must live as long as its function is looked at."""
    return graphs.step_graph(toy.concrete)


def tops(graph):
    return {n.name.split("/")[0] for n in graph.node}


def routes(graph):
    return {n.name.split("/")[2] for n in graph.node if n.name.startswith("noise/route/route_")}


def test_names():
    for shown, name in {
        "while/body/_1/while/forward/dense/MatMul:_MklMatMul": "forward/dense/MatMul",
        "while/body/_1/gradient_tape/while/forward/d/MatMul/MatMul_1:MatMul":
            "gradients/forward/d/MatMul/MatMul_1",
        "while/body/_1/while/body/_40/while/while/update/adam/Pow:Pow": "update/adam/Pow",
        "while/body/_1/while/noise/route/indexed_case/branch2/_116/while/noise/route/indexed_case"
        "/route_2_0.001/mul:Mul": "noise/route/route_2_0.001/mul",
        "while/body/_1/while/noise/cond/then/_9/while/noise/cond/route/indexed_case/branch0/_7"
        "/while/noise/cond/route/indexed_case/route_0_0/mul:Mul": "noise/route/route_0_0/mul",
        "while/noise/switch_case/indexed_case:Case": "noise/route/chosen",
        "while/body/_1/while/forward/lstm/while/body/_5/while/forward/lstm/while/MatMul:MatMul":
            "forward/lstm/while/MatMul",
        "while/body/_1/while/forward/lstm/while/cond/_4/while/forward/lstm/while/Less:Less":
            "forward/lstm/while/cond/Less",
        "while/body/_1/while/forward/PartitionedCall/while/body/_9/while/MatMul:MatMul":
            "forward/PartitionedCall/while/MatMul",
        "while/body/_1/while/add_1:AddV2": "loop/while/add_1",
        "while/body/_1/while/diagnostics/norm/ArithmeticOptimizer/ReplaceMulWithSquare_mul:Square":
            "diagnostics/norm/mul",
        "while/body/_1/while/ArithmeticOptimizer/ReorderCastLikeAndValuePreserving_int64_Cast:Cast":
            "loop/while/Cast",
        "forward/dense/MatMul": "forward/dense/MatMul",
    }.items():  # fmt: skip
        assert graphs.node_name(shown) == name
    assert graphs.part("while/body/_1/while/update/adam/Pow:Pow") == "update"
    assert graphs.part("while/body/_1/while/add_1:AddV2") is None


@pytest.mark.parametrize("kind", MODELS)
def test_every_op_that_runs_is_a_node_of_its_part(kind, tmp_path):
    toy = Toy(kind)
    graph = graphs.step_graph(toy.concrete)
    for level in (1, 2, 3):
        ran = capture(lambda: toy.run(3), tmp_path / str(level), level=level)
        assert len(ran) > 100
        assert {graphs.part(n) for n in ran} - {None} == PARTS
        assert {n for n in ran if graphs.find(graph, n) != graphs.node_name(n)} == set()
        for name in PARTS - {"gradients"}:
            scoped = {n for n in ran if f"while/{name}/" in n and "gradient_tape" not in n}
            assert scoped and {graphs.part(n) for n in scoped} == {name}


def test_graph_is_clean_and_whole():
    graph = graph_of(Toy())
    names = [n.name for n in graph.node]
    assert len(names) == len(set(names))
    assert tops(graph) == PARTS | {"inputs", "variables", "loop"}
    assert routes(graph) == set(ROUTES)
    assert not graph.library.function
    sources = {i.lstrip("^").split(":")[0] for n in graph.node for i in n.input}
    assert sources <= set(names)
    assert not any("gradient_tape" in n for n in names)


def test_the_choice_leads_to_every_route():
    graph = graph_of(Toy())
    chosen = next(n for n in graph.node if n.name == "noise/route/chosen")
    index = chosen.input[0]
    led = {n.name.split("/")[2] for n in graph.node if f"^{index}" in n.input}
    assert led == set(ROUTES)


def test_another_model_is_another_graph():
    one, other = (graph_of(Toy(k)) for k in ("dense", "lstm"))
    assert {n.name for n in one.node} != {n.name for n in other.node}
    assert not any("/lstm" in n.name for n in one.node)
    assert any(n.name.startswith("forward/sequential") and "/lstm" in n.name for n in other.node)


def test_a_step_in_a_loop_beside_another_is_not_drawn_twice(tmp_path):
    toy = Toy(nested=True)
    graph = graphs.step_graph(toy.concrete)
    assert tops(graph) == PARTS | {"diagnostics", "inputs", "variables", "loop"}
    plain = graph_of(Toy())
    assert sum(n.name.startswith("update/") for n in graph.node) == sum(
        n.name.startswith("update/") for n in plain.node
    )
    ran = capture(lambda: toy.run(2), tmp_path)
    assert {n for n in ran if graphs.find(graph, n) is None} == set()


def test_many_routes_are_cut_and_counted():
    toy = Toy(stddevs=[i * 1e-5 for i in range(600)])
    graph = graphs.step_graph(toy.concrete)
    shown = [r for r in range(600) if any(s.startswith(f"route_{r}_") for s in routes(graph))]
    assert shown == [*range(8), *range(596, 600)]
    left_out = "noise/route/588_more_routes"
    assert graphs.find(graph, "noise/route/route_300_0.003/mul:Mul") == left_out
    assert len(graph.node) < 1500


def test_a_large_graph_is_collapsed_and_says_so(caplog):
    toy = Toy("conv")
    whole = graphs.step_graph(toy.concrete)
    with caplog.at_level("INFO", logger="absl"):
        small = graphs.step_graph(toy.concrete, most_nodes=400)
    assert len(whole.node) > 1000 and len(small.node) <= 400
    assert f"{len(whole.node)} nodes" in caplog.text
    assert tops(small) == tops(whole)
    assert routes(small) == set(ROUTES)
    for node in whole.node:
        assert graphs.find(small, node.name) is not None, node.name
    names = {n.name for n in small.node}
    assert {i.lstrip("^").split(":")[0] for n in small.node for i in n.input} <= names


def test_long_constants_lose_their_values():
    @tf.function
    def step():
        with tf.name_scope("forward"):
            return tf.reduce_sum(tf.constant(list(range(5000)), tf.float32))

    graph = graphs.step_graph(step.get_concrete_function())
    (constant,) = (n for n in graph.node if n.op == "Const" and n.name == "forward/Const")
    assert constant.attr["value"].tensor.tensor_shape.dim[0].size == 5000
    assert graph.ByteSize() < 2000


@pytest.fixture
def trained(tmp_path):
    toy = Toy()
    graph = graphs.step_graph(toy.concrete)
    write(tmp_path / "run" / "train", graph.SerializeToString())
    capture(lambda: toy.run(1), tmp_path / "run" / "train", steps=range(20, 25))
    return tmp_path


def test_tensorboard_shows_parts_and_routes(trained, page):
    with browser.tensorboard(trained) as url:
        browser.open_graph(page, url)
        assert set(browser.graph_nodes(page)) == PARTS | {"inputs", "variables", "loop"}
        browser.screenshot(page, "graph_parts")
        browser.open_node(page, "noise")
        browser.open_node(page, "noise/route")
        drawn = set(browser.graph_nodes(page))
        assert {f"noise/route/{r}" for r in ROUTES} < drawn
        cut = [label.rstrip("….") for label in browser.graph_labels(page)]
        for route in ROUTES:
            assert any(len(c) >= 9 and route.startswith(c) for c in cut), (route, cut)
        browser.screenshot(page, "graph_routes")
        browser.open_node(page, f"noise/route/{ROUTES[3]}")
        inside = [n for n in browser.graph_nodes(page) if f"{ROUTES[3]}/" in n]
        assert any("stateless_random_normal" in n for n in inside)
        browser.screenshot(page, "graph_route")


@pytest.mark.parametrize("kind", [k for k in MODELS if k != "dense"])
def test_tensorboard_takes_the_graph_of(kind, tmp_path, page):
    write(tmp_path / "run", graph_of(Toy(kind)).SerializeToString())
    with browser.tensorboard(tmp_path) as url:
        browser.open_graph(page, url)
        browser.open_node(page, "noise")
        browser.open_node(page, "noise/route")
        assert {f"noise/route/{r}" for r in ROUTES} < set(browser.graph_nodes(page))


def test_tensorboard_shows_the_first_and_last_of_many_routes(tmp_path, page):
    toy = Toy(stddevs=[i * 1e-5 for i in range(600)])
    write(tmp_path / "run", graph_of(toy).SerializeToString())
    with browser.tensorboard(tmp_path) as url:
        browser.open_graph(page, url)
        browser.open_node(page, "noise")
        browser.open_node(page, "noise/route")
        drawn = browser.graph_nodes(page)
        assert "noise/route/588_more_routes" in drawn
        assert {"noise/route/route_0_0", "noise/route/route_599_0.00599"} < set(drawn)
        browser.screenshot(page, "graph_many_routes")


def test_trace_viewer_shows_steps(trained, page):
    with browser.tensorboard(trained) as url:
        (captured,) = browser.captures(url)
        browser.open_trace(page, url, captured)
        browser.screenshot(page, "trace")
        steps = browser.trace_events(page, "train")
        assert [re.search(r"step_num\s+(\d+)", s)[1] for s in steps] == [
            str(n) for n in range(20, 25)
        ]
        browser.screenshot(page, "trace_step")
        (drawn,) = browser.trace_events(page, "StatelessRandomNormalV2", most=1)
        assert "noise/route/indexed_case/branch" in drawn  # the op's long name
        assert re.search(r"/route_\d_[\d.]+/stateless_random_normal", drawn)
