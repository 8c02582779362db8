"""The packaged schema against the research copy; types that are not those of the schema."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.neuron.attributes import attributes
from trnprof.tracer.formats.neuron.coerce import coerced
from trnprof.tracer.formats.neuron.rows import nanoseconds
from trnprof.tracer.formats.neuron.schema import Field, joined_schema, own_schema, packaged_schema
from trnprof.tracer.formats.neuron.text import (
    memory,
    operand_dtype,
    operand_flops,
    place,
    ratio_dtype,
)
from trnprof.tracer.ingest.audit import Audit

RESEARCH = Path(__file__).parents[3].parent / "shared" / "design" / "neuron_schema_7.4.0.json"


@pytest.mark.skipif(not RESEARCH.exists(), reason="the shared folder is not here")
def test_packaged_schema_is_the_documented_one() -> None:
    documented = json.loads(RESEARCH.read_text())["tables"]
    packaged = packaged_schema()
    assert {t: [f["name"] for f in fields] for t, fields in documented.items()} == {
        t: list(fields) for t, fields in packaged.items()
    }
    for table, fields in documented.items():
        for field in fields:
            ours = packaged[table][field["name"]]
            assert ours.is_required == field["required"]
            assert (ours.unit == "ns") == (field["unit"] == "nanoseconds")


def test_a_profiles_own_schema_wins() -> None:
    own = own_schema(
        [
            {
                "table_name": "Instruction",
                "field_name": "novel",
                "field_type": "number (float)",
                "field_maximum": 1.0,
            },
            {"table_name": "Instruction", "field_name": "pc", "field_type": "string"},
            {
                "table_name": "Fresh",
                "field_name": "a",
                "field_type": "array of integer (int64)",
                "field_unit": "bytes",
            },
            {"table_name": "Fresh", "field_name": "b", "field_type": "mystery"},
            {"table_name": None, "field_name": "c", "field_type": "string"},
        ]
    )
    schema = joined_schema(own)
    assert schema["Instruction"]["novel"] == Field("float", maximum=1.0)
    assert schema["Instruction"]["pc"].kind == "string"
    assert schema["Instruction"]["start_ts"].unit == "ns"
    assert schema["Fresh"] == {"a": Field("list<int64>", unit="B")}


def test_times_of_other_types_are_converted_and_told() -> None:
    field = Field("int64", is_required=True, unit="ns")
    stamp = datetime(2026, 1, 2, 3, 4, 5, 678)
    stored = {
        "text": (pl.Series(["12", " 13 ", "1.4e1", "x"]), [12, 13, 14, None]),
        "real": (pl.Series([12.4, 12.6, float("nan"), None]), [12, 13, None, None]),
        "unsigned": (pl.Series([7, 2**64 - 1], dtype=pl.UInt64), [7, None]),
        "stamp": (pl.Series([stamp]), [1767323045000678000]),
        "span": (pl.Series([5], dtype=pl.Duration("us")), [5000]),
        "flag": (pl.Series([True]), [1]),
    }
    for name, (column, expected) in stored.items():
        audit = Audit()
        assert coerced(column, field, name, audit).to_list() == expected
        told = {f.kind: f.count for f in audit.findings}
        assert ("foreign_type" in told) == (name != "unsigned")
        lost = sum(e is None for e in expected) - column.null_count()
        assert told.get("unreadable_values", 0) == lost


def test_a_column_of_times_without_times_is_one_clear_error() -> None:
    field = Field("int64", is_required=True, unit="ns")
    with pytest.raises(ProfileError, match=r"table Instruction, column start_ts: .*'soon'"):
        coerced(
            pl.Series(["soon", "later"]), field, "p: table Instruction, column start_ts", Audit()
        )


def test_reals_beyond_53_bits_are_told() -> None:
    audit = Audit()
    coerced(pl.Series([1.7e18]), Field("int64", unit="ns"), "x", audit)
    assert "rounded_times" in {f.kind for f in audit.findings}


def test_other_kinds_of_columns() -> None:
    audit = Audit()
    assert coerced(pl.Series(["True", "0", "?"]), Field("bool"), "x", audit).to_list() == [
        True,
        False,
        None,
    ]
    assert coerced(pl.Series(["1.5", "x"]), Field("float"), "x", audit).to_list() == [1.5, None]
    assert coerced(pl.Series([[1, 2], None]), Field("list<int64>"), "x", audit).to_list() == [
        "[1,2]",
        None,
    ]
    assert coerced(pl.Series([{"a": 1}]), Field("string"), "x", audit).to_list() == ['{"a":1}']
    assert coerced(pl.Series([b"ab", b"\xff"]), Field("string"), "x", audit).to_list() == [
        "ab",
        "\ufffd",
    ]
    assert coerced(pl.Series([True, None]), Field("string"), "x", audit).to_list() == ["true", None]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "text": st.none() | st.text(max_size=8),
                "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
                "real": st.none() | st.floats(allow_nan=False, allow_infinity=False),
                "flag": st.none() | st.booleans(),
                "list": st.none() | st.lists(st.integers(0, 9), max_size=3),
            }
        ),
        min_size=1,
        max_size=6,
    )
)
def test_attributes_are_json_that_says_the_same(rows: list[dict[str, object]]) -> None:
    schema: dict[str, pl.DataType] = {
        "text": pl.String(),
        "whole": pl.Int64(),
        "real": pl.Float64(),
        "flag": pl.Boolean(),
        "list": pl.List(pl.Int64),
    }
    frame = pl.DataFrame(rows, schema=pl.Schema(schema))
    for row, text in zip(rows, attributes(frame, frame.columns), strict=True):
        kept = {k: v for k, v in row.items() if v is not None}
        assert (json.loads(text) if text is not None else {}) == kept


def test_operands_memories_and_places() -> None:
    operands = pl.DataFrame(
        {
            "o": [
                "S[5] (Tensor)++@complete src=bfloat16@0x4000[1,0,0][512,1,1] dst=0x2000000[1,0,0][512,1,1] 128*128",
                "src=fp32@0x0[-1,0,0][128,1,1] 64*32",
                "nop",
                None,
            ]
        }
    )
    seen = operands.select(
        operand_dtype(pl.col("o")).alias("d"), operand_flops(pl.col("o")).alias("f")
    )
    # 2 x rows x columns x elements
    assert seen["d"].to_list() == ["bfloat16", "float32", None, None]
    assert seen["f"].to_list() == [2 * 128 * 128 * 512, 2 * 64 * 32 * 128, None, None]
    ratios = pl.DataFrame({"a": [4, 1, 2, 7, 1], "r": [1, 1, 4, 3, 0]})
    assert ratios.select(ratio_dtype(pl.col("a"), pl.col("r"))).to_series().to_list() == [
        "float32",
        "bfloat16",
        "float8",
        None,
        None,
    ]
    ends = pl.DataFrame(
        {
            "t": ["DRAM", "SB", "psum_3", "", None, None, "host"],
            "n": [0, None, 0, 128, 0, None, None],
        }
    )
    assert ends.select(memory(pl.col("t"), pl.col("n"))).to_series().to_list() == [
        "hbm",
        "sbuf",
        "psum",
        "sbuf",
        "hbm",
        None,
        "host",
    ]
    assert place("/a/b.py:12") == ("/a/b.py", 12)
    assert place("C:\\x\\b.py:12:3") == ("C:\\x\\b.py", 12)
    assert place("kernel") == ("kernel", None)
    assert place(None) == (None, None)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9 * 10**12), st.integers(0, 999))
def test_units_of_time_are_exact(whole: int, thousandths: int) -> None:
    text = pl.DataFrame({"t": [f"{whole}.{thousandths:03d}", f"{whole}"]})

    def read(unit: str) -> list[int]:
        return text.select(nanoseconds(pl.col("t"), unit)).to_series().to_list()

    assert read("us") == [whole * 1000 + thousandths, whole * 1000]
    assert read("ps")[1] == (whole + 500) // 1000
    assert read("ns")[1] == whole
