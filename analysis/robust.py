"""When is a value out of line with its siblings? By their median and the median distance from it (MAD), which outliers do not move."""

from __future__ import annotations

from typing import Final

import polars as pl

MODIFIED_Z: Final = 3.5
"""Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993): a modified z-score beyond this is an outlier."""
MAD_TO_SIGMA: Final = 1.4826
"""MAD of normally distributed values times this is their standard deviation (1 / 0.6745)."""
MIN_SHARE: Final = 0.05
"""Ours: what differs from the median by less than this part of it is not worth a line, however alike the others are."""
MIN_SIBLINGS: Final = 4
"""Ours: of fewer nobody can say which is the odd one."""


def tolerance(median: pl.Expr, mad: pl.Expr) -> pl.Expr:
    """How far from the median a value may lie and still be in line with the others.

    >>> pl.select(a=tolerance(pl.lit(100.0), pl.lit(0.0)), b=tolerance(pl.lit(100.0), pl.lit(10.0))).row(0)
    (5.0, 51.891)
    """
    return pl.max_horizontal(MODIFIED_Z * MAD_TO_SIGMA * mad, MIN_SHARE * median.abs())


def median_and_mad(value: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Aggregates of a group: its median, and the median distance from that (float64)."""
    middle = value.median()
    return middle.alias("median"), (value - middle).abs().median().alias("mad")
