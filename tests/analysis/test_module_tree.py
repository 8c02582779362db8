"""Time by the tree of modules and layers out of line with their siblings: sets of instants say what each module takes."""

from __future__ import annotations

import re
from statistics import median
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.traces import DMA0, SYNC, TENSOR, VECTOR, Row, build, core_tracks, event, step

from trnprof.analysis.focus import focus
from trnprof.analysis.module_tree import (
    MAX_DEPTH,
    in_tree_order,
    module_nodes,
    module_times,
    rolled_up,
)
from trnprof.analysis.repeated_layers import repeated_layers
from trnprof.analysis.scope import device_scope
from trnprof.tracer.reader import Trace

PATHS = ("layers.0.mlp", "layers.1.mlp", "layers.1", "", "norm", "Block_7.fc", None)
OPS: list[Row] = [
    {"op_id": i, "name": f"op{i}", "module_path": path} for i, path in enumerate(PATHS)
]
OPS.append({"op_id": len(PATHS), "name": "child", "parent_id": 0})  # is where its parent is
WINDOW = range(5, 70)
some_events = st.lists(
    st.tuples(
        st.sampled_from((TENSOR, VECTOR, SYNC, DMA0)),
        st.booleans(),
        st.integers(0, 60),
        st.integers(0, 25),
        st.sampled_from((None, *range(len(OPS)))),
    ),
    max_size=12,
)


def rows_of(given_events: list[tuple[int, bool, int, int, int | None]]) -> list[Row]:
    return [
        event(track + 10 * second, start, length, op_id=op, flops=8.0 if track == TENSOR else None)
        for track, second, start, length, op in given_events
    ]


def path_of(op_id: int | None) -> str | None:
    return PATHS[0] if op_id == len(PATHS) else None if op_id is None else PATHS[op_id]


def chain(path: str, is_merged: bool) -> list[str]:
    """A module and those above it, the model last."""
    shown = re.sub(r"(^|[._])\d+\b", r"\1*", path) if is_merged else path
    parts = shown.split(".") if shown else []
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def brute(rows: list[Row], is_merged: bool) -> dict[str, tuple[float, float]]:
    """By module: inclusive and self time, means of two cores."""
    covered: dict[tuple[str, int], set[int]] = {}
    below: dict[tuple[str, int], set[int]] = {}
    for row in rows:
        path = path_of(row.get("op_id"))
        if path is None:
            continue
        instants = set(range(row["start_ns"], row["start_ns"] + row["duration_ns"])) & set(WINDOW)
        is_there = instants or (not row["duration_ns"] and row["start_ns"] in WINDOW)
        core = (row["track_id"] - TENSOR) // 10
        for child, module in enumerate(chain(path, is_merged)):
            if is_there:
                covered.setdefault((module, core), set()).update(instants)
                if child:
                    below.setdefault((module, core), set()).update(instants)
    modules = {m for m, _ in covered}
    return {
        m: (
            sum(len(covered.get((m, c), ())) for c in (0, 1)) / 2,
            sum(len(covered.get((m, c), set()) - below.get((m, c), set())) for c in (0, 1)) / 2,
        )
        for m in modules
    }


def focussed(trace: Trace) -> Any:
    scope = device_scope(trace)
    assert scope is not None
    return focus(scope)


@settings(max_examples=40, deadline=None)
@given(some_events, st.booleans())
def test_against_sets_of_instants(given_events: list[Any], is_merged: bool) -> None:
    rows = rows_of(given_events)
    steps = [step(0, WINDOW.start, WINDOW.stop, rank=r) for r in (0, 1)]
    trace = build(rows, tracks=core_tracks(2), ops=OPS, steps=steps)
    times = module_times(focussed(trace), trace)
    expected = brute(rows, is_merged)
    if not times.sums.height:
        assert not expected
        return
    found = rolled_up(times, module_nodes(times.paths, is_merged=is_merged))
    assert {r["path"]: (r["time_ns"], r["self_ns"]) for r in found.to_dicts()} == expected
    for row in found.to_dicts():
        own = [r for r in rows if r["track_id"] % 10 == TENSOR % 10 and r["duration_ns"]]
        flops = sum(
            8.0 * len(set(range(r["start_ns"], r["start_ns"] + r["duration_ns"])) & set(WINDOW)) / r["duration_ns"]
            for r in own
            if (path := path_of(r.get("op_id"))) is not None and row["path"] in chain(path, is_merged)
        )  # fmt: skip
        instants = 8.0 * sum(
            r["start_ns"] in WINDOW
            for r in rows
            if r["track_id"] % 10 == TENSOR % 10
            and not r["duration_ns"]
            and (path := path_of(r.get("op_id"))) is not None
            and row["path"] in chain(path, is_merged)
        )
        assert row["adjusted_flops"] == pytest.approx((flops + instants) / 2)
    ordered = in_tree_order(found, 100)
    assert sorted(ordered["path"]) == sorted(expected)
    seen: set[str | None] = {None}
    for path, parent in ordered.select("path", "parent_path").iter_rows():
        assert parent in seen  # a module stands below its parent
        seen.add(path)


def layers_trace(lengths: list[int], shapes: list[str]) -> Trace:
    """One layer after another, each an attention and an mlp of the given time."""
    rows, ops, at = [], [], 0
    for number, (length, shape) in enumerate(zip(lengths, shapes, strict=True)):
        for part, time in (("attention", 100), ("mlp", length)):
            path = f"layers.{number}.{part}"
            op = {"name": part, "module_path": path, "input_shapes": shape}
            rows.append(event(TENSOR, at, time, op_id=len(ops)))
            ops.append({"op_id": len(ops), **op})
            at += time
    return build(rows, ops=ops)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(40, 130), st.sampled_from(("[8]", "[8]", "[9]"))), min_size=1, max_size=10))  # fmt: skip
def test_siblings_against_plain_loops(layers: list[tuple[int, str]]) -> None:
    lengths, shapes = [time for time, _ in layers], [shape for _, shape in layers]
    trace = layers_trace(lengths, shapes)
    found = {r["path"]: r for r in repeated_layers(module_times(focussed(trace), trace)).to_dicts()}
    expected = {}
    for part, base in (("", 100), (".attention", 0), (".mlp", 0)):
        for number, shape in enumerate(shapes):
            own = [100 if part == ".attention" else base + t for t, s in layers if s == shape]
            if len(own) < 4:
                continue
            time = 100 if part == ".attention" else base + lengths[number]
            middle = median(own)
            mad = median(abs(t - middle) for t in own)
            room = max(3.5 * 1.4826 * mad, 0.05 * middle)
            expected[f"layers.{number}{part}"] = (time, middle, len(own), abs(time - middle) > room)
    assert {
        p: (r["time_ns"], r["median_ns"], r["siblings"], r["is_out"]) for p, r in found.items()
    } == expected


def test_a_slow_layer_is_found_with_the_part_of_it_that_is_slow() -> None:
    trace = layers_trace([50, 50, 51, 90, 49, 50], ["[8]"] * 6)
    found = repeated_layers(module_times(focussed(trace), trace)).filter("is_out")
    assert found["path"].to_list() == ["layers.3", "layers.3.mlp"]
    assert found["differs_ns"].to_list() == [40, 40]


def test_deep_paths_end_somewhere() -> None:
    path = ".".join("x" * 5_000)
    trace = build([event(TENSOR, 0, 5, op_id=0)], ops=[{"op_id": 0, "name": "a", "module_path": path}])  # fmt: skip
    times = module_times(focussed(trace), trace)
    found = rolled_up(times, module_nodes(times.paths, is_merged=True))
    assert found["depth"].max() == MAX_DEPTH
    assert found["time_ns"].unique().to_list() == [5]
    assert in_tree_order(found, 10).height == 10


def test_a_kind_of_module_has_the_number_of_its_only_one() -> None:
    ops = [{"op_id": i, "name": "a", "module_path": p} for i, p in enumerate(("b.3", "c.0", "c.1"))]
    trace = build([event(TENSOR, i, 1, op_id=i) for i in range(3)], ops=ops)
    times = module_times(focussed(trace), trace)
    tree = in_tree_order(rolled_up(times, module_nodes(times.paths, is_merged=True)), 10)
    names = dict(tree.select("path", "name").iter_rows())
    assert names == {"": "", "b": "b", "b.*": "3", "c": "c", "c.*": "*"}
    assert tree.filter(pl.col("path") == "c.*")["instances"].to_list() == [2]
