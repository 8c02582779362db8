"""Which tables does a Neuron Explorer profile have, and of what type and unit is each field?

A profile says so itself (its table ``SchemaFields``); what it leaves open is taken from the packaged copy of schema 7.4.0, so that
fields of later versions are known by their own description and profiles without one are read all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

import polars as pl

PACKAGED_VERSION: Final = "7.4.0"
KNOWN_MAJOR: Final = 7
MARKS: Final = frozenset(("Instruction", "Summary", "SchemaFields", "SystemProfileEvents"))
"""Tables of which a profile has at least one."""

_UNITS: Final = {
    "nanoseconds": "ns",
    "bytes": "B",
    "seconds": "s",
    "percent": "fraction",
    "bytes_per_second": "B/s",
    "bytes per second": "B/s",
    "gigahertz": "GHz",
}


@dataclass(frozen=True)
class Field:
    """One field of a table.

    Attributes:
        kind: ``int64``, ``int32``, ``float``, ``double``, ``bool``, ``string``, ``list<int64>``, ``list<string>`` or ``nested``.
        is_required: whether every row has it.
        unit: ``ns``, ``B``, ``s``, ``fraction`` (called percent), ``B/s``, ``GHz``, ``cycles``, ``flops`` or empty.
        maximum: largest value that it may have, if the profile says one.
    """

    kind: str
    is_required: bool = False
    unit: str = ""
    maximum: float | None = None

    @property
    def dtype(self) -> pl.DataType:
        """The polars type its values are read as."""
        return _DTYPES[self.kind]


_DTYPES: Final[Mapping[str, pl.DataType]] = {
    "int64": pl.Int64(),
    "int32": pl.Int64(),
    "float": pl.Float64(),
    "double": pl.Float64(),
    "bool": pl.Boolean(),
    "string": pl.String(),
    "list<int64>": pl.String(),
    "list<string>": pl.String(),
    "nested": pl.String(),
}
Schema = Mapping[str, Mapping[str, Field]]


@lru_cache(maxsize=1)
def packaged_schema() -> Schema:
    """Schema 7.4.0: table → field name → field."""
    text = (files("trnprof.tracer.formats.neuron") / "schema_7_4_0.json").read_text("utf-8")
    return {
        table: {name: _packaged_field(said) for name, said in fields.items()}
        for table, fields in json.loads(text).items()
    }


def own_schema(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Field]]:
    """The schema that a profile states of itself.

    Args:
        rows: of ``SchemaFields``; those without a table, field or known type are left out.
    """
    found: dict[str, dict[str, Field]] = {}
    for row in rows:
        table, name = row.get("table_name"), row.get("field_name")
        kind = _kind_of(str(row.get("field_type") or ""), str(row.get("field_format") or ""))
        if not table or not name or kind is None:
            continue
        said = str(row.get("field_unit") or "")
        is_required = str(row.get("field_required")).lower() in ("true", "1")
        field = Field(kind, is_required, _UNITS.get(said, said), _number(row.get("field_maximum")))
        found.setdefault(str(table), {})[str(name)] = field
    return found


def joined_schema(own: Schema) -> Schema:
    """The packaged schema, and where a profile states its own field, that one."""
    known = packaged_schema()
    return {table: {**known.get(table, {}), **own.get(table, {})} for table in (*known, *own)}


def _packaged_field(said: str) -> Field:
    kind, _, unit = said.partition(" ")
    return Field(kind.removesuffix("?"), not kind.endswith("?"), unit)


def _kind_of(type_: str, format_: str) -> str | None:
    """The kind of a type as the tool writes it, such as ``integer (int64)`` or ``array of string``; None: unknown."""
    text = f"{type_} {format_}".lower()
    if text.startswith("array"):
        return (
            "list<int64>" if "integer" in text else "list<string>" if "string" in text else "nested"
        )
    for word, kind in (
        ("int32", "int32"),
        ("int", "int64"),
        ("double", "double"),
        ("bool", "bool"),
    ):
        if word in text:
            return kind
    if "number" in text or "float" in text:
        return "float"
    return "string" if "str" in text else None


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None
