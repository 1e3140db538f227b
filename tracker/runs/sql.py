"""The command `sql`: queries over runs, flags and scalars, which cannot touch anything else.

The tables are copies in memory: `runs` (a row a run: name, status, step, created, ...), `flags`
(run, flag, value, number), `metrics` (run, split, tag, points, last, low, high and their steps) and
`scalars` (run, split, tag, step, wall_time, value). DuckDB has no access to files or networks, and
its configuration is locked.

>>> python -m tracker.runs sql "select run, max(value) from scalars group by run" --logdir=logdir
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import duckdb

from tracker.runs import output
from tracker.runs.catalog import Catalog
from tracker.runs.listing import warn
from tracker.runs.metrics import Metric
from tracker.runs.run import FIELDS, Run
from tracker.runs.where import text_of

_NAN = "CASE WHEN {} THEN 'nan'::DOUBLE ELSE {} END"  # DuckDB takes NumPy's NaN for null
_TABLES = {
    "runs": "name VARCHAR, status VARCHAR, step BIGINT, created VARCHAR, age DOUBLE, tags VARCHAR, "
    "note VARCHAR, attempts BIGINT, host VARCHAR, commit VARCHAR, branch VARCHAR, dirty BOOLEAN, "
    "reason VARCHAR, parameters BIGINT",
    "flags": "run VARCHAR, flag VARCHAR, value VARCHAR, number DOUBLE",
    "metrics": "run VARCHAR, split VARCHAR, tag VARCHAR, points BIGINT, first_step BIGINT, "
    "last_step BIGINT, last DOUBLE, low DOUBLE, low_step BIGINT, high DOUBLE, high_step BIGINT",
}


@contextlib.contextmanager
def connection() -> Iterator[Any]:
    """A database in memory."""
    config: dict[str, Any] = {
        "threads": "2",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",  # else a query could read our own variables
        "temp_directory": "",
    }
    database = duckdb.connect(":memory:", config=config)
    try:
        yield database
    finally:
        database.close()


def load(database: Any, table: str, titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Makes a table of rows whose types are those of their values; returns how many there are.

    Args:
      database: a connection.
      table: the name of the table.
      titles: of its columns.
      rows: their values; a column of mixed types becomes text.
    """
    import numpy as np

    columns: list[list[Any]] = [[] for _ in titles]
    for row in rows:
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    arrays: dict[str, Any] = {}
    types = []
    for n, (title, values) in enumerate(zip(titles, columns, strict=True)):
        kind, array = _array(values)
        arrays[f"c{n}"] = array
        if kind == "DOUBLE":
            arrays[f"n{n}"] = np.array([v is not None and math.isnan(v) for v in values], bool)
        quoted = title.replace('"', '""')
        source = _NAN.format(f"n{n}", f"c{n}") if kind == "DOUBLE" else f"CAST(c{n} AS {kind})"
        types.append(f'{source} AS "{quoted}"')
    database.register("loaded", arrays)
    database.execute(f"CREATE TABLE {table} AS SELECT {', '.join(types)} FROM loaded")
    database.unregister("loaded")
    return len(columns[0])


def _array(values: Sequence[Any]) -> tuple[str, Any]:
    """The type of a column, and its values as NumPy holds them."""
    import numpy as np

    kinds = {type(value) for value in values if value is not None}
    for kind, name in ((bool, "BOOLEAN"), (int, "BIGINT"), (float, "DOUBLE")):
        if kinds == {kind} or (kind is float and kinds == {int, float}):
            if None not in values:
                return name, np.array(values, {bool: bool, int: np.int64, float: float}[kind])
            masked = [0 if value is None else value for value in values]
            mask = [value is None for value in values]
            return name, np.ma.array(np.array(masked), mask=mask)
    texts = [None if value is None else text_of(value) for value in values]
    return "VARCHAR", np.array(texts, object)


def sql_command(args: argparse.Namespace) -> int:
    """Answers a query."""
    with Catalog(args.logdir) as catalog, connection() as database:
        warn(catalog)
        _fill(database, catalog.runs, args.query)
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        try:
            _refuse_changes(database, args.query)
            result = database.execute(args.query)
            titles = [column[0] for column in result.description or ()]
            rows = result.fetchall()
        except duckdb.Error as error:
            raise ValueError(str(error).splitlines()[0]) from error
    if args.json:
        output.print_json([dict(zip(titles, row, strict=True)) for row in rows])
        return 0
    output.table(titles, [[_cell(value) for value in row] for row in rows])
    return 0


def _refuse_changes(database: Any, query: str) -> None:
    """Lets one SELECT through: the tables are copies, and a change of them would be lost."""
    statements = database.extract_statements(query)
    if len(statements) != 1 or str(statements[0].type).rpartition(".")[2] not in (
        *("SELECT", "EXPLAIN", "SELECT_STATEMENT", "EXPLAIN_STATEMENT"),
    ):
        raise ValueError("Only one SELECT is answered; nothing can be changed by sql")


def _cell(value: Any) -> str:
    return output.number(value) if isinstance(value, float) else "" if value is None else str(value)


def _fill(database: Any, runs: Sequence[Run], query: str) -> None:
    """Makes the tables that the query names."""
    for table, columns in _TABLES.items():
        database.execute(f"CREATE TABLE {table} ({columns})")
    _insert(database, "runs", [[run.value(field) for field in FIELDS] for run in runs])
    if _names(query, "flags"):
        _insert(database, "flags", [row for run in runs for row in _flags(run)])
    if _names(query, "metrics"):
        _insert(database, "metrics", [row for run in runs for row in _metrics(run)])
    wanted = runs if _names(query, "scalars") else ()
    fill_scalars(database, [(run, metric) for run in wanted for metric in run.metrics.values()])


def _names(query: str, table: str) -> bool:
    return re.search(rf"\b{table}\b", query, re.IGNORECASE) is not None


def _insert(database: Any, table: str, rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        database.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)


def _flags(run: Run) -> Iterator[list[Any]]:
    for flag, value in run.flags.items():
        number = float(value) if isinstance(value, (bool, int, float)) else None
        yield [run.name, flag, None if value is None else text_of(value), number]


def _metrics(run: Run) -> Iterator[list[Any]]:
    for m in run.metrics.values():
        bounds = [m.low, m.low_step, m.high, m.high_step]
        yield [run.name, m.split, m.tag, m.points, m.first_step, m.last_step, m.last, *bounds]


def fill_scalars(database: Any, chosen: Sequence[tuple[Run, Metric]]) -> int:
    """Makes the view `scalars`: columns of numbers, with the names of their series beside them.

    Args:
      database: a connection.
      chosen: the metrics of runs whose points to take.

    Returns:
      How many points there are.
    """
    import numpy as np

    columns = [run.points(metric) for run, metric in chosen]
    counts = [len(column.steps) for column in columns]
    empty = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    steps, walls, values = (
        (np.concatenate(parts) for parts in zip(*columns, strict=True)) if columns else empty
    )
    series = np.repeat(np.arange(len(chosen)), counts)
    numbers = {"series": series, "step": steps, "wall_time": walls, "value": values}
    numbers["lost"] = np.isnan(values)
    database.register("numbers", numbers)
    value = _NAN.format("lost", "value")
    database.execute(
        f"CREATE TABLE points AS SELECT series, step, wall_time, {value} AS value FROM numbers"
    )
    database.unregister("numbers")
    rows = [(n, run.name, m.split, m.tag) for n, (run, m) in enumerate(chosen)]
    load(database, "series", ["id", "run", "split", "tag"], rows)
    database.execute(
        "CREATE VIEW scalars AS SELECT run, split, tag, step, wall_time, value "
        "FROM points JOIN series ON points.series = series.id"
    )
    return int(sum(counts))
