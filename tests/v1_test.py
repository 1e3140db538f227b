import collections
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator
from tensorflow.core.protobuf import rewriter_config_pb2

from tracker import events, tags, v1

tf1 = tf.compat.v1
RANDOM = np.random.default_rng(0)
W, X = (RANDOM.standard_normal(s).astype(np.float32) for s in ((20, 10), (8, 20)))
Y = RANDOM.standard_normal((8, 10)).astype(np.float32)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as made:
        yield made


def variable(name, value, **options):
    value = np.asarray(value, np.float32)
    return tf1.get_variable(name, initializer=tf.constant(value), use_resource=True, **options)


def toy():
    """A kernel of ones and a bias of zeros, whose gradients are 1 at every step."""
    kernel, bias = variable("kernel", np.ones([3, 2])), variable("bias", np.zeros([2]))
    return tf.reduce_sum(tf.matmul(tf.ones([1, 3]), kernel) + bias)


def layer():
    w, b = variable("layer/w", W), variable("layer/b", np.full([10], 0.1))
    return tf.reduce_mean(tf.square(tf.matmul(X, w) + b - Y))


def session(**options):
    made = tf1.Session(config=tf1.ConfigProto(**options))
    made.run([v.initializer for v in tf1.global_variables()])
    tf1.get_default_graph().finalize()
    return made


def norm(x):
    return np.linalg.norm(np.asarray(x, np.float64))


def weights(sess):
    return [np.copy(w) for w in sess.run(tf1.trainable_variables())]


def values_of(summary):
    return {v.tag: v.simple_value for v in tf1.Summary.FromString(summary).value}


class TestTheRatio:
    def test_by_hand(self):
        loss = toy()
        with v1.weight_update_ratio() as wur:
            train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        assert wur.train is train
        with session() as sess:
            rows = [sess.run([wur.ratio, wur.undefined, wur.norm_change]) for _ in range(4)]
        kernel = [row[0]["kernel"] for row in rows]
        bias = [row[0]["bias"] for row in rows]
        np.testing.assert_allclose(kernel, [0.1, 1 / 9, 1 / 8, 1 / 7], rtol=1e-6)
        assert np.isnan(bias[0])
        np.testing.assert_allclose(bias[1:], [1, 1 / 2, 1 / 3], rtol=1e-6)
        assert [row[1] for row in rows] == [1, 0, 0, 0]
        np.testing.assert_allclose([row[2]["kernel"] for row in rows], kernel, rtol=1e-6)

    OPTIMIZERS = {
        "sgd": lambda t: t.GradientDescentOptimizer(0.1),
        "momentum": lambda t: t.MomentumOptimizer(0.1, 0.9),
        "nesterov": lambda t: t.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
        "adam": lambda t: t.AdamOptimizer(0.01),
        "adagrad": lambda t: t.AdagradOptimizer(0.1),
        "adadelta": lambda t: t.AdadeltaOptimizer(1.0),
        "rmsprop": lambda t: t.RMSPropOptimizer(0.01),
        "centered": lambda t: t.RMSPropOptimizer(0.01, centered=True),
        "ftrl": lambda t: t.FtrlOptimizer(0.1),
        "proximal": lambda t: t.ProximalGradientDescentOptimizer(0.1),
        "proximal_adagrad": lambda t: t.ProximalAdagradOptimizer(0.1),
        "dual_averaging": lambda t: t.AdagradDAOptimizer(0.1, tf1.train.get_global_step()),
    }

    @pytest.mark.parametrize("name", OPTIMIZERS)
    @pytest.mark.parametrize("alone", [True, False])
    def test_every_optimizer_in_one_run_that_updates_once(self, name, alone):
        loss, count = layer(), tf1.train.get_or_create_global_step()
        optimizer = self.OPTIMIZERS[name](tf1.train)
        with v1.weight_update_ratio() as wur:
            train = optimizer.apply_gradients(optimizer.compute_gradients(loss), count)
        assert wur.names == ["layer/w", "layer/b"]
        fetches = [wur.ratio, wur.overall, wur.norm_change, wur.overall_norm_change]
        with session() as sess:
            for step in range(1, 5):
                before = weights(sess)
                found = sess.run(fetches if alone else [*fetches, train])
                after = weights(sess)
                assert sess.run(count) == step
                self.check(found, before, after)

    def check(self, found, before, after):
        ratio, overall, change, overall_change = found[:4]
        moved = [a.astype(np.float64) - b for a, b in zip(after, before, strict=True)]
        assert all(norm(m) > 0 for m in moved)
        for name, b, a, m in zip(ratio, before, after, moved, strict=True):
            assert ratio[name] == pytest.approx(norm(m) / norm(b), rel=1e-5)
            wanted = abs(norm(a) - norm(b)) / norm(b)
            assert change[name] == pytest.approx(wanted, rel=1e-3, abs=1e-7)
        before, after, moved = (
            np.concatenate([v.ravel() for v in x]) for x in (before, after, moved)
        )
        assert overall == pytest.approx(norm(moved) / norm(before), rel=1e-5)
        wanted = abs(norm(after) - norm(before)) / norm(before)
        assert overall_change == pytest.approx(wanted, rel=1e-3, abs=1e-7)

    def test_the_update_is_all_that_the_block_does_to_the_weights(self):
        w = variable("w", [1.0, 2.0], constraint=lambda x: tf.clip_by_value(x, 0.9, 3.0))
        average = tf1.train.ExponentialMovingAverage(0.9)
        with v1.weight_update_ratio() as wur:
            moved = tf1.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(w))
            with tf.control_dependencies([moved]):
                train = average.apply([w])
        assert wur.train is train
        with session() as sess:
            found = sess.run(wur.ratio["w"])
            np.testing.assert_array_equal(sess.run(w), np.float32([0.9, 1.5]))
        assert found == pytest.approx(norm([0.1, 0.5]) / norm([1, 2]), rel=1e-6)

    def test_loss_scaling_updates_inside_a_branch(self):
        w = variable("w", np.full([3], 2.0))
        scaled = tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(
            tf1.train.GradientDescentOptimizer(0.5), "dynamic"
        )
        worth = tf1.placeholder_with_default(1.0, [])
        with v1.weight_update_ratio() as wur:
            scaled.apply_gradients(scaled.compute_gradients(worth * tf.reduce_sum(w)))
        with session() as sess:
            assert sess.run(wur.ratio["w"]) == pytest.approx(0.25, rel=1e-6)
            assert sess.run(wur.ratio["w"], {worth: np.inf}) == 0  # skipped, as it overflows

    def test_a_variable_that_stays_zero_has_ratio_0(self):
        still, other = variable("still", np.zeros([4])), variable("other", np.ones([4]))
        loss = tf.reduce_sum(0 * still + other)
        with v1.weight_update_ratio() as wur:
            tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with session() as sess:
            ratio, undefined, summary = sess.run([wur.ratio, wur.undefined, wur.summary])
        assert ratio["still"] == 0
        assert undefined == 0
        assert values_of(summary)[tags.wur("still")] == 0

    def test_var_scope_chooses_and_the_overall_ratio_is_of_these(self):
        loss = layer()
        with v1.weight_update_ratio("of_w", var_scope="/w$") as wur:
            tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        assert wur.names == ["layer/w"]
        with session() as sess:
            ratio, overall = sess.run([wur.ratio, wur.overall])
        assert list(ratio) == ["layer/w"]
        assert overall == ratio["layer/w"]

    def test_only_what_is_trained_is_measured_and_moved(self):
        frozen, w = variable("frozen", np.ones([3]), trainable=False), variable("w", np.ones([3]))
        given = variable("given", np.ones([3]), trainable=False)
        optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
        with v1.weight_update_ratio() as wur:
            optimizer.minimize(tf.reduce_sum(frozen * w * given), var_list=[w, given])
        assert wur.names == ["w", "given"]
        with session() as sess:
            for _ in range(3):
                sess.run(wur.summary)
            np.testing.assert_array_equal(sess.run(frozen), np.ones([3]))


class TestEmbeddings:
    @pytest.fixture
    def made(self):
        table, w = variable("table", np.ones([50, 2])), variable("w", np.ones([2, 2]))
        loss = tf.reduce_sum(tf.matmul(tf.nn.embedding_lookup(table, [1, 3, 3]), w))
        with v1.weight_update_ratio() as wur:
            train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        return table, train, wur, session()

    def test_it_is_read_only_when_asked_for(self, made):
        table, train, wur, sess = made
        with sess:
            assert sess.run(wur.ratio["w"]) > 0  # the others are measured as ever
            for fetch in (wur.ratio["table"], wur.overall, wur.summary):
                with pytest.raises(tf.errors.InvalidArgumentError) as refused:
                    sess.run(fetch)
                assert "table is updated row by row" in str(refused.value)
                assert "{wur.record: True}" in str(refused.value)
            before = sess.run(table)
            ratio, _ = sess.run([wur.ratio, train], {wur.record: True})
            after = sess.run(table)
        assert ratio["table"] == pytest.approx(norm(after - before) / norm(before), rel=1e-5)

    def test_noise_on_it(self):
        table = variable("table", np.ones([50, 2]))
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 3, 3]))
        optimizer = tf1.train.AdagradOptimizer(0.1)
        with v1.weight_update_ratio() as wur:
            pairs = optimizer.compute_gradients(loss)
            v1.noisy_train("routes", optimizer, pairs, (0.1, 0.01))
        with session() as sess:
            before = sess.run(table)
            summary = values_of(sess.run(wur.summary, {wur.record: True}))
            after = sess.run(table)
        wanted = norm(after - before) / norm(before)
        assert summary[tags.wur("table")] == pytest.approx(wanted, rel=1e-5)
        rows = after[[1, 3]] - before[[1, 3]]
        wanted = norm(rows) / norm(before[[1, 3]])
        assert summary[tags.wur_touched("table")] == pytest.approx(wanted, rel=1e-5)
        assert 0 < summary[tags.wur_noise("table")] < summary[tags.wur("table")]


def executed(sess, fetches):
    """Counts of op types that ran, and the buffers of what was read, by op name."""
    metadata = tf1.RunMetadata()
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    sess.run(fetches, options=options, run_metadata=metadata)
    ran, buffers = collections.Counter(), {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            kind = node.timeline_label.partition(" = ")[2].partition("(")[0]
            ran[node.node_name, kind] += 1
            for output in node.output:
                at = output.tensor_description.allocation_description.ptr
                buffers[node.node_name] = at
    return ran, buffers


def measuring(ran):
    """What ran of ours, and what takes norms or copies, wherever it stands."""
    norms = ("L2Loss", "Sqrt", "Square", "Max")
    ours = [name for name, _ in ran if name.startswith("wur/")]
    return ours, [(name, kind) for name, kind in ran if kind in norms]


def unchanged():
    """Settings of a session that runs a graph as it was made."""
    off = rewriter_config_pb2.RewriterConfig(disable_meta_optimizer=True)
    level = tf1.OptimizerOptions(opt_level=tf1.OptimizerOptions.L0)
    return tf1.GraphOptions(rewrite_options=off, optimizer_options=level)


class TestAConditionalFetch:
    @pytest.mark.parametrize("noise", [None, "scalar", "routes", "buffered"])
    def test_a_plain_run_executes_nothing_of_it(self, noise):
        loss, optimizer = layer(), tf1.train.GradientDescentOptimizer(0.1)
        with v1.weight_update_ratio() as wur:
            pairs = optimizer.compute_gradients(loss)
            if noise:
                train = v1.noisy_train(
                    noise, optimizer, pairs, (0.0, 0.1), distribution="uniform"
                ).train
            else:
                train = optimizer.apply_gradients(pairs)
        with session() as sess:
            for _ in range(3):
                ran, _ = executed(sess, train)
                assert measuring(ran) == ([], [])
                assert any("GradientDescent" in kind for _, kind in ran)
            ran, _ = executed(sess, [train, wur.summary])
            assert sum(kind == "L2Loss" for _, kind in ran) >= 2 * 3
            assert measuring(executed(sess, train)[0]) == ([], [])

    def test_without_graph_rewriting_variables_are_read_and_not_copied(self):
        loss = layer()
        with v1.weight_update_ratio() as wur:
            train = tf1.train.AdamOptimizer(0.01).minimize(loss)
        with session(graph_options=unchanged()) as sess:
            reads = ["wur/before/ReadVariableOp", "wur/before/ReadVariableOp_1"]
            buffers = []
            sess.run(train)  # it moves the weights out of the constants that they began as
            for _ in range(4):
                ran, at = executed(sess, train)
                assert sorted(measuring(ran)[0]) == reads
                buffers.append([at[name] for name in reads])
            assert all(b == buffers[0] for b in buffers)  # every update was made in place
            before = weights(sess)
            ran, at = executed(sess, [train, wur.overall])
            assert at["wur/after/Read/ReadVariableOp"] != at[reads[0]] == buffers[0][0]
            assert norm(weights(sess)[0] - before[0]) > 0

    def test_the_count_finds_the_usual_way(self):
        """A norm before the update under control dependencies runs at every step."""
        loss, (w, _) = layer(), tf1.trainable_variables()
        before = tf.norm(tf.identity(w))
        with tf.control_dependencies([before]):
            train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with session(graph_options=unchanged()) as sess:
            assert measuring(executed(sess, train)[0])[1]

    def test_measuring_changes_no_bit_of_the_weights_and_the_graph_does_not_grow(self, graph):
        loss = layer()
        with v1.weight_update_ratio() as wur:
            train = tf1.train.AdamOptimizer(0.01).minimize(loss)
        ends, size = [], len(graph.get_operations())
        for every in (0, 1, 3):
            graph._unsafe_unfinalize()
            with session() as sess:
                for step in range(30):
                    measured = every and step % every == 0
                    sess.run([train, wur.summary] if measured else train)
                ends.append(weights(sess))
        for end in ends[1:]:
            assert all(a.tobytes() == b.tobytes() for a, b in zip(ends[0], end, strict=True))
        assert len(graph.get_operations()) == size


class TestSummaries:
    def test_the_tags_are_the_app_s_whatever_the_scope(self):
        with tf.name_scope("outer"), tf1.variable_scope("net"):
            loss = layer()
            with v1.weight_update_ratio("ratio", kinds=("update", "norm_change")) as wur:
                tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with session() as sess:
            before = weights(sess)
            found = values_of(sess.run(wur.summary))
            after = weights(sess)
        names = ["net/layer/w", "net/layer/b"]
        families = (
            tags.wur, tags.wur_gradient, tags.wur_noise, tags.norm_change, tags.weight_norm,
            tags.update_norm,
        )  # fmt: skip
        all_ = {tags.WUR_ALL_RATIO, tags.WUR_ALL_OUT_OF_BAND, tags.WUR_ALL_UNDEFINED}
        assert set(found) == {family(n) for family in families for n in names} | all_
        assert found[tags.weight_norm(names[0])] == pytest.approx(norm(before[0]), rel=1e-6)
        moved = norm(after[0].astype(np.float64) - before[0])
        assert found[tags.update_norm(names[0])] == pytest.approx(moved, rel=1e-5)
        assert found[tags.wur_noise(names[0])] == 0

    def test_what_has_no_ratio_is_not_written_and_what_is_not_a_number_is_counted(self):
        loss = toy()
        with v1.weight_update_ratio() as wur:
            tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with session() as sess:
            found = values_of(sess.run(wur.summary))
            assert tags.wur("bias") not in found
            assert found[tags.WUR_ALL_UNDEFINED] == 1
            assert found[tags.update_norm("bias")] == pytest.approx(np.sqrt(0.02))
            bias = tf1.trainable_variables()[1]
            bias.load(np.float32([np.nan, 0.0]), sess)
            found = values_of(sess.run(wur.summary))
        assert found[tags.nonfinite("bias")] == 1
        assert tags.wur("bias") not in found
        assert tags.wur("kernel") in found

    def test_summaries_of_the_user_are_neither_merged_nor_run(self):
        loss = layer()
        looped = tf.while_loop(
            lambda i: i < 2, lambda i: (tf1.summary.scalar("in/loop", i), i + 1)[1], [0]
        )
        own = tf1.summary.scalar("own", loss + tf.cast(looped[0], tf.float32))
        before = list(tf1.get_collection(tf1.GraphKeys.SUMMARIES))
        with (
            pytest.warns(UserWarning, match="summaries .*in/loop are made inside a loop") as said,
            v1.weight_update_ratio() as wur,
        ):
            tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        assert "own" not in str(said[0].message)
        assert said[0].filename == __file__
        assert tf1.get_collection(tf1.GraphKeys.SUMMARIES) == before
        with session() as sess:
            found = values_of(sess.run(wur.summary))
            assert not {"own", "in/loop"} & set(found)
            assert list(values_of(sess.run(own))) == ["own"]

    def test_two_writers_of_one_second_keep_both_steps_and_tags_have_descriptions(self, tmp_path):
        loss = layer()
        with v1.weight_update_ratio() as wur:
            train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
        own = tf1.summary.histogram("own", tf1.trainable_variables()[0])
        with session() as sess:
            first, second = v1.SummaryWriter(tmp_path), v1.SummaryWriter(str(tmp_path))
            first.add_graph(sess.graph)
            for writer, step in ((first, np.int32(1)), (second, 2**40)):
                writer.add_summary(sess.run([train, wur.summary])[1], step)
                writer.add_summary(sess.run(own), step)
            first.close()
            second.close()
        found = event_accumulator.EventAccumulator(
            str(tmp_path), {event_accumulator.HISTOGRAMS: 0}
        ).Reload()
        points = found.Tensors(tags.wur("layer/w"))
        assert [p.step for p in points] == [1, 2**40]
        assert (
            "Weight-update ratio" in found.SummaryMetadata(tags.wur("layer/w")).summary_description
        )
        kept = [e for f in events.event_files(tmp_path) for _, e in events.read(f)]
        assert [e.step for e in kept if "own" in str(e.summary)] == [1, 2**40]
        assert {n.name for n in found.Graph().node} >= {"layer/w", "wur/norms/L2Loss"}

    @pytest.mark.parametrize("step", [None, 3.0, [1, 2], -1])
    def test_a_step_that_is_none(self, tmp_path, step):
        summary = tf1.Summary(value=[tf1.Summary.Value(tag="mine", simple_value=1.0)])
        with v1.SummaryWriter(tmp_path) as writer, pytest.raises(ValueError, match="mine"):
            writer.add_summary(summary.SerializeToString(), step)


class TestErrors:
    def test_a_train_op_from_outside(self):
        train = tf1.train.GradientDescentOptimizer(0.1).minimize(layer())
        with (
            pytest.raises(ValueError, match=r"'mine'\): no train op was created inside"),
            v1.weight_update_ratio("mine"),
        ):
            tf.group(train)

    def test_two_train_ops(self):
        loss = layer()
        with pytest.raises(ValueError, match="group them"), v1.weight_update_ratio():
            for _ in range(2):
                tf1.train.GradientDescentOptimizer(0.1).minimize(loss)

    def test_two_train_ops_that_are_grouped(self):
        loss = layer()
        with v1.weight_update_ratio() as wur:
            both = [tf1.train.GradientDescentOptimizer(0.1).minimize(loss) for _ in range(2)]
            train = tf.group(*both)
        assert wur.train is train

    def test_reference_variables(self):
        old = tf1.get_variable("old", initializer=1.0, use_resource=False)
        with (
            pytest.raises(ValueError, match=r"old is a reference variable.*use_resource=True"),
            v1.weight_update_ratio(),
        ):
            tf1.train.GradientDescentOptimizer(0.1).minimize(old)

    def test_a_scope_that_matches_nothing(self):
        loss = layer()
        with (
            pytest.raises(ValueError, match=r"var_scope=conv matches none of .*layer/w, layer/b"),
            v1.weight_update_ratio(var_scope="conv"),
        ):
            tf1.train.GradientDescentOptimizer(0.1).minimize(loss)

    def test_what_is_only_computed_after_an_update_is_no_train_op(self):
        loss, (w, _) = layer(), tf1.trainable_variables()
        with v1.weight_update_ratio() as wur:
            train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
            with tf.control_dependencies([train]):
                tf.reduce_sum(w.read_value()) + 1
        assert wur.train is train

    def test_an_error_of_the_user_s_own_is_passed_on(self):
        with pytest.raises(KeyError), v1.weight_update_ratio():
            raise KeyError("mine")


SCRIPT = """
import numpy as np, tensorflow as tf
tf1 = tf.compat.v1
tf1.{switch}()
tf1.enable_resource_variables()
from tracker import v1
w = tf1.get_variable("w", initializer=np.ones([4], np.float32))
opt = tf1.train.AdamOptimizer(0.1)
with v1.weight_update_ratio() as wur:
    noisy = v1.noisy_train("routes", opt, opt.compute_gradients(tf.reduce_sum(w)), (0.0, 0.5))
with tf1.Session() as sess:
    sess.run(tf1.global_variables_initializer())
    for _ in range(8):
        before = sess.run(w)
        ratio, choice = sess.run([wur.ratio["w"], noisy.choice])
        moved = np.linalg.norm(sess.run(w) - before)
        assert abs(ratio - moved / np.linalg.norm(before)) < 1e-6
        assert (moved > 0.21) == bool(choice), (moved, choice)
print("right")
"""


@pytest.mark.parametrize("switch", ["disable_eager_execution", "disable_v2_behavior"])
def test_with_eager_mode_off(switch):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{switch}", switch)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout == "right\n", done.stderr


def test_where_operations_run_eagerly():
    code = "from tracker import v1; v1.weight_update_ratio().__enter__()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert "ValueError: weight_update_ratio('wur'): there is no graph here" in done.stderr
