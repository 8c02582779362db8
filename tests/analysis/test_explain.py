"""Every figure of a report has an explanation, and what is explained is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trnprof
from trnprof.analysis.explain import explain, known_metrics
from trnprof.analysis.report import build_report
from trnprof.analysis.sections.registry import QUESTIONS, build_section
from trnprof.analysis.sections.subject import subject_of
from trnprof.tracer.errors import TrnprofError

ROOT = Path(__file__).parents[2]
NO_FIGURES = {"name", "rank", "host", "chips", "clock_id", "replica_count", "start_ns", "module", "phase", "bound_by", "core", "chip", "dma_peak_bytes_per_s"}  # fmt: skip


def figures(report: dict[str, Any]) -> set[str]:
    """The keys of all figures in the windows and ranks of a report."""
    windows = [report["overall"], *report["steps"]]
    objects = [w[k] for w in windows for k in ("metrics", "breakdown", "phases")]
    objects += [o for w in windows for o in w["operators"]]
    objects += [c["metrics"] for w in windows for c in w["cores"]]
    objects += report["ranks"]["ranks"]
    return {key for o in objects for key in o} - NO_FIGURES


@pytest.mark.parametrize("sample", ["transformer-trn2", "convnet-trn2-eager", "mlp-trn2"])
def test_every_figure_is_explained(sample: str) -> None:
    report = build_report(trnprof.open(ROOT / "sample_traces" / f"{sample}.trnprof"))
    assert figures(report) - set(known_metrics()) == set()


def test_what_is_explained_is_in_a_report() -> None:
    trace = trnprof.open(ROOT / "sample_traces" / "transformer-trn2.trnprof")
    found = figures(build_report(trace))
    for name in ("roofline", "memory"):
        for shown in build_section(name, subject_of(trace)).tables:
            found |= {key for row in shown.rows for key in row}
    # what an allocator reserves, no emulator knows
    found |= {"unused_share", "highest_unused"}
    assert set(known_metrics()) - found == {"dma_peak_bytes_per_s"} & set(known_metrics())


def test_short_names_and_mistakes() -> None:
    assert explain("mfu").key == "mfu_estimated_percent"
    assert explain("roofline").key == "roofline_s"
    assert explain("GpSimd_engine_active_time").name == "active time of GpSimd"
    for wrong, meant in (("mfuu", "mfu_estimated_percent"), ("breakdwn", ""), ("total_tim", "total_time")):  # fmt: skip
        with pytest.raises(TrnprofError, match=meant or "lists all"):
            explain(wrong)


def test_the_documentation_lists_the_sections() -> None:
    text = (ROOT / "docs" / "report.md").read_text("utf-8")
    listed = text.partition("<!-- sections -->")[2].partition("<!-- end")[0]
    rows = [f"| `{name}` | {question} |" for name, question in QUESTIONS.items()]
    assert listed.split("|---|---|\n")[1].strip().splitlines() == rows
