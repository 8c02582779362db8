"""The printed frame: what it says, its size, its window, its selection, its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from trnprof.tracer.errors import TrnprofError
from trnprof.tui.print import render, svg


@pytest.fixture
def trace(make_trace: Callable[..., Any]) -> Any:
    tracks = [
        {"track_id": 0, "kind": "core", "name": "core 0", "peak_bytes_per_s": 400e9},
        {"track_id": 1, "kind": "engine", "name": "Tensor", "parent_id": 0, "peak_flops": 78.64e12},
        {"track_id": 2, "kind": "dma_queue", "name": "DMA q0", "parent_id": 0},
    ]
    made = make_trace(
        [(2, 0, 1000, "load", "dma"), (1, 1500, 2000, "matmul", "compute"), (1, 4000, 1000, "matmul", "compute")],
        tracks,
        op_id=[None, 0, None], step=[0, 0, 0], dtype=[None, "bfloat16", None], flops=[None, 78.64e9, None],
        bytes=[100_000, None, None], source_memory=["hbm", None, None], target_memory=["sbuf", None, None],
        ready_ns=[0, 1000, None], blocked_by=[None, 0, None], wait_reason=[None, "data", None],
    )  # fmt: skip
    made.ops = pl.LazyFrame(
        {
            "op_id": [0], "name": ["aten.mm"], "phase": ["forward"], "module_path": ["model.layers.0.mlp"],
            "input_shapes": ["[128, 128], [128, 512]"], "dtypes": ["bfloat16"], "source_file": ["train.py"],
            "source_line": [42], "lowering": ["exact"],
        }
    )  # fmt: skip
    made.shards = ()
    return made


def test_details_of_an_event(trace: Any) -> None:
    text = render(trace, 120, 40, select="matmul")  # the longest of that name
    for expected in (
        "core 0 ▸ Tensor",
        "1.500 µs",
        "2 µs (p100 of 2 of this name)",
        "first of its track, 500 ns after",
        "500 ns before it started",
        "waited for data",
        "load on core 0 ▸ DMA q0 (1 µs)",
        "78.64 GFLOP",
        "39.32 PFLOP/s, 50000.0 % of 78.64 TFLOP/s",
        "aten.mm (forward)",
        "model.layers.0.mlp",
        "[128, 128], [128, 512]",
        "train.py:42",
        "bfloat16",
    ):
        assert expected in text, expected
    text = render(trace, 120, 40, select=0)
    for expected in ("100 kB", "100 GB/s, 25.0 % of 400 GB/s", "hbm → sbuf"):
        assert expected in text


def test_the_peak_of_the_datatype_wins(trace: Any) -> None:
    trace.peaks = pl.DataFrame(
        {
            "track_kind": ["engine", "engine"], "track_name": ["Tensor", "Tensor"], "dtype": ["float32", "bfloat16"],
            "sparsity": ["dense", "dense"], "flops_per_s": [19.66e12, 40e15],
        }
    )  # fmt: skip
    assert "98.3 % of 40 PFLOP/s" in render(trace, 120, 40, select="matmul")


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (100, 30), (200, 60)])
def test_the_frame_has_the_size_asked_for(trace: Any, size: tuple[int, int]) -> None:
    for ascii in (False, True):
        lines = render(trace, *size, ascii=ascii, select="load").splitlines()
        assert len(lines) == size[1]
        assert max(map(len, lines)) <= size[0]
        assert not ascii or "".join(lines).isascii()


def test_window_and_percentages(trace: Any) -> None:
    text = render(trace, at=(1500, 3500))
    tensor = next(line for line in text.splitlines() if "Tensor" in line)
    assert tensor.endswith("100.0 %")
    assert "1.50 – 3.50 µs" in text.splitlines()[0]
    tensor = next(line for line in render(trace).splitlines() if "Tensor" in line)
    assert tensor.endswith("60.0 %")


def test_colour_only_when_asked_for(trace: Any) -> None:
    assert "\x1b" not in render(trace)
    assert "\x1b[38;2;" in render(trace, color=True)
    assert render(trace) == render(trace)


def test_svg_is_a_picture_that_needs_nothing_else(trace: Any) -> None:
    picture = svg(trace, 80, 24, select="matmul", title="a < b")
    root = ET.fromstring(picture)
    assert root.tag.endswith("svg")
    texts = [t.text for t in root.iter() if t.tag.endswith("text")]
    assert "a < b" in texts
    assert "Tensor" in texts
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_what_cannot_be_drawn_is_said(trace: Any) -> None:
    with pytest.raises(TrnprofError, match="needs 40x10"):
        render(trace, 39, 10)
    with pytest.raises(TrnprofError, match="outside the trace"):
        render(trace, at=(10**9, 10**9 + 5))
    with pytest.raises(TrnprofError, match="must lie after"):
        render(trace, at=(5, 5))
    with pytest.raises(TrnprofError, match="no event named 'relu'"):
        render(trace, select="relu")


def test_what_is_cut_or_missing_is_on_the_screen(make_trace: Callable[..., Any]) -> None:
    spans = [
        (0, 0, 100, "a", "dma"),
        (0, 50, 10, "b", "dma"),
        (0, 200, None, "c", "dma"),
        (5, 0, 1, "d", "dma"),
    ]
    status = render(
        make_trace(spans, [{"track_id": 0, "kind": "engine", "name": "t"}]), 140, 24
    ).splitlines()[-2]
    assert "1 event without a track, left out" in status
    assert "1 overlap, drawn as a union" in status
    assert "1 unfinished, drawn to the end" in status
