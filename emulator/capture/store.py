"""How is a captured workload kept in a trace, so that what a killed program did can still be read?

While the program runs, its process appends checksummed batches to ``workload.arrows``; sealing rewrites them as
``workload.arrow``. One row an operation, and a few rows of other kinds between them, in the order in which they happened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.ipc as ipc

from trnprof.emulator.capture.messages import joined
from trnprof.emulator.capture.replay import replay
from trnprof.emulator.workload import Workload
from trnprof.tracer.batches import normalized, to_batch
from trnprof.tracer.errors import TraceError
from trnprof.tracer.files import written_beside
from trnprof.tracer.schema import KEY, NAME, Column, Table
from trnprof.tracer.streams import FILE_MAGIC_BYTES, BatchStream, batch_metadata, read_stream

STREAM_NAME: Final = "workload.arrows"
SEALED_NAME: Final = "workload.arrow"
BATCH_ROWS: Final = 1 << 14
ROW_KINDS: Final = (
    "op",
    "resident",
    "role",
    "step",
    "cut",
    "window",
    "note",
    "end",
    "group",
    "world",
    "program",
)


class Row(NamedTuple):
    """One row of the log; what a kind does not use keeps its default.

    Kinds: ``op``; ``resident`` (tensors alive before the first operation); ``role`` (a tensor turned out to have this role);
    ``step`` (it ended: name = label, phase = source); ``cut`` (a place where steps may be cut when the log is replayed: phase =
    forward, one begins, or forward_end, or backward, its gradients are used up, or optimizer, its step has ended, or generate, a
    forward of a generating loop begins and name is its label, or loader, a batch has come); ``window``
    (only steps from step to source_line are wanted); ``note``; ``end`` (all is written; name = interrupted if an exception
    ended the program; failed, which the launcher adds, if one of several programs did not end with 0); ``group`` (ranks that communicate: step = its index, arguments = JSON of ranks and siblings); ``world``
    (step = its ranks, source_line = the one that was captured; name = what it is, such as a stage of a pipeline; arguments = JSON list of the
    ranks for which it stands); ``program`` (what follows, up to the next of its kind, is what another rank did).
    """

    kind: str
    name: str = ""
    phase: str = ""
    step: int = 0
    module_path: str = ""
    module_class: str = ""
    source_file: str = ""
    source_line: int = 0
    model_flops: float = 0.0
    is_view: bool = False
    inputs: int = 0
    tensor: Sequence[int] = ()
    rank: Sequence[int] = ()
    shape: Sequence[int] = ()
    dtype: Sequence[str] = ()
    nbytes: Sequence[int] = ()
    storage_nbytes: Sequence[int] = ()
    role: Sequence[str] = ()
    contiguous: Sequence[bool] = ()
    freed: Sequence[int] = ()
    arguments: str = ""


def _column(name: str, type_: pa.DataType, meaning: str, domain: tuple[str, ...] = ()) -> Column:
    return Column(name, type_, False, meaning, domain)


WORKLOAD: Final = Table(
    "workload",
    (
        _column("kind", KEY, "what the row is", ROW_KINDS),
        _column("name", NAME, "operator; label of a step"),
        _column("phase", NAME, "forward, backward, optimizer; source of a step"),
        _column("step", pa.int32(), "ordinal of the step"),
        _column("module_path", NAME, "innermost module"),
        _column("module_class", NAME, "its class"),
        _column("source_file", NAME, "innermost file outside torch"),
        _column("source_line", pa.int32(), "its line"),
        _column("model_flops", pa.float64(), "as torch.utils.flop_counter counts"),
        _column("is_view", pa.bool_(), "no data moves"),
        _column("inputs", pa.int32(), "so many of the tensors are inputs, the others outputs"),
        _column("tensor", pa.list_(pa.int64()), "numbers of the storages"),
        _column("rank", pa.list_(pa.int32()), "dimensions of each tensor"),
        _column("shape", pa.list_(pa.int64()), "sizes of all tensors, one after the other"),
        _column("dtype", pa.list_(pa.string()), "short names"),
        _column("nbytes", pa.list_(pa.int64()), "bytes of each view"),
        _column("storage_nbytes", pa.list_(pa.int64()), "bytes of each storage"),
        _column("role", pa.list_(pa.string()), "parameter, buffer, input, activation, …"),
        _column("contiguous", pa.list_(pa.bool_()), "innermost stride is 1"),
        _column("freed", pa.list_(pa.int64()), "storages that died before this operation"),
        _column("arguments", pa.string(), "JSON, collective among them; the text of a note"),
    ),
)


class WorkloadStream:
    """Appends rows to the unsealed workload of a trace directory.

    Raises (each method):
        WriteError: the disk is full, the directory gone, …
    """

    def __init__(self, trace_dir: Path) -> None:
        self._stream = BatchStream(trace_dir / STREAM_NAME, WORKLOAD, BATCH_ROWS)

    def write(self, rows: Sequence[Row]) -> None:
        """Hand these rows to the operating system: from here they survive a kill of this process."""
        if rows:
            columns = dict(zip(WORKLOAD.names, zip(*rows, strict=True), strict=True))
            self._stream.append(to_batch(WORKLOAD, columns))
            self._stream.flush()

    def close(self) -> None:
        """Close the file; nothing may be written afterwards."""
        self._stream.close()


def save_workload(trace_dir: Path, workload: Workload) -> None:
    """Write a workload as the sealed ``workload.arrow`` of a trace directory.

    Raises:
        WriteError: it could not be written.
    """
    from trnprof.emulator.capture.replay import workload_rows

    rows = list(workload_rows(workload))
    for other in workload.others:
        rows += [Row("program"), *workload_rows(other)]
    _write_sealed(trace_dir / SEALED_NAME, _as_batches(rows))


def seal_workload(
    trace_dir: Path,
    more: Sequence[Row] = (),
    others: Sequence[tuple[Path, Sequence[Row]]] = (),
) -> bool:
    """Rewrite ``workload.arrows`` as ``workload.arrow``, dropping a torn tail.

    Args:
        trace_dir: trace directory.
        more: rows that the launcher adds.
        others: directories into which further ranks of the program were captured, and rows for each.

    Returns:
        False if there is no stream, or nothing whole in it.

    Raises:
        WriteError: it could not be written; the stream is left as it was.
    """
    stream = trace_dir / STREAM_NAME
    if not stream.exists():
        return False
    batches, _ = read_stream(stream, WORKLOAD)
    if not batches:
        return False
    batches = [*batches, *_as_batches(more)]
    for folder, rows in others:
        found, _ = read_stream(folder / STREAM_NAME, WORKLOAD)
        batches += [*_as_batches([Row("program")]), *found, *_as_batches(rows)]
    _write_sealed(trace_dir / SEALED_NAME, batches)
    stream.unlink(missing_ok=True)
    return True


def _as_batches(rows: Sequence[Row]) -> list[pa.RecordBatch]:
    if not rows:
        return []
    columns = dict(zip(WORKLOAD.names, zip(*rows, strict=True), strict=True))
    return [to_batch(WORKLOAD, columns)]


def holds_workload(trace_dir: Path) -> bool:
    """Whether a program was captured into this trace, to its end or not."""
    return any((trace_dir / name).is_file() for name in (SEALED_NAME, STREAM_NAME))


def load_workload(trace_dir: Path) -> Workload:
    """The workload of a trace, sealed or not; ``complete`` is False if the program was killed or the file is torn.

    Raises:
        TraceError: the trace holds no workload, or nothing of it can be read.
    """
    rows, is_torn = _read_rows(trace_dir)
    if not rows:
        raise TraceError(f"{trace_dir}: its workload cannot be read; record the program again")
    firsts = [0, *(i for i, row in enumerate(rows) if row.kind == "program"), len(rows)]
    return joined([replay(rows[a:b], is_torn) for a, b in pairwise(firsts)])


def _read_rows(trace_dir: Path) -> tuple[list[Row], bool]:
    sealed, stream = trace_dir / SEALED_NAME, trace_dir / STREAM_NAME
    if sealed.is_file():
        batches, is_torn = _read_sealed(sealed)
    elif stream.is_file():
        batches, problems = read_stream(stream, WORKLOAD)
        is_torn = any(problem.kind == "corrupt_batch" for problem in problems)
    else:
        raise TraceError(
            f"{trace_dir} holds no captured workload ({SEALED_NAME}): record it with trnprof record"
        )
    return [row for batch in batches for row in _rows(batch)], is_torn


def _read_sealed(path: Path) -> tuple[list[pa.RecordBatch], bool]:
    try:
        reader = ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError):
        batches, _ = read_stream(path, WORKLOAD, FILE_MAGIC_BYTES)
        return batches, True
    if not reader.schema.equals(WORKLOAD.arrow, check_metadata=False):
        raise TraceError(f"{path} was written by another version of trnprof; record it again")
    return batches, False


def _rows(batch: pa.RecordBatch) -> Iterable[Row]:
    columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
    return map(Row._make, zip(*columns, strict=True))


def _write_sealed(path: Path, batches: Sequence[pa.RecordBatch]) -> None:
    table = (
        pa.Table.from_batches(list(batches), WORKLOAD.arrow).unify_dictionaries().combine_chunks()
    )
    with (
        written_beside(path) as beside,
        pa.OSFile(str(beside), "wb") as sink,
        ipc.new_file(sink, WORKLOAD.arrow) as writer,
    ):
        for batch in table.to_batches(max_chunksize=BATCH_ROWS):
            whole = normalized(batch)
            writer.write_batch(whole, custom_metadata=batch_metadata(whole))


def arguments_json(arguments: dict[str, Any]) -> str:
    """The arguments of an operation as the log keeps them: "" for none."""
    return json.dumps(arguments) if arguments else ""
