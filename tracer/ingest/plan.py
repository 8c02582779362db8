"""Which rank, writer and clock does each source get in the trace, and what is added to its times?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trnprof.tracer.ingest.align import Alignment, Method, align
from trnprof.tracer.ingest.audit import Finding
from trnprof.tracer.ingest.quarantine import first_believed_ns
from trnprof.tracer.ingest.ranks import assign_ranks, writer_names
from trnprof.tracer.ingest.stage import MOST_RANKS, Stage
from trnprof.tracer.ingest.write import Shift, WriterPlan
from trnprof.tracer.manifest import Clock
from trnprof.tracer.schema import DEVICE_KINDS


def plan_writers(
    stages: Sequence[Stage], method: Method
) -> tuple[list[WriterPlan], Alignment, list[Finding]]:
    """Decide for all sources together.

    Sources that share a clock begin with the first event of all of them at 0; the Unix time of that zero is kept where
    somebody knows it.

    Args:
        stages: of the sources, closed, with distinct labels.
        method: how clocks are related, see ``align``.

    Returns:
        A plan each, how the clocks were related, and doubts about ranks and clocks.
    """
    labels = [stage.label for stage in stages]
    stated = [_believed_rank(stage) for stage in stages]
    ranks, findings = assign_ranks(labels, stated, [has_device(stage) for stage in stages])
    alignment = align(
        {s.label: s.facts.collectives for s in stages if s.facts.collectives is not None},
        {s.label: s.facts.base_unix_ns for s in stages},
        method,
    )
    findings += alignment.findings
    clocks = _clocks(stages, alignment)
    plans = [
        WriterPlan(
            name,
            number,
            clocks[alignment.clock[label]][0],
            Shift(
                alignment.offset_ns[label] - clocks[alignment.clock[label]][1],
                alignment.drift[label],
                alignment.drift_origin_ns[label],
            ),
            rank,
            stage.facts.host or "host0",
        )
        for number, (stage, label, rank, name) in enumerate(
            zip(stages, labels, ranks, writer_names(labels, ranks), strict=True)
        )
    ]
    return plans, alignment, findings


def _believed_rank(stage: Stage) -> int | None:
    rank = stage.facts.rank
    return rank if rank is not None and 0 <= rank < MOST_RANKS else None


def has_device(stage: Stage) -> bool:
    """Whether a source has activity of a device."""
    return any(each.kind in DEVICE_KINDS for each in stage.timelines)


def _clocks(stages: Sequence[Stage], alignment: Alignment) -> Mapping[int, tuple[Clock, int]]:
    """By number of the common clock: the clock, and its zero before it was moved to the first event."""
    found: dict[int, tuple[Clock, int]] = {}
    for number in dict.fromkeys(alignment.clock.values()):
        members = [s for s in stages if alignment.clock[s.label] == number]
        starts = [
            (s, first) for s in members for first in (first_believed_ns(s), s.first_counter_ns)
        ]
        zero_ns = min(
            (first + alignment.offset_ns[s.label] for s, first in starts if first is not None),
            default=0,
        )
        epochs = [
            s.facts.base_unix_ns - alignment.offset_ns[s.label]
            for s in members
            if s.facts.base_unix_ns is not None
        ]
        epoch_ns = epochs[0] + zero_ns if epochs else None
        found[number] = (Clock(number, members[0].facts.clock_kind, epoch_ns), zero_ns)
    return found
