"""Reports of imported traces: streams in place of engines, no system, no peaks, ranks with steps on a host clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.analysis.traces import build, event, step

from trnprof.analysis.render_text import render_text
from trnprof.analysis.report import build_report
from trnprof.analysis.verdict_streams import stream_bound

MS = 1_000_000
IMPORTED: Mapping[str, Any] = {"imported": {"sources": []}}
Row = Mapping[str, Any]


def gpu_tracks(ranks: int, **chip: Any) -> list[Row]:
    """host r ▸ GPU 0 ▸ two streams, and a thread; stream s of rank r is track 100 r + 10 + s."""
    rows: list[Row] = []
    for r in range(ranks):
        at, place = 100 * r, {"rank": r, "host": f"h{r}", "exclusive": False}
        rows += [
            {"track_id": at, "kind": "host", "name": f"h{r}", **place},
            {"track_id": at + 1, "parent_id": at, "kind": "chip", "name": "GPU 0", **place, **chip},
            {"track_id": at + 2, "parent_id": at, "kind": "thread", "name": "python", **place},
            *(
                {"track_id": at + 10 + s, "parent_id": at + 1, "kind": "stream"}
                | {"name": f"stream {7 + s}", **place}
                for s in range(2)
            ),
        ]
    return rows


def training(ranks: int = 2, **kernel: Any) -> dict[str, Any]:
    """Two steps of 1 ms a rank: 640 µs of kernels, 140 µs of exposed collective, 50 µs of copies alone, 170 µs of nothing."""
    events, steps = [], []
    for r in range(ranks):
        for s in range(2):
            at, lane = s * MS, 100 * r + 10
            gemm = {"name": "gemm", "step": s, **kernel}
            copy = {"name": "Memcpy", "category": "dma", "bytes": 4_000_000, "step": s}
            collective = {"name": "nccl", "category": "collective", "step": s}
            host = {"name": "aten::mm", "category": "host", "step": s}
            events += [event(lane, at + i * 100_000, 80_000, **gemm) for i in range(8)]
            events += [
                event(lane + 1, at + 300_000, 400_000 + 200_000 * r, **collective),
                event(lane + 1, at + 900_000, 50_000, target_memory="hbm", **copy),
                event(100 * r + 2, at + 10, 700_000, **host),
            ]
            steps.append(step(s, at, at + MS, rank=r))
    return {"events": events, "steps": steps}


def report_of(manifest: Mapping[str, Any] = IMPORTED, ranks: int = 2, **chip: Any) -> Any:
    given = training(ranks)
    trace = build(
        given["events"], tracks=gpu_tracks(ranks, **chip), steps=given["steps"], manifest=manifest
    )
    return build_report(trace)


def test_figures_that_nobody_can_know_are_null_with_a_reason() -> None:
    report = report_of()
    metrics = report["overall"]["metrics"]
    for name in (
        "mfu_estimated_percent",
        "hfu_estimated_percent",
        "mbu_estimated_percent",
        "hardware_flops",
        "hbm_read_bytes",
        "roofline_s",
    ):
        assert metrics[name] is None
    assert any("MFU and HFU are unknown: nobody knows the peak" in n for n in report["notes"])
    assert any("HBM utilization is unknown" in n for n in report["notes"])
    assert metrics["dma_transfer_total_bytes"] == 4 * 4_000_000
    json.dumps(report, allow_nan=False)


def test_a_known_peak_without_flops_gives_no_utilization_of_zero() -> None:
    report = report_of(peak_flops=125e12, peak_bytes_per_s=900e9)
    assert report["overall"]["metrics"]["hfu_estimated_percent"] is None
    assert any("the profile has no FLOPs" in n for n in report["notes"])


def test_flops_on_kernels_and_a_peak_on_the_chip_give_hfu() -> None:
    given = training(1, flops=80e-6 * 50e12)
    tracks = gpu_tracks(1, peak_flops=100e12)
    report = build_report(
        build(given["events"], tracks=tracks, steps=given["steps"], manifest=IMPORTED)
    )
    # 8 kernels of 80 µs at half of the peak, in each step of 1 ms
    assert report["overall"]["metrics"]["hfu_estimated_percent"] == pytest.approx(0.32)
    assert report["overall"]["operators"][0]["roofline_share"] == pytest.approx(0.5)
    assert "HFU 32.0 %" in render_text(report)


def test_streams_are_not_engines_in_what_is_said() -> None:
    report = report_of()
    window = report["overall"]
    assert window["verdict"]["bound_by"] == "compute-bound"
    assert {o["name"]: o["bound_by"] for o in window["operators"]} == {
        "gemm": None,
        "nccl": "collective-bound",
        "Memcpy": "copy-bound",
    }
    assert window["verdict"]["gain_upper_bound_ns"] == 2 * 170_000
    assert (report["unit"], report["core_count"]) == ("GPU", 2)
    text = render_text(report)
    assert "2 GPUs" in text
    assert "measured" in text
    for nonsense in ("waits for", "semaphore", "stream 7-bound", "roofline –", "MFU –", "nan"):
        assert nonsense not in text
    assert max(map(len, text.splitlines())) <= 80


def test_ranks_are_in_the_report_and_in_the_text() -> None:
    report = report_of()
    first, second = report["ranks"]["ranks"]
    assert (first["name"], first["span_ns"], first["communication_ns"]) == (
        "rank 0",
        1_950_000,
        800_000,
    )
    assert second["overlap_share"] == pytest.approx(2 / 3)
    assert len(report["ranks"]["steps"]) == 4
    text = render_text(report)
    assert " rank 1            1.95 ms  91.3 %   65.6 %  61.5 %   66.7 %  5.1 %   8.7 %" in text


def test_one_rank_shows_its_table_only_where_it_was_imported() -> None:
    assert "Ranks" in render_text(report_of(ranks=1))
    assert "Ranks" not in render_text(report_of(manifest={}, ranks=1))


def test_many_ranks_are_cut_and_the_extremes_told() -> None:
    text = render_text(report_of(ranks=20))
    assert "… and 4 more" in text
    assert "busy from" in text


def test_without_communication_the_overlap_is_unknown_and_not_nan() -> None:
    rows = [event(10, 0, 50, name="k"), event(10, 60, 40, name="k")]
    report = build_report(build(rows, tracks=gpu_tracks(1), manifest=IMPORTED))
    assert report["ranks"]["ranks"][0]["overlap_share"] is None
    assert "nan" not in render_text(report)


def test_work_that_outlasts_the_last_step_is_told() -> None:
    rows = [event(10, 0, 900, name="k"), event(10, 1000, 100, name="k")]
    steps = [step(0, 0, 1000)]
    report = build_report(build(rows, tracks=gpu_tracks(1), steps=steps, manifest=IMPORTED))
    [note] = [n for n in report["notes"] if "before the first step or after the last" in n]
    assert note.startswith("10.0 %")


def test_only_a_host_was_recorded() -> None:
    rows = [event(2, 0, 50, name="f", category="host")]
    report = build_report(build(rows, tracks=gpu_tracks(1)[:3], manifest=IMPORTED))
    assert "nothing_to_say" in report["ranks"]
    assert "Ranks" not in render_text(report)


def test_ranks_of_unrelated_clocks_all_have_their_row() -> None:
    given = training(2)
    tracks = [{**t, "clock_id": t["rank"]} for t in gpu_tracks(2)]
    steps = [{**s, "clock_id": s["rank"]} for s in given["steps"]]
    report = build_report(build(given["events"], tracks=tracks, steps=steps, manifest=IMPORTED))
    assert [r["name"] for r in report["ranks"]["ranks"]] == ["rank 0", "rank 1"]
    assert any("share no axis" in n for n in report["notes"])


@pytest.mark.parametrize(
    ("compute", "collective", "copies", "idle", "bound"),
    [
        (60, 15, 10, 15, "compute-bound"),
        (30, 40, 10, 20, "collective-bound"),
        (30, 10, 40, 20, "copy-bound"),
        (30, 10, 10, 50, "latency-bound"),
    ],
)
def test_what_bounds_a_device_with_streams(
    compute: int, collective: int, copies: int, idle: int, bound: str
) -> None:
    parts = {"total_ns": 100, "compute_ns": compute, "exposed_collective_ns": collective}
    assert stream_bound(parts | {"exposed_dma_ns": copies, "idle_ns": idle, "host_ns": 0}) == bound


def test_notes_of_an_import_do_not_list_every_rank() -> None:
    lines = [f"line {n}" for n in range(20)]
    few = build([event(0, 0, 5)], manifest={"imported": {"sources": []}, "notes": lines[:4]})
    assert [n for n in build_report(few)["notes"] if n.startswith("line")] == lines[:4]
    many = build([event(0, 0, 5)], manifest={"imported": {"sources": []}, "notes": lines})
    told = [n for n in build_report(many)["notes"] if n.startswith(("line", "…"))]
    assert told == [*lines[:3], "… 17 lines more about the import (in its manifest.json)"]
