import contextlib
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from etils import epath
from tensorboard.backend.event_processing import event_accumulator

from tracker import events, summaries, tags


def accumulated(directory):
    found = event_accumulator.EventAccumulator(str(directory), {"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(directory, tag):
    """Steps and values of a tag, read by TensorBoard's own reader."""
    from tensorboard.util import tensor_util

    points = accumulated(directory).Tensors(tag)
    return [(p.step, float(tensor_util.make_ndarray(p.tensor_proto))) for p in points]


def test_scalars_are_read_back_by_tensorboard_with_their_unit(tmp_path):
    with summaries.EventWriter(epath.Path(tmp_path)) as writer:
        writer.scalars(1, {"loss": 0.5, "noise/stddev": 1e-3})
        writer.scalars(2, {"loss": np.nan})
        writer.scalars(2**40, {"loss": 0.25})
    found = scalars(tmp_path, "loss")
    assert [s for s, _ in found] == [1, 2, 2**40]
    assert found[0][1] == 0.5
    assert np.isnan(found[1][1])
    metadata = accumulated(tmp_path).summary_metadata["noise/stddev"]
    assert metadata.plugin_data.plugin_name == "scalars"
    assert "units of the weights" in metadata.summary_description


def test_the_place_of_a_variable_opens_its_description(tmp_path):
    with summaries.EventWriter(epath.Path(tmp_path), place=lambda tag: "2 of 9") as writer:
        writer.scalars(1, {tags.wur("dense/kernel"): 1e-3})
    metadata = accumulated(tmp_path).summary_metadata["wur/dense/kernel"]
    assert metadata.summary_description.startswith("2 of 9. Weight-update ratio")


def test_every_new_file_has_its_metadata_and_a_name_of_its_own(tmp_path):
    for step in (1, 2):
        with summaries.EventWriter(epath.Path(tmp_path), step=step) as writer:
            writer.scalars(step, {"loss": 1.0})
    files = events.event_files(epath.Path(tmp_path))
    assert len(files) == 2
    for file in files:
        records = [event for _, event in events.read(file)]
        assert records[-1].summary.value[0].metadata.plugin_data.plugin_name == "scalars"


def test_what_was_flushed_survives_kill_9(tmp_path):
    script = """
        import os, signal, sys
        from etils import epath
        from tracker import summaries
        writer = summaries.EventWriter(epath.Path(sys.argv[1]))
        for step in range(1, 51):
            writer.scalars(step, {'loss': step})
        writer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        check=False, capture_output=True, timeout=120,
    )  # fmt: skip
    assert killed.returncode == -9
    assert [s for s, _ in scalars(tmp_path, "loss")] == list(range(1, 51))


def test_a_full_disk_is_said_once_and_nothing_is_lost_when_it_has_room_again(small_disk):
    small_disk = small_disk("100k")
    warnings, now = [], [1000.0]
    filler = small_disk / "filler"
    writer = summaries.EventWriter(
        epath.Path(small_disk) / "train", warn=warnings.append, clock=lambda: now[0]
    )
    writer.scalars(1, {"loss": 1.0})
    writer.flush()
    used = sum(f.stat().st_size for f in (small_disk / "train").iterdir()) // 4096 * 4096
    with filler.open("wb") as file:
        file.write(b"x" * (100 * 1024 - used - 3 * 4096))
        file.flush()
        with contextlib.suppress(OSError):
            while os.write(file.fileno(), b"x" * 512):
                pass
    for step in range(2, 400):
        writer.scalars(step, {"loss": step, "other": step})
        writer.flush()
        now[0] += 0.5
    assert len(warnings) == 1, warnings
    assert "No space left" in warnings[0]
    filler.unlink()
    now[0] += summaries.RETRY_SECONDS
    writer.scalars(400, {"loss": 400.0})
    writer.close()
    assert writer.lost == []
    assert len(warnings) == 2
    assert [s for s, _ in scalars(small_disk / "train", "loss")] == list(range(1, 401))


def test_a_full_disk_to_the_end_names_what_is_missing(small_disk):
    small_disk = small_disk("100k")
    warnings = []
    writer = summaries.EventWriter(epath.Path(small_disk), warn=warnings.append)
    for step in range(1, 3000):
        writer.scalars(step, {"loss": step})
    writer.flush()
    writer.close()
    assert len(warnings) >= 1
    assert writer.lost
    kept = [s for s, _ in scalars(small_disk, "loss")] if _has_loss(small_disk) else []
    assert sorted(kept + writer.lost) == list(range(1, 3000))


def _has_loss(directory):
    return "loss" in accumulated(directory).Tags()["tensors"]


def test_a_deleted_directory_is_noticed(tmp_path):
    import shutil

    warnings, now = [], [0.0]
    place = epath.Path(tmp_path) / "train"
    writer = summaries.EventWriter(place, warn=warnings.append, clock=lambda: now[0])
    writer.scalars(1, {"loss": 1.0})
    writer.flush()
    shutil.rmtree(place)
    writer.scalars(2, {"loss": 2.0})
    writer.flush()
    assert len(warnings) == 1
    assert "deleted" in warnings[0]
    writer.close()
    assert writer.lost == [2]


def test_a_histogram_leaves_out_what_is_not_finite(tmp_path):
    with summaries.EventWriter(epath.Path(tmp_path)) as writer:
        writer.summary(1, summaries.histogram("weights/a", np.float32([1, 2, np.nan, np.inf])))
        writer.summary(2, summaries.histogram("weights/a", np.float32([np.nan])))
    from tensorboard.util import tensor_util

    points = accumulated(tmp_path).Tensors("weights/a")
    buckets = tensor_util.make_ndarray(points[0].tensor_proto)
    assert np.all(np.isfinite(buckets))
    assert buckets[:, 2].sum() == 2


class TestHparams:
    def test_every_type_is_taken(self):
        values = {
            "stddevs": (0.0, 0.1), "seed": None, "amp": True, "lr": np.float32(1e-3), "name": "x",
            "act": len, "nested": {"a": 1},
        }  # fmt: skip
        from tensorboard.plugins.hparams import metadata

        summary = summaries.hparams(values, "run", 1.0)
        content = summary.value[0].metadata.plugin_data.content
        shown = metadata.parse_session_start_info_plugin_data(content).hparams
        assert shown["amp"].bool_value is True
        assert shown["lr"].number_value == pytest.approx(1e-3)
        assert shown["stddevs"].string_value == "0,0.1"
        assert "seed" not in shown
        assert shown["nested"].string_value == "{'a': 1}"


def test_the_layout_names_exactly_the_tags():
    import re

    from tensorboard.plugins.custom_scalar import layout_pb2

    summary = summaries.layout(["net/dense.1/kernel", "net/dense.1/kernel_2"])
    layout = layout_pb2.Layout.FromString(summary.value[0].tensor.string_val[0])
    patterns = layout.category[0].chart[0].multiline.tag
    hits = [p for p in patterns if re.match(p, "wur/net/dense.1/kernel")]
    assert len(hits) == 1
    assert not any(re.match(p, "wur/net/denseX1/kernel") for p in patterns)
    assert {"wur_all/band_low$", "wur_all/band_high$"} <= set(patterns)
