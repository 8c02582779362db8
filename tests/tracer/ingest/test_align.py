"""Clocks by collectives: known shifts on real ranks, synthetic jobs with outliers, gaps, drift and contradictions."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from trnprof.tracer.ingest.align import COLLECTIVES, NONE, Alignment, align
from trnprof.tracer.ingest.stage import UNFINISHED

SHARED = Path(__file__).parents[3].parent / "shared"
TRACES = SHARED / "traces" / "kineto"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="no ../shared/traces")
DAY_NS = 86_400_000_000_000


def frame(
    ends: list[int],
    names: list[str] | None = None,
    group: str = "world",
    first: int = 0,
) -> pl.DataFrame:
    count = len(ends)
    return pl.DataFrame(
        {
            "group": [group] * count,
            "sequence": list(range(first, first + count)),
            "name": names or ["AllReduce"] * count,
            "start_ns": [e - 1_000_000 for e in ends],
            "end_ns": ends,
            "bytes": [1024] * count,
        },
        schema_overrides={"sequence": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64},
    )


def unknown(frames: dict[str, pl.DataFrame]) -> dict[str, int | None]:
    return dict.fromkeys(frames, None)


@functools.cache
def dlrm_ranks() -> dict[str, pl.DataFrame]:
    """The NCCL kernels of each rank, numbered in order of start."""
    ranks = {}
    for rank in range(8):
        with gzip.open(TRACES / f"dlrm_8rank_worker{rank}.pt.trace.json.gz") as file:
            text = file.read()
        kernels = [
            e
            for e in json.loads(text)["traceEvents"]
            if e.get("cat") == "kernel" and e["name"].startswith("ncclKernel")
        ]
        kernels.sort(key=lambda e: e["ts"])
        ends = [(e["ts"] + e["dur"]) * 1000 for e in kernels]
        ranks[f"rank{rank}"] = frame(ends, [e["name"].split("(")[0] for e in kernels])
    return ranks


def shifted(table: pl.DataFrame, ns: int) -> pl.DataFrame:
    return table.with_columns(pl.col("start_ns", "end_ns") + ns)


@needs_traces
def test_ends_of_the_real_job_agree_as_the_oracle_says() -> None:
    oracle = json.loads((SHARED / "oracles" / "kineto" / "dlrm_collectives.json").read_text())
    spreads_us = [row["end_spread_us"] for row in oracle["rows"]]
    found = align(dlrm_ranks(), dict.fromkeys(dlrm_ranks(), 0))
    assert found.residual is not None
    assert found.residual.count == 64
    assert found.residual.max_ns <= max(spreads_us) * 1000
    assert set(found.offset_ns.values()) == {0}
    assert found.findings == ()


@needs_traces
@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(-DAY_NS, DAY_NS), min_size=8, max_size=8))
def test_shifts_put_on_real_ranks_come_back_within_what_ends_agree_to(shifts: list[int]) -> None:
    ranks = dlrm_ranks()
    moved = {
        label: shifted(table, ns) for (label, table), ns in zip(ranks.items(), shifts, strict=True)
    }
    found = align(moved, unknown(moved))
    for label, ns in zip(ranks, shifts, strict=True):
        error_ns = abs(found.offset_ns[label] - (shifts[0] - ns))
        assert error_ns <= 7_000
        assert error_ns <= (found.uncertainty_ns[label] or 0)
    assert set(found.method.values()) == {COLLECTIVES}
    assert found.residual is not None
    assert found.residual.max_ns <= 7_000


@needs_traces
def test_a_wrong_base_time_is_told_and_only_mended_when_asked() -> None:
    ranks = dlrm_ranks()
    bases: dict[str, int | None] = {**dict.fromkeys(ranks, 0), "rank3": 40_000_000}
    found = align(ranks, bases)
    assert found.offset_ns == {**dict.fromkeys(ranks, 0), "rank3": 40_000_000}
    [skew] = [f for f in found.findings if f.kind == "clock_skew"]
    assert skew.where == "rank3"
    assert skew.count == 1
    assert "-40 ms" in skew.example
    mended = align(ranks, bases, "collectives")
    assert abs(mended.offset_ns["rank3"]) <= 7_000
    assert not mended.findings


def test_base_times_cancel_a_shift_exactly_without_any_collective() -> None:
    bases: dict[str, int | None] = {"a": 1_700_000_000_000_000_000, "b": 1_700_000_011_560_000_000}
    found = align({}, bases)
    assert found.offset_ns == {"a": 0, "b": 11_560_000_000}
    assert found.uncertainty_ns == {"a": None, "b": None}
    assert found.residual is None


Job = tuple[dict[str, pl.DataFrame], dict[str, int], float]
"""Collectives and shift by rank; of the rank where it is least, the share of collectives that neither it nor the first rank ends far off."""


def synthetic(
    seed: int, ranks: int, count: int, jitter_ns: float, outliers: float, cut: int
) -> Job:
    """A job whose ranks end each collective within jitter, some far off, some recordings cut at the front."""
    rng = np.random.default_rng(seed)
    true_ends = np.cumsum(rng.integers(200_000, 3_000_000, count))
    names = [("AllReduce", "AllGather", "ReduceScatter")[i % 3] for i in range(count)]
    shifts = {f"r{r}": int(rng.integers(-DAY_NS, DAY_NS)) for r in range(ranks)}
    frames = {}
    is_wild = np.zeros((ranks, count), np.bool_)
    for r, (label, ns) in enumerate(shifts.items()):
        ends = true_ends + np.rint(rng.normal(0, jitter_ns, count)).astype(np.int64)
        is_wild[r] = rng.random(count) < outliers
        ends = ends + np.where(is_wild[r], rng.integers(-50_000_000, 50_000_000, count), 0) + ns
        missing = cut if r == ranks - 1 else 0
        frames[label] = frame(ends[missing:].tolist(), names[missing:])
    is_sound = ~(is_wild[:1] | is_wild[1:])
    shares = [*is_sound[:-1].mean(axis=1), is_sound[-1, cut:].mean()]
    return frames, shifts, float(min(shares))


@settings(max_examples=25, deadline=None)
@example(seed=8959017, ranks=2, count=24, jitter_ns=1.0, outliers=0.125, cut=0)
@example(seed=315, ranks=2, count=24, jitter_ns=20_000.0, outliers=0.15, cut=6)
@given(
    seed=st.integers(0, 2**32),
    ranks=st.integers(2, 6),
    count=st.integers(24, 60),
    jitter_ns=st.floats(1, 20_000),
    outliers=st.floats(0, 0.15),
    cut=st.integers(0, 6),
)
def test_jitter_outliers_and_missing_first_collectives_leave_the_shift_recoverable(
    seed: int, ranks: int, count: int, jitter_ns: float, outliers: float, cut: int
) -> None:
    frames, shifts, sound = synthetic(seed, ranks, count, jitter_ns, outliers, cut)
    # outliers are drawn: where half of the differences are wild, the median of all is no measure of the shift, and none can be
    assume(sound > 0.5)
    found = align(frames, unknown(frames))
    assert set(found.clock.values()) == {0}
    for label, ns in shifts.items():
        assert abs(found.offset_ns[label] - (shifts["r0"] - ns)) <= 3 * jitter_ns + 10
        assert found.drift[label] == 0


def test_groups_that_share_some_ranks_relate_all_of_them() -> None:
    """Tensor-parallel pairs and a pipeline across them: no group has all ranks."""
    rng = np.random.default_rng(1)
    shifts = dict(zip("abcd", (0, 5_000_000_000, -7_777_777, 123), strict=True))
    parts: dict[str, list[pl.DataFrame]] = {k: [] for k in shifts}
    for group in ("ab", "bc", "cd"):
        ends = np.cumsum(rng.integers(1_000_000, 5_000_000, 20))
        for member in group:
            noisy = ends + rng.integers(-2_000, 2_000, 20) + shifts[member]
            parts[member].append(frame(noisy.tolist(), group=group))
    frames = {k: pl.concat(v) for k, v in parts.items()}
    found = align(frames, unknown(frames))
    for label, ns in shifts.items():
        assert abs(found.offset_ns[label] + ns) <= 6_000
    errors = [found.uncertainty_ns[k] or 0 for k in "abcd"]
    assert errors[0] == 0
    assert errors[1] < errors[2] < errors[3]


def test_sources_that_nothing_connects_keep_clocks_of_their_own_and_are_told() -> None:
    ends = [1_000_000 * i for i in range(1, 10)]
    frames = {
        "a": frame(ends, group="left"),
        "b": shifted(frame(ends, group="left"), 500),
        "c": frame(ends, group="right"),
        "d": shifted(frame(ends, group="right"), 900),
        "e": frame([], group="right"),
    }
    found = align(frames, unknown(frames))
    assert [found.clock[k] for k in "abcde"] == [0, 0, 1, 1, 2]
    assert [found.offset_ns[k] for k in "abcde"] == [0, -500, 0, -900, 0]
    assert found.method["e"] == NONE
    [apart] = [f for f in found.findings if f.kind == "clocks_unrelated"]
    assert apart.count == 3


def test_base_times_join_parts_that_collectives_leave_apart() -> None:
    ends = [1_000_000 * i for i in range(1, 10)]
    frames = {
        "a": frame(ends, group="left"),
        "b": shifted(frame(ends, group="left"), 500),
        "c": frame(ends, group="right"),
        "d": shifted(frame(ends, group="right"), 900),
    }
    bases: dict[str, int | None] = {"a": None, "b": 10_000, "c": 70_000, "d": None}
    found = align(frames, bases)
    assert set(found.clock.values()) == {0}
    # b's zero is Unix 10,000, so a's is 10,500; c's is 70,000
    assert [found.offset_ns[k] for k in "abcd"] == [0, -500, 59_500, 58_600]


def test_one_collective_is_enough_but_its_error_bar_is_not_zero() -> None:
    frames = {"a": frame([1_000]), "b": frame([9_000_000])}
    found = align(frames, unknown(frames))
    assert found.offset_ns["b"] == 1_000 - 9_000_000
    assert found.uncertainty_ns["b"] == 7_000


def test_contradictory_collectives_are_told() -> None:
    ends = np.arange(1, 41) * 2_000_000
    other = ends + np.where(np.arange(40) % 2, 900_000, -900_000)
    frames = {"a": frame(ends.tolist()), "b": frame(other.tolist())}
    found = align(frames, unknown(frames))
    [doubt] = [f for f in found.findings if f.kind == "collectives_disagree"]
    assert doubt.count >= 20
    assert abs(found.offset_ns["b"]) <= 900_000


def test_a_clock_that_runs_fast_is_corrected_over_the_whole_recording() -> None:
    rng = np.random.default_rng(2)
    ends = np.cumsum(rng.integers(10_000_000, 50_000_000, 100))
    fast = np.rint(ends * (1 + 40e-6)).astype(np.int64) + rng.integers(-2_000, 2_000, 100)
    frames = {"a": frame(ends.tolist()), "b": frame((fast + 10**15).tolist())}
    found = align(frames, unknown(frames))
    assert found.drift["b"] == pytest.approx(-40e-6, rel=0.05)
    back = found.apply("b", fast + 10**15)
    assert np.abs(back - ends).max() <= 6_000
    assert found.apply("b", np.array([UNFINISHED]))[0] == UNFINISHED
    assert any("ppm" in line for line in found.lines)


def test_a_lag_is_found_where_all_names_are_alike() -> None:
    rng = np.random.default_rng(3)
    ends = np.cumsum(rng.integers(500_000, 1_500_000, 50))
    frames = {"a": frame(ends.tolist()), "b": frame((ends[7:45] + 77).tolist())}
    found = align(frames, unknown(frames))
    assert found.offset_ns["b"] == -77


def test_ordinals_of_the_profile_itself_need_no_lag() -> None:
    ends = [3_000_000 * i for i in range(20)]
    frames = {"a": frame(ends, first=1000), "b": frame([e + 5 for e in ends[4:]], first=1004)}
    assert align(frames, unknown(frames)).offset_ns["b"] == -5


def test_a_broadcast_whose_root_leaves_early_has_little_say() -> None:
    ends = np.arange(1, 31) * 4_000_000
    names = ["AllReduce" if i % 3 == 0 else "ncclDevKernel_Broadcast_RING_LL" for i in range(30)]
    early = ends - np.where(np.array([n == "AllReduce" for n in names]), 0, 300_000)
    frames = {"root": frame(early.tolist(), names), "leaf": frame(ends.tolist(), names)}
    assert abs(align(frames, unknown(frames)).offset_ns["leaf"]) <= 1_000


def test_asked_for_nothing_nothing_is_moved() -> None:
    frames = {"a": frame([1_000] * 3), "b": frame([2_000] * 3)}
    found: Alignment = align(frames, {"a": 5, "b": 7}, "none")
    assert found.offset_ns == {"a": 0, "b": 0}
    assert found.clock == {"a": 0, "b": 1}
    with pytest.raises(ValueError, match="method"):
        align(frames, {"a": 5}, "guess")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no source"):
        align({}, {})


def test_many_ranks_are_solved_in_bounded_memory() -> None:
    rng = np.random.default_rng(4)
    ends = np.cumsum(rng.integers(500_000, 900_000, 300))
    shifts = rng.integers(-(10**12), 10**12, 128)
    frames = {
        f"r{i}": frame((ends + s + rng.integers(-3_000, 3_000, 300)).tolist())
        for i, s in enumerate(shifts.tolist())
    }
    found = align(frames, unknown(frames))
    errors = [found.offset_ns[f"r{i}"] - int(shifts[0] - s) for i, s in enumerate(shifts)]
    assert max(map(abs, errors)) <= 3_000
    assert len(found.lines) <= 4


def test_a_clock_that_nothing_relates_is_called_unknown() -> None:
    shared = [10_000_000 * n for n in range(1, 9)]
    frames = {"a": frame(shared), "b": frame([t + 500 for t in shared]), "c": frame([], [])}
    found = align(frames, unknown(frames))
    assert found.lines[-1] == "c: its clock is unknown: nothing relates it to the others"
    assert sum(line.startswith("c: ") for line in found.lines) == 1
    assert found.uncertainty_ns["c"] is None
    alone = align({}, {"x": None, "y": None})
    assert [line for line in alone.lines if "±" in line or "+0 ns" in line] == []
    assert alone.lines[1:] == tuple(
        f"{label}: its clock is unknown: nothing relates it to the others" for label in "xy"
    )
    many = align({}, {str(n): None for n in range(100)})
    assert many.lines[1:] == (
        "100 sources: their clocks are unknown: nothing relates them to the others",
    )


def test_offsets_of_several_clocks_say_to_whose() -> None:
    ends = [10_000_000 * n for n in range(1, 9)]
    later = [t + 500 for t in ends]
    frames = {
        "a": frame(ends, group="one"),
        "b": frame(later, group="one"),
        "c": frame(ends, group="two"),
        "d": frame(later, group="two"),
    }
    found = align(frames, unknown(frames))
    assert any(line.startswith("b: -500 ns") and " to a (" in line for line in found.lines)
    assert any(line.startswith("d: -500 ns") and " to c (" in line for line in found.lines)
