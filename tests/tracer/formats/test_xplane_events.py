"""Events of XSpaces: against a decoding by protobuf's own library, of a real profile and of random ones.

tests/data/jax_cpu.* are one run of JAX 0.10.2 on two CPU devices: three steps of a matmul and a psum under StepTraceAnnotation and
TraceAnnotation, without the Python tracer and without HLO.
"""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.tracer.formats.staged import counters, events, head_of, kinds, staged, table
from tests.tracer.formats.xspaces import PlaneMaker, Ref, Row, Space, decoded

from trnprof.tracer.formats.xplane.format import FORMAT
from trnprof.tracer.ingest.stage import Stage

DATA = Path(__file__).parents[2] / "data"


def rows_of(stage: Stage) -> list[Row]:
    found = events(stage)
    columns = ("track", "name", "start_ns", "end_ns", "attributes")
    return [
        (track, name, start, end, stats_of(attributes))
        for track, name, start, end, attributes in found.select(columns).iter_rows()
    ]


def stats_of(attributes: str | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, repr(v)) for k, v in json.loads(attributes or "{}").items()))


def test_a_real_profile_is_read_as_protobuf_reads_it(tmp_path: Path) -> None:
    path = DATA / "jax_cpu.xplane.pb.xz"
    stage = staged(FORMAT, path, tmp_path / "stage")
    expected = decoded(lzma.decompress(path.read_bytes()))
    assert len(expected) == 279
    assert sorted(rows_of(stage)) == sorted(expected)
    assert stage.facts.base_unix_ns == 1_796_228_129_120_457_358
    assert stage.facts.host == "vm"
    assert kinds(stage) == set()


def test_a_real_profile_has_its_steps_and_launches(tmp_path: Path) -> None:
    stage = staged(FORMAT, DATA / "jax_cpu.xplane.pb.xz", tmp_path / "stage")
    (steps,) = stage.steps
    assert steps["label"] == ["train 0", "train 1", "train 2"]
    found = events(stage)
    train = found.filter(pl.col("name") == "train")
    assert steps["start_ns"] == train["start_ns"].to_list()
    assert steps["end_ns"] == train["end_ns"].to_list()
    flows = table(stage, "flows")
    assert set(flows["kind"].to_list()) == {"launch"}
    for source, target in flows.select("source_row", "target_row").iter_rows():
        # what a producer announced is what its consumer took up
        made, used = (json.loads(found["attributes"][row]) for row in (source, target))
        assert (made["_pt"], made["_p"]) == (used["_ct"], used["_c"])
    # all work lies in the step that issued it, on whatever thread it runs
    work = found.filter(pl.col("attributes").str.contains('"hlo_op"'))
    assert work.height == sum("hlo_op" in dict(row[4]) for row in rows_of(stage)) > 0
    assert work["step"].null_count() == 0
    for step in range(3):
        mine = work.filter(pl.col("step") == step)
        assert mine["start_ns"].min() >= steps["start_ns"][step]
        assert mine["end_ns"].max() <= steps["end_ns"][step]


def random_value(chance: random.Random) -> Any:
    return chance.choice(
        [
            chance.randrange(-(1 << 63), 1 << 63),
            chance.randrange(1 << 63, 1 << 64),
            chance.uniform(-1e9, 1e9),
            chance.choice([0.1, 1e300, -0.0, 5e-324, 3.0]),
            Ref(chance.choice(["a string", "ünïcode ☃", 'q"uo\\te\n'])),
            chance.choice(["", "text", "ünïcode ☃", 'q"uo\\te\n\x01']),
            0,
        ]
    )


def random_space(chance: random.Random) -> Space:
    space = Space()
    for number in range(chance.randrange(1, 4)):
        plane = space.plane(f"/host:CPU {number}" if number else "/host:CPU")
        for line_number in range(chance.randrange(1, 4)):
            at_ns = chance.choice([0, 12345, 1_700_000_000_000_000_000])
            name = f"thread {number}.{line_number}"
            line = plane.line(name, at_ns, display_name=chance.choice(["", f"shown {name}"]))
            for _ in range(chance.randrange(60)):
                kind = plane.kind(chance.choice("abcdef"), chance.choice(["", "shown"]))
                stats = {
                    chance.choice("uvwxyz"): random_value(chance)
                    for _ in range(chance.randrange(4))
                }
                at, length = chance.randrange(1 << 50), chance.randrange(1 << 40)
                plane.event(line, kind, at, length, **stats)
    return space


@pytest.mark.parametrize("seed", range(12))
def test_random_profiles_are_read_as_protobuf_reads_them(tmp_path: Path, seed: int) -> None:
    data = random_space(random.Random(seed)).bytes()
    path = tmp_path / "random.xplane.pb"
    path.write_bytes(data)
    assert FORMAT.recognise(head_of(path)) >= 85
    stage = staged(FORMAT, path, tmp_path / "stage")
    assert sorted(rows_of(stage)) == sorted(decoded(data))
    assert kinds(stage) == set()


def test_a_line_longer_than_a_chunk_loses_only_what_is_larger_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("xplane.decode", "xplane.file"):
        monkeypatch.setattr(f"trnprof.tracer.formats.{module}.CHUNK_BYTES", 64)
    space = random_space(random.Random(99))
    plane = PlaneMaker(space.message.planes.add(name="/host:more"))
    line = plane.line("long event", 7)
    plane.event(line, "short", 1000, 2000)
    plane.event(line, "short", 5000, 2000)
    data = space.bytes()
    path = tmp_path / "chunks.xplane.pb"
    path.write_bytes(data)
    stage = staged(FORMAT, path, tmp_path / "stage")
    sizes = [
        event.ByteSize() + 2
        for each in space.message.planes
        for known in each.lines
        for event in known.events
    ]
    fits = [size <= 64 for size in sizes]
    assert 0 < sum(fits) < len(fits)
    expected = [row for row, is_kept in zip(decoded(data), fits, strict=True) if is_kept]
    assert sorted(rows_of(stage)) == sorted(expected)
    (finding,) = stage.audit.findings
    assert (finding.kind, finding.count) == ("malformed_events", len(fits) - sum(fits))


def test_start_and_end_are_each_rounded_once(tmp_path: Path) -> None:
    space = Space()
    plane = space.plane("/host:CPU")
    line = plane.line("main", 100)
    for at, length in ((1499, 1), (1499, 2), (500, 0), (499, 1000), (-1, 0), (-501, 1)):
        plane.event(line, "x", at, length)
    stage = staged(FORMAT, space.write(tmp_path / "t.xplane.pb"), tmp_path / "stage")
    # 1.499 + 0.001 = 1.5 → 2; -0.001 → 0; -0.501 → -1; -0.5 → 0
    assert (stage.times("start_ns") - 100).tolist() == [1, 1, 1, 0, 0, -1]
    assert (stage.times("end_ns") - 100).tolist() == [2, 2, 1, 1, 0, 0]


def test_overflowing_times_are_set_aside_not_believed(tmp_path: Path) -> None:
    space = Space()
    plane = space.plane("/host:CPU")
    line = plane.line("main", 1_700_000_000_000_000_000)
    plane.event(line, "x", (1 << 63) - 1, (1 << 63) - 1)
    plane.event(line, "x", 0, -5_000)
    stage = staged(FORMAT, space.write(tmp_path / "t.xplane.pb"), tmp_path / "stage")
    assert (stage.times("end_ns") < stage.times("start_ns")).all()


def test_events_that_only_count_lie_beside(tmp_path: Path) -> None:
    space = Space()
    plane = space.plane("/host:CPU")
    line = plane.line("main")
    plane.event(line, "x", 1000, 1000)
    plane.event(line, "y", 0, 9000).num_occurrences = 30
    stage = staged(FORMAT, space.write(tmp_path / "t.xplane.pb"), tmp_path / "stage")
    found = events(stage)
    assert found["kind"].to_list() == ["thread", "module"]
    (finding,) = stage.audit.findings
    assert (finding.kind, finding.count) == ("aggregated_events", 1)


def test_allocators_become_counters(tmp_path: Path) -> None:
    space = Space()
    plane = space.plane("/host:CPU")
    line = plane.line("main", 50)
    for at, held in ((0, 100), (2000, 300), (4000, 0)):
        plane.event(
            line, "MemoryAllocation", at, 0, allocator_name=Ref("bfc"), bytes_allocated=held
        )
    stage = staged(FORMAT, space.write(tmp_path / "t.xplane.pb"), tmp_path / "stage")
    assert counters(stage) == {"bfc bytes allocated": [(50, 100.0), (52, 300.0), (54, 0.0)]}
    assert events(stage)["category"].to_list() == ["memory"] * 3


def test_repeats_have_one_fingerprint(tmp_path: Path) -> None:
    space = Space()
    plane = space.plane("/host:CPU")
    line = plane.line("main")
    for value in (1, 1, 2):
        plane.event(line, "x", 0, 10, n=value)
    stage = staged(FORMAT, space.write(tmp_path / "t.xplane.pb"), tmp_path / "stage")
    prints = stage.times("fingerprint")
    assert prints[0] == prints[1] != prints[2]
    assert np.all(prints != 0)
