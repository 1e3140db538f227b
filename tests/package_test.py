"""Builds the wheel, installs it outside the checkout, and runs it there."""

import os
import pathlib
import site
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("tf_tracker-*.whl")
    return path


def test_only_the_package_is_in_the_wheel(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"tracker"}
    assert "tracker/digits.npz" in names
    assert "tracker/digits.LICENSE.txt" in names


def test_the_wheel_trains_outside_the_checkout(wheel, tmp_path):
    """Installed without its dependencies into a folder before those of this environment."""
    place = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place)]
    subprocess.run([*install, str(wheel)], check=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(place)}
    code = "import tracker; print(tracker.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path,
        env=environment, timeout=60,
    )  # fmt: skip
    assert where.stdout.startswith(str(place)), site.getsitepackages()
    done = subprocess.run(
        [sys.executable, "-m", "tracker.main", "--logdir=runs", "--steps=20", "--model=linear"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=environment, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 1
