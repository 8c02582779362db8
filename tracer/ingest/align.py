"""How do the clocks of several profiles relate? By the base times that they state, else by the ends of their collectives.

Unix base times are used where every source states one, and then checked against the collectives: a disagreement is told, never
mended unasked. Else sources are related by collectives (``clock_fit``), and connected parts of them by base times where both sides
have one. What is left has a clock of its own: nothing is aligned silently or by guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.ingest.audit import Finding
from trnprof.tracer.ingest.clock_fit import Fit, fit_clocks
from trnprof.tracer.ingest.collective_match import match_collectives
from trnprof.tracer.ingest.stage import UNFINISHED
from trnprof.tracer.units import counted, format_ns

Method = Literal["auto", "none", "collectives"]

BASE, COLLECTIVES, BOTH = "base time", "collectives", "collectives, then base time"
NONE: Final = "none: no relation known"
SKEW_MIN_NS: Final = 50_000
SKEW_SIGMAS: Final = 4.0
"""A base time is doubted where collectives put its clock this far off, in time and in standard deviations of the ends."""
DISAGREE_NS: Final = 100_000
DISAGREE_SHARE: Final = 0.25
"""Matches are doubted where this share of the ends is further than this from the others after alignment."""
FEW: Final = 4
ENDS_AGREE_NS: Final = 7_000
"""Largest spread of ends measured on one host; it is the uncertainty where fewer than FEW collectives show none of their own."""
LISTED: Final = 16
_UNKNOWN: Final = "its clock is unknown: nothing relates it to the others"
_UNKNOWN_EACH: Final = "their clocks are unknown: nothing relates them to the others"


@dataclass(frozen=True)
class Residual:
    """How far the matched ends are from the median end of their collective after alignment: count, and ns."""

    count: int
    median_ns: int
    p95_ns: int
    max_ns: int


@dataclass(frozen=True)
class Alignment:
    """How to bring the times of sources onto common clocks. All mappings by source label.

    Attributes:
        reference: the source whose clock the first common clock is.
        clock: number of the common clock that a source ends up on, from 0; sources with the same number share an axis.
        offset_ns: what to add to its times.
        uncertainty_ns: twice the robust standard deviation of its ends, gathered on the way to the reference; 0 for a
            reference; None where nothing measures it or relates the source.
        drift: further ``drift * (t - drift_origin_ns)`` to add (s/s); see ``apply``.
        drift_origin_ns: on the source's own clock.
        method: how it was related: ``base time``, ``collectives``, ``collectives, then base time``, ``none: no relation known``.
        residual: of all matched collectives; None if there are none.
        lines: what was done, for people.
        findings: doubts.
    """

    reference: str
    clock: Mapping[str, int]
    offset_ns: Mapping[str, int]
    uncertainty_ns: Mapping[str, int | None]
    drift: Mapping[str, float]
    drift_origin_ns: Mapping[str, int]
    method: Mapping[str, str]
    residual: Residual | None
    lines: tuple[str, ...]
    findings: tuple[Finding, ...]

    def apply(self, label: str, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of a source on its common clock; ``UNFINISHED`` stays.

        Args:
            label: the source.
            times_ns: on its own clock.
        """
        moved = times_ns + np.int64(self.offset_ns[label])
        if self.drift[label]:
            apart = times_ns - np.int64(self.drift_origin_ns[label])
            moved += np.rint(apart * self.drift[label]).astype(np.int64)
        return np.where(times_ns == UNFINISHED, np.int64(UNFINISHED), moved)


def align(
    collectives: Mapping[str, pl.DataFrame],
    bases: Mapping[str, int | None],
    method: Method = "auto",
) -> Alignment:
    """Relate the clocks of sources.

    Args:
        collectives: by source label, ``Facts.collectives`` on the source's own clock; sources without any may be missing.
        bases: by source label, every source: Unix ns of its clock's zero, None if unknown.
        method: ``auto``; ``collectives`` even where base times are known; ``none`` leaves every clock alone.

    Raises:
        ValueError: an unknown method, or no source.
    """
    if method not in ("auto", "none", "collectives"):
        raise ValueError(f"align: method {method!r} is not auto, none or collectives")
    labels = list(bases)
    if not labels:
        raise ValueError("align: no source")
    if len(labels) == 1 or method == "none":
        return _apart(labels)
    if method == "auto" and all(b is not None for b in bases.values()):
        return _by_base(collectives, bases, labels)
    return _by_collectives(collectives, bases, labels)


def _apart(labels: Sequence[str]) -> Alignment:
    single = len(labels) == 1
    lines = (
        () if single else (f"clocks of {len(labels)} sources are left as they are: none asked for",)
    )
    return Alignment(
        labels[0],
        {label: place for place, label in enumerate(labels)},
        dict.fromkeys(labels, 0),
        dict.fromkeys(labels, 0 if single else None),
        dict.fromkeys(labels, 0.0),
        dict.fromkeys(labels, 0),
        dict.fromkeys(labels, NONE),
        None,
        lines,
        (),
    )


def _by_base(
    collectives: Mapping[str, pl.DataFrame], bases: Mapping[str, int | None], labels: list[str]
) -> Alignment:
    first = bases[labels[0]] or 0
    offset = {label: (bases[label] or 0) - first for label in labels}
    fit = fit_clocks(_shifted(collectives, offset), labels, with_drift=False)
    measured = _skews(fit, labels)
    residual = _residual(_disagreement(fit, collectives, offset, labels))
    findings = [*_skew_finding(fit, measured), *_match_findings(fit)]
    uncertainty = {
        label: None
        if label not in measured
        else abs(measured[label]) + (_uncertainty(fit, label) or 0)
        for label in labels
    }
    lines = [f"clocks of {len(labels)} sources are related by their Unix base times"]
    if residual is None:
        lines[0] += "; no collective tells how well they agree"
    else:
        lines.append(f"the same collectives then end apart by {_spelled(residual)}")
    lines += _listed(labels, offset, uncertainty, fit.matched, dict.fromkeys(labels, 0))
    return Alignment(
        labels[0],
        dict.fromkeys(labels, 0),
        offset,
        uncertainty,
        dict.fromkeys(labels, 0.0),
        dict.fromkeys(labels, 0),
        dict.fromkeys(labels, BASE),
        residual,
        tuple(lines),
        tuple(findings),
    )


def _by_collectives(
    collectives: Mapping[str, pl.DataFrame], bases: Mapping[str, int | None], labels: list[str]
) -> Alignment:
    fit = fit_clocks(collectives, labels, with_drift=True)
    part, shift, by_base = _joined_by_base(fit, bases, labels)
    numbers = {p: n for n, p in enumerate(dict.fromkeys(part[label] for label in labels))}
    clock = {label: numbers[part[label]] for label in labels}
    offset = {label: fit.offset_ns[label] + shift[label] for label in labels}
    method: dict[str, str] = {}
    uncertainty: dict[str, int | None] = {}
    for label in labels:
        is_alone = not fit.matched[label]
        method[label] = COLLECTIVES if not is_alone else NONE
        uncertainty[label] = _uncertainty(fit, label) if not is_alone else None
        if label in by_base:
            method[label] = BASE if is_alone else BOTH
            uncertainty[label] = None
    residual = _residual(fit.residual_ns)
    lines = [_said(labels, fit, clock, by_base)]
    if residual is not None:
        lines.append(f"the same collectives now end apart by {_spelled(residual)}")
    shared = Counter(clock.values())
    related = [label for label in labels if shared[clock[label]] > 1]
    lines += _listed(related, offset, uncertainty, fit.matched, clock)
    alone = [label for label in labels if shared[clock[label]] == 1]
    if len(alone) > LISTED:
        lines.append(f"{len(alone)} sources: {_UNKNOWN_EACH}")
    else:
        lines += [f"{label}: {_UNKNOWN}" for label in alone]
    lines += [
        f"{label}: its clock drifts by {fit.drift[label] * -1e6:+.1f} ppm; corrected"
        for label in labels
        if fit.drift[label]
    ]
    return Alignment(
        labels[0],
        clock,
        offset,
        uncertainty,
        fit.drift,
        fit.origin_ns,
        method,
        residual,
        tuple(lines),
        (*_match_findings(fit), *_disagree_finding(fit), *_apart_finding(labels, clock)),
    )


def _joined_by_base(
    fit: Fit, bases: Mapping[str, int | None], labels: Sequence[str]
) -> tuple[dict[str, int], dict[str, int], set[str]]:
    """Parts that base times relate to the first part become one with it: part and shift of each source, and which were moved.

    A part's base time is the median over its members that state one.
    """
    zeros: dict[int, list[int]] = {}
    for label in labels:
        base = bases[label]
        if base is not None:
            zeros.setdefault(fit.part[label], []).append(base - fit.offset_ns[label])
    unix = {part: sorted(found)[len(found) // 2] for part, found in zeros.items()}
    first = next((fit.part[label] for label in labels if fit.part[label] in unix), None)
    part, shift, moved = {}, {}, set()
    for label in labels:
        own = fit.part[label]
        is_moved = own in unix and own != first
        part[label] = first if is_moved and first is not None else own
        shift[label] = unix[own] - unix[first] if is_moved and first is not None else 0
        if is_moved:
            moved.add(label)
    return part, shift, moved


def _shifted(
    collectives: Mapping[str, pl.DataFrame], offset: Mapping[str, int]
) -> dict[str, pl.DataFrame]:
    return {
        label: frame.with_columns(pl.col("end_ns") + offset[label])
        for label, frame in collectives.items()
        if label in offset
    }


def _skews(fit: Fit, labels: Sequence[str]) -> dict[str, int]:
    """What the collectives would add to each source that has some, about the median of its connected part."""
    found: dict[str, int] = {}
    for part in dict.fromkeys(fit.part.values()):
        members = [m for m in labels if fit.part[m] == part and fit.matched[m]]
        offsets = sorted(fit.offset_ns[m] for m in members)
        found |= {m: fit.offset_ns[m] - offsets[(len(offsets) - 1) // 2] for m in members}
    return found


def _disagreement(
    fit: Fit,
    collectives: Mapping[str, pl.DataFrame],
    offset: Mapping[str, int],
    labels: Sequence[str],
) -> NDArray[np.float64]:
    """How far ends are apart under the base times themselves."""
    ends, _ = match_collectives(_shifted(collectives, offset), list(labels))
    middle = pl.col("end_ns").sort().get(pl.len() // 2).over("collective")
    off: NDArray[np.float64] = ends.select((pl.col("end_ns") - middle).abs())["end_ns"].to_numpy()
    return off


def _residual(apart_ns: NDArray[np.float64]) -> Residual | None:
    if not len(apart_ns):
        return None
    median, p95 = np.quantile(apart_ns, [0.5, 0.95])
    return Residual(len(apart_ns), round(median), round(p95), round(apart_ns.max()))


def _uncertainty(fit: Fit, label: str) -> int | None:
    if fit.part[label] == list(fit.part).index(label):
        return 0
    spread = fit.depth_spread_ns[label]
    if spread is None:
        return None
    least = ENDS_AGREE_NS if fit.matched[label] < FEW else 1
    return max(least, round(2 * spread))


def _skew_finding(fit: Fit, measured: Mapping[str, int]) -> list[Finding]:
    doubted = {
        label: skew
        for label, skew in measured.items()
        if abs(skew) > max(SKEW_MIN_NS, SKEW_SIGMAS * (fit.spread_ns[label] or 0.0))
    }
    if not doubted:
        return []
    worst = max(doubted, key=lambda label: abs(doubted[label]))
    error = round(2 * (fit.spread_ns[worst] or 0.0))
    message = (
        f"base times put clocks up to {format_ns(abs(doubted[worst]))} away from where their collectives put them (bound "
        f"{format_ns(SKEW_MIN_NS)}); times were left as the base times say: --align collectives corrects them"
    )
    example = f"{worst}: {_signed(doubted[worst])} ± {format_ns(error)} by {counted(fit.matched[worst], 'collective')}"
    return [
        Finding(
            "clock_skew",
            "warning",
            worst,
            message,
            "everything that compares times of ranks",
            len(doubted),
            example,
        )
    ]


def _match_findings(fit: Fit) -> list[Finding]:
    if not fit.unmatched:
        return []
    message = "collectives of shared groups have no partner on other ranks (cut, or not recorded there); they were left out of alignment"
    return [Finding("collectives_unmatched", "note", "all sources", message, "", fit.unmatched)]


def _disagree_finding(fit: Fit) -> list[Finding]:
    off = fit.residual_ns
    count = int((off > DISAGREE_NS).sum())
    if not len(off) or count < DISAGREE_SHARE * len(off):
        return []
    message = (
        f"ends of collectives are more than {format_ns(DISAGREE_NS)} from the others after alignment ({count} of {len(off)}): they "
        "contradict each other; the offsets with the least absolute deviation were taken"
    )
    example = f"worst {format_ns(float(off.max()))}"
    return [
        Finding(
            "collectives_disagree",
            "warning",
            "all sources",
            message,
            "clock offsets, and everything that compares times of ranks",
            count,
            example,
        )
    ]


def _apart_finding(labels: Sequence[str], clock: Mapping[str, int]) -> list[Finding]:
    apart = [label for label in labels if clock[label] != clock[labels[0]]]
    if not apart:
        return []
    message = (
        f"no base time and no shared collective relates these clocks to that of {labels[0]}: each connected part keeps a clock of "
        "its own"
    )
    return [
        Finding(
            "clocks_unrelated",
            "warning",
            apart[0],
            message,
            "everything that compares times of ranks",
            len(apart),
            ", ".join(apart[:3]),
        )
    ]


def _said(labels: Sequence[str], fit: Fit, clock: Mapping[str, int], by_base: set[str]) -> str:
    clocks = len(set(clock.values()))
    related = sum(bool(fit.matched[label]) for label in labels)
    text = f"sources related by the ends of their collectives: {related} of {len(labels)}"
    if by_base:
        text += f", {len(by_base)} by base times"
    return f"{text}; {clocks} clocks without known relation" if clocks > 1 else text


def _listed(
    labels: Sequence[str],
    offset: Mapping[str, int],
    uncertainty: Mapping[str, int | None],
    matched: Mapping[str, int],
    clock: Mapping[str, int],
) -> list[str]:
    """Offsets of sources that others share a clock with; where there are several clocks, each says to whose."""
    if len(labels) > LISTED:
        low, high = min(labels, key=lambda m: offset[m]), max(labels, key=lambda m: offset[m])
        return [f"offsets from {_signed(offset[low])} ({low}) to {_signed(offset[high])} ({high})"]
    first = {clock[label]: label for label in reversed(labels)}
    lines = []
    for label in labels:
        error = uncertainty[label]
        bar = "" if error is None else f" ± {format_ns(error)}"
        by = f" ({counted(matched[label], 'collective')})" if matched[label] else ""
        to = f" to {first[clock[label]]}" if len(first) > 1 else ""
        lines.append(f"{label}: {_signed(offset[label])}{bar}{to}{by}")
    return lines


def _signed(ns: int) -> str:
    return f"{'-' if ns < 0 else '+'}{format_ns(abs(ns))}"


def _spelled(residual: Residual) -> str:
    return (
        f"{format_ns(residual.median_ns)} (median; 95 %: {format_ns(residual.p95_ns)}, worst: {format_ns(residual.max_ns)}, "
        f"{counted(residual.count, 'end')})"
    )
