"""What do the small tables of a Neuron Explorer profile say: metadata, summaries, queues, tensors, errors and warnings?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from trnprof.tracer.formats.neuron.machine import Machine
from trnprof.tracer.formats.neuron.metrics import metric_table
from trnprof.tracer.formats.neuron.places import Places
from trnprof.tracer.formats.neuron.schema import KNOWN_MAJOR
from trnprof.tracer.formats.neuron.tables import ProfileTables
from trnprof.tracer.ingest.stage import Facts

KNOWN_NTFF: Final = range(1, 7)
KEPT: Final = (
    *(
        "NeffHeader",
        "ExecutionInfo",
        "DeviceProfileList",
        "SystemProfileMetadata",
        "ThrottleSummary",
    ),
    *(
        "DmaQueuesInfo",
        "CcStream",
        "OpcodeSummary",
        "HbmUsageSummaryByType",
        "TensorInfo",
        "DmaUsageSummary",
    ),
)
"""Tables that are kept in the manifest, up to MOST_ROWS rows each."""
MOST_ROWS: Final = 1_000
_LONGEST: Final = 300
_LOST: Final = re.compile(
    r"drop|lost|overflow|overwrit|truncat|ring|full|missing|incomplete", re.IGNORECASE
)


def metadata_row(tables: ProfileTables) -> dict[str, Any]:
    """The row of the table Metadata; {} if there is none."""
    frame = tables.frame("Metadata").head(1)
    return (
        {k: v for k, v in frame.row(0, named=True).items() if v is not None} if frame.height else {}
    )


def fill_facts(tables: ProfileTables, machine: Machine, facts: Facts) -> None:
    """Put what the small tables say into ``facts``."""
    facts.is_simulation = bool(machine.metadata and dict(machine.metadata).get("is_simulation"))
    facts.system = machine.system()
    facts.peaks = machine.peaks()
    facts.metadata["neuron"] = _short(dict(machine.metadata))
    facts.metadata["neuron_tables"] = {name: tables.rows(name) for name in tables.names()}
    for table in KEPT:
        if tables.has(table):
            facts.metadata.setdefault("neuron_rows", {})[table] = _kept(tables, table)
    figures = _figures(tables, machine)
    if figures:
        facts.metrics = metric_table(figures, "Summary.parquet", tables.label, tables.audit)


def check_versions(metadata: Mapping[str, Any], tables: ProfileTables) -> None:
    """Findings for schema and capture formats that are not known."""
    version = str(metadata.get("profile_schema_version") or "")
    major = version.split(".")[0]
    is_known = not major.isdigit() or int(major) == KNOWN_MAJOR
    by = "its own SchemaFields" if tables.has_own_schema else f"what is known of {KNOWN_MAJOR}.4.0"
    tables.audit.add(
        "unknown_schema",
        "warning",
        tables.label,
        f"the profile has schema {version[:40]}, not {KNOWN_MAJOR}.x; it was read by {by}",
        unreliable="fields whose meaning changed",
        count=int(not is_known),
    )
    ntff = metadata.get("ntff_version")
    tables.audit.add(
        "unknown_ntff_version",
        "warning",
        tables.label,
        f"captured as NTFF version {ntff}; 1 to 6 have been seen: an older tool may have read it wrongly",
        unreliable="anything that the capture format changed",
        count=int(isinstance(ntff, int) and ntff not in KNOWN_NTFF),
    )


def add_messages(tables: ProfileTables, places: Places) -> None:
    """Errors as markers and findings, warnings as findings."""
    for frame in tables.batches("Error"):
        rows = frame.filter(pl.col("timestamp").is_not_null()).with_columns(
            name=pl.coalesce("description", "type", pl.lit("error"))
        )
        if rows.height:
            names = pl.Series(["errors"]).new_from_index(0, rows.height)
            at = rows["timestamp"].to_numpy()
            places.stage.add_events(
                timeline=places.by_row(
                    rows, lambda core, name: places.beside(core, name, "thread"), names
                ),
                start_ns=at,
                end_ns=at,
                name=rows["name"],
                category="marker",
                attributes=rows.select(
                    pl.struct("type", "metadata", "metadata_hex").struct.json_encode()
                ).to_series(),
            )
        for kind, text, count in frame.group_by("type", "description").len().head(50).iter_rows():
            severity = "warning" if kind == "Errors" else "note"
            message = f"the device reported {kind or 'an error'}: {str(text)[:_LONGEST]}"
            tables.audit.add(
                "device_error",
                severity,
                f"{tables.label}: Error",
                message,
                count=count,
                example=str(text)[:_LONGEST],
            )
    warnings = tables.frame("Warning", ["message", "category"])
    for category, texts in (
        warnings.group_by("category", maintain_order=True).agg("message").iter_rows()
    ):
        lost = [t for t in texts if t and _LOST.search(t)]
        for kind, severity, found in (
            ("dropped_events", "error", lost),
            ("profiler_warning", "warning", [t for t in texts if t not in lost]),
        ):
            tables.audit.add(
                kind,
                severity,
                f"{tables.label}: Warning, {category or 'uncategorised'}",
                f"Neuron Explorer warns: {str(found[0])[:_LONGEST]}" if found else "",
                unreliable="totals and everything near the gap"
                if lost
                else "what the warning names",
                count=len(found),
                example=str(found[0])[:_LONGEST] if found else "",
            )


def summary_row(tables: ProfileTables) -> dict[str, Any]:
    """The first row of the table Summary, as it is stored; {} if there is none."""
    frame = tables.frame("Summary").head(1)
    return frame.row(0, named=True) if frame.height else {}


def _figures(tables: ProfileTables, machine: Machine) -> dict[str, dict[str, Any]]:
    frame = tables.frame("Summary").head(MOST_ROWS)
    rows = [{k: v for k, v in row.items() if v is not None} for row in frame.iter_rows(named=True)]
    name = str(dict(machine.metadata).get("profile_name") or "")
    found = {name if i == 0 else f"{name}[{i}]": row for i, row in enumerate(rows)}
    said = (
        "instance_type",
        "compiler_version",
        "runtime_version",
        "driver_version",
        "collectives_version",
        "explorer_version",
    )
    for row in found.values():
        row |= {k: v for k, v in dict(machine.metadata).items() if k in said}
    for row in tables.frame("ThrottleSummary").head(MOST_ROWS).iter_rows(named=True):
        if found:
            found[name] |= _throttle_figures(row)
    return found


def _throttle_figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """Under the names that summary-json has for them."""
    kind = re.sub(r"\W+", "_", str(row.get("throttle_type") or "").lower()).strip("_")
    core = f"nc{row.get('nc_idx')}"
    prefix = f"throttle_{kind}_" if kind else "throttle_"
    named = {
        f"{prefix}active_{core}_time_ns": row.get("throttle_active_time_ns"),
        f"{prefix}active_time_{core}_percent": row.get("throttle_active_time_percent"),
        f"{prefix}avg_util_limit_{core}_percent": row.get(
            "max_achievable_util_with_throttling_percent"
        ),
    }
    return {k: v for k, v in named.items() if v is not None}


def _kept(tables: ProfileTables, table: str) -> dict[str, Any]:
    frame = tables.frame(table).head(MOST_ROWS)
    rows = [
        _short({k: v for k, v in row.items() if v is not None})
        for row in frame.iter_rows(named=True)
    ]
    return {"rows": tables.rows(table), "first": rows}


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v[:_LONGEST] if isinstance(v, str) else _finite(v) for k, v in row.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    return value if isinstance(value, (int, bool, type(None))) else str(value)[:_LONGEST]
