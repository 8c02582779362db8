"""emulate, merge, compact: traces made of traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.runner import names_below, trnprof

from trnprof.emulator.capture.store import load_workload
from trnprof.tracer.reader import open_trace


def test_emulate_times_the_same_program_on_another_machine(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "ultra.trnprof"
    line = ("emulate", recording, "--system", "trn2-ultra", "-o", out)
    done = trnprof(*line)
    assert (done.code, done.out) == (0, "")
    assert f"next: trnprof report {out}" in done.err
    assert load_workload(out) == load_workload(recording)
    assert trnprof("validate", out).code == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["system"]["name"], manifest["command"]) == ("trn2-ultra", None)
    assert names_below(tmp_path)[0] == "ultra.trnprof"
    assert [p.name for p in tmp_path.iterdir()] == ["ultra.trnprof"]
    assert "exists; give --force" in trnprof(*line).only_error


def test_eager_execution_launches_one_kernel_an_operation(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "eager.trnprof"
    done = trnprof("emulate", recording, "--system", "trn2", "--execution", "eager", "-o", out)
    assert done.code == 0
    assert "on trn2 (eager)" in done.err

    def end(path: Path) -> int:
        steps = open_trace(path).steps
        return int((steps["end_ns"] - steps["start_ns"]).sum())

    assert end(out) > end(recording)
    assert open_trace(out).manifest["emulation"]["execution"] == "eager"


def test_emulate_on_ones_own_machine_over_the_trace_that_it_reads(
    copied: Path, tmp_path: Path
) -> None:
    own = tmp_path / "mine.toml"
    own.write_text('schema = 2\nextends = "trn2"\nname = "mine"\ndescription = "my own"\n')
    before = load_workload(copied)
    assert trnprof("emulate", copied, "--system", own, "-o", copied, "--force").code == 0
    assert load_workload(copied) == before
    assert open_trace(copied).system["name"] == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == [copied.name, "mine.toml"]


def test_merge_joins_and_refuses(recording: Path, copied: Path, tmp_path: Path) -> None:
    out = tmp_path / "both.trnprof"
    done = trnprof("merge", recording, copied, "-o", out)
    assert (done.code, done.out) == (0, "")
    assert "2 recordings joined" in done.err
    one = open_trace(recording).events.collect().height
    assert open_trace(out).events.collect().height == 2 * one
    assert "exists; give --force" in trnprof("merge", recording, "-o", out).only_error
    missing = trnprof("merge", recording, tmp_path / "none", "-o", tmp_path / "x").only_error
    assert "no such trace" in missing
    assert not (tmp_path / "x").exists()


def test_compact_keeps_every_row_in_fewer_bytes(copied: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.trnprof"
    assert trnprof("compact", copied, "-o", out).code == 0
    before, after = (open_trace(p).events.collect().sort("event_id") for p in (copied, out))
    assert before.equals(after)
    assert "exists; give --force" in trnprof("compact", copied, "-o", out).only_error
    assert trnprof("compact", copied, "-o", out, "--force").code == 0


@pytest.mark.parametrize("command", ["emulate", "merge"])
def test_force_never_replaces_what_is_no_trace(
    recording: Path, tmp_path: Path, command: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    system = ["--system", "trn2"] if command == "emulate" else []
    line = (command, recording, *system, "-o", precious, "--force")
    assert f"{precious} exists and is not a trace" in trnprof(*line).only_error
    assert names_below(tmp_path) == ["precious", "precious/thesis.txt"]


def test_a_trace_without_a_program_cannot_be_timed_again(copied: Path, tmp_path: Path) -> None:
    (copied / "workload.arrow").unlink()
    out = tmp_path / "out.trnprof"
    error = trnprof("emulate", copied, "--system", "trn2", "-o", out).only_error
    assert "holds no captured workload" in error
    assert "trnprof record" in error
    assert not out.exists()
