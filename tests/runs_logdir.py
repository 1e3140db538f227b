"""Logdirs for the tests of `tracker.runs`, made by the real writers, and the command itself."""

import atexit
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from tensorboard.compat.proto import event_pb2, summary_pb2, types_pb2

from tracker import events, rundir
from tracker.record import Record

DATA = pathlib.Path(__file__).parent / "data"
COMMAND = (sys.executable, "-W", "error", "-m", "tracker.runs")


@functools.cache
def _trained():
    """Two runs of the app, made once."""
    logdir = pathlib.Path(tempfile.mkdtemp(prefix="tracker-runs-test-"))
    atexit.register(shutil.rmtree, logdir, ignore_errors=True)
    for name, flags in (("alpha", "--stddevs=0,0.1"), ("beta/one", "--learning_rate=0.01")):
        command = [sys.executable, "-m", "tracker.main", f"--logdir={logdir}", f"--run={name}"]
        more = [
            flags,
            "--steps=40",
            "--summary_every=20",
            "--profile_steps=",
            "--validate_every=20",
        ]
        subprocess.run([*command, *more], check=True, capture_output=True)
    return logdir


def trained(tmp_path):
    """A logdir with two finished runs of the app: alpha, and beta/one."""
    return pathlib.Path(shutil.copytree(_trained(), tmp_path / "logdir"))


def runs(logdir, *arguments, status=0, **options):
    """What a command prints; its exit status must be `status`, and its stderr empty if 0."""
    done = subprocess.run(
        [*COMMAND, *arguments, f"--logdir={logdir}"],
        check=False,
        **{"capture_output": True, "text": True, "timeout": 60, **options},
    )
    assert done.returncode == status, done
    if status == 0:
        assert done.stderr == "", done.stderr
        return done.stdout
    assert done.stdout == "" or status == 1, done.stdout
    return one_sentence(done.stderr)


def one_sentence(text):
    """Checks that a complaint is one line, as it should be."""
    assert text.endswith((".\n", "?\n")) and text.count("\n") == 1, text
    return text


def data(logdir, *arguments):
    """What a command says in JSON."""
    return json.loads(runs(logdir, *arguments, "--json"), parse_constant=_not_json)


def _not_json(constant):
    raise AssertionError(f"{constant} is not JSON")


def scalar(step, value, tag="loss", wall=None):
    """An event with one scalar, as `tf.summary.scalar` writes it."""
    summary = summary_pb2.Summary()
    added = summary.value.add(tag=tag)
    added.tensor.dtype = types_pb2.DT_FLOAT
    added.tensor.float_val.append(value)
    added.metadata.plugin_data.plugin_name = "scalars"
    added.metadata.data_class = summary_pb2.DATA_CLASS_SCALAR
    return event_pb2.Event(wall_time=wall or 1e9 + step, step=step, summary=summary)


def write(directory, scalars, now=1):
    """An event file of (step, value) or (step, value, tag); returns its path."""
    directory.mkdir(parents=True, exist_ok=True)
    existing = events.event_files(directory)
    path = directory / events.file_name(now, "host", 1, 0, existing)
    events.write(path, [*events.start_records(0), *(scalar(*s) for s in scalars)])
    return pathlib.Path(os.fspath(path))


def append(path, *scalars):
    """Adds records to an event file, as a writer does."""
    with open(path, "ab") as file:
        for one in scalars:
            file.write(events.frame(scalar(*one).SerializeToString()))


def recorded(logdir, name, status="completed", flags=None, scalars=((1, 0.5),)):
    """A run with a run.json, without a training."""
    run = rundir.claim(logdir, name)
    record = Record.create(run, ["main.py"], flags or {}, {})
    write(pathlib.Path(run.train), scalars)
    if status != "running":
        record.finish(status, last_step=1)
    return pathlib.Path(run.path)
