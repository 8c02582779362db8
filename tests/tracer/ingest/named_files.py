"""Small profiles of invented formats, for tests of what surrounds formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage

ALPHA, BETA = b"ALPHA profile\n", b"BETA profile\n"


def _nothing(source: Source, stage: Stage) -> None:
    raise AssertionError("nothing is read here")


def _is_alpha(head: Head) -> int:
    return 90 if head.data.startswith(b"ALPHA") else 10 if head.data.startswith(b"BETA") else 0


FORMATS = {
    "alpha": Format("alpha", "Alpha", _is_alpha, _nothing),
    "beta": Format("beta", "Beta", lambda h: 80 * h.data.startswith(b"BETA"), _nothing),
    "tables": Format("tables", "Tables", lambda h: 85 * ("Main.parquet" in h.files), _nothing),
}


def write(folder: Path, names: Sequence[str], content: bytes = ALPHA) -> None:
    """Files with some content, in folders that are made."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def content(source: Source, size: int = 1 << 20) -> bytes:
    """All bytes of a source."""
    stream = source.open()
    try:
        parts = []
        while data := stream.read(size):
            parts.append(data)
        return b"".join(parts)
    finally:
        stream.close()
