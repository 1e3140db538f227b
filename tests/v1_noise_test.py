import numpy as np
import pytest
import tensorflow as tf

from tests import browser
from tracker import noise, v1
from tracker import wur as wur_lib

tf1 = tf.compat.v1
STDDEVS = (0.0, 1e-3, 0.1)
RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal([100, 50]).astype(np.float32)
X = RANDOM.standard_normal([8, 100]).astype(np.float32)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as made:
        yield made


def layer():
    w = tf1.get_variable("dense/kernel", initializer=W, use_resource=True)
    b = tf1.get_variable("dense/bias", initializer=np.zeros([50], np.float32), use_resource=True)
    return tf.reduce_mean(tf.square(tf.matmul(X, w) + b))


def noisy(strategy, optimizer, **options):
    pairs = optimizer.compute_gradients(layer())
    return v1.noisy_train(strategy, optimizer, pairs, **{"stddevs": STDDEVS, **options})


def session():
    made = tf1.Session()
    made.run([v.initializer for v in tf1.global_variables()])
    tf1.get_default_graph().finalize()
    return made


def trained(strategy, distribution, steps=12):
    with tf.Graph().as_default():
        made = noisy(strategy, tf1.train.AdamOptimizer(0.01), seed=3, distribution=distribution)
        with session() as sess:
            choices = [sess.run([made.choice, made.train])[0] for _ in range(steps)]
            return choices, sess.run(tf1.trainable_variables())


@pytest.mark.parametrize("distribution", noise.DISTRIBUTIONS)
def test_the_strategies_agree_bit_for_bit(distribution):
    choices, weights = trained("scalar", distribution)
    assert len(set(choices)) == 3
    for strategy in ("routes", "buffered"):
        others, same = trained(strategy, distribution)
        assert others == choices
        for one, other in zip(weights, same, strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("strategy", noise.STRATEGIES)
def test_the_noise_is_the_app_s(strategy):
    made = noisy(strategy, tf1.train.GradientDescentOptimizer(0.0), seed=7, stddevs=(0.1,))
    with session() as sess:
        found = []
        for _ in range(3):
            sess.run(made.train)
            found.append(sess.run(tf1.trainable_variables()))
    wanted = _by_the_app(seed=7, stddev=0.1, steps=3)
    for step in range(3):
        for one, other in zip(found[step], wanted[step], strict=True):
            assert one.tobytes() == other.tobytes()


def _by_the_app(seed, stddev, steps):
    """Weights after each step of the app's adder, in a graph of their own."""
    with tf.Graph().as_default():
        source, found = noise.Stateless(seed), []
        draws = [
            [
                source.draw(name, noise.counter(tf.constant(step + 1)), shape) * np.float32(stddev)
                for name, shape in (("dense/kernel", [100, 50]), ("dense/bias", [50]))
            ]
            for step in range(steps)
        ]
        with tf1.Session() as sess:
            drawn = sess.run(draws)
    weights = [W, np.zeros([50], np.float32)]
    for one in drawn:
        weights = [w + d for w, d in zip(weights, one, strict=True)]
        found.append(weights)
    return found


@pytest.mark.parametrize("strategy", noise.STRATEGIES)
def test_size_and_nothing_at_stddev_0(strategy):
    choice = tf1.placeholder_with_default(2, [])
    made = noisy(strategy, tf1.train.GradientDescentOptimizer(0.0), choice=lambda step: choice)
    with session() as sess:
        w = tf1.trainable_variables()[0]
        before = sess.run(w)
        stddev, _ = sess.run([made.stddev, made.train])
        moved = np.linalg.norm(sess.run(w).astype(np.float64) - before)
        assert moved == pytest.approx(0.1 * np.sqrt(5000), rel=0.05)
        assert stddev == np.float32(0.1)
        before = sess.run(w)
        sess.run(made.train, {choice: 0})
        assert sess.run(w).tobytes() == before.tobytes()
        if made.assign is not None:  # assigning alone moves no weight
            sess.run(made.assign)
            assert sess.run(w).tobytes() == before.tobytes()


def test_state_and_steps():
    held = {}
    for strategy in noise.STRATEGIES:
        with tf.Graph().as_default():
            count = tf1.train.get_or_create_global_step()
            made = noisy(strategy, tf1.train.AdamOptimizer(0.01), global_step=count)
            held[strategy] = [v.shape.as_list() for v in made.state]
            with session() as sess:
                assert [sess.run([made.step, made.train])[0] for _ in range(3)] == [1, 2, 3]
                assert sess.run(count) == 3
    assert held == {"scalar": [[]], "routes": [], "buffered": [[100, 50], [50]]}


def test_the_parts_of_the_ratio():
    optimizer = tf1.train.GradientDescentOptimizer(0.5)
    with v1.weight_update_ratio() as wur:
        made = noisy("routes", optimizer, pattern="kernel")
    assert wur.train is made.train
    fields = {name: i for i, name in enumerate(wur_lib.Measured._fields)}
    with session() as sess:
        before = sess.run(tf1.trainable_variables())
        rows, stddev = sess.run([wur.measured, made.stddev])
        after = sess.run(tf1.trainable_variables())
    for row, one, other in zip(rows, before, after, strict=True):
        moved = np.linalg.norm(other.astype(np.float64) - one)
        assert row[fields["update"]] == pytest.approx(moved, rel=1e-5)
    assert rows[0][fields["noise"]] == pytest.approx(stddev * np.sqrt(5000), rel=0.05, abs=1e-12)
    assert rows[1][fields["noise"]] == 0
    assert rows[1][fields["gradient"]] == rows[1][fields["update"]] > 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions_and_constraints(dtype):
    w = tf1.get_variable(
        "w", [400], dtype, tf1.ones_initializer(), use_resource=True,
        constraint=lambda x: tf.maximum(x, tf.cast(0.95, x.dtype)),
    )  # fmt: skip
    optimizer = tf1.train.GradientDescentOptimizer(0.0)
    made = v1.noisy_train(
        "scalar", optimizer, optimizer.compute_gradients(tf.reduce_sum(w)), (0.1,)
    )
    with session() as sess:
        sess.run(made.train)
        found = np.float64(sess.run(w))
    assert found.min() == pytest.approx(0.95, rel=0.01)
    assert found.max() > 1.1


def test_bad_input():
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    for options, said in (
        ({"stddevs": ()}, "0 stddevs"),
        ({"pattern": "conv"}, "pattern=conv matches none of dense/kernel, dense/bias"),
    ):
        with tf.Graph().as_default(), pytest.raises(ValueError, match=said):
            noisy("scalar", optimizer, **options)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="strategy=branches"):
        noisy("branches", optimizer)


def test_the_graphs_tab_shows_the_routes_of_a_user_s_own_graph(tmp_path, page, graph):
    noisy("routes", tf1.train.GradientDescentOptimizer(0.1))
    with v1.SummaryWriter(tmp_path / "mine") as writer:
        writer.add_graph(graph)
    with browser.tensorboard(tmp_path) as url:
        browser.open_graph(page, url)
        browser.open_node(page, "noise")
        browser.open_node(page, "noise/route")
        shown = browser.graph_nodes(page)
        assert {f"noise/route/route_{n}" for n in ("0_0", "1_0.001", "2_0.1")} <= set(shown)
        browser.open_node(page, "noise/route/route_2_0.1")
        inside = [n for n in browser.graph_nodes(page) if n.startswith("noise/route/route_2_0.1/")]
        assert any("StatelessRandom" in n for n in inside)
