"""Equal ranks emulated once or each: the same answers. And what slow, late and broken parts of a machine do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from tests.emulator.programs import op, ref
from tests.emulator.ranks.pipelines import pipeline
from tests.emulator.ranks.worlds import Run, collective, group, mesh, run, world

from trnprof.emulator.ranks.faults import Faults
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import Operation, Workload
from trnprof.tracer.errors import FabricError, SystemDescriptionError
from trnprof.tracer.reader import open_trace

ULTRA = load_system("trn2-ultra")
SPREAD = {"placement": "spread", "lnc": 1}


@st.composite
def spmd_programs(draw: st.DrawFn) -> Workload:
    """Products, sums and exchanges along both dimensions of a mesh of 2 x 2 or 2 x 3 ranks, in one or two steps."""
    shape = draw(st.sampled_from([(2, 2), (2, 3)]))
    groups = [group(name, siblings) for name, siblings in zip("xy", mesh(*shape), strict=True)]
    weight = ref(0, 512, 512, role="parameter")
    made: list[Operation] = []
    for step in range(draw(st.integers(1, 2))):
        live = [ref(100 * (step + 1), 512, 512)]
        for number in range(draw(st.integers(2, 6))):
            source = draw(st.sampled_from(live))
            out = ref(100 * (step + 1) + 1 + number, 512, 512)
            along = draw(st.integers(0, 1))
            kind = draw(
                st.sampled_from(["mm", "gelu", "all_reduce", "all_gather", "permute", "barrier"])
            )
            if kind == "mm":
                made.append(op("mm", [source, weight], [out], step=step))
            elif kind == "gelu":
                made.append(op("gelu", [source], [out], step=step))
            elif kind == "barrier":
                made.append(collective(kind, 0, [], [], group=along, step=step))
                continue
            else:
                nbytes = draw(st.sampled_from([2_000, 4_000_000]))
                made.append(collective(kind, nbytes, [source], [out], group=along, step=step))
            live.append(out)
    return world(made, groups, shape[0] * shape[1])


def by_rank(done: Run) -> dict[int, pl.DataFrame]:
    """Events of each emulated rank."""
    tracks = done.trace.tracks.filter(pl.col("rank").is_not_null())
    events = done.events.join(tracks.select("track_id", "rank", track="name"), on="track_id")
    shown = events.select(
        "rank",
        "track",
        "start_ns",
        "end_ns",
        "ready_ns",
        "step",
        "bytes",
        "flops",
        pl.col("name", "wait_reason").cast(pl.String),
    ).sort(pl.all())
    return {rank: own.drop("rank") for (rank,), own in shown.group_by("rank", maintain_order=True)}  # type: ignore[misc]


def members(done: Run) -> dict[int, list[int]]:
    """By emulated rank, whom it stands for."""
    tracks = done.trace.tracks.filter(pl.col("kind").cast(pl.String) == "core")
    own = dict(tracks.filter(pl.col("replica_of").is_null()).select("track_id", "rank").rows())
    found = {rank: [rank] for rank in own.values()}
    for track, rank in (
        tracks.filter(pl.col("replica_of").is_not_null()).select("replica_of", "rank").rows()
    ):
        if rank not in found[own[track]]:
            found[own[track]].append(rank)
    return found


def check_folding(path: Path, workload: Workload, **options: Any) -> tuple[Run, Run]:
    """Both ways, and that every rank has the times of the one that stands for it."""
    folded = run(path / "folded", workload, ULTRA, **options)
    each = run(path / "each", workload, ULTRA, fold=False, **options)
    assert folded.trace.validate() == each.trace.validate() == []
    assert folded.outcome.device_ns == each.outcome.device_ns
    own, all_ranks = by_rank(folded), by_rank(each)
    assert sorted(all_ranks) == list(range(workload.world.size))
    for rank, others in members(folded).items():
        for other in others:
            assert_frame_equal(own[rank], all_ranks[other])
    return folded, each


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    workload=spmd_programs(),
    placement=st.sampled_from(["packed", "spread"]),
    slow=st.dictionaries(st.integers(0, 3), st.sampled_from([0.5, 0.9]), max_size=1),
)
def test_equal_ranks_have_equal_times(
    tmp_path_factory: pytest.TempPathFactory,
    workload: Workload,
    placement: str,
    slow: dict[int, float],
) -> None:
    path = tmp_path_factory.mktemp("fold")
    check_folding(path, workload, placement=placement, faults=Faults(slow_ranks=slow))


@pytest.mark.parametrize(
    "faults", [Faults(), Faults(slow_ranks={3: 0.7}), Faults(late_ns={0: 200_000})]
)
def test_pipelines_too(tmp_path: Path, faults: Faults) -> None:
    check_folding(tmp_path, pipeline("1f1b", 2, 3, copies=2, steps=2), **SPREAD, faults=faults)


def test_links_carry_the_same(tmp_path: Path) -> None:
    def on_links(done: Run) -> pl.DataFrame:
        links = done.trace.tracks.filter(pl.col("kind").cast(pl.String) == "link")
        joined = done.events.join(links.select("track_id", link="name"), on="track_id")
        return joined.select("link", "start_ns", "end_ns", "bytes").sort(pl.all())

    folded, each = check_folding(tmp_path, pipeline("gpipe", 2, 2, copies=3), **SPREAD)
    assert len(on_links(folded)) > 0
    assert_frame_equal(on_links(folded), on_links(each))


@pytest.mark.parametrize("lnc", [1, 2])
def test_an_expanded_trace_has_the_rows_of_all(tmp_path: Path, lnc: int) -> None:
    """Those of a folded run, repeated, are those of a run in which every rank was emulated."""
    workload = pipeline("1f1b", 2, 2, copies=3, steps=2)
    folded = run(tmp_path / "folded", workload, ULTRA, lnc=lnc)
    each = run(tmp_path / "each", workload, ULTRA, lnc=lnc, fold=False)
    ends = pl.col("start_ns") + pl.col("duration_ns")
    shown = []
    for path in (folded.trace.path, each.trace.path):
        trace = open_trace(path, expand=True)
        assert trace.tracks["replica_of"].null_count() == len(trace.tracks)
        assert trace.tracks["replica_count"].unique().to_list() == [1]
        tracks = trace.tracks.select("track_id", "rank", "chip", "core", track="name")
        rows = trace.events.with_columns(end_ns=ends).collect().join(tracks, on="track_id")
        shown.append(
            rows.select("rank", "chip", "core", "track", "start_ns", "end_ns", "bytes").sort(
                pl.all()
            )
        )
    assert_frame_equal(*shown)
    steps = open_trace(folded.trace.path, expand=True).steps.sort("rank", "step")
    assert_frame_equal(steps, each.trace.steps.sort("rank", "step"))


# ---- faults

W = ref(0, 2048, 2048, role="parameter")
X, Y, SUM, Z = (ref(n, 2048, 2048) for n in range(1, 5))


def sums(count: int = 1) -> list[Operation]:
    """A product, a sum of it over all ranks, and so on."""
    operations: list[Operation] = []
    x = X
    for i in range(count):
        y, total = ref(10 + 2 * i, 2048, 2048), ref(11 + 2 * i, 2048, 2048)
        operations += [op("mm", [x, W], [y]), collective("all_reduce", y.nbytes, [y], [total])]
        x = total
    return operations


def emulated(path: Path, operations: Sequence[Operation], faults: Faults, size: int = 8) -> Run:
    workload = world(operations, [group("dp", mesh(size)[0])], size)
    return run(path, workload, ULTRA, faults=faults, **SPREAD)


def streams(done: Run) -> pl.DataFrame:
    tracks = done.trace.tracks.filter(pl.col("kind").cast(pl.String) == "collective_stream")
    joined = done.events.join(tracks.select("track_id", "rank"), on="track_id")
    return joined.sort("start_ns", "rank").with_columns(pl.col("wait_reason").cast(pl.String))


def working_ns(done: Run, rank: int) -> int:
    tensor = done.trace.tracks.filter((pl.col("name") == "Tensor") & (pl.col("rank") == rank))
    own = done.events.join(tensor, on="track_id", how="semi")
    return int(own["duration_ns"].sum())


def test_all_wait_for_a_slow_rank(tmp_path: Path) -> None:
    sound = emulated(tmp_path / "a", sums(3), Faults())
    slow = emulated(tmp_path / "b", sums(3), Faults(slow_ranks={5: 0.5}))
    assert slow.trace.validate() == []
    assert members(slow) == {0: [0, 1, 2, 3, 4, 6, 7], 5: [5]}
    assert working_ns(slow, 0) == working_ns(sound, 0)
    assert working_ns(slow, 5) == pytest.approx(2 * working_ns(sound, 0), rel=1e-3)
    rows = streams(slow)
    assert rows.filter(pl.col("rank") == 0)["wait_reason"].to_list() == ["peer"] * 3
    assert "peer" not in rows.filter(pl.col("rank") == 5)["wait_reason"].to_list()
    assert rows["start_ns"].to_list()[::2] == rows["start_ns"].to_list()[1::2]
    # the exchange is as fast as before, the rest takes the slow one twice as long
    exchanged = int(streams(sound)["duration_ns"].sum())
    assert int(rows.filter(pl.col("rank") == 0)["duration_ns"].sum()) == pytest.approx(
        exchanged, abs=3
    )
    rest = sound.outcome.device_ns - exchanged
    assert slow.outcome.device_ns == pytest.approx(exchanged + 2 * rest, rel=0.01)


def test_a_slow_chip_slows_its_exchanges_too(tmp_path: Path) -> None:
    rank = emulated(tmp_path / "a", sums(), Faults(slow_ranks={5: 0.5}))
    chip = emulated(tmp_path / "b", sums(), Faults(slow_chips={5: 0.5}))
    assert chip.trace.validate() == []
    assert streams(chip)["start_ns"][0] == streams(rank)["start_ns"][0]
    assert streams(chip)["duration_ns"][0] > 1.5 * streams(rank)["duration_ns"][0]


def test_a_late_rank_holds_up_the_first_exchange_alone(tmp_path: Path) -> None:
    delay = 700_000
    sound = emulated(tmp_path / "a", sums(2), Faults())
    late = emulated(tmp_path / "b", sums(2), Faults(late_ns={2: delay}))
    assert late.trace.validate() == []
    assert late.outcome.device_ns == sound.outcome.device_ns + delay
    waits = streams(late).filter(pl.col("rank") == 0)["wait_reason"].to_list()
    assert waits[0] == "peer"
    assert waits[1] != "peer"
    assert late.outcome.details["faults"] == {"late": [f"rank=2:{delay}ns"]}


def test_a_degraded_link_slows_the_groups_that_use_it(tmp_path: Path) -> None:
    """Rows of four chips along x: only the one with the slow link takes longer."""
    rows = mesh(4, 4)[1]
    workload = world(sums(), [group("row", rows)], 16)
    sound = run(tmp_path / "a", workload, ULTRA, **SPREAD)
    slow = run(tmp_path / "b", workload, ULTRA, faults=Faults(degraded=(("4-5", 0.25),)), **SPREAD)
    (before,) = streams(sound)["duration_ns"]
    assert slow.trace.validate() == []
    longest = dict(streams(slow).select("rank", "duration_ns").rows())
    hit = [rank for rank, others in members(slow).items() if set(others) & {4, 5, 6, 7}]
    assert [r for r, length in longest.items() if length > before] == hit
    assert all(longest[r] > 1.5 * before for r in hit)
    assert min(longest.values()) == before


def test_without_a_link_the_bytes_go_round(tmp_path: Path) -> None:
    done = emulated(tmp_path / "t", sums(), Faults(failed=("0-1",)), size=4)
    links = done.trace.tracks.filter(pl.col("kind").cast(pl.String) == "link")["name"].to_list()
    sound = emulated(tmp_path / "u", sums(), Faults(), size=4)
    before = sound.trace.tracks.filter(pl.col("kind").cast(pl.String) == "link")["name"].to_list()
    assert "0>1" in before
    assert "0>1" not in links
    assert done.outcome.device_ns > sound.outcome.device_ns


@pytest.mark.parametrize(
    ("faults", "error", "message"),
    [
        (Faults(slow_ranks={8: 0.5}), SystemDescriptionError, "rank 8 is out of range"),
        (Faults(late_ns={9: 5}), SystemDescriptionError, "rank 9 is out of range"),
        (Faults(late_ns={1: -5}), SystemDescriptionError, "late by -5 ns"),
        (Faults(slow_ranks={1: 0.0}), FabricError, "rank 1: factor 0"),
        (Faults(slow_chips={1: 1.5}), FabricError, "chip 1: factor 1.5"),
        (Faults(slow_chips={64: 0.5}), FabricError, "chip 64 is out of range"),
        (Faults(degraded=(("0-9", 0.5),)), FabricError, "0"),
        (Faults(failed=("0-1", "0-3", "0-4", "0-12", "0-16", "0-48")), FabricError, "no way from"),
    ],
)
def test_faults_that_cannot_be_leave_nothing_behind(
    tmp_path: Path, faults: Faults, error: type[Exception], message: str
) -> None:
    path = tmp_path / "t"
    with pytest.raises(error, match=message):
        emulated(path, sums(), faults)
    assert list(path.iterdir()) == []
