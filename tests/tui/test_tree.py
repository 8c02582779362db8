"""Tracks become rows: groups, lanes, clocks, bundles; and bad trees do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from trnprof.tui.frame import compose
from trnprof.tui.scene import open_scene
from trnprof.tui.state import first_view


def labels(trace: Any) -> list[tuple[str, str]]:
    scene = open_scene(trace)
    return [(r.kind, r.node.label) for r in scene.tree.rows(scene.tree.closed)]


def test_the_tree_of_an_emulated_chip(make_trace: Callable[..., Any]) -> None:
    tracks = [
        {"track_id": 0, "kind": "host", "name": "host0"},
        {"track_id": 1, "kind": "chip", "name": "chip 0", "parent_id": 0},
        {"track_id": 2, "kind": "hbm", "name": "HBM", "parent_id": 1},
        {"track_id": 3, "kind": "core", "name": "core 0", "parent_id": 1, "sort_order": 1},
        {"track_id": 4, "kind": "engine", "name": "Vector", "parent_id": 3, "sort_order": 2},
        {"track_id": 5, "kind": "engine", "name": "Tensor", "parent_id": 3, "sort_order": 1},
        *(
            {"track_id": 6 + q, "kind": "dma_queue", "name": f"DMA q{q}", "parent_id": 3}
            for q in range(4)
        ),
        {
            "track_id": 10,
            "kind": "core",
            "name": "core 1",
            "parent_id": 1,
            "sort_order": 2,
            "replica_count": 8,
        },
        {"track_id": 11, "kind": "engine", "name": "Tensor", "parent_id": 10, "replica_count": 8},
    ]
    rows = labels(make_trace([(5, 0, 10, "matmul", "compute"), (7, 0, 5, "load", "dma")], tracks))
    assert rows == [
        ("header", "host0 / chip 0"),
        ("header", "core 0"),
        ("lane", "Tensor"),
        ("lane", "Vector"),
        ("group", "DMA queues (4)"),
        ("header", "core 1 ×8"),
        ("lane", "Tensor ×8"),
    ]


def test_replicas_have_no_rows(make_trace: Callable[..., Any]) -> None:
    tracks = [
        {"track_id": 0, "kind": "core", "name": "core 0", "replica_count": 2},
        {"track_id": 1, "kind": "engine", "name": "Tensor", "parent_id": 0, "replica_count": 2},
        {"track_id": 2, "kind": "core", "name": "core 1", "replica_of": 0},
        {"track_id": 3, "kind": "engine", "name": "Tensor", "parent_id": 2, "replica_of": 1},
    ]
    rows = labels(make_trace([(1, 0, 10, "matmul", "compute")], tracks))
    assert rows == [("header", "core 0 ×2"), ("lane", "Tensor ×2")]


def test_clocks_stand_in_bands_the_device_first(make_trace: Callable[..., Any]) -> None:
    tracks = [
        {"track_id": 0, "kind": "thread", "name": "MainThread", "clock_id": 0, "lane": 0},
        {"track_id": 1, "kind": "thread", "name": "MainThread", "clock_id": 0, "lane": 1},
        {"track_id": 2, "kind": "engine", "name": "Tensor", "clock_id": 1},
    ]
    trace = make_trace(
        [
            (0, 10**18, 100, "step", "host"),
            (1, 10**18 + 10, 50, "f", "host"),
            (2, 500, 100, "mm", "compute"),
        ],
        tracks,
    )
    trace.fragments = (
        {"clocks": [{"clock_id": 0, "kind": "host"}, {"clock_id": 1, "kind": "device"}]},
    )
    assert [kind for kind, _ in labels(trace)] == ["lane", "ruler", "lane", "lane"]
    scene = open_scene(trace)
    text = compose(scene, first_view(scene), 100, 30).text
    assert "device time" in text.splitlines()[2]
    assert "host time" in text
    assert "· lane 1" in text
    assert "2 separate clocks" in text
    assert [c.zero for c in scene.store.clocks] == [
        0,
        10**18,
    ]  # host time counts from its first event


def test_counters_have_rows_with_their_largest_value(make_trace: Callable[..., Any]) -> None:
    tracks = [
        {"track_id": 0, "kind": "engine", "name": "Tensor"},
        {"track_id": 1, "kind": "counter", "name": "HBM bytes", "unit": "B"},
        {"track_id": 2, "kind": "counter", "name": "unused", "unit": "B"},
    ]
    trace = make_trace([(0, 0, 1000, "mm", "compute")], tracks)
    trace.counters = pl.LazyFrame(
        {"track_id": [1, 1, 1], "timestamp_ns": [0, 300, 350], "value": [4e9, 32e9, 16e9]},
        schema={"track_id": pl.UInt32, "timestamp_ns": pl.Int64, "value": pl.Float64},
    )
    scene = open_scene(trace)
    line = next(
        t for t in compose(scene, first_view(scene), 100, 30).text.splitlines() if "HBM" in t
    )
    assert line.endswith("32 GB")
    cells = line.split("HBM bytes")[1].strip()
    assert set(cells.split(" ")[0]) == {"▁", "█", "▄"}
    assert "unused" not in compose(scene, first_view(scene), 100, 30).text


def test_a_circle_of_parents_and_a_missing_parent(make_trace: Callable[..., Any]) -> None:
    tracks = [
        {"track_id": 0, "kind": "engine", "name": "a", "parent_id": 77},
        {"track_id": 1, "kind": "engine", "name": "b", "parent_id": 1},
        {"track_id": 2, "kind": "core", "name": "c", "parent_id": 3},
        {"track_id": 3, "kind": "engine", "name": "d", "parent_id": 2},
    ]
    rows = labels(make_trace([(i, 0, 5, "e", "dma") for i in range(4)], tracks))
    assert {label for _, label in rows} == {"a", "b", "c", "d"}


def test_many_tracks_start_closed(make_trace: Callable[..., Any]) -> None:
    tracks: list[dict[str, Any]] = [{"track_id": 0, "kind": "host", "name": "host0"}]
    for core in range(64):
        base = 1 + core * 6
        tracks.append({"track_id": base, "kind": "core", "name": f"core {core}", "parent_id": 0})
        tracks += [
            {"track_id": base + i, "kind": "engine", "name": f"e{i}", "parent_id": base}
            for i in range(1, 6)
        ]
    rows = labels(make_trace([(2, 0, 5, "e", "compute")], tracks))
    assert [kind for kind, _ in rows] == ["header"] + ["group"] * 64


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 60)])
def test_a_trace_without_events_or_without_tracks(
    make_trace: Callable[..., Any], size: tuple[int, int]
) -> None:
    for trace in (
        make_trace([], []),
        make_trace([], [{"track_id": 0, "kind": "hbm", "name": "HBM"}]),
    ):
        scene = open_scene(trace)
        assert "no events to show" in compose(scene, first_view(scene), *size).text


def test_one_event_of_a_nanosecond_and_ten_years(make_trace: Callable[..., Any]) -> None:
    scene = open_scene(make_trace([(0, 7, 1, "tick", "compute")]))
    lines = compose(scene, first_view(scene), 80, 24).text.splitlines()
    assert "█" in lines[3]
    ten_years = 10 * 365 * 86_400 * 10**9
    scene = open_scene(make_trace([(0, 0, 1, "a", "dma"), (0, ten_years, 1, "b", "dma")]))
    lines = compose(scene, first_view(scene), 80, 24).text.splitlines()
    assert lines[3].split()[1:] == [
        "▁",
        "▉",
        "<0.1",
        "%",
    ]  # the second is reversed: the last eighth
