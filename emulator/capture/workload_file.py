"""How is a Workload kept on disk while the program runs, and read back afterwards?

``workload.arrows`` is an Arrow stream of checked batches (as the trace's tables are), appended to as operations come, so that
a program that is killed leaves what ran. Rows are of five kinds: ``ref`` (a tensor as operations see it, numbered in
order), ``operation`` (which names refs by number), ``step``, ``note`` and ``end`` (the program finished).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from trnprof.emulator.workload import Operation, TensorRef, Workload, WorkloadStep
from trnprof.tracer.batches import to_batch
from trnprof.tracer.errors import CaptureError
from trnprof.tracer.files import written_beside
from trnprof.tracer.schema import KEY, NAME, Column, Table
from trnprof.tracer.streams import BatchStream, read_stream

STREAM, SEALED = "workload.arrows", "workload.arrow"
RECORDS = ("ref", "operation", "resident", "step", "note", "end")

WORKLOAD = Table(
    "workload",
    (
        Column("record", KEY, False, "kind of this row", RECORDS),
        Column("name", NAME, True, "operator, step label or note"),
        Column("phase", KEY, True, "phase of an operation, source of a step, role of a tensor"),
        Column("step", pa.int32(), True, "ordinal of the step"),
        Column("inputs", pa.list_(pa.uint32()), True, "refs read"),
        Column("outputs", pa.list_(pa.uint32()), True, "refs written"),
        Column("freed", pa.list_(pa.uint32()), True, "storages that died before it"),
        Column("module_path", NAME, True, "module it ran in"),
        Column("module_class", NAME, True, "class of that module"),
        Column("source_file", NAME, True, "file that called it"),
        Column("source_line", pa.int32(), True, "line that called it"),
        Column("model_flops", pa.float64(), True, "FLOPs as torch counts them"),
        Column("is_view", pa.bool_(), True, "no data moves"),
        Column("arguments", pa.string(), True, "JSON of its other arguments"),
        Column("tensor", pa.uint32(), True, "storage of a ref"),
        Column("shape", pa.list_(pa.int64()), True, "sizes of a ref"),
        Column("dtype", KEY, True, "datatype of a ref"),
        Column("nbytes", pa.int64(), True, "bytes of a ref"),
        Column("storage_nbytes", pa.int64(), True, "bytes of its storage"),
        Column("contiguous", pa.bool_(), True, "innermost stride of a ref is 1"),
    ),
)


class WorkloadStream:
    """Appends to ``workload.arrows``; rows are kept until ``flush``."""

    def __init__(self, directory: Path) -> None:
        self._stream = BatchStream(directory / STREAM, WORKLOAD, 65_536)
        self._rows: list[dict[str, Any]] = []
        self._refs: dict[TensorRef, int] = {}

    @property
    def pending(self) -> int:
        """Rows not yet written."""
        return len(self._rows)

    def resident(self, ref: TensorRef) -> None:
        """A tensor that was there before the first operation."""
        self._rows.append({"record": "resident", "inputs": [self._ref(ref)]})

    def operation(self, op: Operation) -> None:
        """One operation."""
        inputs = [self._ref(r) for r in op.inputs]
        outputs = [self._ref(r) for r in op.outputs]
        self._rows.append(
            {
                "record": "operation",
                "name": op.name,
                "phase": op.phase,
                "step": op.step,
                "inputs": inputs,
                "outputs": outputs,
                "freed": list(op.freed),
                "module_path": op.module_path,
                "module_class": op.module_class,
                "source_file": op.source_file,
                "source_line": op.source_line,
                "model_flops": op.model_flops,
                "is_view": op.is_view,
                "arguments": json.dumps(op.arguments) if op.arguments else None,
            }
        )

    def step(self, step: WorkloadStep) -> None:
        """A step that has begun."""
        row = {"record": "step", "name": step.label, "phase": step.source, "step": step.step}
        self._rows.append(row)

    def note(self, text: str) -> None:
        """A remark for people."""
        self._rows.append({"record": "note", "name": text})

    def end(self) -> None:
        """The program finished."""
        self._rows.append({"record": "end"})

    def flush(self) -> None:
        """Write what is pending; it then survives a kill."""
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        columns = {name: [row.get(name) for row in rows] for name in WORKLOAD.names}
        self._stream.append(to_batch(WORKLOAD, columns))
        self._stream.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        self._stream.close()

    def _ref(self, ref: TensorRef) -> int:
        known = self._refs.get(ref)
        if known is None:
            known = self._refs[ref] = len(self._refs)
            self._rows.append(
                {
                    "record": "ref",
                    "tensor": ref.tensor,
                    "shape": list(ref.shape),
                    "dtype": ref.dtype,
                    "nbytes": ref.nbytes,
                    "storage_nbytes": ref.storage_nbytes,
                    "phase": ref.role,
                    "contiguous": ref.contiguous,
                }
            )
        return known


def save_workload(directory: Path, workload: Workload) -> None:
    """Write a whole Workload and seal it."""
    stream = WorkloadStream(directory)
    for ref in workload.resident:
        stream.resident(ref)
    for step in workload.steps:
        stream.step(step)
    for op in workload.operations:
        stream.operation(op)
    for note in workload.notes:
        stream.note(note)
    if workload.complete:
        stream.end()
    stream.close()
    seal_workload(directory)


def seal_workload(directory: Path) -> None:
    """Turn the stream into ``workload.arrow``; does nothing if there is no stream."""
    stream = directory / STREAM
    if not stream.exists():
        return
    batches, _ = read_stream(stream, WORKLOAD)
    table = pa.Table.from_batches(batches, WORKLOAD.arrow).combine_chunks().unify_dictionaries()
    with written_beside(directory / SEALED) as beside:
        options = ipc.IpcWriteOptions(compression="zstd")
        with ipc.new_file(str(beside), WORKLOAD.arrow, options=options) as writer:
            writer.write_table(table)
    stream.unlink()


def load_workload(directory: Path) -> Workload:
    """The Workload saved in a trace, sealed or not.

    Raises:
        CaptureError: the trace holds none (it was imported, or recorded without a system).
    """
    sealed, stream = directory / SEALED, directory / STREAM
    if sealed.exists():
        try:
            with ipc.open_file(str(sealed)) as reader:
                batches = reader.read_all().to_batches()
        except (pa.ArrowException, OSError) as error:
            raise CaptureError(f"{sealed}: not readable: {error}") from error
    elif stream.exists():
        batches, _ = read_stream(stream, WORKLOAD)
    else:
        raise CaptureError(
            f"{directory} holds no captured workload ({SEALED}): record it with trnprof record --system …"
        )
    return _from_rows(row for batch in batches for row in batch.to_pylist())


def _from_rows(rows: Iterator[Mapping[str, Any]]) -> Workload:
    refs: list[TensorRef] = []
    operations: list[Operation] = []
    resident: list[TensorRef] = []
    steps: list[WorkloadStep] = []
    notes: list[str] = []
    complete = False
    for row in rows:
        match row["record"]:
            case "ref":
                refs.append(_ref_of(row))
            case "operation":
                operations.append(_operation_of(row, refs))
            case "resident":
                resident.append(refs[row["inputs"][0]])
            case "step":
                steps.append(WorkloadStep(row["step"], row["name"], row["phase"]))
            case "note":
                notes.append(row["name"])
            case "end":
                complete = True
    used = {op.step for op in operations}
    return Workload(
        tuple(operations),
        tuple(s for s in steps if s.step in used),
        tuple(resident),
        tuple(notes),
        complete,
    )


def _ref_of(row: Mapping[str, Any]) -> TensorRef:
    return TensorRef(
        row["tensor"],
        tuple(row["shape"]),
        row["dtype"],
        row["nbytes"],
        row["storage_nbytes"],
        row["phase"],
        row["contiguous"],
    )


def _operation_of(row: Mapping[str, Any], refs: Sequence[TensorRef]) -> Operation:
    return Operation(
        name=row["name"],
        phase=row["phase"],
        step=row["step"],
        inputs=tuple(refs[i] for i in row["inputs"]),
        outputs=tuple(refs[i] for i in row["outputs"]),
        module_path=row["module_path"],
        module_class=row["module_class"],
        source_file=row["source_file"],
        source_line=row["source_line"],
        model_flops=row["model_flops"],
        is_view=row["is_view"],
        freed=tuple(row["freed"]),
        arguments=json.loads(row["arguments"]) if row["arguments"] else {},
    )
