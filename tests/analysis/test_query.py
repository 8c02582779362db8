"""SQL over a trace against sums in plain Python."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import polars as pl
import pytest
from tests.analysis.traces import TENSOR, VECTOR, build, event, step

import trnprof
from trnprof.analysis.query import VIEWS, run_query
from trnprof.analysis.query_output import as_csv, as_json, as_table
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.schema import TABLES

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_traces" / "transformer-trn2.trnprof"
TRACE = build(
    [
        event(TENSOR, 0, 30, name="mm"),
        event(TENSOR, 50, 20, name="mm"),
        event(VECTOR, 60, 40, name="a,b"),
    ],
    steps=[step(0, 0, 50), step(1, 50, 100)],
)


def test_sums_are_those_by_hand() -> None:
    sums = run_query(
        TRACE, "SELECT name, SUM(duration_ns) AS t FROM events GROUP BY name ORDER BY name"
    )
    assert sums.rows() == [("a,b", 40), ("mm", 50)]
    busy = run_query(
        TRACE,
        "SELECT step, active_ns, total_ns FROM engine_busy WHERE engine = 'Tensor' ORDER BY step NULLS LAST",
    )
    assert busy.rows() == [(0, 30, 50), (1, 20, 50), (None, 50, 100)]
    parts = run_query(
        TRACE,
        "SELECT step, total_ns, compute_ns, idle_ns FROM step_breakdown WHERE step IS NOT NULL ORDER BY step",
    )
    assert parts.rows() == [(0, 50, 30, 20), (1, 50, 50, 0)]


@pytest.mark.parametrize("name", [*TABLES, *VIEWS])
def test_every_table_and_view_of_a_sample_and_of_a_host_alone(name: str) -> None:
    host = build([], tracks=[{"track_id": 0, "kind": "host", "name": "host0"}])
    for trace in (trnprof.open(SAMPLE), host):
        assert run_query(trace, f"SELECT COUNT(*) AS n FROM {name}").height == 1


def test_the_path_sums_to_the_step() -> None:
    path = run_query(trnprof.open(SAMPLE), "SELECT SUM(duration_ns) AS t FROM critical_path").item()
    steps = run_query(trnprof.open(SAMPLE), "SELECT DISTINCT step, total_ns FROM step_breakdown WHERE step IS NOT NULL")  # fmt: skip
    assert path in steps["total_ns"].to_list()


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT * FROM event", "no table 'event'; did you mean events? (there are collectives"),
        ("SELECT starts_ns FROM events", "no column 'starts_ns'; did you mean start_ns?"),
        ("SELECT", "cannot answer the query: "),
        ("SELECT FROM WHERE", "cannot answer the query: "),
        ("DROP TABLE events", "a query begins with SELECT or WITH"),
        ("", "a query begins with SELECT or WITH"),
    ],
)
def test_a_wrong_query_is_one_line(sql: str, says: str) -> None:
    with pytest.raises(TrnprofError) as caught:
        run_query(TRACE, sql)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_formats_agree() -> None:
    answer = pl.DataFrame(
        {"a": [1, None], "b": ['x,"y"\n', None], "c": [0.5, float("nan")], "d": [[1, 2], None]}
    )
    rows = list(csv.reader(io.StringIO(as_csv(answer))))
    assert rows == [["a", "b", "c", "d"], ["1", 'x,"y"\n', "0.5", "[1, 2]"], ["", "", "NaN", ""]]
    assert json.loads(as_json(answer)) == [
        {"a": 1, "b": 'x,"y"\n', "c": 0.5, "d": [1, 2]},
        {"a": None, "b": None, "c": None, "d": None},
    ]
    table = as_table(answer).splitlines()
    assert len(table) == 3
    assert [len(w) for w in (table[0].split(), table[2].split())] == [4, 4]


def test_the_documentation_lists_views_and_their_columns() -> None:
    text = (ROOT / "docs" / "report.md").read_text("utf-8").partition("## SQL")[2]
    for name in VIEWS:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        columns = run_query(trnprof.open(SAMPLE), f"SELECT * FROM {name} LIMIT 1").columns
        assert row.rpartition(" | ")[2] == ", ".join(f"`{c}`" for c in columns) + " |"
