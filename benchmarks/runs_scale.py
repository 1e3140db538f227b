"""Times `python -m tracker.runs list` on 1,000 runs against TensorBoard's EventAccumulator.

  python benchmarks/runs_scale.py --runs=1000 --layout=single

Layouts: `single` has one record a value, as `tf.summary.scalar` and torch write them; `together`
one a step, as tracker does. Every figure is of a whole process, its imports included. Prints JSON.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

from tracker import events

ACCUMULATE = """
import os, sys
from tensorboard.backend.event_processing import event_accumulator
points = 0
for name in sorted(os.listdir(sys.argv[1])):
    if name.startswith("."):
        continue
    loaded = event_accumulator.EventAccumulator(
        os.path.join(sys.argv[1], name), {"scalars": 0, "tensors": 0}
    )
    loaded.Reload()
    points += sum(len(loaded.Tensors(tag)) for tag in loaded.Tags()["tensors"])
print(points)
"""


def write_run(directory, seed, tags, steps, together):
    """One run, as its writer would leave it."""
    os.makedirs(directory)
    number = random.Random(seed).random
    path = os.path.join(directory, f"events.out.tfevents.1700000000.host.{seed}.0000.v2")
    records = list(events.start_records(0))
    for step in range(1, steps + 1):
        values = [_value(f"metrics/tag_{t}", number(), step == 1) for t in range(tags)]
        for group in [values] if together else [[v] for v in values]:
            summary = summary_pb2.Summary(value=group)
            records.append(event_pb2.Event(wall_time=1.7e9 + step, step=step, summary=summary))
    with open(path, "wb") as file:
        file.writelines(events.frame(record.SerializeToString()) for record in records)


def _value(tag, number, first):
    tensor = tensor_pb2.TensorProto(
        dtype=types_pb2.DT_FLOAT, tensor_shape={}, float_val=[number]
    )  # as tf.summary writes it
    value = summary_pb2.Summary.Value(tag=tag, tensor=tensor)
    if first:
        value.metadata.plugin_data.plugin_name = "scalars"
        value.metadata.data_class = summary_pb2.DATA_CLASS_SCALAR
    return value


def timed(*command):
    """Wall seconds and peak memory in MB of a process; its output."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return time.perf_counter() - began, usage.ru_maxrss / 1e3, output


def measure(logdir, args):
    """All figures of a logdir that was never listed."""
    listing = (sys.executable, "-m", "tracker.runs", "list", f"--logdir={logdir}")
    first, first_mb, output = timed(*listing)
    assert output.splitlines()[-1] == f"{args.runs} of {args.runs:,} runs", output[-200:]
    again = [timed(*listing) for _ in range(5)]
    shutil.rmtree(os.path.join(logdir, f"run-{args.runs // 2:04d}"))
    write_run(os.path.join(logdir, f"run-{args.runs // 2:04d}"), 10**6, args.tags, args.steps, 0)
    changed, _, _ = timed(*listing)
    query = "select count(*) as points from scalars"
    sql, sql_mb, answer = timed(*listing[:3], "sql", query, f"--logdir={logdir}", "--json")
    points = args.runs * args.tags * args.steps
    assert json.loads(answer) == [{"points": points}]
    loaded, loaded_mb, output = timed(sys.executable, "-c", ACCUMULATE, logdir)
    assert int(output) == points, output
    return {
        "points": points,
        "event_file_mb": _size(logdir, "tfevents") / 1e6,
        "index_mb": _size(logdir, "index") / 1e6,
        "first_list_s": first,
        "first_list_mb": first_mb,
        "second_list_s": sorted(seconds for seconds, _, _ in again)[2],
        "second_list_mb": again[0][1],
        "list_after_one_run_changed_s": changed,
        "sql_count_all_points_s": sql,
        "sql_mb": sql_mb,
        "event_accumulator_s": loaded,
        "event_accumulator_mb": loaded_mb,
        "times_faster": loaded / first,
    }


def _size(logdir, part):
    return sum(
        os.path.getsize(os.path.join(directory, file))
        for directory, _, files in os.walk(logdir)
        for file in files
        if part in file
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--tags", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--layout", choices=("single", "together"), default="single")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as logdir:
        for n in range(args.runs):
            together = args.layout == "together"
            write_run(os.path.join(logdir, f"run-{n:04d}"), n, args.tags, args.steps, together)
        figures = {"layout": args.layout, **measure(logdir, args)}
    rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()}
    print(json.dumps(rounded, indent=2))


if __name__ == "__main__":
    main()
