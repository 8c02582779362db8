"""``trnprof emulate`` of a program of many ranks with faults, folded and not, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tests.cli.runner import trnprof
from tests.emulator.programs import op, ref
from tests.emulator.ranks.worlds import collective, group, mesh, run, world

from trnprof.emulator.capture.store import save_workload
from trnprof.emulator.system import load_system
from trnprof.tracer.reader import open_trace

SYSTEM = "trn2-ultra"
WEIGHT = ref(0, 1024, 1024, role="parameter")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 16 ranks whose sums go along rows of four chips."""
    path = tmp_path_factory.mktemp("saved") / "run.trnprof"
    x, y, total = ref(1, 1024, 1024), ref(2, 1024, 1024), ref(3, 1024, 1024)
    operations = [op("mm", [x, WEIGHT], [y]), collective("all_reduce", y.nbytes, [y], [total])]
    workload = world(operations, [group("row", mesh(4, 4)[1])], 16)
    run(path, workload, load_system(SYSTEM))
    save_workload(path, workload)
    return path


def emulated_ranks(trace: Path) -> list[int]:
    cores = open_trace(trace).tracks.filter(pl.col("kind").cast(pl.String) == "core")
    return sorted(cores.filter(pl.col("replica_of").is_null())["rank"].unique())


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ((), [0]),
        (("--no-fold",), list(range(16))),
        (("--slow", "rank=5:0.5"), [0, 4, 5]),
        (("--skew", "rank=5:40us", "--slow", "chip=5:50%"), [0, 4, 5]),
        (("--degrade", "link=4-5:0.5"), [0, 4]),
        (("--fail", "link=4-5"), [0, 4]),
    ],
)
def test_ranks_that_differ_are_emulated_each(
    saved: Path, tmp_path: Path, options: tuple[str, ...], ranks: list[int]
) -> None:
    out = tmp_path / "o.trnprof"
    done = trnprof(
        *("emulate", saved, "--system", SYSTEM, "-o", out, "--placement", "spread"), *options
    )
    assert done.code == 0, done.err
    assert emulated_ranks(out) == ranks
    for command in (("report", out), ("validate", out), ("view", out, "--print")):
        shown = trnprof(*command)
        assert shown.code == 0, shown.err
    if len(ranks) < 16 and ranks != [0]:
        assert "rank 4" in trnprof("report", out).out


def test_the_report_names_the_rank_that_others_waited_for(saved: Path, tmp_path: Path) -> None:
    """Ranks 4 to 7 are a row; the sum waits for the last of them."""
    out = tmp_path / "o.trnprof"
    line = ("emulate", saved, "--system", SYSTEM, "-o", out, "--force")
    assert trnprof(*line, "--skew", "rank=5:40us").code == 0
    late = json.loads(trnprof("report", out, "--json").out)["late_ranks"]
    assert late == [
        {
            "rank": 5,
            "collectives": ["_c10d_functional::all_reduce"],
            "late_ns": 40_000,
            "waiting_ranks": [4, 6, 7],
            "waited_ns": 120_000,
            "equal_ranks": [],
        }
    ]
    assert trnprof(*line, "--slow", "rank=5:0.5").code == 0
    shown = trnprof("report", out).out
    assert "rank 5 came " in shown
    assert "late to _c10d_functional::all_reduce; 3 ranks (4, 6, 7) waited for it" in " ".join(
        shown.split()
    )
    assert trnprof(*line).code == 0
    assert json.loads(trnprof("report", out, "--json").out)["late_ranks"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--slow", "rank=16:0.5"), "rank 16 is out of range; the program has ranks 0..15"),
        (("--slow", "core=1:0.5"), "expected chip=7:0.8 (of a program also rank=7:0.8)"),
        (("--slow", "rank=1"), "expected chip=7:0.8 (of a program also rank=7:0.8)"),
        (("--slow", "rank=1:0.5", "--slow", "rank=1:0.6"), "rank 1 is given twice"),
        (("--slow", "rank=1:2"), "factor 2, expected more than 0 and at most 1"),
        (("--degrade", "link=0-9:0.5"), "0-9"),
        (("--fail", "3-7"), "expected link=3-7"),
        (("--skew", "rank=5"), "expected rank=5:40us"),
    ],
)
def test_other_faults_are_refused_in_a_line(
    saved: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    out = tmp_path / "o.trnprof"
    done = trnprof("emulate", saved, "--system", SYSTEM, "-o", out, *options)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert not out.exists()
