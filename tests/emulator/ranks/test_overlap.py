"""When does a collective run, and who waits for it? Schedules worked out by hand from the durations of its parts."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.emulator.programs import op, ref
from tests.emulator.ranks.worlds import Run, collective, group, mesh, run, world

from trnprof.emulator.ranks.costs import CollectiveCosts
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import Operation, TensorRef

ULTRA = load_system("trn2-ultra")
ALL = group("world", mesh(64)[0])
SPREAD = {"placement": "spread", "lnc": 1}
EXECUTIONS = pytest.mark.parametrize("execution", ["fused", "eager"])

WEIGHT = ref(0, 2048, 2048, role="parameter")
X, A, SUM, B, C = (ref(n, 2048, 2048) for n in range(1, 6))
SMALL, LARGE = 1_000, 2_000_000_000


def emulated(
    path: Path, operations: list[Operation], execution: str = "fused", **more: object
) -> Run:
    groups = more.pop("groups", (ALL,))
    workload = world(operations, groups, 64, (WEIGHT, X))  # type: ignore[arg-type]
    return run(path, workload, ULTRA, execution=execution, **(SPREAD | more))


def mm(source: TensorRef, out: TensorRef) -> Operation:
    return op("mm", [source, WEIGHT], [out])


def start(events: pl.DataFrame) -> int:
    return int(events["start_ns"].min())  # type: ignore[arg-type]


def end(events: pl.DataFrame) -> int:
    return int(events["end_ns"].max())  # type: ignore[arg-type]


def computing(events: pl.DataFrame) -> pl.DataFrame:
    return events.filter(pl.col("category") == "compute")


def loading(events: pl.DataFrame) -> pl.DataFrame:
    return events.filter(pl.col("name").cast(pl.String).str.starts_with("load"))


def between(nbytes: int) -> list[Operation]:
    """A; a collective of its result; B, which needs neither; C, which needs what the collective made."""
    return [
        mm(X, A),
        collective("all_reduce", nbytes, [A], [SUM]),
        mm(X, B),
        mm(SUM, C),
    ]


@EXECUTIONS
def test_it_starts_when_its_input_is_in_hbm(tmp_path: Path, execution: str) -> None:
    done = emulated(tmp_path / "t", between(SMALL), execution)
    written = done.of(0).filter(pl.col("name") == "store mm")
    lag = ULTRA.core.dma.done_write_ns
    assert written["bytes"].sum() == A.nbytes
    assert start(done.of(1)) == pytest.approx(end(written) + lag, abs=1)


@EXECUTIONS
def test_a_short_one_is_hidden_behind_what_does_not_need_it(tmp_path: Path, execution: str) -> None:
    """C begins when B has ended (a + b), as if there were no collective; in eager runs after B's result is stored."""
    done = emulated(tmp_path / "with", between(SMALL), execution)
    assert end(done.of(1)) < end(computing(done.of(2)))
    without = between(SMALL)
    without[1] = op("detach", [A], [A])
    without[3] = mm(X, C)
    alone = emulated(tmp_path / "without", without, execution)
    for position in (0, 2):
        assert end(computing(done.of(position))) == end(computing(alone.of(position)))
    if execution == "fused":
        tensor = computing(done.of(3)).filter(pl.col("name") == "mm")
        before = computing(done.of(2)).filter(pl.col("name") == "mm")
        # C's tiles are loaded while B computes: the tensor engine goes on at once
        assert start(tensor) - end(before) <= 10


@EXECUTIONS
def test_a_long_one_is_waited_for_by_who_needs_it_alone(tmp_path: Path, execution: str) -> None:
    """C begins when the collective has ended (a + c): its first load just then; B is long over."""
    done = emulated(tmp_path / "t", between(LARGE), execution)
    assert end(done.of(2)) < end(done.of(1))
    trigger = done.of(3).filter(pl.col("category") == "sync").sort("start_ns")
    waiting = trigger.filter(pl.col("start_ns") >= end(done.of(1)))
    assert start(waiting) == end(done.of(1))
    assert "collective" in trigger["wait_reason"].to_list()
    assert start(computing(done.of(3))) >= end(done.of(1))
    assert start(loading(done.of(3)).filter(pl.col("bytes") > 0)) > end(done.of(2))


def test_its_duration_is_its_cost(tmp_path: Path) -> None:
    done = emulated(tmp_path / "t", between(LARGE))
    call = between(LARGE)[1].collective
    assert call is not None
    cost = CollectiveCosts(ULTRA.machine, tuple(range(64))).cost(call, ALL.siblings)
    (length,) = done.of(1)["duration_ns"]
    assert length == pytest.approx(cost.duration_ps / 1000, abs=1)


@EXECUTIONS
def test_it_is_issued_when_what_precedes_it_has_begun(tmp_path: Path, execution: str) -> None:
    shard, whole = ref(7, 32, 2048, role="parameter"), ref(8, 2048, 2048)
    operations = [
        mm(X, A),
        collective("all_gather", SMALL, [shard], [whole]),
        mm(X, B),
        collective("all_gather", SMALL, [shard], [ref(9, 2048, 2048)]),
    ]
    done = emulated(tmp_path / "t", operations, execution)
    assert start(done.of(1)) == start(computing(done.of(0)))
    assert start(done.of(3)) == start(computing(done.of(2)))
    flows = done.trace.flows.filter(pl.col("target_event") == int(done.of(3)["event_id"][0]))
    assert "launch" in flows.collect()["kind"].cast(pl.String).to_list()


def test_one_group_runs_its_collectives_in_order(tmp_path: Path) -> None:
    shards = [ref(10 + i, 32, 2048, role="parameter") for i in range(3)]
    operations = [
        collective("all_gather", 10_000_000, [shard], [ref(20 + i, 2048, 2048)])
        for i, shard in enumerate(shards)
    ]
    done = emulated(tmp_path / "t", operations)
    for position in (1, 2):
        assert start(done.of(position)) == end(done.of(position - 1))


@pytest.mark.parametrize("shares", [True, False], ids=["same links", "other links"])
def test_groups_take_turns_on_links_that_both_use(tmp_path: Path, shares: bool) -> None:
    """Groups along x and y of the torus share no tier; a group along x and all chips do."""
    _, along_y, along_x = mesh(4, 4, 4)
    other = mesh(64)[0] if shares else along_y
    groups = (group("x", along_x), group("other", other))
    operations = [
        collective("all_gather", 100_000_000, [ref(10, 32, role="parameter")], [ref(20, 2048)]),
        collective(
            "all_gather", 100_000_000, [ref(11, 32, role="parameter")], [ref(21, 2048)], group=1
        ),
    ]
    done = emulated(tmp_path / "t", operations, groups=groups)
    assert (start(done.of(1)) > 0) == shares
    if shares:
        assert done.of(1)["wait_reason"].to_list() == ["link"]
        # when the links of x are free again, which is no later than the collective's end
        links = done.events.filter(pl.col("op_id") == 0).join(
            done.trace.tracks.filter(pl.col("kind") == "link"), on="track_id"
        )
        assert start(done.of(1)) == end(links) <= end(done.of(0))


def test_who_overwrites_its_input_waits(tmp_path: Path) -> None:
    """A store into what the collective still reads comes after it; one elsewhere does not."""
    operations = [
        mm(X, A),
        collective("all_reduce", LARGE, [A], [SUM]),
        mm(X, A),
        mm(X, B),
        collective("all_reduce", SMALL, [SUM], [SUM]),
    ]
    done = emulated(tmp_path / "t", operations)
    again = done.of(2).filter(pl.col("name") == "store mm")
    assert start(again) >= end(done.of(1))
    assert end(computing(done.of(2))) < end(done.of(1))
    assert start(done.of(4)) == end(done.of(1))


@EXECUTIONS
def test_a_barrier_parts_what_is_before_from_what_is_behind(tmp_path: Path, execution: str) -> None:
    operations = [mm(X, A), collective("barrier", 0, [], []), mm(X, B), mm(B, C)]
    done = emulated(tmp_path / "t", operations, execution)
    assert start(done.of(1)) == end(done.of(0))
    for position in (2, 3):
        assert start(done.of(position)) >= end(done.of(1))


def test_what_sbuf_keeps_is_sent_from_hbm(tmp_path: Path) -> None:
    """Read by an operation and a collective: stored all the same; read by the operation alone: kept."""
    small = [ref(30 + i, 128, 512) for i in range(4)]
    chain = [op("gelu", [X], [small[0]]), op("sort", [small[0]], [small[1]])]
    kept = emulated(tmp_path / "kept", [*chain, op("clone", [X], [C], freed=[30])])
    sent = emulated(
        tmp_path / "sent",
        [chain[0], collective("all_reduce", 100, [small[0]], [small[2]]), chain[1]],
    )
    stores = pl.col("name") == "store gelu"
    assert kept.of(0).filter(stores).is_empty()
    assert sent.of(0).filter(stores)["bytes"].sum() == small[0].nbytes


def test_memory_in_flight_is_held(tmp_path: Path) -> None:
    """A gradient freed while it is reduced is given back when that ends, one that nobody sends at once."""
    operations = [
        mm(X, A),
        collective("all_reduce", LARGE, [A], [SUM]),
        op("mm", [X, WEIGHT], [B], freed=[A.tensor]),
        mm(SUM, C),
    ]
    done = emulated(tmp_path / "t", operations)
    hbm = done.trace.tracks.filter(pl.col("name") == "HBM bytes")["track_id"]
    samples = done.trace.counters.filter(pl.col("track_id").is_in(hbm.implode())).collect()
    falls = samples.filter(pl.col("value").diff() < 0)
    assert falls["timestamp_ns"].to_list() == [end(done.of(1))]
    assert falls["value"].len() == 1
