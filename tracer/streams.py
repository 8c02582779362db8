"""How are batches recorded so that a killed recording still reads, and which of them are whole?

An Arrow IPC stream, each batch with its row count and crc32 in the batch's metadata. A torn stream ends in an error, a
zero-filled one in what looks like an end of stream, a file whose pages were lost in rows that nobody wrote: so a batch counts
only if its row count and crc32 agree, and bytes that belong to no batch are reported.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc

from trnprof.tracer.batches import batch_crc32, join_batches, normalized
from trnprof.tracer.files import writing
from trnprof.tracer.problems import Problem, error
from trnprof.tracer.schema import Table

_OPTIONS = ipc.IpcWriteOptions(emit_dictionary_deltas=False)
FILE_MAGIC_BYTES = 8
"""An IPC file is these, then a stream, then a footer: a truncated file is read as a stream from here."""


def batch_metadata(batch: pa.RecordBatch) -> dict[str, str]:
    """The metadata that lets a reader tell a whole batch from a torn one."""
    return {"rows": str(batch.num_rows), "crc32": f"{batch_crc32(batch):08x}"}


def is_whole(batch: pa.RecordBatch, metadata: pa.KeyValueMetadata | None) -> bool:
    """Whether a batch is what was written."""
    if metadata is None or metadata.get(b"rows") != str(batch.num_rows).encode():
        return False
    try:
        batch.validate()
    except pa.ArrowException:
        return False
    return bool(metadata.get(b"crc32") == f"{batch_crc32(batch):08x}".encode())


_LOST: list[pa.OSFile] = []
"""Files whose descriptor is no longer theirs; kept for as long as the process lives."""


class BatchStream:
    """One stream file of one table: batches are collected by ``append`` and written by ``flush``.

    The file is created by the first flush. After an error nothing more can be written.
    """

    def __init__(self, path: Path, table: Table, batch_rows: int) -> None:
        self.path = path
        self.table = table
        self.rows = 0
        self._batch_rows = batch_rows
        self._pending: list[pa.RecordBatch] = []
        self._sink: pa.OSFile | None = None
        self._identity: tuple[int, int] | None = None
        self._writer: ipc.RecordBatchStreamWriter | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Keep a batch for the next flush."""
        self._pending.append(batch)
        self.rows += batch.num_rows

    def flush(self) -> None:
        """Hand everything kept to the operating system: from here it survives a kill of this process.

        Raises:
            WriteError: the disk is full, the directory gone, …; batches written before stay readable.
        """
        if not self._pending:
            return
        joined = join_batches(self.table, self._pending)
        self._pending = []
        with writing(self.path):
            if self._writer is None:
                self.path.parent.mkdir(exist_ok=True)
                self._sink = pa.OSFile(str(self.path), "wb")
                self._identity = _identity(self._sink)
                self._writer = ipc.new_stream(self._sink, self.table.arrow, options=_OPTIONS)
            self._check_descriptor()
            for first in range(0, joined.num_rows, self._batch_rows):
                batch = normalized(joined.slice(first, self._batch_rows))
                self._writer.write_batch(batch, custom_metadata=batch_metadata(batch))

    def close(self) -> None:
        """Flush, and close the file with an end-of-stream mark."""
        self.flush()
        with writing(self.path):
            if self._writer is not None and self._sink is not None:
                self._check_descriptor()
                self._writer.close()
                self._sink.close()
                self._writer = self._sink = None

    def _check_descriptor(self) -> None:
        """A recorded program may close descriptors that are not its own, and the next file it opens gets our number."""
        if self._sink is not None and _identity(self._sink) != self._identity:
            raise OSError(errno.EBADF, "the recorded program closed this file")

    def abandon(self) -> None:
        """Close the file as it is, after an error; never one that took its descriptor's number."""
        self._pending = []
        sink, self._writer, self._sink = self._sink, None, None
        if sink is not None and _identity(sink) not in (None, self._identity):
            _LOST.append(sink)  # its destructor would close the file of another
        elif sink is not None:
            with suppress(
                OSError, pa.ArrowException
            ):  # its descriptor may be gone, or the disk full
                sink.close()


def _identity(sink: pa.OSFile) -> tuple[int, int] | None:
    """Device and inode behind an open file, None if its descriptor is closed."""
    try:
        status = os.fstat(sink.fileno())
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def read_stream(
    path: Path, table: Table, skip_bytes: int = 0
) -> tuple[list[pa.RecordBatch], list[Problem]]:
    """The whole batches of a stream file, and what was dropped.

    Args:
        path: the file.
        table: the table it must be of.
        skip_bytes: bytes before the stream.

    Returns:
        Batches in order, memory-mapped; at most one problem of kind ``torn_stream`` or ``corrupt_batch`` each.
    """
    size = path.stat().st_size
    if size <= skip_bytes:
        return [], [_torn(path, size, size, 0)]
    source = pa.memory_map(str(path))
    source.seek(skip_bytes)
    try:
        reader = ipc.open_stream(source)
    except (pa.ArrowException, OSError) as failure:
        return [], [_torn(path, size - skip_bytes, size, 0, failure)]
    if not reader.schema.equals(table.arrow, check_metadata=False):
        message = f"{path.name} does not have the columns of table {table.name}; it is left out"
        return [], [error("foreign_columns", str(path), message)]
    return _read_batches(path, table, source, reader, size)


def _read_batches(
    path: Path,
    table: Table,
    source: pa.MemoryMappedFile,
    reader: ipc.RecordBatchStreamReader,
    size: int,
) -> tuple[list[pa.RecordBatch], list[Problem]]:
    batches: list[pa.RecordBatch] = []
    problems: list[Problem] = []
    corrupt = 0
    good_end = source.tell()
    failure: Exception | None = None
    while True:
        try:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            good_end = source.tell()
            break
        except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as stop:
            failure = stop
            break
        good_end = source.tell()
        if is_whole(batch, metadata):
            batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=table.arrow))
        else:
            corrupt += 1
    if corrupt:
        message = f"{path.name}: {corrupt} batch(es) do not match their checksum and were left out"
        problems.append(error("corrupt_batch", str(path), message, corrupt))
    if failure is not None or good_end < size:
        problems.append(_torn(path, size - good_end, size, len(batches), failure))
    return batches, problems


def _torn(
    path: Path, dropped: int, size: int, whole: int, failure: Exception | None = None
) -> Problem:
    reason = f" ({str(failure).splitlines()[0]})" if failure is not None and str(failure) else ""
    return error(
        "torn_stream",
        str(path),
        f"{path.name} is torn: {whole} whole batch(es) read, the last {dropped} of {size} bytes dropped{reason}",
    )
