"""XProf's trace.json.gz: the same run as its .xplane.pb must come out the same, as far as the JSON has it.

tests/data/jax_cpu.* are both files of one run (see test_xplane_events.py).
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.tracer.formats.staged import events, head_of, kinds, staged, table
from tests.tracer.formats.xla_profiles import gpu_space, tpu_space
from tests.tracer.formats.xspaces import Space

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.chrome import format as chrome
from trnprof.tracer.formats.kineto import format as kineto
from trnprof.tracer.formats.xplane import format as xplane
from trnprof.tracer.formats.xprof_json.format import FORMAT
from trnprof.tracer.ingest.stage import Stage

DATA = Path(__file__).parents[2] / "data"
INTERNAL = ("_pt", "_p", "_ct", "_c", "_r")
"""Statistics that the exporter leaves out."""


def exported(space: Space) -> dict[str, Any]:
    """The JSON that XProf's exporter makes of a space: planes are processes, lines threads, statistics strings."""
    found: list[dict[str, Any]] = []
    for pid, plane in enumerate(space.message.planes, 1):
        words = {entry.key: entry.value.name for entry in plane.stat_metadata}
        known = {entry.key: entry.value for entry in plane.event_metadata}
        found.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane.name}})
        for line in plane.lines:
            place = {"pid": pid, "tid": line.id}
            found.append({"ph": "M", **place, "name": "thread_name", "args": {"name": line.name}})
            order = {"sort_index": line.id}
            found.append({"ph": "M", **place, "name": "thread_sort_index", "args": order})
            for event in line.events:
                kind = known[event.metadata_id]
                stats = [*kind.stats, *event.stats]
                args = {words[s.metadata_id]: text(s, words) for s in stats}
                if kind.display_name:
                    args["long_name"] = kind.name
                found.append(
                    {
                        "ph": "X",
                        **place,
                        "ts": (line.timestamp_ns * 1000 + event.offset_ps) / 1e6,
                        "dur": max(event.duration_ps, 1) / 1e6,
                        "name": kind.display_name or kind.name,
                        "args": {k: v for k, v in args.items() if k not in INTERNAL},
                    }
                )
    found.append({})
    return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": found}


def text(stat: Any, words: dict[int, str]) -> str:
    (value,) = (getattr(stat, f.name) for f, _ in stat.ListFields() if f.name != "metadata_id")
    return words[value] if stat.HasField("ref_value") else str(value)


def read(tmp_path: Path, document: Any, name: str = "host.trace.json.gz") -> Stage:
    path = tmp_path / name
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    return staged(FORMAT, path, tmp_path / f"stage-{len(list(tmp_path.iterdir()))}")


def both(tmp_path: Path, space: Space) -> tuple[Stage, Stage]:
    binary = staged(xplane.FORMAT, space.write(tmp_path / "h.xplane.pb"), tmp_path / "binary")
    return binary, read(tmp_path, exported(space))


def test_both_files_of_a_real_run_give_the_same(tmp_path: Path) -> None:
    stages = [
        staged(xplane.FORMAT, DATA / "jax_cpu.xplane.pb.xz", tmp_path / "binary"),
        staged(FORMAT, DATA / "jax_cpu.trace.json.gz", tmp_path / "json"),
    ]
    columns = ["track", "kind", "name", "category", "start_ns", "end_ns", "step"]
    binary, text = (events(stage).select(columns).sort(columns[:6]) for stage in stages)
    assert text.height == binary.height == 279
    # an event of the JSON has no producer, so only what lies on the steps' own thread has a step there
    assert text.drop("step").equals(binary.drop("step"))
    assert stages[0].steps == stages[1].steps
    assert stages[1].facts.base_unix_ns is None
    assert kinds(stages[1]) == set()


@pytest.mark.parametrize("make", [tpu_space, gpu_space])
def test_devices_mean_the_same_in_both(tmp_path: Path, make: Any) -> None:
    stages = both(tmp_path, make())
    columns = ["track", "kind", "name", "category", "start_ns", "end_ns", "step", "bytes", "dtype"]
    columns += ["source_memory", "target_memory"]
    columns = [c for c in columns if c in events(stages[0]).columns]
    binary, text = (events(stage).select(columns).sort(columns[:6]) for stage in stages)
    assert text.rows() == binary.rows()
    assert stages[0].steps == stages[1].steps
    assert kinds(stages[1]) == set()


def test_operations_and_launches_are_the_same_in_both(tmp_path: Path) -> None:
    stages = both(tmp_path, tpu_space())
    shared = ["kind", "name", "module_path", "source_file", "source_line", "input_shapes"]
    shared += ["model_flops", "logical_bytes", "out_bytes"]
    binary, text = (table(stage, "ops").select(shared).sort("name") for stage in stages)
    assert text.rows() == binary.rows()
    edges = []
    for stage in stages:
        found = events(stage)
        flows = table(stage, "flows").select("source_row", "target_row")
        edges.append(
            {
                (found["start_ns"][s], found["start_ns"][t], found["name"][s])
                for s, t in flows.rows()
            }
        )
    assert edges[0] == edges[1]
    assert len(edges[0]) == 4


def test_random_host_events_are_the_same_in_both(tmp_path: Path) -> None:
    chance = random.Random(3)
    space = Space()
    plane = space.plane("/host:CPU")
    for number in range(3):
        line = plane.line(f"thread/{number}", 1000 * number)
        for _ in range(200):
            length = chance.choice([0, 0, 1_000, chance.randrange(10**9)])
            plane.event(
                line, chance.choice("abc"), chance.randrange(10**9), length, n=chance.random()
            )
    stages = both(tmp_path, space)
    columns = ["track", "name", "category", "start_ns", "end_ns"]
    binary, text = (events(stage).select(columns).sort(columns) for stage in stages)
    assert text.drop("end_ns").rows() == binary.drop("end_ns").rows()
    # both times were rounded to doubles of microseconds
    assert (text["end_ns"] - binary["end_ns"]).abs().max() in (0, 1)


def test_arguments_are_kept_as_written(tmp_path: Path) -> None:
    space = Space()
    plane = space.plane("/host:CPU")
    plane.event(plane.line("main"), "x", 0, 10**6, foo=3, bar="x,y", big=(1 << 64) - 1)
    (attributes,) = events(read(tmp_path, exported(space)))["attributes"].to_list()
    assert json.loads(attributes) == {"foo": "3", "bar": "x,y", "big": "18446744073709551615"}


def test_a_million_events_are_told_to_be_a_limit(tmp_path: Path) -> None:
    head = b'{"traceEvents":[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/host:CPU"}},'
    row = b'{"ph":"X","pid":1,"tid":2,"ts":%d,"dur":1,"name":"a"},'
    rows = [row % at for at in range(1000)] * 1000
    full = read(tmp_path, head + b"".join(rows) + b"{}]}", "full.trace.json")
    assert full.rows == 1_000_000
    (finding,) = [f for f in full.audit.findings if f.kind == "event_limit"]
    assert finding.severity == "warning"
    assert "999000 ns" in finding.example
    fewer = read(tmp_path, head + b"".join(rows[:-1]) + b"{}]}", "fewer.trace.json")
    assert kinds(fewer) == set()


def test_a_cut_file_keeps_whole_events(tmp_path: Path) -> None:
    content = json.dumps(exported(tpu_space())).encode()
    whole = {
        row[:3]
        for row in events(read(tmp_path, content)).select("name", "start_ns", "end_ns").rows()
    }
    for size in range(400, len(content), 997):
        stage = read(tmp_path, content[:size])
        assert "truncated" in kinds(stage) or "unclosed" in kinds(stage)
        if stage.rows:
            assert set(events(stage).select("name", "start_ns", "end_ns").rows()) <= whole


def test_damage_never_crashes(tmp_path: Path) -> None:
    content = json.dumps(exported(tpu_space())).encode()
    chance = random.Random(11)
    for _ in range(60):
        data = bytearray(content)
        for _ in range(chance.choice([1, 5, 60])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        said = ""
        try:
            read(tmp_path, bytes(data))
        except ProfileError as error:
            said = str(error)
        assert "\n" not in said


def test_events_without_a_time_are_told(tmp_path: Path) -> None:
    document = exported(tpu_space())
    events_ = [e for e in document["traceEvents"] if e.get("ph") == "X"]
    for event in events_[-3:]:
        del event["ts"]
    found = {f.kind: f for f in read(tmp_path, document).audit.findings}
    assert found["missing_time"].count == 3
    assert found["missing_time"].example == events_[-3]["name"]


def test_phases_of_others_are_told(tmp_path: Path) -> None:
    document = exported(tpu_space())
    document["traceEvents"] += [{"ph": "C", "pid": 1, "tid": 1, "ts": 1, "args": {"a": 1}}] * 2
    (finding,) = [f for f in read(tmp_path, document).audit.findings if f.kind == "unknown_phase"]
    assert (finding.count, finding.severity) == (2, "warning")


@pytest.mark.parametrize("content", [b"{}", b'{"other": 3}'])
def test_json_without_events_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ProfileError, match="no traceEvents"):
        read(tmp_path, content)


def test_it_is_told_apart_from_other_traces(tmp_path: Path) -> None:
    path = tmp_path / "x.trace.json"
    path.write_text(json.dumps(exported(gpu_space())))
    head = head_of(path)
    mine = FORMAT.recognise(head)
    assert mine > max(chrome.FORMAT.recognise(head), kineto.FORMAT.recognise(head))
    path.write_text('{"traceEvents":[{"ph":"M","name":"process_name","args":{"name":"python"}}]}')
    assert FORMAT.recognise(head_of(path)) == 0
