"""In which class of sizes does a transfer fall? Classes with round bounds, named as people say them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class SizeClasses:
    """Classes of sizes, in order.

    Attributes:
        bounds: the first size of each class but the first one, ascending (bytes).
        labels: one more than bounds.
    """

    bounds: Sequence[int]
    labels: Sequence[str]

    def number(self, size: pl.Expr) -> pl.Expr:
        """Ordinal of the class of a size; null of null."""
        over = pl.sum_horizontal((size >= bound).cast(pl.Int8) for bound in self.bounds)
        return pl.when(size.is_not_null()).then(over)

    def label(self, size: pl.Expr) -> pl.Expr:
        """Name of the class of a size; null of null.

        >>> sizes = SizeClasses((512, 4096), ("< 512 B", "512 B–4 KiB", ">= 4 KiB"))
        >>> pl.select(sizes.label(pl.lit(pl.Series([0, 512, 5000, None])))).to_series().to_list()
        ['< 512 B', '512 B–4 KiB', '>= 4 KiB', None]
        """
        names = dict(enumerate(self.labels))
        return self.number(size).replace_strict(names, return_dtype=pl.String)
