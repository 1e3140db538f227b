"""Predicts from a data sheet what tracker would cost with 1 to 100 billion parameters in shards.

    python -m benchmarks.scale --json=machine.json
    python -m benchmarks.paper machine.json

`machine.json` holds what `benchmarks/scale.py` measured of the host, which writes the summaries.
The devices are those of `DEVICE`; nothing here has been run on them.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import cost_model

DEVICE = cost_model.Accelerator(
    name="H100 SXM",
    bandwidth=3.35e12,
    flops=4e14,  # 40 % of the dense bfloat16 figure
    normals=3e11,
    link=450e9,
    launch_seconds=4e-6,
    memory=80e9,
)
CASES = (  # parameters, variables, devices
    (10**9, 300, 8),
    (7 * 10**9, 300, 8),
    (70 * 10**9, 750, 64),
    (100 * 10**9, 900, 64),
)
TOKENS = 2**20  # of a batch
SUMMARY_EVERY = 100
STDDEVS = 6


def load(path: str) -> cost_model.Machine:
    """A machine as `benchmarks/scale.py` wrote it."""
    fields = json.loads(pathlib.Path(path).read_text())["machine"]
    curves = {k: tuple(map(tuple, points)) for k, points in fields.pop("curves").items()}
    return cost_model.Machine(curves=curves, **fields)


def predict(host: cost_model.Machine, parameters: int, variables: int, devices: int) -> dict:
    """What one device of a sharded model does and holds; milliseconds and gigabytes."""
    machine = DEVICE.machine(host)
    shards = cost_model.equal(parameters // devices, variables)
    update = 6 * parameters * TOKENS / devices / DEVICE.flops
    step = cost_model.step_seconds(machine, shards, update, device="gpu")
    measured = cost_model.measure_seconds(machine, shards)
    writing = cost_model.write_seconds(host, variables)
    per_step = (step.noise + (measured + writing) / SUMMARY_EVERY) / update
    names = [f"model/layer_{i // 2}/{'kernel' if i % 2 else 'bias'}" for i in range(variables)]
    return {
        "parameters": f"{parameters / 1e9:g} B",
        "devices": devices,
        "update": f"{1e3 * update:,.0f} ms",
        "noise": f"{1e3 * step.noise:.1f} ms",
        "measuring": f"{1e3 * measured:.0f} ms",
        "writing": f"{1e3 * writing:.0f} ms",
        "a step more": f"{per_step:.2%}",
        "buffered": f"{cost_model.persistent_bytes(shards, 'buffered') / 1e9:.2f} GB",
        "snapshots": f"{cost_model.snapshot_bytes(shards) / 1e9:.2f} GB",
        "summary": f"{cost_model.summary_bytes(names, STDDEVS * [0.0]) / 1e3:.0f} kB",
        "nodes, scalar": f"{_nodes(shards, 'scalar'):,}",
        "nodes, routes": f"{_nodes(shards, 'routes'):,}",
        "nodes, 60 routes": f"{_nodes(shards, 'routes', 60):,}",
        "measuring's nodes": f"{_nodes(shards, measured=True) - _nodes(shards):,}",
        "build, scalar": _duration(host, _nodes(shards)),
        "build, routes": _duration(host, _nodes(shards, "routes")),
        "build, 60 routes": _duration(host, _nodes(shards, "routes", 60)),
        "copies": f"{1e3 * cost_model.WORD * parameters / DEVICE.link:.0f} ms",
    }


def _nodes(
    sizes: Sequence[int], strategy: str = "scalar", stddevs: int = STDDEVS, measured: bool = False
) -> int:
    return cost_model.graph_nodes(sizes, strategy, "stateless", stddevs, measured, "gpu")


def _duration(host: cost_model.Machine, nodes: int) -> str:
    seconds = cost_model.build_seconds(host, nodes)
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, a case in each column."""
    names = list(rows[0])
    lines = [[name, *(str(row[name]) for row in rows)] for name in names]
    marked = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([marked[0], "|---" * (len(rows) + 1) + "|", *marked[1:]])


if __name__ == "__main__":
    print(table([predict(load(sys.argv[1]), *case) for case in CASES]))
