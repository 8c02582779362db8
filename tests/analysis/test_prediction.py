"""A prediction beside a measurement: by hand, against itself, and where the two say different things of their operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.traces import DMA0, TENSOR, VECTOR, Row, build, core_tracks, event, step

import trnprof
from trnprof.analysis.prediction import (
    Side,
    collectives_side_by_side,
    matched_sides,
    operators_side_by_side,
    parts_side_by_side,
    steps_side_by_side,
)
from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections.prediction import build as section
from trnprof.analysis.sections.section import as_json
from trnprof.tracer.reader import Trace

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "transformer-trn2.trnprof"


def sides(predicted: Trace, measured: Trace) -> tuple[Side, Side]:
    scopes = device_scope(predicted), device_scope(measured)
    assert scopes[0] is not None
    assert scopes[1] is not None
    return matched_sides((predicted, measured), (scopes[0], scopes[1]))


def op(number: int, name: str, path: str | None = None, shapes: str | None = None) -> Row:
    return {"op_id": number, "name": name, "module_path": path, "input_shapes": shapes}


def run(times: dict[int, int], ops: list[Row], number: int = 0, end: int = 1000) -> Trace:
    """Operation i takes so long on Tensor, one after the other."""
    events, at = [], 0
    for op_id, length in times.items():
        events.append(event(TENSOR, at, length, op_id=op_id, step=number))
        at += length
    return build(events, ops=ops, steps=[step(number, 0, end)])


def test_matched_by_the_most_that_both_sides_say() -> None:
    ours = [
        op(0, "mm", "layers.0.up", "[4, 8]"),
        op(1, "mm", "layers.0.down", "[8, 4]"),
        op(2, "add_", "", "[4]"),
        op(3, "gelu", "layers.0.act", "[4]"),
    ]
    theirs = [
        op(0, "aten::mm", "layers.0.up", "[4, 8]"),
        op(1, "aten::mm", None, "[8, 4]"),
        op(2, "aten::add"),
        op(3, "aten::copy_"),
    ]
    first = run({0: 100, 1: 50, 2: 30, 3: 20}, ours)
    second = run({0: 80, 1: 60, 2: 5, 3: 300}, theirs)
    rows = operators_side_by_side(*sides(first, second)).rows(named=True)
    keys = ("name", "matched_by", "predicted_ns", "measured_ns", "difference_ns")
    assert [tuple(row[k] for k in keys) for row in rows] == [
        ("copy", None, 0, 300, -300),
        ("add", "name", 30, 5, 25),
        ("gelu", None, 20, 0, 20),
        ("mm", "name, layer, shapes", 100, 80, 20),
        ("mm", "name, shapes", 50, 60, -10),
    ]
    by_name = {(row["name"], row["shapes"]): row for row in rows}
    assert by_name["mm", "[8, 4]"]["error"] == pytest.approx(-10 / 60)
    assert by_name["gelu", "[4]"]["error"] is None
    # nothing is lost on either side
    assert sum(row["predicted_ns"] for row in rows) == 200
    assert sum(row["measured_ns"] for row in rows) == 445


def test_steps_of_other_numbers_are_matched_in_order() -> None:
    first, second = run({0: 100}, [op(0, "mm")], number=0), run({0: 100}, [op(0, "mm")], number=7, end=800)  # fmt: skip
    (row,) = steps_side_by_side(*sides(first, second)).rows(named=True)
    assert (row["predicted_step"], row["measured_step"]) == (0, 7)
    assert (row["predicted_ns"], row["measured_ns"], row["error"]) == (1000, 800, 0.25)
    notes = as_json(section(first, second))["notes"]
    assert any("matched in order" in note for note in notes)
    bare = build([event(TENSOR, 0, 100)])
    assert any("a side has no steps" in note for note in as_json(section(first, bare))["notes"])


def test_the_parts_sum_to_the_step_on_both_sides() -> None:
    events = [
        event(TENSOR, 0, 300),
        event(VECTOR, 200, 200),
        event(DMA0, 350, 250, bytes=10),
    ]
    pair = sides(build(events, steps=[step(0, 0, 1000)]), build(events[:1], steps=[step(0, 0, 500)]))  # fmt: skip
    rows = {row["part"]: row for row in parts_side_by_side(*pair).rows(named=True)}
    assert (rows["compute"]["predicted_ns"], rows["compute"]["measured_ns"]) == (400, 300)
    assert (rows["exposed_dma"]["predicted_ns"], rows["exposed_dma"]["measured_ns"]) == (200, 0)
    assert sum(row["predicted_ns"] for row in rows.values()) == 1000
    assert sum(row["measured_ns"] for row in rows.values()) == 500


def test_replicas_weigh() -> None:
    tracks = [
        row | ({"replica_count": 3} if row["track_id"] in (3, *range(20, 27)) else {})
        for row in core_tracks(2)
    ]
    events = [event(TENSOR, 0, 100, name="mm"), event(TENSOR + 10, 0, 20, name="mm")]
    steps = [step(0, 0, 100, rank) for rank in (0, 1)]
    pair = sides(build(events, tracks=tracks, steps=steps), build(events[:1], steps=steps[:1]))
    (row,) = operators_side_by_side(*pair).rows(named=True)
    assert (row["predicted_ns"], row["measured_ns"]) == ((100 + 3 * 20) / 4, 100)


def test_a_run_beside_itself_differs_in_nothing() -> None:
    trace = trnprof.open(SAMPLE)
    pair = sides(trace, trace)
    for rows in (
        steps_side_by_side(*pair),
        parts_side_by_side(*pair),
        operators_side_by_side(*pair),
    ):
        assert rows.height
        assert rows["difference_ns"].abs().max() == 0
    assert operators_side_by_side(*pair)["matched_by"].null_count() == 0
    assert not collectives_side_by_side(*pair).height


def test_a_trace_without_a_device_is_told() -> None:
    host = build([], tracks=[{"track_id": 0, "kind": "host", "name": "host0"}])
    full = build([event(TENSOR, 0, 10)])
    assert section(host, full).nothing_to_say == "because the prediction has no device tracks"
    assert section(full, host).nothing_to_say == "because the measurement has no device tracks"
