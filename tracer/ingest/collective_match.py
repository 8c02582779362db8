"""Which rows of several sources are the same collective? By group, ordinal and name, tolerant to ends that a recording lacks.

Ordinals may be counted from the beginning of each recording, so that those of a source which missed the first collectives are all
too low. Where counts or names differ, or the ends at equal ordinals are not at a constant distance, the lag with equal names and
the most constant distance of ends is taken: most constant by the geometric mean of what distances are off, in which a few ends far
off weigh little, however far, and neither hide the right lag nor make a wrong one look better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

SURE_NS: Final = 20_000
"""Ends at so constant a distance are of the same collectives: no other lag is looked for."""
SAME_NAMES: Final = 0.9
WITHIN: Final = 0.6
"""Not the median deviation: of two distances that alternate it is 0."""
FLOOR_NS: Final = 1_000
"""Added to what a distance is off before the geometric mean is taken; ends agree to no less, and an exact 0 would decide alone."""
LAGS: Final = 256
"""Most lags looked at to each side."""
BETTER: Final = 0.5
"""Another lag than 0 must bring the ends this much nearer to a constant distance."""

_COLUMNS: Final = ("source", "collective", "name", "end_ns")


@dataclass(frozen=True)
class _Row:
    """The collectives of one source in one group, in order of ordinal."""

    ordinal: NDArray[np.int64]
    name: NDArray[np.int64]
    end_ns: NDArray[np.int64]


def match_collectives(
    collectives: Mapping[str, pl.DataFrame], sources: list[str]
) -> tuple[pl.DataFrame, int]:
    """Number the collectives that at least two sources have.

    Args:
        collectives: by source: columns group, sequence, name, end_ns.
        sources: their order gives the numbers in ``source``.

    Returns:
        One row an end: source (index), collective (dense number), name, end_ns; and how many rows found no partner in a group
        that several sources have.
    """
    rows = _all_rows(collectives, sources)
    if not rows.height:
        return _nothing(), 0
    shared = rows.filter(pl.col("source").n_unique().over("group") > 1)
    shifted = [_with_lags(group) for group in shared.partition_by("group", maintain_order=True)]
    if not shifted:
        return _nothing(), 0
    keys = ["group", "ordinal", "name"]
    found = pl.concat(shifted)
    known = found.filter(pl.len().over(keys) > 1)
    numbered = known.with_columns(collective=pl.struct(keys).rank("dense").cast(pl.Int64) - 1)
    return numbered.select(_COLUMNS), shared.height - known.height


def _nothing() -> pl.DataFrame:
    types = {"source": pl.Int64, "collective": pl.Int64, "name": pl.String, "end_ns": pl.Int64}
    return pl.DataFrame(schema=types)


def _all_rows(collectives: Mapping[str, pl.DataFrame], sources: list[str]) -> pl.DataFrame:
    """Rows of all sources, several of one group and ordinal as one: the collective ends with the last."""
    frames = [
        collectives[label].select(
            pl.lit(place, pl.Int64).alias("source"),
            pl.col("group").cast(pl.String),
            pl.col("sequence").cast(pl.Int64).alias("ordinal"),
            pl.col("name").cast(pl.String),
            pl.col("end_ns").cast(pl.Int64),
        )
        for place, label in enumerate(sources)
        if label in collectives and collectives[label].height
    ]
    if not frames:
        return pl.DataFrame()
    return (
        pl.concat(frames)
        .drop_nulls()
        .group_by("source", "group", "ordinal")
        .agg(pl.col("name").sort_by("end_ns").last(), pl.col("end_ns").max())
        .sort("group", "source", "ordinal")
    )


def _with_lags(group: pl.DataFrame) -> pl.DataFrame:
    """The ordinals of every source on those of the one that has most."""
    coded = group.with_columns(code=pl.col("name").rank("dense").cast(pl.Int64))
    members = coded.partition_by("source", maintain_order=True)
    reference = max(range(len(members)), key=lambda m: (members[m].height, -m))
    lags = [
        0 if m == reference else find_lag(_row(members[reference]), _row(member))
        for m, member in enumerate(members)
    ]
    moved = [
        member.with_columns(pl.col("ordinal") + lag)
        for member, lag in zip(members, lags, strict=True)
        if lag is not None
    ]
    return pl.concat(moved).drop("code")


def _row(member: pl.DataFrame) -> _Row:
    return _Row(
        member["ordinal"].to_numpy(), member["code"].to_numpy(), member["end_ns"].to_numpy()
    )


def find_lag(reference: _Row, other: _Row) -> int | None:
    """What to add to the ordinals of ``other``; None if nothing fits."""
    straight = _off(reference, other, 0)
    is_whole = len(reference.ordinal) == len(other.ordinal)
    if straight is not None and (_is_constant(straight) or (is_whole and len(straight) < 3)):
        return 0
    room = min(LAGS, abs(len(reference.ordinal) - len(other.ordinal)) + 8)
    centres = {
        0,
        int(reference.ordinal[0] - other.ordinal[0]),
        int(reference.ordinal[-1] - other.ordinal[-1]),
    }
    lags = sorted({c + d for c in centres for d in range(-room, room + 1)}, key=abs)
    count = min(len(reference.ordinal), len(other.ordinal))
    gap_ns = float(np.median(np.abs(np.diff(reference.end_ns)))) if count > 1 else 0.0
    tried = [
        (_typical(off, count, gap_ns), lag)
        for lag in lags
        if (off := _off(reference, other, lag)) is not None
    ]
    if not tried:
        return None
    typical, lag = min(tried, key=lambda t: t[0])
    is_best = straight is not None and _typical(straight, count, gap_ns) * BETTER <= typical
    return 0 if is_best else lag


def _off(reference: _Row, other: _Row, lag: int) -> NDArray[np.float64] | None:
    """How far the distances of ends are from their median at this lag (ns); None where too few meet or names differ."""
    wanted = other.ordinal + lag
    place = np.minimum(np.searchsorted(reference.ordinal, wanted), len(reference.ordinal) - 1)
    meets = reference.ordinal[place] == wanted
    same = meets & (reference.name[place] == other.name)
    shorter = min(len(reference.ordinal), len(other.ordinal))
    if same.sum() < max(1, SAME_NAMES * meets.sum(), shorter / 2):
        return None
    distances = (other.end_ns - reference.end_ns[place])[same]
    # the lower median: one of the distances, where a mean of two that contradict each other would be near none
    middle = np.partition(distances, (len(distances) - 1) // 2)[(len(distances) - 1) // 2]
    off: NDArray[np.float64] = np.abs(distances - middle).astype(np.float64)
    return off


def _is_constant(off: NDArray[np.float64]) -> bool:
    return float(np.quantile(off, WITHIN)) <= SURE_NS


def _typical(off: NDArray[np.float64], count: int, gap_ns: float) -> float:
    """Geometric mean of what ``count`` ends are off (ns); those that meet no other at this lag count as if one collective off."""
    logs = np.log(off + FLOOR_NS).sum() + (count - len(off)) * np.log(gap_ns + FLOOR_NS)
    return float(np.exp(logs / count))
