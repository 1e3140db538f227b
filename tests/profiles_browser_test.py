"""What people see of profiles in a real Chromium: the GPU job in TensorBoard, and our timeline."""

import gzip
import pathlib
import shutil

import pytest

from tests import browser
from tracker.profiles import main

DATA = pathlib.Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    root = tmp_path_factory.mktemp("logdir")
    path = root / "bert/plugins/profile/2020_07_07_12_00_00"
    path.mkdir(parents=True)
    content = gzip.decompress((DATA / "gpu.xplane.pb.gz").read_bytes())
    (path / "worker0.xplane.pb").write_bytes(content)
    shutil.copy(DATA / "tensorboardx.tfevents", root / "bert/events.out.tfevents.1.host")
    return root


def test_the_trace_viewer_opens_a_gpu_capture(logdir, page):
    with browser.tensorboard(logdir) as url:
        (name,) = browser.captures(url)
        browser.open_trace(page, url, name)
        rows = page.inner_text("body")
        assert "/device:GPU:4" in rows and "/device:GPU:6" in rows
        said = browser.trace_events(page, "FillPhiloxRandomKernelLaunch", most=2)
        browser.screenshot(page, "trace_gpu")
    assert any("RandomUniform" in text for text in said), said


def test_the_timeline_is_drawn_without_tensorboard(logdir, page, tmp_path):
    path = tmp_path / "step.svg"
    assert main.main(["plot", "bert", f"--logdir={logdir}", f"--output={path}"]) == 0
    page.goto(path.as_uri())
    for text in ("/device:GPU:6 Stream #142(Compute)", "bert_span_labeler/bert_encoder_1"):
        assert page.locator("text", has_text=text).is_visible()  # a lane, and the legend
    kernels = page.locator('rect[data-scope="bert_span_labeler/bert_encoder_1"]')
    assert kernels.count() > 600
    box = kernels.last.bounding_box()
    assert box["width"] > 0 and 0 < box["x"] < 1600
    tip = kernels.first.locator("title").text_content()
    assert "µs" in tip
    browser.screenshot(page, "timeline_gpu")
