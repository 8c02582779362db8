"""DMA sizes, queues, routes and overheads: every transfer counted by hand beside them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.test_brute_force import (
    DMA_RATE,
    WINDOWS,
    core_of,
    counted,
    inside,
    is_dma,
    opened,
    share,
    starts_in,
    traces,
)
from tests.analysis.test_ranks import gpu_tracks
from tests.analysis.traces import DMA0, DMA1, SYNC, TENSOR, Row, build, core_tracks, event, step

from trnprof.analysis.dma import SIZES, dma_by, dma_transfers, queue_balance, routes, trigger_ns
from trnprof.analysis.focus import focus
from trnprof.analysis.scope import device_scope
from trnprof.analysis.sections.dma import build as build_section
from trnprof.analysis.sections.section import Subject, as_json
from trnprof.analysis.sections.text import section_lines
from trnprof.tracer.reader import Trace

KEYS = {
    "queue": lambda r: f"DMA q{(r['track_id'] - TENSOR) % 10 - 5}",
    "source_memory": lambda r: r["source_memory"],
    "name": lambda r: r["name"],
    "unit_id": lambda r: core_of(r) + 2,
}


@settings(max_examples=25, deadline=None)
@given(traces(), st.sampled_from((None, 0, 1)), st.sampled_from(sorted(KEYS)))
def test_transfers_recounted(
    given_trace: tuple[Trace, list[Row]], chosen: int | None, key: str
) -> None:
    trace, rows = given_trace
    window = WINDOWS[2 if chosen is None else chosen]
    scope = focus(opened(trace), chosen)
    transfers = dma_transfers(trace, scope)
    found = {r[key]: r for r in dma_by(transfers, scope, [key]).to_dicts()}
    meets = [
        r
        for r in counted(rows)
        if is_dma(r) and (inside(r, window) or (not r["duration_ns"] and starts_in(r, window)))
    ]
    groups: dict[Any, list[Row]] = {}
    for row in meets:
        groups.setdefault(KEYS[key](row), []).append(row)
    assert set(found) == set(groups)
    for label, own in groups.items():
        ours = found[label]
        times = [len(inside(r, window)) for r in own]
        moved = [r["bytes"] * share(r, window) for r in own]
        over = [max(0.0, t - 1e9 * b / DMA_RATE) for t, b in zip(times, moved, strict=True)]
        bound = sum(t for t, o in zip(times, over, strict=True) if o > t / 2)
        assert ours["transfers"] == pytest.approx(sum(starts_in(r, window) for r in own) / 2)
        assert ours["small"] == ours["transfers"]  # all are under 100 B
        assert ours["bytes"] == pytest.approx(sum(moved) / 2)
        assert ours["time_ns"] == ours["held_ns"] == pytest.approx(sum(times) / 2)
        assert ours["overhead_ns"] == pytest.approx(sum(over) / 2)
        assert ours["issue_bound_ns"] == pytest.approx(bound / 2)
    if sum(r["held_ns"] for r in found.values()):
        assert sum(r["held_share"] for r in found.values()) == pytest.approx(1)
    for row in routes(transfers, scope).to_dicts():
        way = (row["source_memory"], row["target_memory"])
        cores = [
            set().union(
                *(
                    inside(r, window)
                    for r in meets
                    if core_of(r) == c and (r["source_memory"], r["target_memory"]) == way
                )
            )
            for c in (0, 1)
        ]
        assert row["active_ns"] == pytest.approx(sum(map(len, cores)) / 2)
        if row["active_ns"]:
            assert row["bytes_per_s"] == pytest.approx(1e9 * row["bytes"] / row["active_ns"])
    for row in queue_balance(transfers, scope).to_dicts():
        held: Counter[int] = Counter()
        for r in meets:
            if core_of(r) == row["unit_id"] - 2:
                held[r["track_id"]] += len(inside(r, window))
        assert row["queues"] == 2
        if sum(held.values()):
            most = max(held.values())
            assert row["held_max_over_mean"] == pytest.approx(2 * most / sum(held.values()))
    for row in trigger_ns(scope).to_dicts():
        own = [r for r in counted(rows) if r.get("category") == "sync" and core_of(r) == row["unit_id"] - 2]  # fmt: skip
        lane = TENSOR + 10 * (row["unit_id"] - 2)
        names = ("Tensor", "Vector", "Scalar", "GpSimd", "Sync")
        here = [r for r in own if r["track_id"] == lane + names.index(row["resource"])]
        assert row["trigger_ns"] == sum(len(inside(r, window)) for r in here)


MACHINE = {
    "is_simulation": True,
    "system": {
        "core": {
            "sbuf_partitions": 128,
            "dma": {
                "engines": 16,
                "read_bytes_per_s_per_engine": 20e9,
                "write_bytes_per_s_per_engine": 25e9,
                "queue_slot_ns": 800.0,
            },
        }
    },
}


def load(start: int, time: int, row_bytes: int, instructions: int = 1, **columns: Any) -> Row:
    memory = {"source_memory": "hbm", "target_memory": "sbuf"}
    sizes = {"bytes": 128 * row_bytes * instructions, "descriptor_bytes": row_bytes}
    return event(DMA0, start, time, **{**memory, **sizes, **columns})


def test_a_known_machine_charges_slots_and_directions() -> None:
    rows = [
        load(0, 10, 25),  # 3,200 B: 10 ns at 320 GB/s, holds 800
        load(1000, 1000, 2500),  # 320 kB: 1 µs, all its own
        load(3000, 40, 25, instructions=4),  # four slots
        event(DMA1, 0, 1000, bytes=400_000, descriptor_bytes=3125, source_memory="sbuf", target_memory="hbm"),
    ]  # fmt: skip
    trace = build(rows, manifest=MACHINE, steps=[step(0, 0, 10_000)])
    scope = focus(opened(trace), 0)
    found = dma_transfers(trace, scope).collect().sort("track_id", "start_ns")
    assert found["held_ns"].to_list() == [800, 1000, 3200, 1000]
    assert found["needed_ns"].to_list() == [10, 1000, 40, 1000]
    [total] = dma_by(found.lazy(), scope, []).to_dicts()
    assert total["overhead_ns"] == 790 + 3160
    assert total["issue_share"] == pytest.approx(3950 / 6000)
    assert total["issue_bound_share"] == pytest.approx(4000 / 6000)
    assert total["small"] == 1


def test_replicas_weigh() -> None:
    tracks = [{**t, "replica_count": 3} if t["track_id"] == 2 else t for t in core_tracks(2)]
    rows = [event(DMA0, 0, 10, bytes=1000), event(DMA0 + 10, 0, 30, bytes=5000)]
    trace = build(rows, tracks=tracks)
    scope = focus(opened(trace))
    [total] = dma_by(dma_transfers(trace, scope), scope, []).to_dicts()
    assert total["bytes"] == (3 * 1000 + 5000) / 4
    assert total["time_ns"] == (3 * 10 + 30) / 4


@pytest.mark.parametrize(
    ("size", "label"),
    [(0, "< 512 B"), (511, "< 512 B"), (4095, "512 B–4 KiB"), (4096, "4–32 KiB"), (32_768, "32–256 KiB"), (2**40, ">= 256 KiB")],
)  # fmt: skip
def test_bounds_of_size_classes(size: int, label: str) -> None:
    trace = build([event(DMA0, 0, 10, bytes=size)])
    scope = focus(opened(trace))
    assert dma_transfers(trace, scope).collect()["size_class"].to_list() == [label]
    assert label in SIZES.labels


def test_section() -> None:
    rows = [
        load(0, 10, 25, op_id=0, name="load " + "é" * 10_000),
        load(1000, 1000, 2500, op_id=1),
        event(SYNC, 0, 600, category="sync"),
    ]
    ops = [
        {"op_id": 0, "name": "small", "module_path": "a"},
        {"op_id": 1, "name": "large", "module_path": "b"},
    ]
    trace = build(rows, ops=ops, manifest=MACHINE, steps=[step(0, 0, 10_000)])
    section = build_section(Subject(trace, device_scope(trace), step=0, rank=0))
    assert all(len(line) <= 80 for line in section_lines(section))
    found = as_json(section)
    assert [r["operator"] for r in found["operators"]] == ["small", "large"]
    assert [r["advice"] for r in found["transfer_sizes"]] == ["too small", "good"]
    values = {r["figure"]: r["value"] for r in found["summary"]}
    assert values["average transfer"] == (3200 + 320_000) / 2
    assert values["engines' time to issue"] == 600
    assert values["busiest queue over mean"] == 2


def test_copies_of_a_gpu_have_no_rate() -> None:
    copy = event(10, 0, 5, name="Memcpy HtoD", category="dma", bytes=1 << 20)
    trace = build([copy], tracks=gpu_tracks(1))
    found = as_json(build_section(Subject(trace, device_scope(trace))))
    assert found["routes"][0]["of_peak"] is None
    assert any("nobody knows the rate" in n for n in found["notes"])


def test_sections_of_nothing() -> None:
    unfinished = build([event(DMA0, 0, None, bytes=5)])
    no_bytes = build([event(DMA0, 0, 5)])
    for trace in (build(), unfinished, no_bytes):
        section = build_section(Subject(trace, device_scope(trace)))
        assert "because no DMA with bytes" in str(section.nothing_to_say)
    assert build_section(Subject(build(), None)).nothing_to_say
    instant = build([event(DMA0, 3, 0, bytes=5), event(TENSOR, 0, 9)])
    assert as_json(build_section(Subject(instant, device_scope(instant))))["transfer_sizes"]
