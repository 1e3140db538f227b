"""Logdirs for the tests of the tab, by the real writers, and a TensorBoard on any logdir."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import time
import warnings

import numpy as np
from tensorboard.compat.proto import event_pb2, summary_pb2, types_pb2

from tests import browser, experiments
from tracker import events, tags

# A small run with known numbers; its model order is not that of the alphabet.
STEPS = [1, 10, 20, 30, 40]
LAYERS = ["net/z_first/kernel", "net/a_second/kernel", "net/m_third/bias", "net/b_last/kernel"]
TOTAL = np.array(
    [
        [1e-3, 1e-3, 5e-3, 1e-3, 2e-4],
        [1e-1, 1e-1, 2e-1, 1e-1, 1e-1],
        [np.nan, 1e-5, 1e-5, 0, 1e-5],
        [1e-6, 1, 1.05e-2, 0.95e-4, 1e-3],
    ]
)
GRADIENT, NOISE, NORM_CHANGE = 0.6 * TOTAL, 0.8 * TOTAL, 0.1 * TOTAL
STDDEV = [0, 1e-3, 1e-2, 0, 1e-3]
LOSS = [2.3, 1.9, 1.5, 1.2, 1.0]
SKIPPED = {20: 3, 25: 2}  # the second on a step without a summary

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def write(directory, rows):
    """An event file of (step, {tag: value}, {tag: description}); NaN is not written."""
    directory.mkdir(parents=True, exist_ok=True)
    known, records = set(), list(events.start_records(0))
    for step, values, descriptions in rows:
        event = event_pb2.Event(wall_time=1.7e9 + step, step=step)
        for tag, value in values.items():
            if np.isnan(value):
                continue
            added = event.summary.value.add(tag=tag)
            added.tensor.dtype = types_pb2.DT_FLOAT
            added.tensor.float_val.append(value)
            if tag in known:
                continue
            known.add(tag)
            added.metadata.plugin_data.plugin_name = "scalars"
            added.metadata.data_class = summary_pb2.DATA_CLASS_SCALAR
            added.metadata.summary_description = descriptions.get(tag, "")
        records.append(event)
    path = directory / events.file_name(1.7e9, "host", 1, 0, events.event_files(directory))
    events.write(path, records)
    return pathlib.Path(os.fspath(path))


def described(layers):
    """Descriptions as our writer gives them."""
    return {
        tags.wur(name): tags.description(tags.wur(name), f"{i} of {len(layers)}")
        for i, name in enumerate(layers, 1)
    }


def small(directory):
    """The small run."""
    families = (
        (tags.wur, TOTAL), (tags.wur_gradient, GRADIENT), (tags.wur_noise, NOISE),
        (tags.norm_change, NORM_CHANGE),
    )  # fmt: skip
    rows = {}
    for column, step in enumerate(STEPS):
        rows[step] = {f(n): t[r, column] for f, t in families for r, n in enumerate(LAYERS)}
        rows[step] |= {tags.WUR_ALL_STDDEV: STDDEV[column], tags.WUR_ALL_LOSS: LOSS[column]}
        rows[step] |= {tags.WUR_ALL_SKIPPED: 0}
    for step, batches in SKIPPED.items():
        rows.setdefault(step, {})[tags.WUR_ALL_SKIPPED] = batches
    write(directory, [(step, rows[step], described(LAYERS)) for step in sorted(rows)])


def sampled(directory):
    """More summary steps than TensorBoard keeps, and a layer with fewer of them."""
    rows = []
    for step in range(1, 1201):
        values = {tags.wur("often"): 1e-3, tags.wur("half"): 1e-3 if step % 2 else np.nan}
        rows.append((step, values, {}))
    write(directory, rows)


def wide(directory, layers=500, steps=1000, seed=0):
    """A model of many layers; a loud cell of the layer and step in the middle."""
    names = [f"net/block_{i // 10}/dense_{i}/kernel" for i in range(layers)]
    generator = np.random.default_rng(seed)
    ratios = 10 ** generator.normal(-3, 0.2, [steps, layers])
    ratios[steps // 2, layers // 2] = 0.9
    keys = [tags.wur(name) for name in names]
    beside = {tags.WUR_ALL_LOSS: 1.0, tags.WUR_ALL_STDDEV: 0.0}
    rows = (
        (10 * (i + 1), {**dict(zip(keys, row, strict=True)), **beside}, described(names))
        for i, row in enumerate(ratios.tolist())
    )
    write(directory, rows)


def hostile(directory):
    """A run with a layer whose name is HTML."""
    write(directory, [(step, {tags.wur(HOSTILE): 1e-3}, {}) for step in (1, 2, 3)])


def foreign(directory):
    """A run that tensorboardX wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorboardX

        writer = tensorboardX.SummaryWriter(os.fspath(directory))
        for step in (1, 2, 3):
            for name in ("layer_10", "layer_2"):
                writer.add_scalar(tags.wur(name), 1e-3 * step, step)
            writer.add_scalar("loss", 1 / step, step)
        writer.close()


def app(logdir, name, *flags):
    """A run of the app: a deep model, and noise that is annealed away."""
    done = experiments.command(
        f"--logdir={logdir}", f"--run={name}", "--model=tests.plugin_logdir:deep", "--steps=300",
        "--summary_every=3", "--stddevs=0,1e-4,3e-4,1e-3,3e-3,1e-2", "--selector=anneal",
        "--profile_steps=", "--wur=update,norm_change", *flags,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def deep(input_shape, classes):
    """Residual blocks, each named, so that layers can be told apart."""
    import keras

    layers = keras.layers
    image = keras.Input(input_shape)
    x = layers.Conv2D(16, 3, padding="same", name="stem")(layers.Reshape((*input_shape, 1))(image))
    for block in range(1, 5):
        inner = layers.Conv2D(16, 3, padding="same", name=f"block_{block}_in")(x)
        inner = layers.ReLU()(layers.LayerNormalization(name=f"block_{block}_norm")(inner))
        x = layers.Add()(
            [x, layers.Conv2D(16, 3, padding="same", name=f"block_{block}_out")(inner)]
        )
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(classes, name="classes")(x))


@contextlib.contextmanager
def tensorboard(logdir, log, *flags, **options):
    """A TensorBoard on any logdir, also one without runs; gives its URL."""
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", "--port=0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host=localhost", *flags], stdout=output, stderr=subprocess.STDOUT,
            **options,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + browser.SECONDS
            while not (said := re.search(r"(http://\S+?)/? \(Press", log.read_text())):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield said[1]
        finally:
            process.terminate()
            process.wait()


def listed(url):
    """The tab in TensorBoard's own list of plugins; None if it is not there."""
    return browser.fetch(f"{url}/data/plugins_listing").get("tracker_updates")


def wait_until_active(url):
    """Waits until TensorBoard would show the tab."""
    deadline = time.monotonic() + browser.SECONDS
    while not listed(url)["enabled"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
