"""The commands on Chakra execution traces: emulate, import, export, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.runner import names_below, trnprof
from tests.emulator.chakra.written import ALL_REDUCE, COLL, COMP, content, node, write


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    nodes = [
        node(0, COMP, "mm", num_ops=10**12, tensor_size=10**8, is_cpu_op=False),
        node(1, COMP, "copy", duration=20, is_cpu_op=True),
        node(2, COLL, "sum", data=[0], comm_type=ALL_REDUCE, comm_size=2**26, is_cpu_op=False),
    ]
    return [write(tmp_path / f"w.{rank}.et", nodes) for rank in range(4)]


def report(trace: Path) -> dict[str, object]:
    done = trnprof("report", trace, "--json")
    assert done.code == 0, done.err
    found: dict[str, object] = json.loads(done.out)
    return found


def test_they_are_emulated_and_reported(files: list[Path], tmp_path: Path) -> None:
    trace = tmp_path / "run.trnprof"
    done = trnprof("emulate", *files, "--system", "trn2-ultra", "-o", trace)
    assert done.code == 0, done.err
    assert "keep the duration that was measured" in done.err
    assert report(trace)["is_simulation"] is True
    assert trnprof("validate", trace).code == 0
    shown = trnprof("view", trace, "--print").out
    assert "host" in shown


def test_import_emulates_them_too(files: list[Path], tmp_path: Path) -> None:
    one, two = tmp_path / "one.trnprof", tmp_path / "two.trnprof"
    done = trnprof("import", *files, "-o", one, "--system", "trn2")
    assert done.code == 0, done.err
    assert "emulating it on trn2 (--system)" in done.err
    assert trnprof("emulate", *files, "--system", "trn2", "-o", two).code == 0
    assert report(one)["steps"] == report(two)["steps"]


def test_there_and_back(files: list[Path], tmp_path: Path) -> None:
    trace, again, folder = tmp_path / "a.trnprof", tmp_path / "b.trnprof", tmp_path / "traces"
    trnprof("emulate", *files, "--system", "trn2", "-o", trace)
    done = trnprof("export", trace, "--to", "chakra", "-o", folder)
    assert done.code == 0, done.err
    assert "--workload-configuration=" in done.err
    assert names_below(folder) == [f"workload.{rank}.et" for rank in range(4)]
    assert trnprof("export", trace, "--to", "chakra", "-o", folder).code == 2
    exported = sorted(folder.iterdir())
    assert trnprof("emulate", *exported, "--system", "trn2", "-o", again).code == 0
    assert report(again)["steps"] == report(trace)["steps"]


def test_bad_input_is_one_line(files: list[Path], tmp_path: Path) -> None:
    before = names_below(tmp_path)
    out = ("--system", "trn2", "-o", tmp_path / "run.trnprof")
    torn = tmp_path / "torn.et"
    torn.write_bytes(files[0].read_bytes()[:-3])
    assert "is cut off in message 3" in trnprof("emulate", torn, *out).only_error
    torn.write_bytes(content([node(1, COMP, data=[1], tensor_size=1)]))
    assert "never run: 1 → 1" in trnprof("emulate", torn, *out).only_error
    torn.unlink()
    assert "only one is there" in trnprof("emulate", files[0], *out).only_error
    twice = trnprof("emulate", files[0], files[0], *out).only_error
    assert twice.endswith("is given more than once; give the file of each rank once")
    assert "rank 1 is missing" in trnprof("emulate", files[0], files[2], *out).only_error
    assert "one trace at a time" in trnprof("emulate", tmp_path, tmp_path, *out).only_error
    assert names_below(tmp_path) == before


def test_a_folder_of_them_is_told_what_to_do(files: list[Path], tmp_path: Path) -> None:
    done = trnprof("import", tmp_path, "-o", tmp_path / "run.trnprof")
    assert "trnprof emulate FILE.et…" in done.only_error


def test_files_of_astra_sim_that_make_no_sense(files: list[Path], tmp_path: Path) -> None:
    network, system = tmp_path / "n.yml", tmp_path / "s.json"
    system.write_text('{"all-reduce-implementation": ["magic"]}')
    names = (*files, "--system", f"{network},{system}", "-o", tmp_path / "run.trnprof")
    assert "cannot read" in trnprof("emulate", *names).only_error
    network.write_text("topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50 ]\n")
    assert "no list latency" in trnprof("emulate", *names).only_error
    network.write_text(network.read_text() + "latency: [ 500 ]\n")
    assert "'magic' is not known here" in trnprof("emulate", *names).only_error
    system.write_text('{"roofline-enabled": 1}')
    assert "needs peak-perf" in trnprof("emulate", *names).only_error


def test_a_machine_of_astra_sim_has_no_engines_to_record_on(tmp_path: Path) -> None:
    network = "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]\n"
    (tmp_path / "n.yml").write_text(network)
    (tmp_path / "s.json").write_text("{}")
    done = trnprof("record", "--system", "n.yml,s.json", "--", "true", folder=tmp_path)
    assert "ASTRA-sim's inputs describe no engines" in done.only_error
    assert names_below(tmp_path) == ["n.yml", "s.json"]
