"""At which line of which file was an instruction written?

First the kernel's own line (``nki_source_location``, else the deepest frame of its kernel instruction), then the compiler's debug
location, then the first of the framework's stack frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import polars as pl

from trnprof.tracer.formats.neuron.tables import ProfileTables

COLUMNS: Final = (
    "nki_source_location",
    "kernel_instruction_name",
    "bir_debug_info_source_location",
    "stack_frame_ids",
)


def _nothing() -> pl.DataFrame:
    return pl.DataFrame(schema={"key": pl.String, "where": pl.String})


@dataclass(frozen=True)
class SourcePlaces:
    """Lookups of one profile, ``key`` → ``where`` (``file:line``).

    Attributes:
        kernel: by name of the kernel instruction.
        frame: by id of a framework's stack frame.
    """

    kernel: pl.DataFrame = field(default_factory=_nothing)
    frame: pl.DataFrame = field(default_factory=_nothing)

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """``file:line`` of each row, null where nobody knows it."""
        given = [pl.col(name).cast(pl.String) for name in COLUMNS if name in rows.columns]
        if not given:
            return pl.Series([None], dtype=pl.String).new_from_index(0, rows.height)
        texts = rows.select(given)
        found = {name: texts[name] for name in texts.columns}
        if "kernel_instruction_name" in found:
            found["kernel_instruction_name"] = _looked_up(
                found["kernel_instruction_name"], self.kernel
            )
        if "stack_frame_ids" in found:
            first = found["stack_frame_ids"].str.extract(r"(\w+)")
            found["stack_frame_ids"] = _looked_up(first, self.frame)
        known = [pl.when(s.str.len_bytes() > 0).then(s) for s in found.values()]
        return pl.select(pl.coalesce(known)).to_series()


def source_places(tables: ProfileTables) -> SourcePlaces:
    """The lookups that a profile has."""
    return SourcePlaces(_kernel_places(tables), _frame_places(tables))


def _looked_up(keys: pl.Series, known: pl.DataFrame) -> pl.Series:
    asked = pl.DataFrame({"key": keys.cast(pl.String)})
    return asked.join(known, on="key", how="left", maintain_order="left")["where"]


def _kernel_places(tables: ProfileTables) -> pl.DataFrame:
    rows = tables.frame(
        "KernelInstructions",
        [
            "kernel_instruction_name",
            "stack_frame_id",
            "stack_frame_depth",
            "file_path",
            "line_number",
        ],
    )
    frames = tables.frame("KernelStackFrames", ["stack_frame_id", "file_path", "line_number"])
    frames = frames.unique("stack_frame_id", keep="first")
    joined = rows.join(frames, on="stack_frame_id", how="left", suffix="_of_frame")
    where = _where(
        pl.coalesce("file_path", "file_path_of_frame"),
        pl.coalesce("line_number", "line_number_of_frame"),
    )
    return (
        joined.sort("stack_frame_depth", descending=True, nulls_last=True, maintain_order=True)
        .select(key=pl.col("kernel_instruction_name").cast(pl.String), where=where)
        .filter(pl.col("where").is_not_null() & pl.col("key").is_not_null())
        .unique("key", keep="first", maintain_order=True)
    )


def _frame_places(tables: ProfileTables) -> pl.DataFrame:
    text = pl.String()
    frames = tables.frame("StackFrame", ["id", "file_location_id"]).select(
        key=pl.col("id").cast(text), location=pl.col("file_location_id").cast(text)
    )
    locations = tables.frame(
        "StackFrameFileLocation", ["id", "file_name_id", "line_number"]
    ).select(
        location=pl.col("id").cast(text), file=pl.col("file_name_id").cast(text), line="line_number"
    )
    files = tables.frame("StackFrameFileName", ["id", "name"]).select(
        file=pl.col("id").cast(text), path="name"
    )
    joined = frames.join(locations.unique("location"), on="location").join(
        files.unique("file"), on="file"
    )
    return joined.select("key", where=_where(pl.col("path"), pl.col("line"))).unique(
        "key", keep="first"
    )


def _where(path: pl.Expr, line: pl.Expr) -> pl.Expr:
    return pl.when(line > 0).then(path + ":" + line.cast(pl.String)).otherwise(path)
