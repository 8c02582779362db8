"""What algorithms look like: steps, distances, who sends how much; names; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.emulator.collectives.moving import instances, made_up, planned, whole

from trnprof.emulator.collectives.algorithms import steps
from trnprof.emulator.collectives.algorithms.multi_ring import split
from trnprof.emulator.collectives.algorithms.names import ALGORITHMS
from trnprof.emulator.collectives.algorithms.register import plan, resolve
from trnprof.emulator.collectives.algorithms.volume import volume_bytes
from trnprof.emulator.collectives.group import make_group
from trnprof.emulator.collectives.messages import COLLECTIVES, Messages
from trnprof.tracer.errors import CollectiveError


def bytes_by_step(messages: Messages) -> list[int]:
    return [int(messages.bytes[messages.step == step].sum()) for step in range(messages.steps)]


def test_a_ring_goes_one_way_one_segment_a_step() -> None:
    messages = planned("all_reduce", "ring", whole("ring:5"), 1_000)
    assert (messages.target == (messages.source + 1) % 5).all()
    assert bytes_by_step(messages) == [5 * 200] * 8
    assert messages.is_reduced.tolist() == [True] * 20 + [False] * 20


def test_a_torus_shrinks_and_grows() -> None:
    """fabric.md 1.4: m_d / N_d a step, m_(d+1) = m_d / N_d; the all_gather mirrors it."""
    messages = planned("all_reduce", "ring", whole("torus:4x2x3"), 2_400)
    down = [24 * 600] * 3 + [24 * 300] * 1 + [24 * 100] * 2
    assert bytes_by_step(messages) == down + down[::-1]


def test_halving_is_nearest_first_and_doubling_mirrors_it() -> None:
    messages = planned("all_reduce", "halving-doubling", whole("ring:8"), 800)
    assert bytes_by_step(messages) == [8 * b for b in (400, 200, 100, 100, 200, 400)]
    distances = [
        np.unique(np.abs(messages.target - messages.source)[messages.step == step]).tolist()
        for step in range(6)
    ]
    assert distances == [[1], [2], [4], [4], [2], [1]]


def test_segments_are_rounded_up() -> None:
    for algorithm in ("ring", "direct", "all-pairs"):
        messages = planned("all_gather", algorithm, whole("ring:3"), 10)
        assert (messages.bytes == 4).all()


def test_all_to_all_by_a_ring_is_serial() -> None:
    messages = planned("all_to_all", "ring", whole("ring:6"), 600)
    assert bytes_by_step(messages) == [600] * 15


def test_multi_ring_loads_both_directions_of_every_dimension_alike() -> None:
    sizes = (4, 4, 4)
    messages = planned("all_reduce", "multi-ring", whole("torus:4x4x4"), 64 * 6 * 100)
    sent = {}
    for dimension, stride in enumerate((1, 4, 16)):
        difference = (messages.target // stride - messages.source // stride) % sizes[dimension]
        for way in (1, 3):
            mine = (difference == way) & (
                messages.target // stride % 4 != messages.source // stride % 4
            )
            sent[dimension, way] = int(messages.bytes[mine].sum())
    assert set(sent.values()) == {2 * 63 * 64 * 6 * 100 // 6}
    assert messages.steps == 2 * 3 * 3


@given(st.integers(1, 10**15), st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=16))
@settings(max_examples=100, deadline=None)
def test_parts_add_up(bytes: int, weights: list[float]) -> None:
    shares = split(bytes, weights)
    assert sum(shares) == bytes
    assert min(shares) >= 0
    for share, weight in zip(shares, weights, strict=True):
        assert share == pytest.approx(bytes * weight / sum(weights), abs=2, rel=1e-6)


def test_multi_ring_keeps_all_dimensions_busy_for_the_same_time() -> None:
    """Links of z are half as fast, so a rank sends half as much along it; where there is one link for both ways it counts once."""
    bytes_per_s = np.array([128e9, 128e9, 64e9])
    for spec, links in (("torus:4x4x4", (2, 2, 2)), ("ring:2,switch:4,ring:4", (1, 1, 2))):
        group = whole(spec, bytes_per_s.tolist())
        assert group.ring_bytes_per_s == tuple(bytes_per_s * links)
        messages = planned("all_gather", "multi-ring", group, 1 << 30)
        sent = np.zeros(3)
        for dimension, size in enumerate(group.sizes):
            stride = int(np.prod(group.sizes[:dimension]))
            along = messages.source // stride % size != messages.target // stride % size
            sent[dimension] = messages.bytes[along].sum()
        times = sent / (bytes_per_s * links)
        assert times == pytest.approx(times.mean(), rel=1e-6)


def test_a_dimension_too_slow_for_a_part_of_its_own_gets_none() -> None:
    messages = planned("all_gather", "multi-ring", whole("torus:4x4", [1e12, 1e3]), 16_000)
    assert messages.blocks is not None
    assert len(messages.blocks.owners) == 2


def test_kangaring_is_multi_ring_with_fewer_touches_of_hbm() -> None:
    """AWS's table: for each chunk past two ranks 3 touches instead of 4 (gather), 4 instead of 6 (scatter)."""
    group = whole("ring:65")

    def touches(messages: Messages) -> int:
        reads, writes = messages.reads_hbm, messages.writes_hbm
        assert reads is not None
        assert writes is not None
        arriving = messages.bytes * np.where(messages.is_reduced, 2, 1)
        return int(messages.bytes[reads].sum() + arriving[writes].sum())

    for collective, ratio in (("all_gather", 3 / 4), ("reduce_scatter", 4 / 6)):
        ring = planned(collective, "multi-ring", group, 65_000)
        kangaring = planned(collective, "kangaring", group, 65_000)
        assert (kangaring.bytes == ring.bytes).all()
        assert touches(kangaring) / touches(ring) == pytest.approx(ratio, rel=1e-12)


def test_permute_and_send_recv() -> None:
    group = whole("ring:4")
    messages = planned("permute", "direct", group, 9)
    assert messages.target.tolist() == [1, 2, 3, 0]
    assert messages.bytes.tolist() == [9] * 4
    messages = planned("send_recv", "direct", group, 9, root=3)
    assert (messages.source.tolist(), messages.target.tolist()) == ([3], [0])
    assert volume_bytes("permute", ["direct"], group, 9) == 36
    assert volume_bytes("send_recv", ["direct"], group, 9) == 9


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 13])
def test_a_barrier_makes_all_wait_for_all(ranks: int) -> None:
    group = make_group(made_up("ring:16"), range(ranks))
    messages = planned("barrier", "dissemination", group, 0)
    knows = np.zeros((len(messages), ranks), bool)  # whose coming a message tells of
    for message in range(len(messages)):
        start, end = messages.dependency_offsets[message : message + 2]
        for dependency in messages.dependencies[start:end]:
            assert messages.target[dependency] == messages.source[message]
            knows[message] |= knows[dependency]
        knows[message, messages.source[message]] = True
    for rank in range(ranks):
        heard = knows[messages.target == rank].any(axis=0)
        heard[rank] = True
        assert heard.all()
    assert messages.steps == int(np.ceil(np.log2(ranks)))
    assert volume_bytes("barrier", ["dissemination"], group, 0) == messages.bytes.sum()


@given(st.integers(2, 9), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_ragged_all_to_all(ranks: int, seed: int) -> None:
    table = np.random.default_rng(seed).integers(0, 5, (ranks, ranks))
    group = whole(f"switch:{ranks}")
    messages = plan("all_to_all", ["direct"], group, 0, sent_bytes=table.tolist())
    got = np.zeros_like(table)
    np.add.at(got, (messages.source, messages.target), messages.bytes)
    np.fill_diagonal(table, 0)
    assert (got == table).all()
    assert len(messages) == np.count_nonzero(table)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_sends_nothing(collective: str) -> None:
    group = make_group(made_up("ring:4"), [2])
    for algorithm in ALGORITHMS:
        if collective in ALGORITHMS[algorithm]:
            messages = planned(collective, algorithm, group, 100)
            assert len(messages) == 0
            assert len(messages.dependency_offsets) == 1
            assert volume_bytes(collective, [algorithm], group, 100) == 0


def test_names() -> None:
    group = whole("ring:4,switch:2")
    assert resolve("all_reduce", ["mesh"], group) == ("direct", "direct")
    assert resolve("all_reduce", ["rdh", "ring"], group) == ("halving-doubling", "ring")
    assert resolve("all_reduce", ["multi-ring"], group) == ("multi-ring",)


@pytest.mark.parametrize(
    ("collective", "algorithms", "bytes", "words"),
    [
        ("all_redcue", ["ring"], 8, "unknown collective 'all_redcue' .did you mean all_reduce"),
        ("all_reduce", ["rign"], 8, "unknown algorithm 'rign' .did you mean ring"),
        ("all_reduce", ["ring", "ring", "ring"], 8, "3 algorithms for a group of 2 dimensions"),
        ("all_reduce", [], 8, "0 algorithms"),
        ("all_reduce", ["ring", "tree"], 8, "tree is not for one dimension"),
        ("all_gather", ["tree"], 8, "tree cannot do all_gather: choose ring or direct"),
        ("all_to_all", ["halving-doubling"], 8, "halving-doubling cannot do all_to_all"),
        ("all_reduce", ["halving-doubling"], 8, "power of two, not 3 ranks"),
        ("all_reduce", ["hierarchical"], 8, "two instances or more"),
        ("all_reduce", ["ring"], 0, "all_reduce of 0 bytes: expected 1 or more"),
        ("all_reduce", ["ring"], -5, "of -5 bytes"),
        ("barrier", ["ring"], 0, "ring cannot do barrier: choose dissemination"),
        ("permute", ["ring"], 8, "ring cannot do permute: choose direct"),
    ],
)
def test_refusals(collective: str, algorithms: list[str], bytes: int, words: str) -> None:
    with pytest.raises(CollectiveError, match=words) as caught:
        plan(collective, algorithms, whole("torus:3x3"), bytes)
    assert "\n" not in str(caught.value)


def test_more_refusals() -> None:
    group = whole("ring:3")
    with pytest.raises(CollectiveError, match="root 3: the group has positions 0 to 2"):
        plan("broadcast", ["ring"], group, 8, root=3)
    with pytest.raises(
        CollectiveError, match="ring cannot do a ragged all_to_all: choose direct or all-pairs"
    ):
        plan("all_to_all", ["ring"], group, 8, sent_bytes=[[0] * 3] * 3)
    with pytest.raises(CollectiveError, match="is for all_to_all, not all_gather"):
        plan("all_gather", ["direct"], group, 8, sent_bytes=[[0] * 3] * 3)
    with pytest.raises(CollectiveError, match="3 rows of 3 values"):
        plan("all_to_all", ["direct"], group, 8, sent_bytes=[[0] * 3, [0] * 2, [0] * 3])
    with pytest.raises(CollectiveError, match="rank 1 sends -4 bytes to rank 2"):
        plan("all_to_all", ["direct"], group, 8, sent_bytes=[[0] * 3, [0, 0, -4], [0] * 3])
    with pytest.raises(CollectiveError, match="a table of what each rank sends"):
        plan("all_to_all", ["direct"], group, 8, sent_bytes=[[2**70] * 3] * 3)
    uneven = make_group(instances("ring:4", 2), [0, 1, 2, 5])
    with pytest.raises(CollectiveError, match="as many ranks on each instance: here are 1 to 3"):
        planned("all_reduce", "hierarchical", uneven, 8)


def test_what_memory_would_not_hold_is_refused_at_once() -> None:
    group = whole("switch:8192")
    for collective, algorithm in (
        ("all_reduce", "ring"),
        ("all_to_all", "direct"),
        ("all_to_all", "ring"),
        ("all_reduce", "kangaring"),
    ):
        with pytest.raises(CollectiveError, match=f"more than {steps.MAX_MESSAGES:,} messages"):
            planned(collective, algorithm, group, 1 << 30)
    with pytest.raises(CollectiveError, match="dependencies between messages of 600 ranks"):
        planned("all_reduce", "direct", whole("switch:600"), 1 << 20)
