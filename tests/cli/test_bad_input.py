"""Traces, systems, commands and disks that are not as they should be: one line, exit code 2, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.runner import PYTHON, TINY, names_below, trnprof

READING = {
    "report": (),
    "view": ("--print",),
    "export": ("-o", "out"),
    "merge": ("-o", "out"),
    "emulate": ("--system", "trn2", "-o", "out"),
}


@pytest.mark.parametrize("command", READING)
def test_what_is_no_trace_is_said(command: str, tmp_path: Path) -> None:
    (tmp_path / "run.trnprof").mkdir()
    line = (command, "ran.trnprof", *READING[command])
    assert trnprof(*line, folder=tmp_path).only_error == (
        "trnprof: no such trace: ran.trnprof; did you mean run.trnprof?"
    )
    assert names_below(tmp_path) == ["run.trnprof"]


def test_an_empty_directory_and_a_file_are_no_traces(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "profile.json").write_text("{}")
    empty = trnprof("report", "empty", folder=tmp_path).only_error
    assert empty == "trnprof: empty is not a trace: the directory is empty"
    file = trnprof("report", "profile.json", folder=tmp_path).only_error
    assert "profile.json is a file, not a trace" in file
    assert names_below(tmp_path) == ["empty", "profile.json"]


def test_a_truncated_shard_is_named_and_the_rest_is_read(copied: Path) -> None:
    shard = copied / "events" / "emulator-0.arrow"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    report = trnprof("report", copied, "--json")
    assert report.code == 0
    assert report.err.startswith("trnprof: error: emulator-0.arrow is truncated")
    assert json.loads(report.out)["system"]["name"] == "trn2"
    assert trnprof("validate", copied).code == 1


def test_a_truncated_manifest_is_named_with_its_line(copied: Path) -> None:
    manifest = copied / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    error = trnprof("info", copied).only_error
    assert f"{manifest}: malformed" in error
    assert " at line " in error


def test_a_trace_of_the_future_is_not_guessed_at(copied: Path) -> None:
    manifest = copied / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema": 99}))
    assert "trace schema 99" in trnprof("report", copied).only_error


def test_an_unknown_system_suggests_the_nearest(tmp_path: Path) -> None:
    error = trnprof("record", "--system", "trn2-utra", "--", "true", folder=tmp_path).only_error
    assert "unknown system 'trn2-utra': did you mean 'trn2-ultra'? known are " in error
    assert names_below(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema = 1\nname = \n", "bad.toml: not valid TOML: Invalid value (at line 2, column 8)"),
        ('schema = 1\nextends = "trn9"\n', "bad.toml:2: [top level] extends"),
    ],
)
def test_a_malformed_system_names_file_and_place(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    error = trnprof("record", "--system", "bad.toml", "--", "true", folder=tmp_path).only_error
    assert "bad.toml" in error
    assert says in error
    assert names_below(tmp_path) == ["bad.toml"]


def test_a_system_file_that_is_missing(tmp_path: Path) -> None:
    line = ("record", "--system", "none.toml", "--", "true")
    assert "none.toml: No such file" in trnprof(*line, folder=tmp_path).only_error


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([PYTHON, "missing.py"], "missing.py: no such file"),
        (["./plain.py"], "./plain.py is not executable: write python ./plain.py"),
        (["./no-shebang"], "cannot start ./no-shebang: Exec format error"),
    ],
)
def test_a_command_that_cannot_run_leaves_nothing(
    tmp_path: Path, command: list[str], says: str
) -> None:
    (tmp_path / "plain.py").touch()
    (tmp_path / "no-shebang").write_text("echo hi\n")
    (tmp_path / "no-shebang").chmod(0o755)
    before = names_below(tmp_path)
    assert says in trnprof("record", "--", *command, folder=tmp_path).only_error
    assert names_below(tmp_path) == before


def test_malformed_steps_are_refused_before_anything_runs(tmp_path: Path) -> None:
    empty = trnprof("record", "--steps", "3..1", "--", "touch", "ran", folder=tmp_path).only_error
    assert "range '3..1': its end lies before its start" in empty
    text = trnprof("record", "--steps", "last", "--", "touch", "ran", folder=tmp_path).only_error
    assert "range 'last': expected A..B" in text
    assert names_below(tmp_path) == []


def test_a_command_with_nothing_to_capture_passes_through(tmp_path: Path) -> None:
    code = "import sys; print('to stdout'); print('to stderr', file=sys.stderr); sys.exit(7)"
    done = trnprof("record", "-o", "out", "--", PYTHON, "-c", code, folder=tmp_path)
    assert (done.code, done.out) == (7, "to stdout\n")
    own, said = done.err.splitlines()
    assert own == "to stderr"
    assert said.startswith("trnprof: nothing was captured: ")
    assert "failed with code 7" in said
    assert names_below(tmp_path) == []


def test_an_output_that_exists_is_refused_before_anything_runs(
    copied: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    (tmp_path / "file").touch()
    before = names_below(tmp_path)
    touch = ("--", "touch", "ran")
    refused = trnprof("record", "-o", copied, *touch, folder=tmp_path).only_error
    assert (
        refused == f"trnprof: {copied} exists; give --force to replace it, or choose another path"
    )
    for name in ("thesis", "file"):
        error = trnprof("record", "-o", name, "--force", *touch, folder=tmp_path).only_error
        assert error == f"trnprof: {name} exists and is not a trace; choose another path"
    assert names_below(tmp_path) == before


@pytest.mark.parametrize("command", ["record", "emulate", "report", "export"])
def test_a_read_only_directory(recording: Path, read_only: Path, command: str) -> None:
    out = read_only / "out"
    lines: dict[str, list[str | Path]] = {
        "record": ["-o", out, "--", "touch", read_only.parent / "ran"],
        "emulate": [recording, "--system", "trn2", "-o", out],
    }
    error = trnprof(command, *lines.get(command, [recording, "-o", out])).only_error
    assert error == f"trnprof: cannot write {out}: the file system is read-only: write elsewhere"
    assert names_below(read_only) == []
    assert not (read_only.parent / "ran").exists()


@pytest.mark.parametrize("command", ["emulate", "export", "compact"])
def test_a_full_disk_is_left_as_it_was(recording: Path, small_disk: Path, command: str) -> None:
    (small_disk / "ballast").write_bytes(bytes(60 << 10))
    out = small_disk / "out"
    system = ["--system", "trn2"] if command == "emulate" else []
    done = trnprof(command, recording, *system, "-o", out)
    assert (done.code, done.out) == (2, "")
    said = done.err.splitlines()[-1]
    assert said.startswith(f"trnprof: cannot write {out}")
    assert said.endswith("the disk is full: free space or write elsewhere")
    assert names_below(small_disk) == ["ballast"]


def test_a_disk_that_fills_while_a_program_runs(small_disk: Path) -> None:
    pytest.importorskip("torch")
    out = small_disk / "run.trnprof"
    done = trnprof("record", "-o", out, "--", PYTHON, TINY)
    assert done.code == 2
    # the program itself is not disturbed
    assert done.out == "step 0\nstep 1\nstep 2\n"
    assert all(line.startswith("trnprof: ") for line in done.err.splitlines()), done.err
    assert "the disk is full: free space or write elsewhere" in done.err
    assert trnprof("info", out).code == 0
