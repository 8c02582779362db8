"""Faults that users of PyTorch's profiler met: each kind of the shared corpus, and the same kinds in files of our own.

The corpus states the answer of its clean profile: span 1590, idle 610, compute 500, non-compute 480, communication 600, overlap 200, copies
80 µs. What a fault changes of it follows from where its event lies.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.tracer.formats.kineto_profiles import (
    HOST,
    NCCL,
    SHARED,
    X_EVENTS,
    Figures,
    Profile,
    answer,
    figures,
    found,
    good,
    imported,
    launches,
    named,
    saved,
)

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest.run import import_profiles

FAULTS = SHARED / "oracles" / "faults"
REFERENCE = {"span_ns": 1590, "idle_ns": 610, "compute_ns": 500, "non_compute_ns": 480, "communication_ns": 600, "overlap_ns": 200,
             "copy_only_ns": 80}  # fmt: skip
NO_COMMUNICATION = {"compute_ns": 900, "non_compute_ns": 80, "communication_ns": 0, "overlap_ns": 0}
SHORTER_RELU = {"compute_ns": 450, "non_compute_ns": 530, "overlap_ns": 150}
"""An elementwise kernel of 50 µs in one step does not count: it runs beside the all-reduce."""
CORPUS: dict[str, tuple[int, Figures, set[str]]] = {
    "00_good_rank0.json": (26, {}, set()),
    "00_good_rank1.json": (26, {}, set()),
    "06_bare_inf.json": (26, {}, {"bare_words"}),
    "06b_bare_NaN.json": (26, {}, {"bare_words"}),
    "08_invalid_utf8_name.json": (26, {}, {"invalid_utf8"}),
    "09_control_char_in_name.json": (26, {}, {"control_characters"}),
    "10_array_no_closing_bracket.json": (26, {}, set()),
    "11_trailing_comma.json": (26, {}, {"commas_between_events"}),
    "12_two_gzip_members.json.gz": (26, {}, set()),
    "12c_gz_name_plain_json.json.gz": (26, {}, set()),
    "12d_plain_name_gz_content.json": (26, {}, set()),
    # the elementwise kernel begins at 250, inside the product (100 to 300)
    "13_partial_overlap_same_stream.json": (26, SHORTER_RELU, {"overlapping_exclusive"}),
    "15_child_ends_4e-10us_after_parent.json": (26, {}, set()),
    "16_displayTimeUnit_ns_values_in_us.json": (26, {}, set()),
    "17_string_ts_absolute_epoch.json": (26, {}, {"odd_timestamps"}),
    "18_huge_tid_and_flow_id.json": (26, {}, set()),
    "20_no_rank.json": (26, {}, set()),
    "21_single_profiler_step.json": (13, answer(steps=1), set()),
    "21b_no_profiler_step.json": (24, {}, set()),
    "22_lowercase_nccl_name.json": (26, {}, set()),
    "22b_rccl_like_custom_comm.json": (26, {}, set()),
    "23_kernels_without_launch.json": (24, {}, {"unlinked_kernels"}),
    "23c_cpu_op_with_stream_arg.json": (26, {}, set()),
    "27_empty_event_at_end.json": (26, {}, set()),
    "29_cuda_sync_on_stream.json": (27, {}, set()),
    "31_long_and_unicode_names.json": (26, {}, set()),
    "32_reverse_order.json": (26, {}, set()),
    "38_B_E_pairs.json": (26, {}, set()),
    "38b_unclosed_B.json": (27, {}, {"unfinished"}),
}
ALWAYS = {"missing_ranks", "dominant_collective", "dominant_event", "zero_duration"}


@pytest.mark.skipif(not FAULTS.is_dir(), reason="needs the shared faults")
@pytest.mark.parametrize("name", CORPUS)
def test_a_fault_of_the_corpus(name: str, tmp_path: Path) -> None:
    events, changed, doubts = CORPUS[name]
    summary, trace = imported(FAULTS / name, tmp_path / "t.trnprof")
    expected = {k: v * 1000 for k, v in REFERENCE.items()}
    expected |= {k: v if v > 2000 else v * 1000 for k, v in changed.items() if k in REFERENCE}
    assert summary.events == events
    assert [{k: each[k] for k in REFERENCE} for each in figures(trace)] == [expected]
    assert set(found(summary)) - ALWAYS - {"covering_events"} == doubts


@pytest.mark.skipif(not FAULTS.is_dir(), reason="needs the shared faults")
def test_a_kernel_shorter_than_a_microsecond_keeps_its_nanoseconds(tmp_path: Path) -> None:
    _, trace = imported(FAULTS / "03_submicrosecond_kernel.json", tmp_path / "t.trnprof")
    short = trace.events.filter(pl.col("duration_ns") < 1000, pl.col("category") == "compute")
    assert short.collect()["duration_ns"].to_list() == [200]


@pytest.mark.skipif(not FAULTS.is_dir(), reason="needs the shared faults")
def test_without_events_of_a_device_there_is_no_breakdown(tmp_path: Path) -> None:
    for name, doubt in (
        ("35_empty_trace.json", "no_events"),
        ("36_cpu_only.json", "no_device_events"),
    ):
        summary, trace = imported(FAULTS / name, tmp_path / "t.trnprof")
        assert doubt in found(summary)
        assert figures(trace) == []


@pytest.mark.skipif(not FAULTS.is_dir(), reason="needs the shared faults")
def test_an_empty_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"35b_zero_bytes.json is empty") as error:
        import_profiles([FAULTS / "35b_zero_bytes.json"], tmp_path / "t.trnprof")
    assert "\n" not in str(error.value)


SCALE = 3
"""Files of our own have other times than the corpus: three times as long."""


def _scaled(changes: Figures) -> Figures:
    return answer(scale=SCALE) | {name: value * 1000 * SCALE for name, value in changes.items()}


def _relu(**members: Any) -> Callable[[Profile], None]:
    """Change the elementwise kernel of the first step."""

    def change(profile: Profile) -> None:
        event = named(profile, "relu")[0]
        event.update({k: v for k, v in members.items() if v is not None})
        for name in (k for k, v in members.items() if v is None):
            del event[name]

    return change


def _host_and_device_are_process_0(profile: Profile) -> None:
    for event in profile["traceEvents"]:
        if event["pid"] == HOST:
            event.update(pid=0, tid=0)
    for event in named(profile, "gemm"):
        event.update(tid=0)


def _every(which: str, **members: Any) -> Callable[[Profile], None]:
    def change(profile: Profile) -> None:
        for event in named(profile, which):
            event.update(members)

    return change


def _arguments(which: str, **arguments: Any) -> Callable[[Profile], None]:
    def change(profile: Profile) -> None:
        for event in named(profile, which):
            event["args"] |= arguments

    return change


def _twice(profile: Profile) -> None:
    profile["traceEvents"] *= 2


def _nothing_in_step_2(profile: Profile) -> None:
    for name in ("gemm", "relu", NCCL, "Memcpy HtoD (Pageable -> Device)"):
        profile["traceEvents"].remove(named(profile, name)[1])


def _no_launch(profile: Profile) -> None:
    for call in named(profile, "cudaLaunchKernel")[:2]:
        profile["traceEvents"].remove(call)
    profile["traceEvents"] = [e for e in profile["traceEvents"] if e.get("id") not in (1, 2)]


def _unix_times_as_text(profile: Profile) -> None:
    for event in profile["traceEvents"]:
        event["ts"] = f"{1_757_000_000_000_000 + event['ts']}.1234"


def _nested(profile: Profile) -> None:
    nest: Any = 1
    for _ in range(500):
        nest = [nest]
    named(profile, "relu")[0]["args"]["deep"] = nest


OWN: dict[str, tuple[Callable[[Profile], None], int, Figures, dict[str, int]]] = {
    "04 of centuries": (_relu(dur=7.4e15), 26, SHORTER_RELU, {"impossible_duration": 1}),
    "04 of days": (_relu(dur=4 * 86_400_000_000), 26, SHORTER_RELU, {"impossible_duration": 1}),
    "05 at 0": (_relu(ts=0, dur=0), 26, SHORTER_RELU, {"impossible_timestamp": 1}),
    "05b negative": (_relu(dur=-15), 26, SHORTER_RELU, {"negative_duration": 1}),
    "06 without a duration": (_relu(dur=None), 26, SHORTER_RELU, {"unfinished": 1}),
    "17 times as text": (_unix_times_as_text, 26, {}, {}),
    "18b process 0, thread 0": (_host_and_device_are_process_0, 26, {}, {}),
    "22 of MSCCL": (_every(NCCL, name="mscclKernel_Sum_half_LL"), 26, {}, {}),
    "22 of HCCL": (_every(NCCL, name="hcclAllReduceKernel"), 26, {}, {}),
    "22 of DeepEP": (_every(NCCL, name="void deep_ep::internode_ll::dispatch<false>(int)"), 26, {}, {}),
    "22 by arguments": (lambda p: (_arguments(NCCL, **{"Collective name": "allreduce"})(p), _every(NCCL, name="k1")(p))[0],
                        26, {}, {}),
    "22c Sync in its name": (_every(NCCL, name="fused_SyncBatchNorm_kernel"), 26, NO_COMMUNICATION, {}),
    "22 made by a compiler": (_every(NCCL, name="triton_poi_fused_all_reduce_add_0"), 26, NO_COMMUNICATION, {}),
    "23 without launch": (_no_launch, 24, {}, {"unlinked_kernels": 2}),
    "28 without length": (_relu(dur=0), 26, SHORTER_RELU, {"zero_duration": 1}),
    "29 waits": (_relu(cat="cuda_sync"), 26, SHORTER_RELU, {}),
    "30 twice": (_twice, 26, {}, {"duplicate_events": 26}),
    "33 NaN": (_relu(ts=float("nan")), 26, SHORTER_RELU, {"missing_time": 1, "bare_words": 1, "unfinished": 1}),
    "33 no time": (_relu(ts=None), 26, SHORTER_RELU, {"missing_time": 1, "unfinished": 1}),
    "33 arguments are an array": (_relu(args=[1, {"a": 2}]), 26, {}, {}),
    "34 beyond 64 bits": (_arguments("relu", correlation=2**70), 26, {}, {}),
    "36 nested deeply": (_nested, 26, {}, {"deep_nesting": 1}),
}  # fmt: skip


@pytest.mark.parametrize("kind", OWN)
def test_a_fault_of_our_own(kind: str, tmp_path: Path) -> None:
    change, events, changed, doubts = OWN[kind]
    profile = good(scale=SCALE, start_us=5_000_000)
    change(profile)
    summary, trace = imported(saved(tmp_path / "p.json", profile), tmp_path / "t.trnprof")
    assert summary.events == events
    assert figures(trace) == [_scaled(changed)]
    told = found(summary)
    assert {name: told.get(name) for name in doubts} == doubts
    assert set(told) - ALWAYS - {"times_out_of_range"} == set(doubts) - ALWAYS


BASES = {
    "now in ns": 1_764_700_000_000_000_000,
    "2040 in ns": 2_208_988_800_000_000_000,
    "before zero": -1_764_700_000_000_000_000,
}


@pytest.mark.parametrize("base", BASES.values(), ids=list(BASES))
def test_times_at_a_base_that_no_clock_has_are_counted_from_there(
    base: int, tmp_path: Path
) -> None:
    """The figures are those of the same profile at a base of 0; one event that is wild even so is set aside."""
    profile = good(scale=SCALE, start_us=base)
    relu = named(profile, "relu")[1]
    relu["ts"] = 5
    # fractions of a microsecond are kept
    gemm = named(profile, "gemm")[0]
    text = json.dumps(profile).replace(f'"ts": {gemm["ts"]},', f'"ts": {gemm["ts"]}.125,')
    summary, trace = imported(saved(tmp_path / "p.json", text), tmp_path / "t.trnprof")
    told = found(summary)
    assert told["times_rebased"] == told["impossible_timestamp"] == told["times_out_of_range"] == 1
    (ours,) = figures(trace)
    clean = _scaled(SHORTER_RELU)
    # the product begins the trace and ends where the elementwise kernel begins, while the all-reduce runs. 125 ns later its end lies
    # in that kernel; 125 ns earlier (below zero) it leaves 125 ns to the all-reduce alone
    later = {"span_ns": -125, "busy_ns": -125, "compute_ns": -125}
    earlier = {"span_ns": 125, "busy_ns": 125, "non_compute_ns": 125, "overlap_ns": -125}
    changed = {k: ours[k] - clean[k] for k in ours if ours[k] != clean[k]}
    assert changed == (later if base > 0 else earlier)


def test_ranks_at_such_a_base_keep_their_distance(tmp_path: Path) -> None:
    base = BASES["now in ns"]
    paths = []
    for rank in range(2):
        profile = good(rank=rank, scale=SCALE, start_us=base + 7 * rank)
        profile["baseTimeNanoseconds"] = 1_700_000_000_000_000_000
        paths.append(saved(tmp_path / f"rank{rank}.json", profile))
    _, trace = imported(paths, tmp_path / "t.trnprof")
    first = trace.events.join(trace.tracks.lazy().select("track_id", "rank"), on="track_id")
    by_rank = first.group_by("rank").agg(pl.col("start_ns").min()).sort("rank").collect()
    starts = by_rank.filter(pl.col("rank").is_not_null())["start_ns"].to_list()
    assert starts[1] - starts[0] == 7000


def test_one_wild_time_moves_nothing(tmp_path: Path) -> None:
    profile = good(scale=SCALE)
    named(profile, "relu")[1]["ts"] = 1_764_700_000_000_000_000
    summary, trace = imported(saved(tmp_path / "p.json", profile), tmp_path / "t.trnprof")
    told = found(summary)
    assert "times_rebased" not in told
    assert told["times_out_of_range"] == told["impossible_timestamp"] == 1
    assert figures(trace) == [_scaled(SHORTER_RELU)]


def test_what_a_long_kernel_covers_is_told(tmp_path: Path) -> None:
    profile = good(scale=SCALE)
    named(profile, "gemm")[0]["dur"] = 1_600_000
    summary, trace = imported(saved(tmp_path / "p.json", profile), tmp_path / "t.trnprof")
    (ours,) = figures(trace)
    assert (ours["compute_ns"], ours["idle_ns"]) == (1_600_000_000, 0)
    # its stream has five more pieces of work, all of which it covers
    assert found(summary)["covering_events"] == 1
    assert found(summary)["overlapping_exclusive"] == 5
    assert found(summary)["dominant_event"] == 1
    (overlap,) = (f for f in summary.findings if f.kind == "overlapping_exclusive")
    assert "sum to 1.6" in overlap.message


def test_a_step_without_device_events_is_told(tmp_path: Path) -> None:
    profile = good()
    _nothing_in_step_2(profile)
    summary, _ = imported(saved(tmp_path / "p.json", profile), tmp_path / "t.trnprof")
    assert found(summary)["steps_without_device_events"] == 1


def test_one_launch_of_many_kernels(tmp_path: Path) -> None:
    profile = good()
    for event in profile["traceEvents"]:
        if event.get("cat") == "kernel":
            event["args"]["correlation"] = 1
    summary, trace = imported(saved(tmp_path / "p.json", profile), tmp_path / "t.trnprof")
    assert figures(trace) == [answer()]
    assert "unlinked_kernels" not in found(summary)
    assert [n for n, _ in launches(trace)] == ["cudaLaunchKernel"] * 6 + ["cudaMemcpyAsync"] * 2
    kernels = trace.events.filter(pl.col("category").is_in(["compute", "collective"])).collect()
    assert kernels["step"].to_list() == [0] * 6  # of the launch, not of the time


def test_arrows_link_what_has_no_correlation(tmp_path: Path) -> None:
    profile = good()
    for event in profile["traceEvents"]:
        event.get("args", {}).pop("correlation", None)
        event.get("args", {}).pop("External id", None)
    _, trace = imported(saved(tmp_path / "p.json", profile), tmp_path / "t.trnprof")
    assert launches(trace) == sorted(
        [("cudaLaunchKernel", n) for n in ("gemm", "relu", NCCL)] * 2
        + [("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)")] * 2
    )
    assert trace.events.filter(pl.col("name") == "gemm").collect()["step"].to_list() == [0, 1]


@pytest.mark.parametrize("keeps_process", [True, False])
def test_two_ranks_in_one_file_are_kept_apart(keeps_process: bool, tmp_path: Path) -> None:
    profile, other = good(), good(rank=1)
    for event in other["traceEvents"]:
        event["ts"] += 7 * (not keeps_process)
    profile["traceEvents"] += other["traceEvents"]
    summary, trace = imported(saved(tmp_path / "p.json", profile), tmp_path / "t.trnprof")
    assert summary.events == 2 * 2 * X_EVENTS
    assert figures(trace) == [answer(), answer()]
    assert found(summary)["merged_ranks"] == 2
    rank = trace.tracks.select("track_id", "rank")
    events = trace.events.select("event_id", "track_id").collect().join(rank, on="track_id")
    flows = trace.flows.collect()
    ends = [
        flows.join(events, left_on=c, right_on="event_id")["rank"].to_list()
        for c in ("source_event", "target_event")
    ]
    assert len(flows) == 16
    assert ends[0] == ends[1]
    assert sorted(trace.steps["rank"].to_list()) == [0, 0, 1, 1]


@pytest.mark.parametrize("stated", [True, False])
def test_two_files_of_one_rank_or_of_none_are_both_kept(stated: bool, tmp_path: Path) -> None:
    profile = good()
    if not stated:
        del profile["distributedInfo"]
    paths = [saved(tmp_path / f"{n}.json", profile) for n in "ab"]
    summary, trace = imported(paths, tmp_path / "t.trnprof")
    assert figures(trace) == [answer(), answer()]
    assert [s.rank for s in summary.sources] == [0, 1]
    assert found(summary)["duplicate_rank" if stated else "assumed_rank"] == 1


def test_ranks_come_from_file_names_where_profiles_state_none(tmp_path: Path) -> None:
    profile = good()
    del profile["distributedInfo"]
    paths = [saved(tmp_path / f"worker{n}.json", profile) for n in (5, 3)]
    summary, _ = imported(paths, tmp_path / "t.trnprof")
    assert {Path(s.label).stem: s.rank for s in summary.sources} == {"worker5": 5, "worker3": 3}


def test_base_times_cancel_a_shift_of_seconds(tmp_path: Path) -> None:
    base, shift_us = 1_700_000_000_000_000_000, 11_560_000
    first, second = good(), good(rank=1, start_us=1_000_000 + shift_us)
    first["baseTimeNanoseconds"] = base
    second["baseTimeNanoseconds"] = base - 1000 * shift_us
    paths = [saved(tmp_path / f"{n}.json", p) for n, p in enumerate((first, second))]
    _, trace = imported(paths, tmp_path / "t.trnprof")
    starts = trace.events.filter(pl.col("name") == "gemm").collect()["start_ns"].to_list()
    assert sorted(starts) == [starts[0], starts[0], starts[0] + 1_000_000, starts[0] + 1_000_000]
    assert figures(trace) == [answer(), answer()]


@pytest.mark.parametrize("in_array", [True, False])
def test_a_cut_file_keeps_its_whole_events(in_array: bool, tmp_path: Path) -> None:
    profile = good(scale=SCALE)
    text = json.dumps(profile["traceEvents"] if in_array else profile)
    at = text.index('"name": "relu"', text.index('"name": "relu"') + 1) + 3
    lost = at - text.rindex("{", 0, text.rindex('"name": "relu"', 0, at + 20))
    summary, trace = imported(saved(tmp_path / "p.json", text[:at]), tmp_path / "t.trnprof")
    # of the second step: its range, the first operator with call and kernel, the second with its call
    assert summary.events == X_EVENTS + 6
    (told,) = (f for f in summary.findings if f.kind == "truncated")
    assert told.severity == "error"
    assert f"the last {lost} bytes lost" in told.message
    assert figures(trace)[0]["compute_ns"] == 1000 * SCALE * (250 + 200)


def test_a_cut_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps(good(steps=200)).encode())
    summary, trace = imported(
        saved(tmp_path / "p.json.gz", whole[: len(whole) // 2]), tmp_path / "t.trnprof"
    )
    assert 200 < summary.events < 200 * X_EVENTS
    assert "truncated" in found(summary)
    assert 0 < figures(trace)[0]["busy_ns"] < answer(steps=200)["busy_ns"]


def test_windows_paths_with_single_backslashes(tmp_path: Path) -> None:
    text = json.dumps(good()).replace('"aten::op1"', r'"C:\work\new\train.py(3): step"')
    summary, trace = imported(saved(tmp_path / "p.json", text), tmp_path / "t.trnprof")
    assert figures(trace) == [answer()]
    assert found(summary)["unescaped_backslashes"] == 2
    names = trace.events.select(pl.col("name").cast(pl.String)).collect()["name"].to_list()
    assert names.count(r"C:\work\new\train.py(3): step") == 2


def test_an_empty_rank_in_a_directory_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    directory = tmp_path / "profiles"
    directory.mkdir()
    saved(directory / "rank0.json", good())
    saved(directory / "rank1.json", "")
    summary, trace = imported(directory, tmp_path / "t.trnprof")
    assert figures(trace) == [answer()]
    assert found(summary)["missing_ranks"] == 1


def test_a_round_number_of_events_is_told(tmp_path: Path) -> None:
    instant = '{"ph":"i","name":"n","pid":1,"tid":1,"ts":%d},'
    body = "".join([instant % number for number in range(1_000_000 - 2 * X_EVENTS)])
    text = json.dumps(good()).replace('"traceEvents": [', f'"traceEvents": [{body}')
    summary, _ = imported(saved(tmp_path / "p.json", text), tmp_path / "t.trnprof")
    assert summary.events == 1_000_000
    assert found(summary)["event_limit"] == 1
