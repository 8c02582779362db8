"""Synthetic Neuron profiles, faithful to schema 7.4.0: there is no public export to test with.

Tables are written with the Arrow types, nullability and names of the schema. The sums of one profile are chosen so that its totals
are those of a real one whose counters were published (see ``INF2``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trnprof.tracer.formats.neuron.schema import Field, packaged_schema

INF2: dict[str, float] = {
    # pantheongpu/pantheonneuron, data/probe-2026-08-26-tools/02-profiler-counters.txt: one NEFF execution on inf2, tools 2.28.23
    "total_time": 0.000149710075,
    "total_active_time": 0.00014409027,
    "neuroncore_cycle_count": 209594,
    "model_flops": 67108864,
    "hardware_flops": 136380416,
    "transpose_flops": 2162688,
    "mfu_estimated_percent": 0.004885633591650872,
    "mfu_hlo_estimated_percent": 0.004885633591650872,
    "mfu_hlo_max_achievable_estimated_percent": 0.03533507997793712,
    "mfu_inst_estimated_percent": 0.009771267183301744,
    "mfu_inst_max_achievable_estimated_percent": 0.07067015995587424,
    "hfu_estimated_percent": 0.009928714238395054,
    "mbu_estimated_percent": 0.13826581387961806,
    "mm_arithmetic_intensity": 15.814671814671815,
    "peak_flops_bandwidth_ratio": 223.78146341463415,
    "tensor_engine_active_time": 0.000134001233,
    "tensor_engine_active_time_percent": 0.8950715775140718,
    "hbm_read_bytes": 8470528,
    "hbm_write_bytes": 16384,
    "dma_transfer_count": 19,
    "dma_transfer_total_bytes": 8486912,
    "dma_transfer_average_bytes": 446679.58,
}

_ARROW = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "list<int64>": pa.list_(pa.int64()),
    "list<string>": pa.list_(pa.string()),
    "nested": pa.string(),
}
_WORDS = {"ns": "nanoseconds", "B": "bytes", "s": "seconds", "fraction": "percent"}

Row = dict[str, Any]


def write_profile(
    folder: Path,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    parts: Mapping[str, int] | None = None,
    with_schema: bool = False,
    types: Mapping[tuple[str, str], pa.DataType] | None = None,
) -> Path:
    """Write a profile.

    Args:
        folder: its directory, made if need be.
        tables: rows by table; fields that a row does not name are null, or 0 and empty where the schema requires them.
        parts: how many files a table is split into.
        with_schema: also write SchemaFields.
        types: other Arrow types of columns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given = dict(tables)
    if with_schema:
        given["SchemaFields"] = schema_rows()
    for table, rows in given.items():
        written = _table(table, list(rows), types or {})
        count = (parts or {}).get(table, 0)
        if not count:
            pq.write_table(written, folder / f"{table}.parquet")
        size = max(1, -(-written.num_rows // max(count, 1)))
        for number in range(count):
            piece = written.slice(number * size, size)
            pq.write_table(piece, folder / f"{table}_{number}.parquet")
    return folder


def schema_rows() -> list[Row]:
    """SchemaFields of 7.4.0."""
    return [
        {
            "table_name": table,
            "field_name": name,
            "field_type": "integer (int64)" if field.kind == "int64" else field.kind,
            "field_required": field.is_required,
            "field_unit": _WORDS.get(field.unit, field.unit),
            "field_maximum": 100.0 if name == "util_percent" else None,
        }
        for table, fields in packaged_schema().items()
        for name, field in fields.items()
    ]


def _table(
    table: str, rows: list[Mapping[str, Any]], types: Mapping[tuple[str, str], pa.DataType]
) -> pa.Table:
    fields = packaged_schema()[table]
    extra = dict.fromkeys(name for row in rows for name in row if name not in fields)
    columns, named = [], []
    for name, field in [*fields.items(), *((name, None) for name in extra)]:
        values = [row.get(name, _empty(field)) for row in rows]
        type_ = types.get((table, name), _ARROW[field.kind] if field is not None else None)
        columns.append(pa.array(values, type_))
        named.append(name)
    return pa.table(columns, named)


def _empty(field: Field | None) -> Any:
    if field is None or not field.is_required:
        return None
    empty: dict[str, Any] = {"string": "", "bool": False, "list<int64>": [], "list<string>": []}
    return empty.get(field.kind, 0)


def metadata(**fields: Any) -> list[Row]:
    """One row of Metadata: a core of inf2 unless told otherwise."""
    row: Row = {
        "profile_schema_version": "7.4.0",
        "ntff_version": 6,
        "num_physical_cores": 1,
        "first_ts": "0",
        "last_ts": "149710",
        "dma_ddr_bandwidth": 410e9,
        "num_dma_engines_per_neuroncore": 16,
        "hbm_ddr_bandwidth": 410e9,
        "tensor_engine_num_rows": 128,
        "tensor_engine_num_cols": 128,
        "tensor_engine_clock_freq": 2.8,
        "vector_engine_clock_freq": 1.12,
        "scalar_engine_clock_freq": 1.4,
        "gpsimd_engine_clock_freq": 1.4,
        "neuroncore_clock_freq": 1.4,
        "instance_type": "inf2.xlarge",
        "neuroncore_idx": 0,
        "neuron_device_idx": 0,
    }
    return [row | fields]


def instruction(number: int, start: int, end: int, engine: str = "Tensor", **fields: Any) -> Row:
    """One row of Instruction."""
    row: Row = {
        "id": number,
        "pc": number,
        "bir_id": str(number),
        "start_ts": start,
        "end_ts": end,
        "duration_ns": end - start,
        "engine": engine,
        "opcode": "MATMUL",
        "operands": "src=bf16@0x4000[1,0,0][512,1,1] dst=0x2000000[1,0,0][512,1,1] 128*128",
    }
    return row | fields


def transfer(number: int, start: int, end: int, size: int, **fields: Any) -> Row:
    """One row of DmaPacketAggregated: from HBM to SBUF unless told otherwise."""
    row: Row = {
        "id": number,
        "start_ts": start,
        "end_ts": end,
        "duration_ns": end - start,
        "queue_name": f"q{number % 4}",
        "queue_idx": number % 4,
        "queue_type": "input",
        "op": "copy",
        "variable": f"weights_{number}",
        "read_bytes": size,
        "write_bytes": size,
        "transfer_bytes": size,
        "source": "DRAM",
        "dest": "SBUF",
        "write_num_sbuf_partitions": 128,
    }
    return row | fields


def published_inf2() -> dict[str, list[Row]]:
    """A profile whose sums are the published ones: FLOPs, transposes, bytes, time and the tensor engine's activity."""
    end_ns, active_ns, count = 149_710, 134_001, 64
    flops = int(INF2["hardware_flops"])
    transposed = int(INF2["transpose_flops"])
    bounds = [active_ns * i // count for i in range(count + 1)]
    useful = (flops - transposed) // (count - 1)
    rows = [
        instruction(
            i,
            bounds[i],
            bounds[i + 1],
            "tensor" if i % 2 else "Tensor",
            timeline_track="TensorMatrix" if i % 3 == 0 else "Tensor",
            raw_flops=useful,
            adjusted_flops=useful,
            tensor_instruction_type="REGULAR",
        )
        for i in range(count)
    ]
    rows[0] |= {
        "raw_flops": transposed,
        "adjusted_flops": transposed,
        "flops_transpose": transposed,
        "tensor_instruction_type": "TRANSPOSE",
    }
    rows[-1]["raw_flops"] = rows[-1]["adjusted_flops"] = flops - transposed - useful * (count - 2)
    rows.append(instruction(count, end_ns - 100, end_ns, "Sync", opcode="NOTIFY", operands=""))
    loads = int(INF2["dma_transfer_count"]) - 1
    read = int(INF2["hbm_read_bytes"])
    sizes = [read // loads] * (loads - 1) + [read - read // loads * (loads - 1)]
    dma = [transfer(i, 1_000 * i, 1_000 * i + 900, size) for i, size in enumerate(sizes)]
    written = int(INF2["hbm_write_bytes"])
    dma.append(
        transfer(loads, 140_000, 141_000, written, source="SBUF", dest="DRAM", queue_type="output")
    )
    return {
        "Metadata": metadata(),
        "Instruction": rows,
        "DmaPacketAggregated": dma,
        "Summary": [dict(INF2)],
    }


def summary_json(**figures: Any) -> str:
    """What ``--output-format summary-json`` prints for one profile."""
    said = {**INF2, "profiler_version": "2.28.23.0", "compiler_version": "2.23.6484.0", **figures}
    return json.dumps({"n_7792fe1daf87c456c04c96497296393233c1c7b1": said})
