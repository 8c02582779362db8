"""Who came late, and who waited for it: by the chains of what waits for what."""

from __future__ import annotations

from tests.analysis.traces import Row, build, event

from trnprof.analysis.late_ranks import late_ranks
from trnprof.analysis.render_text import render_text
from trnprof.analysis.report import build_report
from trnprof.tracer.reader import Trace

STREAM, LINK = 100, 200
"""Track ids of rank 0's stream and link; those of rank r are r higher."""


def tracks(ranks: int) -> list[Row]:
    rows: list[Row] = [{"track_id": 0, "kind": "host", "name": "host0"}]
    for rank in range(ranks):
        place = {"rank": rank, "chip": rank}
        chip = {"track_id": 1 + rank, "parent_id": 0, "kind": "chip", "name": f"chip {rank}"}
        stream = {"track_id": STREAM + rank, "parent_id": 1 + rank, "kind": "collective_stream"}
        link = {"track_id": LINK + rank, "parent_id": 0, "kind": "link", "name": f"link {rank}"}
        rows += [{**chip, **place}, {**stream, "name": "CC stream 0", **place}, link]
    return rows


def late(rank: int, ns: int) -> Row:
    return event(STREAM + rank, 0, ns, name="late", category="marker", op_id=0)


def moved(rank: int, start: int, blocked_by: int | None) -> Row:
    return event(LINK + rank, start, 100, category="collective", op_id=0, blocked_by=blocked_by)


def arrival(rank: int, start: int, blocked_by: int) -> Row:
    return event(
        STREAM + rank,
        start,
        10,
        name="last arrival",
        category="collective",
        op_id=0,
        blocked_by=blocked_by,
    )


def emulated(events: list[Row], ranks: int) -> Trace:
    ops = [{"op_id": 0, "kind": "collective", "name": "all_gather"}]
    return build(events, tracks=tracks(ranks), ops=ops, manifest={"is_simulation": True})


def test_only_those_whose_chain_leads_to_it_waited_for_a_late_rank() -> None:
    events = [
        late(1, 400),  # 0
        late(2, 300),  # 1
        moved(1, 400, 0),  # 2
        moved(2, 500, 2),  # 3
        moved(0, 0, None),  # 4
        arrival(0, 600, 3),
        arrival(2, 500, 2),
        arrival(3, 100, 4),
        arrival(1, 600, 3),
    ]
    assert late_ranks(emulated(events, 4)) == [
        # rank 0 waited from its call, at 0; rank 2 from its own at 300; nobody waits for itself
        {
            "rank": 1,
            "collectives": ["all_gather"],
            "late_ns": 400,
            "waiting_ranks": [0, 2],
            "waited_ns": 500,
            "equal_ranks": [],
        },
        {
            "rank": 2,
            "collectives": ["all_gather"],
            "late_ns": 300,
            "waiting_ranks": [],
            "waited_ns": 0,
            "equal_ranks": [],
        },
    ]


def test_the_report_says_so() -> None:
    events = [late(1, 400), moved(1, 400, 0), arrival(0, 500, 1), arrival(2, 500, 1)]
    text = " ".join(render_text(build_report(emulated(events, 3))).split())
    assert "rank 1 came 400 ns late to all_gather; 2 ranks (0, 2) waited for it" in text
    assert "800 ns in all at most" in text


def test_nobody_late_nothing_said() -> None:
    trace = emulated([moved(1, 0, None), arrival(0, 100, 0)], 2)
    assert late_ranks(trace) == []
    assert "Late ranks" not in render_text(build_report(trace))


def test_a_chain_that_goes_round_ends() -> None:
    events = [late(1, 400), moved(0, 0, 2), moved(1, 0, 1), arrival(0, 100, 1)]
    found = late_ranks(emulated(events, 2))
    assert [row["waiting_ranks"] for row in found] == [[]]
