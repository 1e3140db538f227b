"""`python -m tracker.profiles` on a real run's captures and on a real one of eight GPUs."""

import csv
import gzip
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import duckdb
import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from tests import experiments
from tracker import captures
from tracker.profiles import main

DATA = pathlib.Path(__file__).parent / "data"
GPU = "bert/2020_07_07_12_00_00"


def run(*arguments):
    """A whole process."""
    command = [sys.executable, "-m", "tracker.profiles", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def here(capfd):
    """Runs a command in this process: (status, stdout, stderr)."""

    def call(*arguments):
        try:
            status = main.main(list(map(str, arguments)))
        except SystemExit as error:
            status = error.code
        said = capfd.readouterr()
        return status, said.out, said.err

    return call


def put(path, content):
    path.mkdir(parents=True)
    (path / "worker0.xplane.pb").write_bytes(content)


@pytest.fixture(scope="module")
def gpu():
    return gzip.decompress((DATA / "gpu.xplane.pb.gz").read_bytes())


@pytest.fixture(scope="module")
def logdir(tmp_path_factory, gpu):
    """A run with two captures, one without, and the capture of a GPU job."""
    root = tmp_path_factory.mktemp("logdir")
    for name, more in (("small", ("--profile_every=20", "--profile_captures=2")), ("bare", ())):
        done = experiments.command(
            f"--logdir={root}", f"--run={name}", "--steps=60", "--model=linear",
            "--summary_every=10", *(more or ("--profile_steps=",)),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    put(root / "bert/train/plugins/profile/2020_07_07_12_00_00", gpu)
    return root


def top_kernel(logdir):
    (capture,) = captures.find(logdir / "bert")
    ops = captures.numbers(capture).ops
    return max(ops, key=lambda name: ops[name].total_us)


def test_list(logdir, here):
    status, out, err = here("list", f"--logdir={logdir}")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[-1] == "3 captures"
    assert [line.split()[0] for line in lines[1:-1]] == ["bert", "small", "small"]
    assert "GPU" in lines[1] and "20-24" in lines[2] and "40-44" in lines[3]
    status, out, _ = here("list", "sm", f"--logdir={logdir}", "--json")
    first, second = json.loads(out)
    assert first["steps"] == [20, 21, 22, 23, 24] and second["steps"] == [40, 41, 42, 43, 44]
    for one in (first, second):
        numbers = captures.numbers(captures.Capture(pathlib.Path(one["path"]), ()))
        assert one["step_ms"] == pytest.approx(numbers.step_ms_median)
        assert one["noise_percent"] == pytest.approx(numbers.noise_percent)


def test_show_a_gpu_capture_as_a_whole_process(logdir):
    done = run("show", "bert", f"--logdir={logdir}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{GPU}: GPU, 2 of 8 busy, 3.0 MB"
    assert re.search(r"^device +14\.\d+ +69\.8$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^void tensorflow::functor::FillPhiloxRandomKernel\S+ +194 +7,908 .*RandomUniform$",
        done.stdout,
        re.MULTILINE,
    )
    for device in (4, 6):
        assert re.search(rf"^/device:GPU:{device} +[67]\d\.\d+$", done.stdout, re.MULTILINE)
    assert "GPU_4_bfc" in done.stdout


def test_show_as_json(logdir, here, gpu):
    status, out, err = here("show", "bert", f"--logdir={logdir}", "--json", "--top=3")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["device_type"] == "GPU" and found["devices"] == 8
    assert sorted(found["busy"]) == ["/device:GPU:4", "/device:GPU:6"]
    assert found["ms"]["device"] == pytest.approx(14.9, abs=0.05)
    assert sum(found["parts"].values()) == pytest.approx(100)
    assert sum(found["scopes"].values()) == pytest.approx(100)
    top = next(iter(found["ops"].values()))
    assert top["count"] == 194 and top["total_us"] == pytest.approx(7908, abs=0.5)
    assert top["op"].endswith("random_uniform/RandomUniform:RandomUniform")
    # Of TensorFlow's own module: the peaks of its allocations.
    peaks = {}
    for plane in xplane_pb2.XSpace.FromString(gpu).planes:
        stats = {key: value.name for key, value in plane.stat_metadata.items()}
        for event in (event for line in plane.lines for event in line.events):
            own = {stats[s.metadata_id]: s for s in event.stats}
            if "peak_bytes_in_use" in own and "allocator_name" in own:
                stat = own["allocator_name"]
                name = stat.str_value or stats.get(stat.ref_value, "")
                used = own["bytes_allocated"].int64_value
                peaks[name] = max(peaks.get(name, 0), used / 1e6)
    assert found["memory_peak_mb"] == pytest.approx(peaks)


def test_show_a_run_of_ours(logdir, here):
    status, out, err = here("show", "small", f"--logdir={logdir}")
    assert (status, err) == (0, "")
    assert re.match(r"small/\S+: CPU, \d\.\d MB\n5 steps \(40-44\): median .* ms, p95 .* ms\n", out)
    for scope in ("data", "forward", "gradients", "update", "noise", "diagnostics", "runtime"):
        assert re.search(rf"^{scope} +\S+ +\S+$", out, re.MULTILINE), (scope, out)
    assert re.search(r"^  noise/route/route_\d", out, re.MULTILINE)
    assert re.search(r"^forward/\S+ .* forward$", out, re.MULTILINE)


def test_with_every_duration_doubled_every_time_that_is_shown_doubles(here, gpu, tmp_path):
    space = xplane_pb2.XSpace.FromString(gpu)
    for line in (line for plane in space.planes for line in plane.lines):
        line.timestamp_ns *= 2
        for event in line.events:
            event.duration_ps *= 2
            event.offset_ps *= 2
    put(tmp_path / "a/plugins/profile/1", gpu)
    put(tmp_path / "b/plugins/profile/2", space.SerializeToString())
    a, b = (
        json.loads(here("show", name, f"--logdir={tmp_path}", "--json", "--top=99")[1])
        for name in "ab"
    )
    assert b["step_ms_median"] == pytest.approx(2 * a["step_ms_median"], rel=1e-6)
    assert b["ms"] == pytest.approx({part: 2 * ms for part, ms in a["ms"].items()}, rel=1e-3)
    assert b["scopes"] == pytest.approx(a["scopes"], rel=1e-6, abs=1e-6)
    doubled = {name: 2 * op["total_us"] for name, op in a["ops"].items()}
    assert {name: op["total_us"] for name, op in b["ops"].items()} == pytest.approx(doubled)
    found = json.loads(here("diff", "a", "b", f"--logdir={tmp_path}", "--json")[1])
    assert found["step_ms"]["b"] == pytest.approx(2 * found["step_ms"]["a"], rel=1e-6)
    scopes = [pair["b"] - pair["a"] for pair in found["scopes_ms"].values()]
    assert scopes == sorted(scopes, reverse=True) and scopes[0] > 10


def test_diff(logdir, here):
    names = [c.name for c in captures.find(logdir / "small")]
    a, b = (f"small/{name}" for name in names)
    status, out, err = here("diff", a, b, f"--logdir={logdir}", "--top=4")
    assert (status, err) == (0, "")
    assert out.splitlines()[0].startswith(f"A: {a}, CPU, 5 steps")
    top = out[out.index("top ops") :].splitlines()[1:]
    differences = [abs(float(re.findall(r"([+-]\S+) +\S+$", line)[0])) for line in top]
    assert len(top) == 4 and differences == sorted(differences, reverse=True)
    found = json.loads(here("diff", a, b, f"--logdir={logdir}", "--json")[1])
    for side, name in (("a", names[0]), ("b", names[1])):
        numbers = captures.numbers(next(c for c in captures.find(logdir) if c.name == name))
        assert found["step_ms"][side] == pytest.approx(numbers.step_ms_median)
        total = sum(
            pair[side] for s, pair in found["scopes_ms"].items() if not s.startswith("noise/")
        )
        assert total == pytest.approx(numbers.step_ms_mean)


def test_assert(logdir, here):
    shown = json.loads(here("show", "small", f"--logdir={logdir}", "--json")[1])
    step = shown["step_ms_median"]
    kept = f"--max_step_ms={step * 1.01}"
    status, out, err = here("assert", "small", f"--logdir={logdir}", kept)
    assert (status, err) == (0, "") and f"step_ms {step:.4g}" in out
    broken = f"--max_step_ms={step * 0.99}"
    status, out, err = here("assert", "small", f"--logdir={logdir}", broken)
    assert status == 1 and out == "" and err.count("\n") == 1
    assert re.match(rf"step_ms of small/\S+ is {step:.4g}, above --max_step_ms=", err)
    device = "--min_device_percent=70"
    status, _, err = here("assert", "bert", f"--logdir={logdir}", device, "--max_input_percent=1")
    assert status == 1 and err.startswith(f"device_percent of {GPU} is 69.8, below ")
    status, _, err = here("assert", "small", f"--logdir={logdir}")
    assert status == 2 and "--max_step_ms=20" in err


def test_export_a_trace_that_chrome_and_perfetto_open(logdir, here, gpu, tmp_path):
    path = tmp_path / "trace.json.gz"
    status, out, err = here("export", "bert", f"--logdir={logdir}", f"--output={path}")
    assert (status, err) == (0, "")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert f"{len(spans):,} events of {GPU}" in out
    assert all({"name", "pid", "tid", "ts", "dur"} <= event.keys() for event in spans)
    processes = {
        e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e.get("name") == "process_name"
    }
    name = top_kernel(logdir)  # the host's launches of it have its name too
    top = [e for e in spans if e["name"] == name and "GPU" in processes[e["pid"]]]
    assert {processes[e["pid"]] for e in top} == {"/device:GPU:4", "/device:GPU:6"}
    assert len(top) == 194
    assert sum(e["dur"] for e in top) == pytest.approx(7908, abs=1)
    assert os.listdir(tmp_path) == ["trace.json.gz"]


def test_export_ops_as_csv_and_parquet(logdir, here, tmp_path):
    for ending in ("csv", "parquet"):
        path = tmp_path / f"ops.{ending}"
        assert here("export", "bert", f"--logdir={logdir}", f"--output={path}")[0] == 0
        if ending == "csv":
            with path.open(newline="") as file:
                rows = [
                    (r["name"], int(r["count"]), float(r["total_us"])) for r in csv.DictReader(file)
                ]
        else:
            query = f"SELECT name, count, total_us FROM '{path}'"
            assert duckdb.sql(query).fetchall() == rows
    assert rows[0][1] == 194 and rows[0][2] == pytest.approx(7908, abs=0.5)
    assert sum(count for _, count, _ in rows) > 1330


def test_plot_a_step(logdir, here, tmp_path):
    svg = "{http://www.w3.org/2000/svg}"
    for name, wanted in (("small", "step 4"), ("bert", "step 0")):
        path = tmp_path / f"{name}.svg"
        status, out, err = here("plot", name, f"--logdir={logdir}", f"--output={path}")
        assert (status, err) == (0, "") and out.startswith(wanted)
        root = ET.parse(path).getroot()
        bars = [r for r in root.iter(f"{svg}rect") if r.get("data-scope")]
        assert int(out.split(" bar")[0].split()[-1].replace(",", "")) == len(bars)
        width = float(root.get("width"))
        assert all(250 <= float(b.get("x")) < width for b in bars)
        assert all(float(b.get("x")) + float(b.get("width")) <= width for b in bars)
        texts = " ".join(t.text for t in root.iter(f"{svg}text"))
        if name == "bert":
            assert "/device:GPU:6 Stream #142(Compute)" in texts and "20 ms" in texts
            legend = [t for t in root.iter(f"{svg}text") if t.text in ("copies", "runtime", "data")]
            assert len(legend) == 3 and all(float(t.get("x")) < width - 50 for t in legend)
            kernel = top_kernel(logdir)
            bars = [b for b in bars if b.get("data-scope") != "runtime"]
            top = [b for b in bars if b[0].text.startswith(f"{kernel}\n")]
            assert len(top) == 97  # of one of the two devices
        else:
            seen = {b.get("data-scope").split("/")[0] for b in bars}
            assert {"data", "forward", "gradients", "update", "noise"} <= seen
    status, _, err = here("plot", "small", f"--logdir={logdir}", "--step=7", f"--output={path}")
    assert status == 2 and "--step=7" in err and "40 to 44" in err


def test_names(logdir, here):
    times = [c.name for c in captures.find(logdir / "small")]
    for name, steps in (
        ("latest", 40), ("small", 40), ("sma", 40), (f"small/{times[0]}", 20),
        (logdir / "small/train/plugins/profile" / times[0], 20),
        (next((logdir / "small/train/plugins/profile" / times[0]).iterdir()), 20),
    ):  # fmt: skip
        status, out, err = here("show", name, f"--logdir={logdir}", "--json")
        assert (status, err) == (0, ""), name
        assert json.loads(out)["steps"][0] == steps, name
    status, out, _ = here("show", next((logdir / "bert").rglob("*.pb")), "--json")
    assert status == 0 and json.loads(out)["device_type"] == "GPU"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("show bare", "'bare' has no capture; make one with --profile_steps"),
        ("show nobody", "no run 'nobody' in .*; there are bare, bert, small"),
        ("show b", "'b' begins the names of several runs: bare, bert"),
        ("show nowhere.xplane.pb", "no run 'nowhere.xplane.pb'"),
        ("shaw small", "no command 'shaw'; did you mean show"),
        ("show small --tap=3", "no flag --tap; did you mean --top"),
        ("show small --top=-3", "--top.*'-3' is not a whole number"),
        ("assert small --max_step_ms=fast", "--max_step_ms: 'fast' is not a number from 0 on"),
        ("assert small --max_step_ms=nan", "'nan' is not a number"),
        ("export small --output=x.txt", "--output=x.txt: should end in .json.gz or .csv"),
        ("export small --what=trace --output=x.csv", "should end in .json.gz for --what=trace"),
        ("export small --output=/nowhere/x.csv", "/nowhere"),
        ("plot small --output=x.png", "--output=x.png: should end in .svg"),
        ("plot small", "Missing: --output"),
        ("capture small", "Missing: --port"),
        ("capture small --port=99999", "'99999' is not a port"),
        ("capture small --port=1 --host_level=7", "--host_level: invalid choice: 7"),
        ("capture small --port=1 --seconds=3600", "more than a minute"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(arguments, words, logdir, here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = here(*arguments.split(), f"--logdir={logdir}")
    assert status == (1 if "/nowhere" in arguments else 2), err
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    assert re.search(words, err), err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["empty", "truncated", "text", "missing", "riegeli"])
def test_a_capture_that_cannot_be_read_is_one_sentence(kind, here, gpu, tmp_path):
    path = tmp_path / "bad/plugins/profile/2026_01_01_00_00_00"
    content = {"empty": b"", "truncated": gpu[:-1], "text": b"no capture\n" * 9}.get(kind)
    put(path, content or b"")
    (file,) = path.iterdir()
    if kind in ("missing", "riegeli"):
        file.unlink()
    if kind == "riegeli":
        (path / "worker0.xplane.riegeli").write_bytes(b"\x83\xaf\x70\xd1")
    words = {
        "riegeli": "newer XProf",
        "missing": "holds no .xplane.pb file",
        "text": "not a capture",
    }
    others = [f"--output={tmp_path / 'x.csv'}"], [f"--output={tmp_path / 'x.svg'}"]
    for command, more in (("show", []), ("export", others[0]), ("plot", others[1])):
        status, out, err = here(command, "bad", f"--logdir={tmp_path}", *more)
        assert status == 2 and out == "" and err.count("\n") == 1, err
        assert words.get(kind, kind) in err and str(path) in err
    status, out, err = here("list", f"--logdir={tmp_path}")
    assert (status, err) == (0, "") and "unreadable" in out
    assert os.listdir(tmp_path) == ["bad"]


def test_a_capture_without_steps_says_so(here, gpu, tmp_path):
    space = xplane_pb2.XSpace.FromString(gpu)
    for plane in space.planes:
        for line in [line for line in plane.lines if line.name == "Steps"]:
            plane.lines.remove(line)
    put(tmp_path / "a/plugins/profile/1", space.SerializeToString())
    status, out, _ = here("show", "a", f"--logdir={tmp_path}")
    if "no steps" not in out:  # XProf makes some up where a device has events
        assert status == 0 and "device" in out
    status, _, err = here("plot", "a", f"--logdir={tmp_path}", f"--output={tmp_path / 'x.svg'}")
    assert status == 2 and "holds no steps to draw" in err


def test_nothing_loads_tensorflow(logdir, tmp_path):
    code = (
        "import sys; from tracker.profiles import main\n"
        "for command in (['list'], ['show', 'small'], ['diff', 'small', 'bert'],\n"
        f"                ['export', 'small', '--output={tmp_path}/x.parquet'],\n"
        f"                ['plot', 'small', '--output={tmp_path}/x.svg']):\n"
        f"    assert main.main([*command, '--logdir={logdir}']) == 0\n"
        "sys.exit('tensorflow' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def _free_port():
    with socket.socket() as listening:
        listening.bind(("", 0))
        return listening.getsockname()[1]


def test_capture_a_run_that_goes_on(tmp_path):
    """Its steps have their numbers though nobody knew beforehand which would be captured."""
    port = _free_port()
    busy = run("capture", "r", f"--logdir={tmp_path}", f"--port={port}")
    assert busy.returncode == 2 and busy.stderr.startswith("There is no run in ")
    command = [
        sys.executable, "-m", "tracker.main", f"--logdir={tmp_path}", "--run=r", "--model=mlp",
        "--steps=1000000", "--profile_steps=", "--summary_every=0", "--validate_every=0",
        f"--profiler_port={port}",
    ]  # fmt: skip
    with (tmp_path / "said.txt").open("w") as said:
        training = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and training.poll() is None:
            with socket.socket() as asking:
                if not asking.connect_ex(("localhost", port)):
                    break
            time.sleep(0.2)
        time.sleep(3)
        done = run("capture", "r", f"--logdir={tmp_path}", f"--port={port}", "--seconds=1.5")
        second = experiments.command(
            f"--logdir={tmp_path}", "--run=s", f"--profiler_port={port}", "--steps=3"
        )
    finally:
        training.terminate()
        training.wait()
    assert (done.returncode, done.stderr) == (0, ""), (tmp_path / "said.txt").read_text()
    (capture,) = captures.find(tmp_path / "r")
    found = captures.numbers(capture)
    assert len(found.steps) > 10 and re.match(r"r/\S+: steps \d+-\d+, \d+\.\d MB\n", done.stdout)
    assert found.steps == tuple(range(found.steps[0], found.steps[-1] + 1))
    assert {"forward", "update"} <= set(found.scopes)
    assert second.returncode == 2 and f"--profiler_port={port}: cannot be listened" in second.stderr
    assert not (tmp_path / "s").exists()
    done = run("capture", "r", f"--logdir={tmp_path}", f"--port={port}")
    assert done.returncode == 2 and "nothing listens there" in done.stderr
    shutil.rmtree(capture.path)
