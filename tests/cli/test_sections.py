"""Sections, formats, explanations and queries on the command line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from tests.cli.runner import ROOT, trnprof

from trnprof.analysis.sections.registry import QUESTIONS

SAMPLE = ROOT / "sample_traces" / "transformer-trn2.trnprof"


def test_a_section_in_text_json_and_markdown_has_the_same_rows() -> None:
    text = trnprof("report", SAMPLE, "--section", "critical-path")
    assert (text.code, text.err) == (0, "")
    assert text.out.startswith(" Critical path\n")
    assert max(map(len, text.out.splitlines())) <= 80
    document = json.loads(trnprof("report", SAMPLE, "--json", "--section", "critical-path").out)
    assert document["schema"] == 1
    assert list(document["sections"]) == ["critical-path"]
    kinds = [row["doing"] for row in document["sections"]["critical-path"]["by_kind"]]
    done = trnprof("report", SAMPLE, "--format", "markdown", "--section", "critical-path")
    table = done.out.partition("### by kind\n\n")[2].partition("\n\n")[0].splitlines()
    assert table[1] == "| --- | ---: | ---: | ---: |"
    assert [line.split(" | ")[0].removeprefix("| ") for line in table[2:]] == kinds
    assert [line.split("  ")[0].strip() for line in text.out.partition("pieces\n")[2].splitlines()[: len(kinds)]] == kinds  # fmt: skip


def test_all_sections_come_in_the_order_of_the_report(tmp_path: Path) -> None:
    out = tmp_path / "all.json"
    assert trnprof("report", SAMPLE, "--section", "all", "--json", "-o", out).code == 0
    document = json.loads(out.read_text("utf-8"))
    assert list(document["sections"]) == list(QUESTIONS)
    for section in document["sections"].values():
        assert section.get("nothing_to_say", "because ").startswith("because ")


def test_the_first_screen_in_markdown() -> None:
    done = trnprof("report", SAMPLE, "--format", "markdown")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("# transformer-trn2.trnprof")
    assert "### what holds it back" in done.out
    for line in done.out.splitlines():
        assert not line.startswith("|") or line.endswith("|")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--section critcal-path", "no section 'critcal-path'; did you mean critical-path? (there"),
        ("--step 99", "no step 99; it has steps 0.."),
        ("--rank 7", "no rank 7; it has ranks 0"),
        ("--section critical-path --step 99", "no step 99"),
    ],
)
def test_what_is_not_there_is_one_line(options: str, says: str) -> None:
    assert says in trnprof("report", SAMPLE, *options.split()).only_error


def test_a_missing_extra_is_told_before_anything_is_written(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['altair'] = None; sys.argv = ['trnprof', *sys.argv[1:]]\n"
        "from trnprof.cli.main import main; main()"
    )
    for options in (("--format", "html", "-o", "a.html"), ("--save-plots", "plots")):
        done = trnprof_with(code, "report", SAMPLE, *options, folder=tmp_path)
        assert done[0] == 2
        assert done[1].splitlines() == [
            "trnprof: altair is not installed; install it with: pip install 'trnprof[html]'"
        ]
    assert list(tmp_path.iterdir()) == []


def trnprof_with(code: str, *arguments: str | Path, folder: Path) -> tuple[int, str]:
    """Run the command in a process that was prepared by other code: exit code and stderr."""
    import subprocess

    line = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder, check=False)
    return done.returncode, done.stderr


def test_html_and_plots_go_to_files(tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="charts need trnprof[html]")
    out, plots = tmp_path / "r.html", tmp_path / "plots"
    done = trnprof("report", SAMPLE, "--format", "html", "-o", out, "--save-plots", plots)
    assert done.code == 0, done.err
    html = out.read_text("utf-8")
    assert html.startswith("<!DOCTYPE html>")
    ids = re.findall(r'<section id="section-([\w-]+)">', html)
    assert ids[: len(QUESTIONS) + 1] == ["overview", *QUESTIONS]
    assert {p.name for p in plots.iterdir()} >= {"roofline.svg", "roofline.png"}


def test_explain() -> None:
    done = trnprof("explain", "mfu")
    assert (done.code, done.err) == (0, "")
    for word in ("mfu_estimated_percent", "fraction", "mfu_hlo_estimated_percent", "Neuron"):
        assert word in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert "did you mean mfu_estimated_percent?" in trnprof("explain", "mfuu").only_error
    listed = trnprof("explain").out.splitlines()
    assert max(map(len, listed)) <= 80
    assert json.loads(trnprof("explain", "--json").out).keys() == {
        line.split()[0] for line in listed
    }


def test_a_query_in_every_format(tmp_path: Path) -> None:
    sql = "SELECT engine, SUM(active_ns) AS t FROM engine_busy WHERE step IS NOT NULL GROUP BY engine ORDER BY engine"
    rows = json.loads(trnprof("query", SAMPLE, sql, "--format", "json").out)
    assert [r["engine"] for r in rows] == sorted(r["engine"] for r in rows)
    table = trnprof("query", SAMPLE, sql).out.splitlines()
    assert [line.split() for line in table[1:]] == [[r["engine"], str(r["t"])] for r in rows]
    csv = trnprof("query", SAMPLE, sql, "--format", "csv").out.splitlines()
    assert csv == ["engine,t", *(f"{r['engine']},{r['t']}" for r in rows)]
    out = tmp_path / "q.parquet"
    assert trnprof("query", SAMPLE, sql, "--format", "parquet", "-o", out).code == 0
    assert pyarrow.parquet.read_table(out).to_pylist() == rows
    assert "exists; give --force" in trnprof("query", SAMPLE, sql, "-o", out).only_error
    assert "give -o" in trnprof("query", SAMPLE, sql, "--format", "parquet").only_error
    assert "did you mean events?" in trnprof("query", SAMPLE, "SELECT * FROM event").only_error
