"""How is a collective's outcome told to people: lines for one run?"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from trnprof.cli.collective_document import (
    algorithm_name,
    bus_bandwidth,
    busiest,
    chunks_of,
    mean_utilization,
    reason,
    steps,
)
from trnprof.cli.collectives import Setting
from trnprof.emulator.collectives.messages import BARRIER
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.collectives.request import CHUNKED, CLOSED_FORM, Request
from trnprof.emulator.fabric.names import link_name
from trnprof.tracer.units import counted, format_ns, format_percent, format_rate, printable

_LABEL: Final = 12
_WIDEST: Final = 100
_SHOWN_LINKS: Final = 3
_SHOWN_ESTIMATES: Final = 6


def outcome_text(setting: Setting, outcomes: Sequence[Outcome]) -> str:
    """All collectives of a run, then what they have in common."""
    parts = [list(_outcome_lines(setting, outcome)) for outcome in outcomes]
    if len(outcomes) > 1:
        longest = max(outcome.time_ps for outcome in outcomes)
        parts.append([_row("together", f"{format_ns(longest / 1000)}, all in flight at once")])
    parts[-1] += common_lines(setting)
    return printable_lines("\n\n".join("\n".join(lines) for lines in parts))


def heading(setting: Setting, outcome: Outcome) -> str:
    """What was run on what."""
    request = outcome.request
    return (
        f"{request.collective}{_of_bytes(request.bytes)} among {counted(request.members, 'rank')} "
        f"({_members(request)}) on {setting.place}, emulated"
    )


def common_lines(setting: Setting) -> list[str]:
    """What was made to go wrong, and what the time rests on that nobody published."""
    lines = [_row("fault", fault) for fault in setting.faults]
    keys = setting.estimates
    if keys:
        more = f" and {len(keys) - _SHOWN_ESTIMATES} more" if len(keys) > _SHOWN_ESTIMATES else ""
        lines.append(_row("estimated", ", ".join(keys[:_SHOWN_ESTIMATES]) + more))
    return lines


def exact_bytes(count: int) -> str:
    """Bytes as people give them: in powers of 1024 where that is a whole number.

    >>> exact_bytes(1 << 30), exact_bytes(1536), exact_bytes(1000), exact_bytes(7)
    ('1 GiB', '1536 B', '1000 B', '7 B')
    """
    for power, unit in ((50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count and count % (1 << power) == 0:
            return f"{count >> power} {unit}"
    return f"{count} B"


def rank_ranges(ranks: Sequence[int]) -> str:
    """Ranks as ``--ranks`` takes them.

    >>> rank_ranges((0, 1, 2, 8)), rank_ranges((5,))
    ('0..2,8', '5')
    """
    parts = []
    for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        members = [rank for _, rank in run]
        parts.append(f"{members[0]}..{members[-1]}" if len(members) > 1 else str(members[0]))
    return ",".join(parts[:8]) + (",…" if len(parts) > 8 else "")


def _members(request: Request) -> str:
    if request.replicas == 1:
        return rank_ranges(request.ranks)
    return f"{rank_ranges(request.ranks)} of each instance"


def printable_lines(text: str) -> str:
    """Text without control characters but its line ends."""
    return "\n".join(printable(line) for line in text.split("\n"))


def bound_text(outcome: Outcome) -> str:
    """What the time is made of most."""
    bound = outcome.bound
    step = f", most in step {bound.step}" if bound.step is not None else ""
    named = {"latency": f"latency: {bound.resource}", "peer": f"{bound.resource}, which came late"}
    return named.get(bound.kind, bound.resource) + step


def _outcome_lines(setting: Setting, outcome: Outcome) -> Iterator[str]:
    request = outcome.request
    yield heading(setting, outcome)
    yield _row("time", format_ns(outcome.time_ps / 1000, 5))
    if request.collective != BARRIER:
        rate = format_rate(outcome.algorithm_bandwidth_bytes_per_s, "B/s")
        yield _row("algbw", f"{rate} (buffer over time)")
        yield _row(
            "busbw", f"{format_rate(bus_bandwidth(outcome), 'B/s')} (as nccl-tests count it)"
        )
    count = steps(outcome)
    of_steps = f" ({counted(count, 'step')})" if count is not None else ""
    yield _row("algorithm", f"{algorithm_name(outcome)}{of_steps}; {reason(outcome)}")
    yield _row("bound", bound_text(outcome))
    yield _row("links", _links_text(outcome))
    yield _row("fidelity", _fidelity_text(outcome))
    if request.replicas > 1:
        yield _row("folded", f"1 of {request.replicas:,} instances is emulated, all do the same")


def _links_text(outcome: Outcome) -> str:
    fabric, use = outcome.fabric, outcome.link_utilization
    used = int((outcome.link_bytes > 0).sum())
    if not used:
        return "none used"
    named = ", ".join(
        f"{link_name(fabric, link)} {format_percent(float(use[link]))}"
        for link in busiest(outcome, _SHOWN_LINKS)
    )
    failed = int(fabric.is_failed.sum())
    broken = f", {failed} failed" if failed else ""
    mean = format_percent(mean_utilization(outcome))
    times = outcome.request.replicas
    return f"{used * times:,} of {fabric.links * times:,} used{broken}, busy {mean} of the time on average; busiest {named}"


def _fidelity_text(outcome: Outcome) -> str:
    request = outcome.request
    if outcome.fidelity == CLOSED_FORM:
        parts = chunks_of(outcome) or 1
        in_parts = "whole messages" if parts == 1 else f"{counted(parts, 'chunk')} a message"
        return f"{CLOSED_FORM} (a formula; {in_parts}, {request.forwarding})"
    if outcome.fidelity != CHUNKED:
        return f"{outcome.fidelity} (links shared max-min fair)"
    chunks = chunks_of(outcome)
    cut = f"{counted(chunks, 'chunk')} a message, " if chunks is not None else ""
    ways = request.forwarding if request.astra_sim is None else "as ASTRA-sim 2.0 counts"
    return f"{CHUNKED} ({cut}{ways})"


def _of_bytes(count: int) -> str:
    return f" of {exact_bytes(count)}" if count else ""


def _row(label: str, text: str) -> str:
    """A label and its text, wrapped under itself."""
    indent = "  " + " " * _LABEL
    return textwrap.fill(
        text.replace(" %", "\xa0%"),
        min(_WIDEST, shutil.get_terminal_size().columns),
        initial_indent=f"  {label:<{_LABEL}}",
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    ).replace("\xa0", " ")
