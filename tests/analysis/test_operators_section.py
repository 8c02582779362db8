"""Section ``operators``: groups by name, line and shape counted by hand, what it says of odd traces, and how it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.test_brute_force import WINDOWS, core_of, counted, inside, opened, traces
from tests.analysis.test_ranks import gpu_tracks
from tests.analysis.traces import DMA0, TENSOR, VECTOR, Row, build, event, step

from trnprof.analysis.excerpt import excerpt
from trnprof.analysis.focus import focus
from trnprof.analysis.groupings import by_name, by_shape, by_source_line
from trnprof.analysis.operators import top_operators
from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections import operators
from trnprof.analysis.sections.section import Section, Subject, as_json
from trnprof.analysis.sections.text import section_lines
from trnprof.tracer.reader import Trace

OPS: list[Row] = [
    {"op_id": 0, "name": "mm", "source_file": "a.py", "source_line": 3, "input_shapes": "[4]"},
    {"op_id": 1, "name": "mm", "source_file": "a.py", "source_line": 7, "input_shapes": "[4]"},
    {"op_id": 2, "name": "add", "source_file": "a.py", "source_line": 3},
]
KEYS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "name": (by_name, ("mm", "mm", "add")),
    "line": (by_source_line, ("a.py:3", "a.py:7", "a.py:3")),
    "shape": (by_shape, ("mm", "mm", None)),
}


@settings(max_examples=40, deadline=None)
@given(traces(), st.sampled_from(sorted(KEYS)))
def test_groups_against_sets_of_instants(given_trace: tuple[Trace, list[Row]], key: str) -> None:
    trace, rows = given_trace
    named = build(rows, tracks=trace.tracks.to_dicts(), ops=OPS, steps=trace.steps.to_dicts())
    labels_of, names = KEYS[key]
    found = top_operators(focus(opened(named)), named, 100, labels_of)
    window = WINDOWS[2]
    times: dict[tuple[bool, str], list[set[int]]] = {}
    for row in counted(rows):
        op = row.get("op_id")
        label = None if op is None else names[op]
        instants = inside(row, window)
        if not instants and not (not row["duration_ns"] and row["start_ns"] in range(*window)):
            continue
        group = (label is not None, label or row.get("name", "op"))
        times.setdefault(group, [set(), set()])[core_of(row)] |= instants
    assert {(r["operator"] >= 0, r["name"]): r["time_ns"] for r in found.to_dicts()} == {
        group: sum(map(len, cores)) / 2 for group, cores in times.items()
    }


def section_of(trace: Trace, **chosen: int) -> tuple[Section, dict[str, Any]]:
    section = operators.build(Subject(trace, device_scope(trace), **chosen))
    assert all(len(line) <= 80 for line in section_lines(section))
    return section, as_json(section)


def layered() -> Trace:
    """Two steps of five layers of two operators each, 50 ns each; the third layer's second takes 90 in the second step."""
    rows: list[Row] = []
    ops: list[Row] = []
    steps, at = [], 0
    for number in range(2):
        start = at
        for layer in range(5):
            for name, track in (("mm", TENSOR), ("norm", VECTOR)):
                time = 90 if (number, layer, name) == (1, 2, "norm") else 50
                rows.append(event(track, at, time, op_id=len(ops), step=number))
                path = f"layers.{layer}.{name}"
                ops.append({"op_id": len(ops), "name": name, "module_path": path, "phase": "forward", "input_shapes": "[8]",
                            "source_file": "/home/me/model.py", "source_line": 7})  # fmt: skip
                at += time
        rows.append(event(DMA0, start, 20, bytes=1 << 20, source_memory="hbm", target_memory="sbuf", name="load"))  # fmt: skip
        steps.append(step(number, start, at))
    return build(rows, ops=ops, steps=steps)


def test_a_step_of_layers() -> None:
    section, found = section_of(layered(), step=1)
    first, second, load = found["operators"]
    assert (first["name"], first["module"], first["time_ns"]) == ("norm", "layers.*.norm", 290)
    assert (second["name"], second["time_ns"], second["phase"]) == ("mm", 250, "forward")
    assert (load["name"], load["module"], load["hbm_bytes"]) == ("load", None, 1 << 20)
    assert [r["name"] for r in found["layers"]] == ["(model)", "· layers", "· · *", "· · · norm", "· · · mm"]  # fmt: skip
    assert [r["instances"] for r in found["layers"]] == [1, 1, 5, 5, 5]
    assert [r["time_ns"] for r in found["layers"]] == [540, 540, 540, 290, 250]
    assert [r["self_ns"] for r in found["layers"]] == [0, 0, 0, 290, 250]
    out = [(r["path"], r["differs_ns"]) for r in found["layers_out_of_line"]]
    assert out == [("layers.2", 40), ("layers.2.norm", 40)]
    [line] = found["by_source_line"]
    assert (line["line"], line["name"]) == ("me/model.py:7", "/home/me/model.py:7")
    assert {r["shapes"] for r in found["by_shape"]} == {"[8]"}
    assert [(r["pattern"], r["count"]) for r in found["patterns"]] == [("norm → norm", 4), ("mm → mm", 4)]  # fmt: skip
    assert not {"launches", "host_spans"} & set(found)
    assert any("of step 1" in n for n in section.notes)


def test_all_steps_together_have_no_layer_that_hides() -> None:
    _, found = section_of(layered())
    assert [r["path"] for r in found["layers_out_of_line"]] == ["layers.2", "layers.2.norm"]
    assert found["layers"][0]["time_ns"] == 1040


def test_a_device_that_its_host_drives() -> None:
    rows = [
        event(2, 0, 5, name="cudaLaunchKernel", category="host"),
        event(2, 50, 5, name="cudaLaunchKernel", category="host"),
        event(10, 10, 20, name="k"),
        event(10, 60, 40, name="k"),
    ]
    flows = [{"source_event": n, "target_event": n + 2, "kind": "launch"} for n in (0, 1)]
    _, found = section_of(build(rows, tracks=gpu_tracks(1), flows=flows, steps=[step(0, 0, 100)]))
    [row] = found["host_bound"]
    assert (row["busy_share"], row["queued_share"], row["host_bound_share"]) == (0.6, 0.2, 0.2)
    [row] = found["launches"]
    assert (row["launches"], row["call_ns"], row["delay_ns"], row["shorter"]) == (2, 5, 5, 0)
    [row] = found["queues"]
    assert (row["mean_depth"], row["max_depth"], row["waiting_share"]) == (0.2, 1, 0.2)
    assert [r["mean_depth"] for r in found["queue_depth_over_time"]][:3] == [1, 1, 0]
    [row] = found["host_spans"]
    assert (row["name"], row["count"], row["self_ns"], row["share"]) == ("cudaLaunchKernel", 2, 10, 1)  # fmt: skip
    assert found["by_name"][0]["flops"] is None


@pytest.mark.parametrize(
    ("limit", "time", "told"),
    # 13 events meet the step, two of them at its end
    [(13, 500, "of step 0, the median one"), (6, 230, "of step 0, the median one, of the first 46.2 % of the time")],
)  # fmt: skip
def test_of_too_many_events_an_excerpt(monkeypatch: pytest.MonkeyPatch, limit: int, time: int, told: str) -> None:  # fmt: skip
    monkeypatch.setattr(operators, "MAX_EVENTS", limit)
    section, found = section_of(layered())
    assert section.notes[0] == f"~ more than {limit} events: the figures are {told}"
    assert found["layers"][0]["time_ns"] == pytest.approx(time, abs=3)


def test_of_too_many_ranks_some() -> None:
    rows = [event(100 * rank + 10, at, 5) for rank in range(4) for at in (0, 10, 20)]
    scope = device_scope(build(rows, tracks=gpu_tracks(4)))
    assert scope is not None
    kept, step_, told = excerpt(scope, None, None, 7)
    assert kept.units["rank"].to_list() == [0, 1]
    assert kept.events.select(pl.len()).collect().item() == 6
    assert (step_, told) == (None, "~ more than 7 events: the figures are of 2 of 4 units with events")  # fmt: skip
    assert excerpt(scope, None, 1, 7)[2] is None
    assert excerpt(scope, None, None, 12)[2] is None


def test_nothing() -> None:
    for trace in (build(), build([event(TENSOR, 0, None)]), build([event(TENSOR, 50, 5)], steps=[step(0, 0, 9)])):  # fmt: skip
        section, _ = section_of(trace)
        assert section.nothing_to_say == "because no event of the device lies in the window"
    assert operators.build(Subject(build(), None)).nothing_to_say
    section, found = section_of(build([event(TENSOR, 3, 0)], steps=[step(0, 0, 9)]))
    assert found["operators"][0]["time_ns"] == 0
    assert any("nothing by layer" in n for n in section.notes)
    assert isinstance(section.tables[0].rows[0], dict)
    assert pl.DataFrame(found["by_name"]).height == 1
