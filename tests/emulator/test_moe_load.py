"""Loads of experts, the choices that follow from them, and what programs under capture exchange then."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.distributed import calls, played
from tests.emulator.ranks.worlds import run

from trnprof.emulator.capture.moe_load import (
    MoeLoad,
    chosen_experts,
    read_moe_load,
    stride_of,
    tokens_per_expert,
)
from trnprof.emulator.system import load_system
from trnprof.emulator.workload import CollectiveCall
from trnprof.tracer.errors import CaptureError

RANKS, TOKENS, WIDTH, EXPERTS, CHOICES = 8, 512, 64, 16, 2
"""Of scripts/experts.py."""
ROW = WIDTH * 4
WAYS = ["bincount", "grouped", "one_hot", "scatter", "mask", "unique", "gathered"]
"""How scripts/experts.py counts tokens, and tells other ranks."""


def zipf_counts(exponent: int, tokens: int, choices: int) -> list[int]:
    """Largest remainders of shares (e + 1) ** -exponent in exact arithmetic; no expert may reach all tokens."""
    weights = [Fraction(1, (e + 1) ** exponent) for e in range(EXPERTS)]
    quota = [w / sum(weights) * tokens * choices for w in weights]
    assert max(quota) <= tokens
    counts = [int(q) for q in quota]
    order = sorted(range(EXPERTS), key=lambda e: counts[e] - quota[e])
    for expert in order[: tokens * choices - sum(counts)]:
        counts[expert] += 1
    return counts


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=12).filter(any),
    st.integers(1, 40),
    st.data(),
)
def test_every_token_goes_to_different_experts_and_each_gets_its_part(
    weights: list[int], tokens: int, data: st.DataObject
) -> None:
    choices = data.draw(st.integers(1, len(weights)))
    shares = np.array(weights) / sum(weights)
    counts = tokens_per_expert(shares, tokens, choices)
    chosen = chosen_experts(counts, tokens, choices)
    assert counts.sum() == tokens * choices
    assert all(len(set(row)) == choices for row in chosen.tolist())
    assert np.bincount(chosen.ravel(), minlength=len(weights)).tolist() == counts.tolist()
    quota = shares * tokens * choices
    if quota.max() <= tokens:
        assert np.abs(counts - quota).max() < 1
    else:
        assert counts.max() == tokens


def test_zipf_is_that_of_exact_arithmetic_and_uniform_is_even() -> None:
    zipf = tokens_per_expert(MoeLoad("zipf:1", 1.0).shares(0, EXPERTS), TOKENS, CHOICES)
    assert zipf.tolist() == zipf_counts(1, TOKENS, CHOICES)
    even = tokens_per_expert(MoeLoad().shares(0, EXPERTS), TOKENS, CHOICES)
    assert even.tolist() == [TOKENS * CHOICES // EXPERTS] * EXPERTS
    few = tokens_per_expert(MoeLoad().shares(0, EXPERTS), 1, CHOICES)
    assert few.sum() == CHOICES
    assert abs(int(np.diff(np.flatnonzero(few))[0])) > 1  # not both on one rank


@pytest.mark.parametrize("count", range(1, 70))
def test_a_stride_visits_every_place(count: int) -> None:
    assert len({i * stride_of(count) % count for i in range(count)}) == count


def test_shares_from_files(tmp_path: Path) -> None:
    for name, content, layers in (
        ("one.json", "[3, 1]", ((3.0, 1.0),)),
        ("two.json", "[[3, 1], [0, 0.5]]", ((3.0, 1.0), (0.0, 0.5))),
        ("one.csv", "3,1\n", ((3.0, 1.0),)),
        ("two.csv", "3,1\n\n0,.5\n", ((3.0, 1.0), (0.0, 0.5))),
        ("column.txt", "3\n1\n", ((3.0, 1.0),)),
    ):
        (tmp_path / name).write_text(content)
        assert read_moe_load(str(tmp_path / name)).layers == layers
    load = read_moe_load(str(tmp_path / "two.csv"))
    assert load.shares(0, 2).tolist() == [0.75, 0.25]
    with pytest.raises(CaptureError, match="shares for 2 layers, but the program has more"):
        load.shares(2, 2)
    with pytest.raises(CaptureError, match="shares for 2 experts, but the program chooses among 8"):
        load.shares(1, 8)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it holds no shares"),
        ("[]", "it holds no shares"),
        ("[[1, 2], []]", "it holds no shares"),
        ("[1, 2", "no valid JSON"),
        ('{"a": 1}', "expected a list of shares"),
        ('[1, "2"]', "shares are numbers from 0"),
        ("[1, -2]", "shares are numbers from 0"),
        ("[1, NaN]", "shares are numbers from 0"),
        ("[[1], 2]", "shares are numbers from 0"),
        ("0,0", "all shares are 0"),
        ("1,2\n1,x", "line 2: expected shares between commas, got '1,x'"),
    ],
)
def test_files_that_hold_no_shares(content: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "shares"
    path.write_text(content)
    with pytest.raises(CaptureError, match=reason):
        read_moe_load(str(path))


def layers(load: str, step: int = 1) -> list[list[CollectiveCall]]:
    """The exchanges of tokens, not those of counts, of each layer; the last one is of another kind."""
    pytest.importorskip("torch")
    workload = played(RANKS, "experts.py", ",".join([*WAYS, "argmax"]), moe_load=load)
    found = calls(workload, step, "forward")
    found = [c for c in found if c.kind == "all_to_all" and c.nbytes > EXPERTS * 8]
    return [found[i : i + 2] for i in range(0, len(found), 2)]


def test_bytes_under_a_uniform_load_are_tokens_times_choices() -> None:
    there_and_back = [CollectiveCall("all_to_all", 0, TOKENS * CHOICES * ROW)] * 2
    one_choice = [CollectiveCall("all_to_all", 0, TOKENS * ROW)] * 2
    assert layers("uniform") == [there_and_back] * len(WAYS) + [one_choice]


@pytest.mark.parametrize("step", [0, 1])
def test_bytes_under_a_zipf_load_are_those_of_its_experts(step: int) -> None:
    def there_and_back(choices: int) -> list[CollectiveCall]:
        counts = zipf_counts(1, TOKENS, choices)
        sent = tuple(sum(counts[e : e + 2]) * ROW for e in range(0, EXPERTS, EXPERTS // RANKS))
        return [
            CollectiveCall("all_to_all", 0, TOKENS * choices * ROW, sent_bytes=sent),
            # rank 0 has the busiest experts, and gives each rank back what it had from it
            CollectiveCall("all_to_all", 0, RANKS * sent[0], received_bytes=sent),
        ]

    assert layers("zipf:1", step) == [there_and_back(2)] * len(WAYS) + [there_and_back(1)]


def test_experts_work_on_what_their_rank_receives() -> None:
    pytest.importorskip("torch")
    counts = zipf_counts(1, TOKENS, CHOICES)
    workload = played(RANKS, "experts.py", "bincount,bincount", moe_load="zipf:1")
    products = [
        op.inputs[0].shape[0]
        for op in workload.operations
        if op.name == "mm"
        and op.step == 0
        and op.phase == "forward"
        and "experts" in op.module_path
    ]
    assert products == ([RANKS * counts[0]] * 2 + [RANKS * counts[1]] * 2) * 2
    notes = [note for note in workload.notes if note.startswith("expert routing")]
    assert len(notes) == 1
    assert "--moe-load zipf:1, 2 router(s) (2 of 16 experts: 0, 1)" in notes[0]
    assert f"the busiest expert gets {max(counts) / sum(counts):.1%}" in notes[0]
    assert not [note for note in workload.notes if "that are not known" in note]


def test_the_ragged_exchange_takes_longer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    longest = {}
    for load in ("uniform", "zipf:1"):
        workload = played(RANKS, "experts.py", "bincount", "8192", moe_load=load)
        ran = run(tmp_path / load, workload, load_system("trn2"), placement="spread")
        events = ran.trace.events.collect()
        spans = events.filter(events["category"].cast(str) == "collective")
        longest[load] = int(spans["duration_ns"].max())
    assert longest["zipf:1"] > 1.5 * longest["uniform"]


def test_experts_with_a_capacity_need_no_load() -> None:
    """Dispatch by products with one-hot masks: shapes are static."""
    pytest.importorskip("torch")
    workload = played(RANKS, "capacity.py", moe_load="zipf:1")
    capacity = TOKENS * CHOICES // EXPERTS * 2
    expected = [CollectiveCall("all_to_all", 0, EXPERTS * capacity * ROW)] * 2
    assert [c for c in calls(workload, 1, "forward") if c.kind == "all_to_all"] == expected
    assert not [note for note in workload.notes if note.startswith("expert routing")]
