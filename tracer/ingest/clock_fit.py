"""Which shifts bring the ends of the same collectives together? Matching, and a robust fit over the graph of sources.

A collective ends on all its members at nearly the same time (within microseconds on one host), however far apart they started, so
each that two sources share measures the difference of their clocks. With x the correction of a source and e the unknown common
end of a collective, ``sum of |end + x - e|`` over all ends is made least (least absolute deviations, by iteratively reweighted
least squares with e eliminated): an outlier has no pull, and groups that share only some of their ranks are solved as one
system. Where sources are not connected by collectives, each connected part has a clock of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from trnprof.tracer.ingest.collective_match import match_collectives

ITERATIONS: Final = 60
RIDGE: Final = 1e-9
"""Keeps the system solvable where the weights of a member all but vanish."""
MAX_FLOPS: Final = 5e7
"""Of one iteration: beyond it only every n-th collective is looked at."""
DIRECTED_WEIGHT: Final = 0.05
"""Of a collective whose root may leave early (broadcast, reduce), beside one that holds all members to the end."""
MAD_TO_SIGMA: Final = 1.4826
DRIFT_MIN_COLLECTIVES: Final = 64
DRIFT_SIGMAS: Final = 6.0
DRIFT_MIN_NS: Final = 2_000
DRIFT_LIMIT: Final = 5e-4
"""A drift is believed from this many collectives, if it moves the ends over the recording by so many of its own standard errors
and nanoseconds; no clock in use is off by more than the limit (s/s)."""


@dataclass(frozen=True)
class Fit:
    """Clocks of some sources, related by collectives. All mappings by source.

    Attributes:
        part: number of the connected part that a source belongs to; alone in it if no collective relates it to another.
        offset_ns: what to add to its times to be on the clock of the first source of its part.
        drift: further ``drift * (t - origin_ns)`` to add, s/s; 0 where none is believed.
        origin_ns: middle of its matched collectives, on its own clock.
        spread_ns: robust standard deviation (from the MAD) of its ends about those of the other members; None without a match.
        depth_spread_ns: the same, gathered along the way from the first source of its part.
        matched: collectives of it that others have too.
        residual_ns: of every matched end, its distance from the median end of its collective after the fit.
        unmatched: collectives of groups with several sources that only one has.
    """

    part: Mapping[str, int]
    offset_ns: Mapping[str, int]
    drift: Mapping[str, float]
    origin_ns: Mapping[str, int]
    spread_ns: Mapping[str, float | None]
    depth_spread_ns: Mapping[str, float | None]
    matched: Mapping[str, int]
    residual_ns: NDArray[np.float64]
    unmatched: int


def fit_clocks(
    collectives: Mapping[str, pl.DataFrame], sources: list[str], *, with_drift: bool
) -> Fit:
    """Fit the clocks of sources to their collectives.

    Args:
        collectives: by source, as ``Facts.collectives``; sources without any may be missing.
        sources: all of them; the first one of a connected part is its reference.
        with_drift: also fit linear drifts, where they are significant.
    """
    ends, unmatched = match_collectives(collectives, sources)
    part, first_ns, parents = _connect(ends, len(sources))
    columns: dict[str, list[Any]] = {
        "offset": [int(v) for v in first_ns],
        "drift": [0.0] * len(sources),
        "origin": [0] * len(sources),
        "spread": [None] * len(sources),
        "matched": [0] * len(sources),
    }
    residuals: list[NDArray[np.float64]] = []
    for number in np.unique(part[ends["source"].to_numpy()]) if ends.height else []:
        members = np.flatnonzero(part == number)
        own = ends.filter(pl.col("source").is_in(members.tolist()))
        solved = _solve(own, members, first_ns, with_drift)
        for name in columns:
            for place, value in zip(members.tolist(), solved[name], strict=True):
                columns[name][place] = value
        residuals.append(solved["residuals"])
    named = {k: dict(zip(sources, v, strict=True)) for k, v in columns.items()}
    gathered = _along(columns["spread"], parents)
    return Fit(
        dict(zip(sources, part.tolist(), strict=True)),
        named["offset"],
        named["drift"],
        named["origin"],
        named["spread"],
        dict(zip(sources, gathered, strict=True)),
        named["matched"],
        np.concatenate(residuals) if residuals else np.empty(0),
        unmatched,
    )


def _connect(
    ends: pl.DataFrame, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int | None]]:
    """Connected parts, a first offset of each source, and the source nearer to the reference that it was found from.

    A first offset is the median of differences to sources that are related already.
    """
    part = np.full(count, -1)
    offset = np.zeros(count, np.int64)
    parents: list[int | None] = [None] * count
    source = ends["source"].to_numpy()
    collective = ends["collective"].to_numpy()
    at = ends["end_ns"].to_numpy()
    collectives = int(collective.max()) + 1 if len(collective) else 0
    for reference in range(count):
        if part[reference] >= 0:
            continue
        part[reference] = reference
        while True:
            is_known = part[source] == reference
            anchor = np.full(collectives, -1)
            rows = np.flatnonzero(is_known)[::-1]
            anchor[collective[rows]] = rows
            new = np.flatnonzero((part[source] < 0) & (anchor[collective] >= 0))
            if not len(new):
                break
            near = anchor[collective[new]]
            differences = at[near] + offset[source[near]] - at[new]
            for member in np.unique(source[new]).tolist():
                own = source[new] == member
                offset[member] = _median_of_integers(differences[own])
                parents[member] = int(np.bincount(source[near][own]).argmax())
                part[member] = reference
    return part, offset, parents


def _median_of_integers(values: NDArray[np.int64]) -> int:
    """The lower median, without passing through float."""
    return int(np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2])


@dataclass(frozen=True)
class _System:
    """The matched ends of one connected part: one row a collective, one column a member.

    Attributes:
        late: end, about the row's anchor and after the first offsets (ns).
        weight: 0 where a member has no end.
        tau: time of each collective about the middle, in spans.
        middle_ns: on the reference's clock.
        span_ns: from the first collective to the last.
    """

    late: NDArray[np.float64]
    weight: NDArray[np.float64]
    tau: NDArray[np.float64]
    middle_ns: int
    span_ns: int


def _solve(
    ends: pl.DataFrame, members: NDArray[np.int64], first_ns: NDArray[np.int64], with_drift: bool
) -> dict[str, Any]:
    """One connected part: its columns, in order of ``members``."""
    system = _system(ends, members, first_ns)
    matched = np.bincount(np.searchsorted(members, ends["source"].to_numpy()))
    solution = _least_absolute(system, np.zeros(len(members), bool))
    if with_drift:
        drifting = _significant_drifts(system, matched)
        if drifting.any():
            solution = _least_absolute(system, drifting)
    x, slope = solution
    residual = _residuals(system, solution)
    return {
        "offset": (first_ns[members] + np.rint(x).astype(np.int64)).tolist(),
        "drift": (slope / system.span_ns).tolist(),
        "origin": (system.middle_ns - first_ns[members]).tolist(),
        "spread": _spreads(residual).tolist(),
        "matched": matched.tolist(),
        "residuals": np.abs(residual[~np.isnan(residual)]),
    }


def _system(ends: pl.DataFrame, members: NDArray[np.int64], first_ns: NDArray[np.int64]) -> _System:
    source = ends["source"].to_numpy()
    place = np.searchsorted(members, source)
    row = ends["collective"].rank("dense").to_numpy().astype(np.int64) - 1
    at = ends["end_ns"].to_numpy() + first_ns[source]
    anchor = np.zeros(int(row.max()) + 1, np.int64)
    anchor[row[::-1]] = at[::-1]
    late = np.zeros((len(anchor), len(members)))
    weight = np.zeros_like(late)
    late[row, place] = at - anchor[row]
    weight[row, place] = np.where(_is_directed(ends["name"]), DIRECTED_WEIGHT, 1.0)
    kept = np.arange(len(anchor)) % max(1, int(weight.size * len(members) // MAX_FLOPS)) == 0
    kept[(weight > 0).argmax(0)] = True
    anchor = anchor[kept]
    first, last = int(anchor.min()), int(anchor.max())
    middle, span = first + (last - first) // 2, max(1, last - first)
    return _System(late[kept], weight[kept], (anchor - middle) / span, middle, span)


def _is_directed(names: pl.Series) -> NDArray[np.bool_]:
    rest = names.str.to_lowercase().str.replace_all("all_?reduce|reduce_?scatter", "")
    found: NDArray[np.bool_] = rest.str.contains("broadcast|bcast|reduce").to_numpy()
    return found


def _significant_drifts(system: _System, matched: NDArray[np.int64]) -> NDArray[np.bool_]:
    trial = (np.arange(len(matched)) > 0) & (matched >= DRIFT_MIN_COLLECTIVES)
    solution = _least_absolute(system, trial)
    spread = _spreads(_residuals(system, solution))
    moved = np.abs(solution[1])
    error = 1.25 * spread * np.sqrt(12 / matched)
    is_seen = moved > np.maximum(DRIFT_MIN_NS, DRIFT_SIGMAS * error)
    found: NDArray[np.bool_] = trial & is_seen & (moved < DRIFT_LIMIT * system.span_ns)
    return found


def _least_absolute(
    system: _System, drifting: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Corrections (ns) and drifts (ns over the whole span) that make the sum of absolute residuals least; 0 for the first member.

    Args:
        system: the ends.
        drifting: the members whose drift is free.
    """
    late, weight, tau = system.late, system.weight, system.tau
    members = late.shape[1]
    free = np.concatenate([np.arange(members) > 0, drifting])
    solution = np.zeros(2 * members)
    used = weight
    for _ in range(ITERATIONS):
        share = used / used.sum(1, keepdims=True)
        pull = used * (late - (share * late).sum(1, keepdims=True))
        blocks = [
            np.diag((used * power).sum(0)) - used.T @ (share * power)
            for power in (np.ones((len(tau), 1)), tau[:, None], tau[:, None] ** 2)
        ]
        matrix = np.block([[blocks[0], blocks[1]], [blocks[1], blocks[2]]])
        right = -np.concatenate([pull.sum(0), (pull * tau[:, None]).sum(0)])
        found = np.zeros(2 * members)
        inner = matrix[np.ix_(free, free)]
        diagonal = np.diag(inner)
        inner = inner + np.diag(RIDGE * (diagonal + diagonal.mean()))
        found[free] = np.linalg.solve(inner, right[free])
        moved, solution = np.abs(found - solution).max(), found
        corrected = late + found[:members] + tau[:, None] * found[members:]
        distance = np.abs(corrected - (share * corrected).sum(1, keepdims=True))
        typical = np.median(distance[weight > 0])
        used = weight / np.maximum(distance, max(1.0, 1e-3 * typical))
        if moved < 0.25:
            break
    return solution[:members], solution[members:]


def _residuals(
    system: _System, solution: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Distance of each end from the median of its collective, widened by k / (k - 1) as it is one of those k; NaN: no end."""
    corrected = system.late + solution[0] + system.tau[:, None] * solution[1]
    corrected = np.where(system.weight > 0, corrected, np.nan)
    members = (system.weight > 0).sum(1, keepdims=True)
    off: NDArray[np.float64] = corrected - np.nanmedian(corrected, axis=1, keepdims=True)
    widened: NDArray[np.float64] = off * members / (members - 1)
    return widened


def _spreads(residual: NDArray[np.float64]) -> NDArray[np.float64]:
    off = residual - np.nanmedian(residual, axis=0, keepdims=True)
    found: NDArray[np.float64] = MAD_TO_SIGMA * np.nanmedian(np.abs(off), axis=0)
    return found


def _along(spreads: list[float | None], parents: list[int | None]) -> list[float | None]:
    """Each spread joined with those on the way to the reference, as the root of the sum of squares."""
    gathered: list[float | None] = []
    for place, own in enumerate(spreads):
        at, total, hops = place, 0.0, 0
        while own is not None and at is not None and hops <= len(spreads):
            total += (spreads[at] or 0.0) ** 2
            at, hops = parents[at], hops + 1  # type: ignore[assignment]
        gathered.append(None if own is None else float(np.sqrt(total)))
    return gathered
