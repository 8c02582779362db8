"""Which operation is an event of XProf's JSON, by its arguments?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from trnprof.tracer.formats.xplane.metadata import Operations
from trnprof.tracer.formats.xplane.names import (
    device_category,
    is_control_flow,
    memories,
    operands,
    source_line,
)
from trnprof.tracer.schema import CATEGORIES, MEMORIES

SAID: Final = (
    "hlo_op",
    "hlo_module",
    "hlo_category",
    "long_name",
    "tf_op",
    "name",
    "source",
    "program_id",
    "model_flops",
    "bytes_accessed",
    "memcpy_details",
    "Memset_details",
)
"""Arguments that say which operation it is; those of one combination are looked at once."""
_SIZE: Final = re.compile(r"(?:size|num_bytes):(\d{1,18})\b")


@dataclass(frozen=True)
class Operation:
    """What all events of one name and one combination of such arguments share.

    Attributes:
        category: index into CATEGORIES.
        op: ``op_id``, -1 for none.
        flops, bytes: NaN or -1 where unknown.
        dtype: name or None.
        source_memory, target_memory: index into MEMORIES, -1 for none.
        encloses: whether it is control flow around the operations that do the work.
    """

    category: int
    op: int
    flops: float
    bytes: int
    dtype: str | None
    source_memory: int
    target_memory: int
    encloses: bool


def operation(event: str, said: dict[str, str | None], operations: Operations) -> Operation:
    """What follows from a name and its arguments.

    Args:
        event: its name.
        said: texts of the arguments in ``SAID``, None where one is missing.
        operations: takes the operation if it is new.
    """
    hlo_category = said["hlo_category"] or ""
    details = said["memcpy_details"] or said["Memset_details"]
    category = "dma" if details else device_category(event, hlo_category, said["hlo_op"] or "")
    copied = _SIZE.search(details or "")
    size = int(copied[1]) if copied else _number(said["bytes_accessed"])
    model_flops = _number(said["model_flops"])
    places = memories(event)
    if places == (None, None) and details:
        places = memories(details)
    encloses = is_control_flow(event, hlo_category)
    source, target = (-1 if p is None else MEMORIES.index(p) for p in places)
    return Operation(
        category=CATEGORIES.index(category),
        op=_op(event, category, said, size, model_flops, operations),
        flops=float("nan") if encloses or model_flops is None else float(model_flops),
        bytes=-1 if encloses or size is None else size,
        dtype=operands(said["long_name"] or "", hlo_category).dtype,
        source_memory=source,
        target_memory=target,
        encloses=encloses,
    )


def _op(
    event: str,
    category: str,
    said: dict[str, str | None],
    size: int | None,
    model_flops: int | None,
    operations: Operations,
) -> int:
    if not (said["hlo_op"] or said["hlo_category"] or said["hlo_module"]):
        return -1
    path = said["tf_op"] if said["tf_op"] not in (None, "XlaModule:") else said["name"]
    instruction = said["hlo_op"] or event
    shapes = operands(said["long_name"] or "", said["hlo_category"] or "")
    file, line = source_line(said["source"])
    return operations.number(
        (said["hlo_module"], said["program_id"], instruction, path),
        {
            "kind": "collective" if category == "collective" else "kernel",
            "name": instruction,
            "module_path": path,
            "source_file": file,
            "source_line": line,
            "input_shapes": shapes.shapes,
            "dtypes": shapes.dtypes,
            "model_flops": model_flops,
            "logical_bytes": size,
            "out_bytes": size if category == "collective" else None,
        },
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,18}", text) else None
