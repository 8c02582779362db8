"""Coverage as it is told, and what makes record and emulate fail although the trace is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.runner import PYTHON, trnprof

from trnprof.cli.diagnostics import ExitCode
from trnprof.cli.strict import Checks, failed
from trnprof.tracer.reader import open_trace

SORTS = """
import torch
model = torch.nn.Linear(8, 8)
with torch.no_grad():
    for _ in range(2):
        torch.sort(model(torch.randn(4, 8)))
"""


def details(percent: float, peak: int) -> dict[str, object]:
    return {
        "fallback_time_percent": percent / 100,
        "hbm": {"capacity_bytes": 100, "peak_bytes": peak},
    }


@pytest.mark.parametrize(
    ("percent", "peak", "checks", "lines"),
    [
        (5.0, 200, Checks(), 0),
        (5.0, 100, Checks(6.0, True), 0),
        (5.0, 100, Checks(4.0, True), 1),
        (0.0, 101, Checks(0.0, True), 1),
        (5.0, 101, Checks(4.0, True), 2),
    ],
)
def test_a_check_fails_beyond_its_bound(
    percent: float, peak: int, checks: Checks, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    code = failed(details(percent, peak), checks)
    assert code == (ExitCode.FOUND if lines else ExitCode.FINE)
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_coverage_is_told_and_strict_fails_with_the_trace_written(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    trace, script = tmp_path / "run.trnprof", tmp_path / "sorts.py"
    script.write_text(SORTS)
    done = trnprof("record", "--strict", "0", "-o", trace, "--", PYTHON, script)
    assert done.code == 1
    emulation = open_trace(trace).manifest["emulation"]
    assert (emulation["exact_ops"], emulation["fallback_ops"]) == (2, 2)  # addmm and sort, twice
    assert emulation["fallback_names"] == {"sort": 2}
    told = next(line for line in done.err.splitlines() if "lowered exactly: 2 operation(s)" in line)
    assert "by the roofline fallback: 2, " in told
    assert "sort (2, " in told
    assert "--strict 0: the roofline fallback has" in done.err
    out = tmp_path / "again.trnprof"
    line = ("emulate", trace, "--system", "trn2", "--strict-memory", "-o", out)
    assert trnprof(*line, "--strict", "100").code == 0
    assert trnprof(*line, "--strict", "0", "--force").code == 1
    bare = trnprof(*line, "--force", "--strict")
    assert (bare.code, "--strict 5: the roofline fallback has" in bare.err) == (1, True)
    assert trnprof("emulate", "--strict", *line[1:], "--force").code == 1
    refused = trnprof(*line, "--strict", "-1", "--force")
    assert refused.code == 2
    assert "Traceback" not in refused.err
