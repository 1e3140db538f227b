"""The commands list, show, best, diff, export, sql, note and tag, as processes on real files."""

import csv
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import duckdb
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.summary.writer import event_file_writer

from tests.runs_logdir import (
    COMMAND,
    DATA,
    data,
    one_sentence,
    recorded,
    runs,
    scalar,
    trained,
    write,
)
from tracker.runs import main, where


def names(logdir, *arguments):
    return [run["name"] for run in data(logdir, "list", *arguments)]


def complaint(capsys, *arguments):
    """What a mistake is answered with, without the start of a process for each."""
    capsys.readouterr()
    try:
        status = main.main(arguments)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert status == 2 and said.out == "", said
    return one_sentence(said.err)


def test_runs_of_the_app_are_listed_filtered_and_sorted(tmp_path):
    logdir = trained(tmp_path)
    alpha, beta = data(logdir, "list")
    assert (alpha["name"], beta["name"]) == ("alpha", "beta/one")
    assert alpha["status"] == "completed" and alpha["step"] == 40 and alpha["age"] > 0
    record = json.loads((logdir / "beta" / "one" / "run.json").read_text())
    figures = beta["metrics"]["accuracy"]
    assert figures["metric"] == "validation/accuracy" and figures["last_step"] == 40
    assert figures["last"] == record["results"]["validation/accuracy"]
    assert figures["best"] == record["results"]["best/accuracy"]
    assert names(logdir, "--where", "stddevs like '%0.1%' and last.accuracy > 0") == ["alpha"]
    assert names(logdir, "--where", "learning_rate = 1e-2") == ["beta/one"]
    assert names(logdir, "--where", "flags.learning_rate is null") == ["alpha"]
    assert names(logdir, "--sort=-best.accuracy", "--limit=1") == ["beta/one"]
    assert names(logdir, "--sort=last.accuracy")[0] == "alpha"
    assert names(logdir, "latest") == ["beta/one"] and names(logdir, "be", "alpha") == [
        *("beta/one", "alpha")
    ]
    [best] = data(logdir, "best", "--metric=accuracy", "--limit=1")
    assert best["name"] == "beta/one" and best["best"] == figures["best"]
    [worst] = data(logdir, "best", "--metric=accuracy", "--limit=1", "--mode=min")
    assert worst["best"] < best["best"]
    text = runs(logdir, "list")
    assert text.splitlines()[0].split()[:4] == ["run", "status", "step", "age"]
    assert text.splitlines()[-1] == "2 of 2 runs"
    shown = runs(logdir, "show", "be")
    assert "stddevs=0,0.0001" in shown and "validation/accuracy" in shown and "▁" in shown


def test_diff_shows_what_differs_and_nothing_else(tmp_path):
    logdir = trained(tmp_path)
    (logdir / "alpha" / "source.diff").write_text("+one\n")
    (logdir / "beta" / "one" / "source.diff").write_text("+two\n")
    found = data(logdir, "diff", "alpha", "beta")
    assert found["flags"] == {
        "learning_rate": [None, 0.01],
        "stddevs": [[0.0, 0.1], [0.0, 0.0001, 0.0003, 0.001, 0.003, 0.01]],
    }
    assert found["packages"] == {} and "+two" in "".join(found["patch"])
    loss = found["metrics"]["validation/loss"]
    assert loss["a"]["last_step"] == loss["b"]["last_step"] == 40
    text = runs(logdir, "diff", "alpha", "beta")
    assert "learning_rate  -" in text and "packages: the same" in text and "batch_size" not in text
    assert data(logdir, "diff", "alpha", "alpha")["flags"] == {}


def test_export_is_what_tensorboard_reads_at_full_resolution(tmp_path):
    logdir = trained(tmp_path)
    rows = list(csv.DictReader(io.StringIO(runs(logdir, "export", "alpha"))))
    for split in ("train", "validation"):
        loaded = event_accumulator.EventAccumulator(str(logdir / "alpha" / split), {"tensors": 0})
        loaded.Reload()
        for tag in loaded.Tags()["tensors"]:
            mine = [r for r in rows if (r["split"], r["tag"]) == (split, tag)]
            theirs = loaded.Tensors(tag)
            kind = loaded.SummaryMetadata(tag).plugin_data.plugin_name
            assert len(mine) == (len(theirs) if kind == "scalars" else 0)
            for row, event in zip(mine, theirs, strict=False):
                number = float(tf.make_ndarray(event.tensor_proto))
                assert (int(row["step"]), float(row["value"])) == (event.step, number)
                assert float(row["wall_time"]) == event.wall_time
    selection = ("export", "--where", "name = 'alpha'", "--metrics=train/loss")
    lines = runs(logdir, *selection, "--format=jsonl").splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 41))


def test_export_to_files_of_every_kind_holds_the_same(tmp_path):
    logdir = trained(tmp_path)
    tables = []
    for end in ("csv", "jsonl", "parquet"):
        path = tmp_path / f"it's {end}.{end}"
        report = data(logdir, "export", f"--output={path}")
        assert report["runs"] == 2 and report["output"] == str(path)
        query = "select run, split, tag, step, wall_time, value from "
        read = {"csv": "read_csv", "jsonl": "read_json", "parquet": "read_parquet"}[end]
        with duckdb.connect() as database:
            tables.append(database.execute(f"{query} {read}(?)", [str(path)]).fetchall())
        assert len(tables[-1]) == report["rows"] > 500
    tables[0] = [(run, split or "", *rest) for run, split, *rest in tables[0]]
    assert tables[0] == tables[1] == tables[2]
    runs(logdir, "export", "--what=runs", f"--output={tmp_path / 'runs.parquet'}")
    with duckdb.connect() as database:
        query = f"select name, step, \"flags.learning_rate\" from '{tmp_path / 'runs.parquet'}'"
        assert database.execute(query).fetchall() == [("alpha", 40, None), ("beta/one", 40, 0.01)]
    assert not list(tmp_path.glob(".export*"))


def test_export_refuses_with_one_sentence(tmp_path):
    write(tmp_path / "run", [(1, 1.0)])
    for arguments in (
        ("--format=parquet",),
        ("--json",),
        ("--metrics=nope",),
        (f"--output={tmp_path}",),
    ):
        runs(tmp_path, "export", *arguments, status=2)
    runs(tmp_path, "export", f"--output={tmp_path}/no/where.csv", status=1)


def test_values_that_are_not_finite_stay_what_they_are(tmp_path):
    values = [1.0, np.nan, np.inf, -np.inf, 0.5, np.nan]
    write(tmp_path / "run", list(enumerate(values, 1)))
    [run] = data(tmp_path, "list")
    assert run["metrics"]["loss"]["last"] == "NaN"
    assert (run["metrics"]["loss"]["best"], run["metrics"]["loss"]["best_step"]) == (0.5, 5)
    assert names(tmp_path, "--where", "last.loss > 0 or last.loss <= 0") == []
    lines = runs(tmp_path, "export").splitlines()[1:]
    assert [line.rpartition(",")[2] for line in lines] == [
        "1.0",
        "nan",
        "inf",
        "-inf",
        "0.5",
        "nan",
    ]
    lines = runs(tmp_path, "export", "--format=jsonl").splitlines()
    assert [json.loads(line)["value"] for line in lines] == [
        *(1.0, "NaN", "Infinity", "-Infinity", 0.5, "NaN")
    ]
    assert data(tmp_path, "sql", "select count(*) n from scalars where isnan(value)") == [{"n": 2}]


def test_sql_reads_runs_flags_metrics_and_scalars(tmp_path):
    logdir = trained(tmp_path)
    query = (
        "select run, max(step) steps, any_value(number) rate from scalars "
        "join flags using (run) where tag = 'loss' and flag = 'learning_rate' "
        "group by run order by run"
    )
    assert data(logdir, "sql", query) == [
        {"run": "alpha", "steps": 40, "rate": None},
        {"run": "beta/one", "steps": 40, "rate": 0.01},
    ]
    query = "select name, status, step from runs join metrics on name = run where tag = 'accuracy' "
    assert len(data(logdir, "sql", query + "and split = 'validation' and high > 0")) == 2
    assert runs(logdir, "sql", "select 1 as one").split() == ["one", "1"]


def test_sql_reaches_nothing_else(tmp_path, capsys):
    logdir = recorded(tmp_path, "a").parent
    (tmp_path / "secret.csv").write_text("secret\n")
    before = sorted(tmp_path.rglob("*"))
    out = tmp_path / "out.csv"
    for query in (
        f"select * from read_csv('{tmp_path}/secret.csv')",
        f"select * from '{tmp_path}/secret.csv'",
        f"select * from read_text('{tmp_path}/secret.csv')",
        "select * from glob('/etc/*')",
        "select * from read_blob('/etc/passwd')",
        f"copy runs to '{out}'",
        f"attach '{out}' as other",
        f"export database '{out}'",
        "insert into runs (name) values ('x')",
        "drop table runs",
        "create table x as select 1",
        "set enable_external_access = true",
        "reset lock_configuration",
        "install httpfs",
        "load httpfs",
        "pragma database_list",
        "call pragma_version()",
        "select 1; select 2",
        "select 1; set enable_external_access = true",
        f"explain analyze copy runs to '{out}'",
        "select * from catalog",
        "select * from database",
        "select nonsense",
        "",
    ):
        complaint(capsys, "sql", query, f"--logdir={logdir}")
    assert {*tmp_path.rglob("*")} - {*before} <= {
        *(tmp_path / ".tracker").rglob("*"),
        tmp_path / ".tracker",
    }
    assert not pathlib.Path(".tmp").exists()


def test_notes_and_tags_stay_beside_the_run(tmp_path):
    logdir = trained(tmp_path)
    write(logdir / "foreign", [(1, 1.0)])
    before = (logdir / "alpha" / "run.json").read_bytes()
    for run in ("alpha", "foreign"):
        assert runs(logdir, "note", run) == "\n"
        runs(logdir, "note", run, "the one with the 模型\nand \x1b[31mred")
        assert data(logdir, "note", run)["note"] == "the one with the 模型\nand \x1b[31mred"
        assert runs(logdir, "note", run) == "the one with the 模型\\nand \\x1b[31mred\n"
        assert data(logdir, "tag", run, "paper", "good")["tags"] == ["paper", "good"]
        assert data(logdir, "tag", run, "new", "--remove=good")["tags"] == ["paper", "new"]
    assert names(logdir, "--where", "tags like '%paper%'") == ["alpha", "foreign"]
    assert (logdir / "alpha" / "run.json").read_bytes() == before
    runs(logdir, "note", "alpha", "")
    assert data(logdir, "note", "alpha")["note"] is None
    assert data(logdir, "tag", "alpha")["tags"] == ["paper", "new"]
    assert runs(logdir, "tag", "alpha", "a,b", status=2).startswith("A tag is a printable word")


def test_tags_of_commands_at_once_all_stay(tmp_path):
    recorded(tmp_path, "a")
    command = [sys.executable, "-m", "tracker.runs", "tag", "a", f"--logdir={tmp_path}"]
    processes = [subprocess.Popen([*command, f"t{n}"], stdout=subprocess.DEVNULL) for n in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
    assert sorted(data(tmp_path, "tag", "a")["tags"]) == [f"t{n}" for n in range(8)]


def test_runs_of_other_writers(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path / "plain")).as_default():
        for step in range(5):
            tf.summary.scalar("loss", 5.0 - step, step=step)
    with tf.Graph().as_default():
        old = tf.compat.v1.summary.FileWriter(str(tmp_path / "old"))
    torch = event_file_writer.EventFileWriter(str(tmp_path / "torch"))
    for step in range(5):
        value = tf.compat.v1.Summary.Value(tag="loss", simple_value=step)
        old.add_summary(tf.compat.v1.Summary(value=[value]), step)
        torch.add_event(scalar(step, float(step)))
    old.close()
    torch.close()
    for name in ("x/y", "x/y/hparams"):  # tensorboardX, and its hparams in a run of their own
        (tmp_path / name).mkdir(parents=True)
    name = "events.out.tfevents.1.host"
    shutil.copy(DATA / "tensorboardx.tfevents", tmp_path / "x" / "y" / name)
    shutil.copy(DATA / "tensorboardx_hparams.tfevents", tmp_path / "x" / "y" / "hparams" / name)
    found = {run["name"]: run for run in data(tmp_path, "list", "--metrics=loss,train/loss")}
    assert list(found) == ["old", "plain", "torch", "x/y", "x/y/hparams"]
    for name, last in (("old", 4), ("plain", 1), ("torch", 4)):
        figures = found[name]["metrics"]["loss"]
        assert (figures["points"], figures["last"], found[name]["step"]) == (5, last, 4)
        assert found[name]["status"] == "unknown" and found[name]["created"]
    assert found["x/y"]["metrics"]["train/loss"]["last"] == pytest.approx(1 / 50)
    assert names(tmp_path, "--where", "lr < 0.01 and bias = true and last.hp/accuracy > 0.9") == [
        "x/y/hparams"
    ]
    shown = data(tmp_path, "show", "x/y")
    assert {m["name"]: m["kind"] for m in shown["metrics"]}["weights"] == "histograms"
    assert data(tmp_path, "show", "x/y/h")["flags"] == {"lr": 0.001, "name": "adam", "bias": True}


def test_a_run_of_keras_is_one_run_with_two_splits(tmp_path):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x = np.ones([8, 2], np.float32)
    board = tf.keras.callbacks.TensorBoard(str(tmp_path / "fit"), write_graph=False)
    model.fit(x, x[:, :1], epochs=3, validation_data=(x, x[:, :1]), callbacks=[board], verbose=0)
    [run] = data(tmp_path, "list", "--metrics=mae,train/epoch_loss")
    assert run["name"] == "fit"
    assert run["metrics"]["mae"]["metric"] == "validation/epoch_mae"
    assert run["metrics"]["mae"]["points"] == run["metrics"]["train/epoch_loss"]["points"] == 3
    [run] = data(tmp_path / "fit", "list")
    assert run["name"] == "." and data(tmp_path / "fit", "show", ".")["name"] == "."


def test_the_process_never_imports_tensorflow_and_starts_quickly(tmp_path):
    logdir = trained(tmp_path)
    code = (
        "import sys; from tracker.runs import main\n"
        "for command in (['list'], ['show', 'alpha'], ['diff', 'alpha', 'beta'], ['export'],"
        " ['sql', 'select count(*) from scalars'], ['best', '--metric=loss'], ['tag', 'alpha']):\n"
        f"    assert main.main([*command, '--logdir={logdir}']) == 0\n"
        "assert 'tensorflow' not in sys.modules, 'imported'\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True)
    again = (
        "import sys; from tracker.runs import main; main.main(sys.argv[1:]); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", again, "list", f"--logdir={logdir}"],
        check=True,
        capture_output=True,
        text=True,
    )
    heavy = {"numpy", "duckdb", "rich", "tensorboard", "google.protobuf", "tensorflow"}
    assert not heavy & set(done.stdout.split())  # nothing new on disk, nothing heavy in memory


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["lst"], "There is no command 'lst'; did you mean list?"),
        (["list", "--log_dir=x"], "There is no flag --log_dir; did you mean --logdir?"),
        (["list", "--whre=x"], "There is no flag --whre; did you mean --where?"),
        (["list", "--limit=x"], "'x' is not a whole number"),
        (["list", "--limit=-1"], "'-1' is not a whole number"),
        (["list", "--where", "step >"], "lacks a name or a value at its end"),
        (["list", "--where", "step > 1 step"], "lacks 'and' or 'or' at 'step'"),
        (["list", "--where", "(step > 1"], "lacks ')' at its end"),
        (["list", "--where", "step"], "lacks a comparison"),
        (["list", "--where", "step = $(x)"], "cannot be read at '$(x)'"),
        (["list", "--where", "best.los > 1"], "did you mean best.loss?"),
        (["list", "--sort=stp"], "No run has the field 'stp'; did you mean step?"),
        (["list", "--metrics=nope"], "No run has the metric 'nope'; there are loss"),
        (["show", "rum"], "There is no run 'rum'"),
        (["show", "r"], "begins the names of several runs: run, run2"),
        (["show", ".."], "There is no run '..'"),
        (["show"], "Missing: RUN"),
        (["best"], "Missing: --metric"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(arguments, why, tmp_path, capsys):
    write(tmp_path / "run", [(1, 1.0)])
    write(tmp_path / "run2", [(1, 1.0)])
    assert why in complaint(capsys, *arguments, f"--logdir={tmp_path}")


def test_logdirs_that_are_none(tmp_path):
    (tmp_path / "file").write_text("")
    for logdir in (tmp_path / "nowhere", tmp_path / "file", "gs://bucket/x", ""):
        runs(logdir, "list", status=2)
    assert data(tmp_path, "list") == []
    assert "There is no run in" in runs(tmp_path, "show", "latest", status=2)


def test_filters_as_in_sql():
    run = {"a": 1, "b": "0,0.1", "c": None, "d": True, "e": "x_y", "f": [0.0, 0.1], "g": 1e-4}
    for text, expected in {
        "a = 1 and b like '%0.1%'": True,
        "A = 1": False,
        "not a = 1 or d = true": True,
        "c = 1": False,
        "not c = 1": False,
        "c is null and a is not null": True,
        "a in (0, 1) and a not in (2, 3)": True,
        "a between 0 and 1 and b = '0,0.1'": True,
        "f = '0,0.1' and f like '0,%'": True,
        "e like 'x\\_y'": False,
        "e like 'x_y' and e not like 'x'": True,
        "g < 2e-4 and g = .0001": True,
        "a = 1 or c = 1": True,
        '"a" >= +1': True,
        "a <> 1 or a != 1": False,
        "1 < 2": True,
        "e = 'it''s'": False,
    }.items():
        assert where.parse(text).matches(run.get) is expected, text


def test_names_are_shown_escaped_and_found(tmp_path):
    strange = [
        "a b",
        "lr=1e+3",
        "Größe-模型",
        "it's",
        'say "hi"',
        "-rf",
        "a\x1b[2Jb",
        "a\nb",
        "é\u202eb",
    ]
    for name in strange:
        write(tmp_path / name, [(1, 1.0)])
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    write(tmp_path / "q", [(1, 1.0)]).rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff/tfevents"))
    os.rmdir(tmp_path / "q")
    assert set(names(tmp_path)) == {*strange, "\udcff"}
    text = runs(tmp_path, "list")
    assert all(c.isprintable() or c == "\n" for c in text) and len(text.splitlines()) == 12
    assert "a\\x1b[2Jb" in text and "a\\nb" in text and "\\u202e" in text and "\\udcff" in text
    for name in strange:
        command = [*COMMAND, "show", "--json", f"--logdir={tmp_path}", "--", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["name"] == name


def test_damaged_and_newer_records_do_not_hide_other_runs(tmp_path):
    recorded(tmp_path, "good")
    for name, content in {
        "newer": '{"format": 99}',
        "torn": '{"format": 1, "na',
        "empty": "",
        "list": "[]",
        "odd": '{"format": 1, "created": 5, "status": "running", "owner": null, "attempts": null}',
    }.items():
        path = recorded(tmp_path, name)
        (path / "run.json").write_text(content)
        (path / "notes.json").write_text("[}")
    listed = {run["name"]: run for run in data(tmp_path, "list")}
    assert {name: run["status"] for name, run in listed.items()} == {
        "good": "completed",
        **dict.fromkeys(("newer", "torn", "empty", "list", "odd"), "unreadable"),
    }
    assert "newer version" in listed["newer"]["problem"] and listed["good"]["problem"] is None
    assert listed["torn"]["metrics"]["loss"]["last"] == 0.5
    for name in listed:
        runs(tmp_path, "show", name)


OWNER = """
import sys
from tracker import rundir
from tracker.record import Record
Record.create(rundir.claim(sys.argv[1], "live"), [], {}, {})
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_dead_process_makes_a_run_stale(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        owner.stdout.readline()
        assert [run["status"] for run in data(tmp_path, "list")] == ["running"]
        owner.send_signal(signal.SIGKILL)
    assert [run["status"] for run in data(tmp_path, "list")] == ["stale"]
    assert names(tmp_path, "--where", "status = 'stale'") == ["live"]


def test_empty_files_links_and_vanishing_directories(tmp_path):
    write(tmp_path / "run", [(1, 1.0)])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "events.out.tfevents.1.host").write_bytes(b"")
    (tmp_path / "best").symlink_to(tmp_path / "run")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "run" / "up").symlink_to(tmp_path)
    (tmp_path / "run" / "events.out.tfevents.9.gone").symlink_to(tmp_path / "nowhere")
    listed = {run["name"]: run["step"] for run in data(tmp_path, "list")}
    assert listed == {"best": 1, "empty": None, "run": 1}


def test_a_run_removed_while_listing(tmp_path):
    churn = (
        "import pathlib, shutil, sys\n"
        "from tests.runs_logdir import write\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for n in range(30): write(root / f'c{n}', [(1, 1.0)])\n"
        "    for n in range(30): shutil.rmtree(root / f'c{n}')\n"
    )
    write(tmp_path / "kept", [(1, 1.0)])
    with subprocess.Popen(
        [sys.executable, "-c", churn, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        try:
            process.stdout.readline()
            for _ in range(12):
                assert "kept" in names(tmp_path)
        finally:
            process.kill()


def test_a_logdir_that_cannot_be_written_is_listed_all_the_same(tmp_path):
    write(tmp_path / "logdir" / "run", [(1, 1.0)])
    for parent in [*tmp_path.parents][:-2]:
        if os.stat(parent).st_uid == os.getuid() and str(parent) != "/tmp":
            parent.chmod(0o755)
    tmp_path.chmod(0o755)
    (tmp_path / "logdir").chmod(0o555)
    code = (
        "import os, sys\n"
        "from tracker.runs import bulk, main, listing, trash\n"
        "os.getuid() or os.setuid(65534)\n"  # root may write anywhere, so become nobody
        "sys.exit(main.main(sys.argv[1:]))\n"
    )

    def as_nobody(*arguments):
        command = [sys.executable, "-c", code, *arguments, f"--logdir={tmp_path}/logdir"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = as_nobody("list", "--json")
    assert [run["step"] for run in json.loads(done.stdout)] == [1], done
    assert done.stderr.startswith("Warning: The index") and done.stderr.count("\n") == 1
    done = as_nobody("trash", "run", "--force")
    assert done.returncode == 1 and "Permission denied" in done.stderr, done
    assert done.stderr.splitlines()[-1].startswith("Failed")
    (tmp_path / "logdir").chmod(0o755)


def test_output_into_a_pipe_that_closes(tmp_path):
    write(tmp_path / "run", [(step, 1.0) for step in range(30_000)])
    command = f"{sys.executable} -m tracker.runs export --logdir={tmp_path} | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("run,split,tag,step,wall_time,value\n", "")
