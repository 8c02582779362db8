"""What do operands, memories and places in the source mean that the tools write as text?"""

from __future__ import annotations

from typing import Final

import polars as pl

DTYPES: Final = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "half": "float16",
    "tf32": "tfloat32",
    "fp32r": "tfloat32",
    "tfloat32": "tfloat32",
    "fp32": "float32",
    "float32": "float32",
    "fp8": "float8",
    "fp8e3": "float8",
    "fp8e4": "float8",
    "fp8e5": "float8",
    "fp8_e3": "float8",
    "fp8_e4": "float8",
    "fp8_e5": "float8",
    "fp8_exp4": "float8",
    "fp8_exp5": "float8",
    "float8e3": "float8",
    "float8e4": "float8",
    "float8e5": "float8",
    "cfp8": "float8",
    "float8_e4m3": "float8",
    "float8_e5m2": "float8",
    "mxfp8": "mxfp8",
    "mxfp4": "mxfp4",
    "uint8": "uint8",
    "int8": "int8",
    "int16": "int16",
    "uint16": "uint16",
    "int32": "int32",
    "uint32": "uint32",
}
"""Names of datatypes in operands (lower case), and the name of the analyzers."""
_BY_RATIO: Final = {1.0: "bfloat16", 4.0: "float32", 0.5: "float8", 0.25: "mxfp8"}
"""Adjusted over raw FLOPs: the datatype with that BF16-equivalent (of several with one peak, the most common)."""
_SOURCE_DTYPE: Final = r"src\d?=\[?([A-Za-z][A-Za-z0-9_]*)@"
_ELEMENTS: Final = r"src\d?=[^\[]*\[[^\]]*\]\[([0-9,]+)\]"
_ARRAY: Final = r"\b(\d{1,4})\*(\d{1,4})\b"


def known_dtype(name: pl.Expr) -> pl.Expr:
    """The analyzers' name of a datatype; null for names that nobody knows."""
    return name.str.to_lowercase().replace_strict(DTYPES, default=None, return_dtype=pl.String)


def operand_dtype(operands: pl.Expr) -> pl.Expr:
    """The datatype of the source operand, such as of ``src=bf16@0x4000[1,0,0][512,1,1] dst=… 128*128``."""
    return known_dtype(operands.str.extract(_SOURCE_DTYPE))


def ratio_dtype(adjusted: pl.Expr, raw: pl.Expr) -> pl.Expr:
    """The datatype that the ratio of BF16-equivalent to raw FLOPs tells; null for others."""
    ratio = pl.when(raw > 0).then((adjusted / raw * 4).round() / 4)
    is_exact = (ratio * raw - adjusted).abs() <= 1e-3 * adjusted
    return pl.when(is_exact).then(
        ratio.replace_strict(_BY_RATIO, default=None, return_dtype=pl.String)
    )


def operand_flops(operands: pl.Expr) -> pl.Expr:
    """FLOPs of a matmul by its operands: 2 x active rows x active columns x elements moved; null where they do not say it."""
    size = operands.str.extract_groups(_ARRAY)
    rows = size.struct.field("1").cast(pl.Float64, strict=False)
    columns = size.struct.field("2").cast(pl.Float64, strict=False)
    moved = (
        operands.str.extract(_ELEMENTS)
        .str.split(",")
        .list.eval(pl.element().cast(pl.Float64, strict=False).product())
        .list.first()
    )
    return 2 * rows * columns * moved


def memory(text: pl.Expr, partitions: pl.Expr) -> pl.Expr:
    """The memory that one end of a transfer lies in: by its name, else by whether it has SBUF partitions.

    Args:
        text: what the tool writes of that end.
        partitions: number of SBUF partitions of that end, null if unknown.
    """
    word = text.str.to_lowercase()
    return (
        pl.when(word.str.contains("psum"))
        .then(pl.lit("psum"))
        .when(word.str.contains(r"\bsb|sbuf|state.?buffer"))
        .then(pl.lit("sbuf"))
        .when(word.str.contains("remote|peer"))
        .then(pl.lit("remote"))
        .when(word.str.contains("host"))
        .then(pl.lit("host"))
        .when(word.str.contains("hbm|dram|ddr"))
        .then(pl.lit("hbm"))
        .when(partitions > 0)
        .then(pl.lit("sbuf"))
        .when(partitions == 0)
        .then(pl.lit("hbm"))
    )


def place(text: str | None) -> tuple[str | None, int | None]:
    """File and line of ``file.py:12`` (or ``file.py:12:3``); (None, None) for nothing."""
    if not text or not text.strip():
        return None, None
    parts = text.strip().split(":")
    while len(parts) > 2 and parts[-1].isdigit() and parts[-2].isdigit():
        parts.pop()
    if len(parts) > 1 and parts[-1].isdigit():
        line = int(parts[-1][:9])
        return ":".join(parts[:-1]), line if line < 1 << 31 else None
    return text.strip(), None
