"""TF1 graphs and sessions (`tf.compat.v1`): weight-update ratios, noise, and their summaries.

Works inside `tf.Graph()` and with eager mode off, around the user's own optimizer lines.

    opt = tf.compat.v1.train.AdamOptimizer()
    with tracker.v1.weight_update_ratio() as wur:
        train = opt.apply_gradients(opt.compute_gradients(loss))
    with tf.compat.v1.Session() as sess, tracker.v1.SummaryWriter('logdir/train') as writer:
        sess.run(tf.compat.v1.global_variables_initializer())
        for step in range(1, 1001):
            if step % 100:
                sess.run(train)
            else:
                writer.add_summary(sess.run([train, wur.summary])[1], step)
"""

from tracker.v1.noise import NoisyTrain, noisy_train
from tracker.v1.ratio import WeightUpdateRatio, weight_update_ratio
from tracker.v1.writer import SummaryWriter

__all__ = (
    "NoisyTrain",
    "SummaryWriter",
    "WeightUpdateRatio",
    "noisy_train",
    "weight_update_ratio",
)
