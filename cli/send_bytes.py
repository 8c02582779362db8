"""What does each rank send to each in a ragged all_to_all? From a table in a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from trnprof.cli.collective_options import MAX_BYTES
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.units import parse_bytes, printable
from trnprof.tracer.whole_files import read_whole_text


def read_send_bytes(path: Path, ranks: int) -> tuple[tuple[int, ...], ...]:
    """A table of bytes from a CSV file: row by sender, column by receiver; sizes such as 4KiB are fine too.

    Raises:
        TrnprofError: it cannot be read, is not square, has no row a rank, or holds what is no size.
    """
    try:
        text = io.StringIO(read_whole_text(path), newline="")
        rows = [row for row in csv.reader(text) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TrnprofError(f"--send-bytes {path}: cannot be read: {reason}") from error
    if len(rows) != ranks:
        raise TrnprofError(f"{path}: {len(rows)} rows, but there are {ranks} ranks: give one each")
    cells = tuple(_cells(path, number, row, ranks) for number, row in enumerate(rows, 1))
    if not any(map(any, cells)):
        raise TrnprofError(f"{path}: nobody sends anything: give one size above 0 at least")
    return cells


def _cells(path: Path, number: int, row: Sequence[str], ranks: int) -> tuple[int, ...]:
    if len(row) != ranks:
        raise TrnprofError(
            f"{path}:{number}: {len(row)} columns, but there are {ranks} ranks: give one each"
        )
    cells = []
    for cell in row:
        try:
            size = parse_bytes(cell)
        except TrnprofError as error:
            raise TrnprofError(f"{path}:{number}: {printable(str(error))}") from error
        if not 0 <= size <= MAX_BYTES:
            raise TrnprofError(f"{path}:{number}: {cell.strip()}: expected 0 bytes to 1 PiB")
        cells.append(size)
    return tuple(cells)
