"""report, view, export, info, validate on one recording."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.runner import COMMAND, trnprof

import trnprof as package
from trnprof.cli.viewing import print_frame
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.reader import open_trace


def width(line: str) -> int:
    """Columns of a terminal that a line takes."""
    return sum(0 if unicodedata.combining(c) else 1 for c in line)


def test_report_says_where_the_time_went(recording: Path) -> None:
    done = trnprof("report", recording)
    assert (done.code, done.err) == (0, "")
    for words in (
        "mlp.trnprof",
        "trn2",
        "emulated, fused",
        "3 steps",
        "What holds it back",
        "Tensor",
    ):
        assert words in done.out
    assert max(map(width, done.out.splitlines())) <= 80


def test_report_as_json_goes_to_a_file_whole(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = trnprof("report", recording, "--json", "-o", out)
    assert (done.code, done.out, done.err) == (0, "", "")
    document = json.loads(out.read_text())
    assert document["tool_version"] == package.__version__
    assert document["is_simulation"] is True
    assert document["system"]["name"] == "trn2"
    assert isinstance(document["schema"], int)
    assert document["trace"] == "mlp.trnprof"
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    again = trnprof("report", recording, "-o", out).only_error
    assert again == f"trnprof: {out} exists; give --force to replace it, or choose another path"
    assert json.loads(out.read_text()) == document
    assert trnprof("report", recording, "--step", "1", "-o", out, "--force").code == 0
    assert out.read_text().startswith("mlp.trnprof")


def test_report_of_one_step_and_of_one_that_is_not_there(recording: Path) -> None:
    done = trnprof("report", recording, "--json", "--step", "1")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["focus"] == 1
    assert (
        "no step 99; it has steps 0..2" in trnprof("report", recording, "--step", "99").only_error
    )


@pytest.mark.parametrize("size", [(40, 10), (237, 61)])
def test_a_printed_frame_has_the_size_that_was_asked_for(
    recording: Path, size: tuple[int, int]
) -> None:
    done = trnprof("view", recording, "--print", "--size", f"{size[0]}x{size[1]}")
    assert (done.code, done.err) == (0, "")
    lines = done.out.removesuffix("\n").split("\n")
    assert len(lines) == size[1]
    assert max(map(width, lines)) <= size[0]
    assert "Tensor" in done.out


def test_ascii_and_a_window(recording: Path) -> None:
    done = trnprof("view", recording, "--print", "--ascii", "--at", "5us..12us")
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii()
    assert "Tensor" in done.out


def test_a_terminal_without_unicode_is_no_error(recording: Path) -> None:
    done = trnprof("view", recording, "--print", env={"PYTHONIOENCODING": "ascii"})
    assert (done.code, done.err) == (0, "")
    assert "Tensor" in done.out


@pytest.mark.parametrize(
    ("size", "at", "says"),
    [
        ("wide", None, "--size 'wide': expected WxH, such as 100x30"),
        ("3x3", None, "--size '3x3': at least 40x10"),
        ("99999x20", None, "at most 1000x1000"),
        ("80x20", "5us", "--at '5us': expected A..B, such as 1.2ms..1.5ms"),
        ("80x20", "5us..2us", "its end lies before its start"),
        ("80x20", "a..b", "expected a time such as 12ms"),
        ("80x20", "1us..2parsec", "unknown unit 'parsec'"),
    ],
)
def test_a_frame_that_cannot_be_is_refused(size: str, at: str | None, says: str) -> None:
    with pytest.raises(TrnprofError, match=re.escape(says)):
        print_frame(Path("none"), size=size, at=at, ascii_only=False, svg=None, force=False)


def test_a_frame_outside_the_trace_is_refused(recording: Path) -> None:
    line = ("view", recording, "--print", "--at", "100s..200s")
    assert "lies outside the trace" in trnprof(*line).only_error


def test_the_viewer_needs_a_terminal(recording: Path) -> None:
    assert "--print" in trnprof("view", recording).only_error
    shell = 'exec <&- >&-; exec "$@"'

    done = subprocess.run(
        ["sh", "-c", shell, "sh", *COMMAND, "view", str(recording)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--print" in done.stderr


def test_a_frame_as_svg_is_well_formed(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "frame.svg"
    done = trnprof("view", recording, "--svg", out)
    assert (done.code, done.out) == (0, "")
    root = ElementTree.parse(out).getroot()
    assert root.tag.endswith("svg")
    assert "Tensor" in "".join(root.itertext())


def test_export_writes_what_it_says_compressed_or_not(recording: Path, tmp_path: Path) -> None:
    plain, packed = tmp_path / "run.pftrace", tmp_path / "run.pftrace.gz"
    packed.write_text("old")
    done = trnprof("export", recording, "--to", "perfetto", "-o", plain)
    assert (done.code, done.out) == (0, "")
    events = open_trace(recording).events.collect().height
    assert f"{plain}: {events} slices, " in done.err
    assert trnprof("export", recording, "-o", packed, "--force").code == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == [plain.name, packed.name]
    refused = trnprof("export", recording, "-o", plain).only_error
    assert refused == f"trnprof: {plain} exists; give --force to replace it, or choose another path"


@pytest.mark.parametrize("command", ["report", "export"])
def test_an_output_file_that_cannot_be_is_refused(
    recording: Path, tmp_path: Path, command: str
) -> None:
    no_folder = trnprof(command, recording, "-o", tmp_path / "missing" / "out").only_error
    assert f"there is no directory {tmp_path / 'missing'}" in no_folder
    directory = trnprof(command, recording, "-o", tmp_path, "--force").only_error
    assert directory == f"trnprof: {tmp_path} is a directory; name a file"
    assert list(tmp_path.iterdir()) == []


def test_info_counts_what_polars_counts(recording: Path) -> None:
    done = trnprof("info", recording, "--json")
    assert (done.code, done.err) == (0, "")
    rows = json.loads(done.out)["rows"]
    trace = open_trace(recording)
    assert rows["events"] == trace.events.collect().height
    assert rows["flows"] == trace.flows.collect().height
    assert rows["ops"] == trace.ops.collect().height
    assert rows["steps"] == 3
    text = trnprof("info", recording)
    assert text.code == 0
    assert "trn2 (emulated)" in text.out


def test_validate_passes_a_good_trace_and_names_a_planted_fault(copied: Path) -> None:
    good = trnprof("validate", copied)
    assert (good.code, good.out, good.err) == (0, f"{copied}: nothing wrong\n", "")
    (copied / "ops" / "emulator.arrow").unlink()
    bad = trnprof("validate", copied)
    assert (bad.code, bad.err) == (1, "")
    assert "ops/emulator.arrow" in bad.out
    assert "dangling_op" in bad.out
    as_json = trnprof("validate", copied, "--json")
    assert as_json.code == 1
    assert "dangling_op" in {p["kind"] for p in json.loads(as_json.out)["problems"]}
