"""What a thread of a PyTorch profile is called when the profile does not name it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.tracer.formats.kineto_profiles import imported, saved


def threads(tmp_path: Path, events: list[dict[str, Any]]) -> list[str]:
    ranges = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::op{i}", "ts": 10 * i, "dur": 5, **event}
        for i, event in enumerate(events)
    ]
    profile = {"schemaVersion": 1, "traceEvents": ranges}
    _, trace = imported(saved(tmp_path / "p.json", profile), tmp_path / "t.trnprof")
    rows = trace.tracks.filter(pl.col("kind").cast(pl.String) == "thread")
    return sorted(rows["name"].to_list())


@pytest.mark.parametrize(
    ("events", "names"),
    [
        ([{"pid": 4, "tid": 7}], ["thread 7"]),
        ([{"pid": 4}], ["thread without number"]),
        ([{}], ["thread without number"]),
        ([{"pid": 4, "tid": 7}, {"pid": 5, "tid": 7}], ["4: thread 7", "5: thread 7"]),
        ([{"pid": 4, "tid": 7}, {}], ["4: thread 7", "thread without number"]),
        ([{"pid": 4, "tid": 7}, {"tid": 8}], ["4: thread 7", "thread 8"]),
    ],
)
def test_a_thread_without_a_name(
    events: list[dict[str, Any]], names: list[str], tmp_path: Path
) -> None:
    assert threads(tmp_path, events) == names
