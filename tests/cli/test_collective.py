"""``trnprof collective``: figures by formulas, faults, a sweep, a trace that the other commands read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.cli.runner import names_below, trnprof

from trnprof.cli.collective_document import collective_document, outcome_document
from trnprof.cli.collective_options import Options
from trnprof.cli.collective_sweep import plot_lines
from trnprof.cli.collectives import prepare, run
from trnprof.tracer.reader import open_trace

RING = ("--topology", "ring:16", "--bandwidth", "50GiB/s", "--latency", "500ns")
SEGMENT_NS = 2**30 / 16 / (50 * 2**30) * 1e9
"""Of 1 GiB among 16, over one link."""
AS_ASTRA = ("--chunks", "1", "--forwarding", "store-and-forward")
MIB_NS = 2**20 / (50 * 2**30) * 1e9


def document(*arguments: str) -> dict[str, Any]:
    done = trnprof("collective", *arguments, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_a_ring_takes_what_the_formula_says_and_json_holds_it() -> None:
    found = document("all_reduce", *RING, *AS_ASTRA, "--algorithm", "ring", "--bytes", "1GiB")
    time_ns = 30 * (500 + SEGMENT_NS)
    assert found["time_ns"] == pytest.approx(time_ns, rel=1e-9)
    assert found["algorithm_bandwidth_bytes_per_s"] == pytest.approx(2**30 / time_ns * 1e9)
    assert found["bus_bandwidth_bytes_per_s"] == pytest.approx(2**30 / time_ns * 1e9 * 30 / 16)
    assert found["link_utilization_percent"] == pytest.approx(30 * SEGMENT_NS / time_ns)
    assert (found["ranks"], found["rank_list"]) == (16, list(range(16)))
    assert (found["bytes"], found["steps"], found["algorithm"]) == (2**30, 30, "ring")
    assert found["algorithm_reason"] == "given by --algorithm"
    assert (found["fidelity"], found["bound"]["kind"]) == ("chunked", "link")
    assert (found["schema"], found["is_simulation"], found["estimates"]) == (1, True, [])
    assert found["system"]["name"] == "ring:16"
    # one direction of 16 links, each segment 30 times
    assert (found["links"]["used_count"], found["links"]["count"]) == (16, 32)
    assert found["links"]["bytes"] == 16 * 30 * 2**26


def test_the_text_says_what_was_found_and_why() -> None:
    done = trnprof("collective", "all_reduce", *RING, "--bytes", "1GiB", "--algorithm", "ring")
    assert (done.code, done.out.isascii()) == (0, True)
    first, *rest = done.out.splitlines()
    assert first == "all_reduce of 1 GiB among 16 ranks (0..15) on ring:16, emulated"
    said = {line[2:14].strip(): line[14:] for line in rest}
    assert said["time"].endswith(" ms")
    assert said["algorithm"] == "ring (30 steps); given by --algorithm"
    assert said["bound"].startswith("link ")
    assert said["links"].startswith("16 of 32 used, busy 100.0 % of the time on average; busiest")
    assert said["fidelity"] == "chunked (16 chunks a message, cut-through)"


def test_a_formula_says_how_many_chunks_it_has() -> None:
    line = ("collective", "broadcast", *RING, "--fidelity", "closed-form", "--bytes", "8MiB")
    for algorithm, said in (("ring", "16 chunks a message"), ("direct", "whole messages")):
        fabric = ("--topology", "mesh:16") if algorithm == "direct" else ()
        done = trnprof(*line, *fabric, "--algorithm", algorithm)
        assert f"closed-form (a formula; {said}, cut-through)" in " ".join(done.out.split())


def test_the_bus_bandwidth_of_a_ragged_all_to_all_is_that_of_who_sends_most(
    tmp_path: Path,
) -> None:
    """The last rank sends 5 MiB to another, over one link; what it keeps goes over none."""
    path = tmp_path / "sent.csv"
    path.write_text("0,1MiB,2MiB,0\n4KiB,0,1MiB,1\n0,0,0,0\n5MiB,0,0,9MiB\n", encoding="utf-8")
    fabric = ("--topology", "ring:4", "--bandwidth", "50GB/s", "--fidelity", "fluid")
    found = document("all_to_all", *fabric, "--send-bytes", str(path))
    assert found["bytes"] == 14 << 20
    assert found["bus_bandwidth_bytes_per_s"] == pytest.approx(50e9, rel=1e-6)
    path.write_text("\n".join(["1MiB,1MiB,1MiB,1MiB"] * 4), encoding="utf-8")
    found = document("all_to_all", *fabric, "--send-bytes", str(path))
    uniform = document("all_to_all", *fabric, "--bytes", "4MiB")
    key = "bus_bandwidth_bytes_per_s"
    assert found[key] == pytest.approx(uniform[key], rel=1e-9)
    assert found[key] == pytest.approx(found["algorithm_bandwidth_bytes_per_s"] * 3 / 4, rel=1e-9)


def test_the_policy_and_the_estimates_of_a_system_are_told() -> None:
    done = trnprof("collective", "all_gather", "--system", "trn2-ultra", "--bytes", "64MiB")
    assert done.code == 0, done.err
    text = " ".join(done.out.split())
    assert "all_gather of 64 MiB among 64 ranks (0..63) on trn2-ultra, emulated" in text
    assert " estimated " in text
    assert "topology." in text
    reason = text.partition(" algorithm ")[2].partition(" bound ")[0].partition("; ")[2]
    assert len(reason.split()) > 3
    found = document("all_gather", "--system", "trn2-ultra", "--bytes", "64MiB")
    assert " ".join(found["algorithm_reason"].split()) == reason
    assert all("." in key for key in found["estimates"])


def test_a_sweep_is_a_table_and_a_plot_in_plain_characters() -> None:
    line = ("collective", "all_reduce", *RING, *AS_ASTRA, "--algorithm", "ring")
    done = trnprof(*line, "--sweep", "1MiB..1GiB", env={"COLUMNS": "120"})
    assert (done.code, done.out.isascii()) == (0, True)
    table, _, plot = done.out.partition("bus bandwidth by size")
    rows = [line.split() for line in table.splitlines() if line and not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [2**20 << power for power in range(11)]
    for size, count, kind, time, algbw, busbw, algorithm, *bound in rows:
        expected_us = 30 * (500 + int(size) / 16 / (50 * 2**30) * 1e9) / 1000
        assert float(time) == pytest.approx(expected_us, abs=0.01)
        assert float(algbw) == pytest.approx(int(size) / expected_us / 1000, abs=0.01)
        assert float(busbw) == pytest.approx(int(size) / expected_us / 1000 * 30 / 16, abs=0.01)
        assert (int(count), kind, algorithm, bool(bound)) == (int(size) // 4, "float", "ring", True)
    assert "#" in plot


@pytest.mark.parametrize("columns", [24, 40, 60, 80])
def test_a_sweep_on_a_narrow_terminal_has_fewer_columns(columns: int) -> None:
    line = ("collective", "all_reduce", *RING, "--skew", "rank=3:1us", "--sweep", "1KiB..64KiB")
    done = trnprof(*line, env={"COLUMNS": str(columns)})
    assert max(map(len, done.out.splitlines())) <= columns
    narrow, whole = (
        [each.split() for each in out.partition("bus bandwidth")[0].splitlines() if each]
        for out in (done.out, trnprof(*line).out)
    )
    heads, known = (next(row for row in rows if row[1:2] == ["size"]) for rows in (narrow, whole))
    assert {"size", "busbw"} <= set(heads[1:]) <= set(known[1:])
    at = [known.index(head) - 1 for head in heads[1:] if head != "bound"]
    told = [row[: len(at)] for row in narrow if row[0].isdigit()]
    assert told == [[row[column] for column in at] for row in whole if row[0].isdigit()]


def test_bars_are_as_high_as_their_rates() -> None:
    sizes, rates = [1 << power for power in range(10, 14)], [1e9, 5e9, 10e9, 2.5e9]
    for has_blocks, full in ((False, "#"), (True, "█")):
        lines = plot_lines(sizes, rates, columns=80, has_blocks=has_blocks)
        bars = [line[11:].ljust(16) for line in lines[1:-2]]
        heights = [sum(bar[4 * i] == full for bar in bars) for i in range(4)]
        assert heights == ([1, 5, 10, 2])
        assert max(len(line) for line in lines) <= 80
    assert any("▄" in line for line in lines)  # the half of 2.5
    assert lines[-1].split() == ["1", "KiB", "8", "KiB"]
    assert plot_lines([1, 2], [0.0, 0.0], columns=80, has_blocks=False) == []


def sent(**options: Any) -> float:
    """Time in ns of 1 MiB from chip 0 to chip 1 of a ring of 4, stored and forwarded."""
    given: dict[str, Any] = {
        "collective": "send_recv",
        "topology": "ring:4",
        "bandwidth": "50GiB/s",
        "latency": "500ns",
        "size": "1MiB",
        "ranks": "0..1",
        "algorithm": "direct",
        "chunks": 1,
        "forwarding": "store-and-forward",
        "ties": "clockwise",
    }
    return run(prepare(Options(**given | options), None))[0].time_ps / 1000


@pytest.mark.parametrize(
    ("fault", "time_ns"),
    [
        ({}, MIB_NS + 500),
        ({"degrade": ("link=0-1:0.5",)}, 2 * MIB_NS + 500),
        ({"degrade": ("link=0>1:50%",)}, 2 * MIB_NS + 500),
        ({"degrade": ("link=1>0:0.5",)}, MIB_NS + 500),
        ({"fail": ("link=0-1",)}, 3 * (MIB_NS + 500)),
        ({"slow": ("chip=1:0.25",)}, 4 * MIB_NS + 500),
        ({"skew": ("rank=0:40us",)}, MIB_NS + 500 + 40_000),
        ({"jitter": ("seed=1,sigma=0%",)}, MIB_NS + 500),
    ],
)
def test_faults_cost_what_they_must(fault: dict[str, Any], time_ns: float) -> None:
    assert sent(**fault) == pytest.approx(time_ns, abs=0.01)


def test_noise_is_that_of_its_seed() -> None:
    assert sent(jitter=("seed=1,sigma=10%",)) == sent(jitter=("seed=1,sigma=10%",))
    assert len({sent(jitter=(f"seed={seed},sigma=10%",)) for seed in range(4)}) == 4


def test_two_transfers_over_one_link_share_it() -> None:
    options = Options(
        collective="send_recv",
        topology="ring:4",
        bandwidth="50GiB/s",
        latency="500ns",
        size="1MiB",
        ranks="0..1",
        algorithm="direct",
        forwarding="cut-through",
        ties="clockwise",
        others=("send_recv:bytes=1MiB,algorithm=direct",),
    )
    setting = prepare(options, None)
    outcomes = run(setting)
    assert [outcome.fidelity for outcome in outcomes] == ["fluid", "fluid"]
    for outcome in outcomes:
        assert outcome.time_ps / 1000 == pytest.approx(2 * MIB_NS + 500, rel=1e-6)
    found = collective_document(setting, outcomes)
    assert found["collectives"] == [outcome_document(outcome) for outcome in outcomes]
    assert found["time_ns"] == found["collectives"][0]["time_ns"]


def test_a_trace_is_written_and_read_by_the_other_commands(tmp_path: Path) -> None:
    line = ["collective", "all_reduce", *RING, "--ranks", "0..3", "--algorithm", "ring"]
    line += ["--bytes", "1MiB", "--chunks", "2", "--skew", "rank=2:40us", "--reproducible"]
    done = trnprof(*line, "-o", "run.trnprof", folder=tmp_path)
    assert done.code == 0, done.err
    # a ring of 4 within 16 chips: 6 steps of 4 messages, the one from 3 to 0 over 3 links; a span and a last arrival a
    # rank, and that one is late
    assert "trnprof: run.trnprof: 81 events" in done.err
    checked = trnprof("validate", "run.trnprof", folder=tmp_path)
    assert (checked.code, checked.out) == (0, "run.trnprof: nothing wrong\n")
    report = json.loads(trnprof("report", "run.trnprof", "--json", folder=tmp_path).out)
    assert report["overall"]["breakdown"]["exposed_collective_ns"] > 0
    text = trnprof("report", "run.trnprof", folder=tmp_path).out
    assert "overlapping collectives with compute" not in text  # there is none
    assert text.count("--skew rank=2:40us") == 1
    assert report["notes"].count("fault or perturbation: --skew rank=2:40us") == 1
    assert "rank 2 came 40 µs late to all_reduce; " in text
    frame = trnprof("view", "run.trnprof", "--print", "--ascii", folder=tmp_path)
    assert frame.code == 0
    assert "fabric" in frame.out
    exported = trnprof("export", "run.trnprof", "-o", "run.pftrace", folder=tmp_path)
    assert exported.code == 0
    assert " 81 slices" in exported.err
    again = trnprof(*line, "-o", "run.trnprof", folder=tmp_path)
    assert again.only_error.startswith("trnprof: run.trnprof exists; give --force")
    assert trnprof(*line, "-o", "other.trnprof", folder=tmp_path).code == 0
    one, other = tmp_path / "run.trnprof", tmp_path / "other.trnprof"
    assert names_below(one) == names_below(other)
    for name in names_below(one):
        if (one / name).is_file():
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("all_reduce --bytes 1G", "size '1G' is ambiguous"),
        ("all_reduce --bytes 1GiB --algorithm rign", "did you mean ring?"),
        ("all_reduce --bytes 1GiB --ranks 0..3,2", "rank 2 is given 2 times"),
        ("all_reduce --bytes 1GiB --ranks 0..5 --algorithm halving-doubling", "needs a power of two"),
        ("all_reduce --bytes 1GiB --fail link=3-4 --fail link=9-10", "no way from chip"),
        ("all_reduce --bytes 1GiB --fidelity fluid -o run.trnprof", "-o needs --fidelity chunked"),
        ("all_reduce --sweep 1KiB..1MiB -o run.trnprof", "-o writes the trace of one run"),
        ("all_reduce --sweep 1KiB..1MiB --reproducible", "--reproducible and --force go with -o"),
        ("all_reduce --bytes 1MiB --force", "--reproducible and --force go with -o"),
        ("barrier --sweep 1KiB..4KiB", "a barrier has no buffer: leave out --sweep"),
        ("all_reduce --bytes 1MiB --fidelity fluid --chunks 4", "fluid has whole messages, no chunks"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(line: str, says: str, tmp_path: Path) -> None:
    error = trnprof("collective", *line.split(), *RING, folder=tmp_path).only_error
    assert says in error
    assert names_below(tmp_path) == []


def test_a_full_disk_leaves_nothing_half_written(small_disk: Path) -> None:
    line = ("collective", "all_to_all", *RING, "--bytes", "1GiB", "--algorithm", "direct")
    error = trnprof(*line, "-o", small_disk / "run.trnprof").only_error
    assert "the disk is full" in error
    assert names_below(small_disk) == []


def test_the_help_fits_80_columns() -> None:
    done = trnprof("collective", "--help", env={"COLUMNS": "80"})
    assert max(len(line) for line in done.out.splitlines()) <= 80


MILLION = ("--system", "trn2-ultra", "--instances", "15625")


def test_a_million_chips_are_one_instance_that_stands_for_all() -> None:
    found = document("all_reduce", *MILLION, "--bytes", "1GiB")
    assert (found["ranks"], found["rank_list"]) == (1_000_000, None)
    assert found["folded"] == {
        "instances": 15_625,
        "emulated_instances": 1,
        "ranks_of_each": list(range(64)),
    }
    assert found["system"]["chips"] == 1_000_000
    assert found["system"]["topology"]["sizes"] == [4, 4, 4, 15_625]
    assert len(found["rank_end_ns"]) == 64
    # six links of the torus and one each way into the network, a chip
    assert found["links"]["count"] == found["links"]["used_count"] == 8_000_000
    # what an all_reduce has to move: twice the buffer for each rank but one, and more where routes have more links
    assert found["links"]["bytes"] > 2 * 999_999 * 2**30
    done = trnprof("collective", "all_reduce", *MILLION, "--bytes", "1GiB")
    text = " ".join(done.out.split())
    assert "among 1,000,000 ranks (0..63 of each instance) on 15,625 x trn2-ultra" in text
    assert "1 of 15,625 instances is emulated, all do the same" in text
    assert "14 circulant steps a phase between them, not a ring's 15,624" in text


def test_folded_or_not_the_figures_are_the_same() -> None:
    line = ("all_gather", "--system", "trn2", "--instances", "3", "--bytes", "100MB")
    whole, folded = document(*line), document(*line, "--fold")
    assert whole.pop("folded") is None
    assert folded.pop("folded")["instances"] == 3
    assert (len(whole.pop("rank_list")), folded.pop("rank_list")) == (48, None)
    assert whole.pop("rank_end_ns") == 3 * folded.pop("rank_end_ns")
    assert whole["links"].pop("busiest")
    assert folded["links"].pop("busiest")
    links = whole.pop("links"), folded.pop("links")
    assert links[0] == pytest.approx(links[1])
    used = "link_utilization_percent"
    assert whole.pop(used) == pytest.approx(folded.pop(used))
    assert whole == folded


def test_a_folded_trace_has_one_instance_and_says_how_many_it_stands_for(tmp_path: Path) -> None:
    output = tmp_path / "run.trnprof"
    line = ("collective", "all_reduce", "--system", "trn2", "--instances", "100")
    done = trnprof(*line, "--bytes", "1MiB", "-o", str(output))
    assert done.code == 0, done.err
    tracks = open_trace(output).tracks
    counts = dict(tracks.group_by("kind").agg(pl.col("replica_count").unique()).iter_rows())
    assert counts == {
        kind: [1] if kind in ("host", "fabric") else [100] for kind in tracks["kind"].unique()
    }
    assert tracks.filter(pl.col("kind") == "chip").height == 16
    for command in ("validate", "report"):
        assert trnprof(command, str(output)).code == 0


def test_too_large_to_emulate_and_nothing_to_fold_is_one_line() -> None:
    done = trnprof("collective", "all_reduce", *MILLION, "--bytes", "1GiB", "--skew", "rank=5:1us")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "1,000,000 chips is too large" in done.err
    assert "--skew can make instances differ" in done.err
