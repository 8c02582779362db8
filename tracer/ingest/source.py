"""What is one profile to import, and what must a format be able to do with it?

A *source* is what becomes one writer of the trace: a file, a member of an archive, or a directory that only makes sense as a whole
(the Parquet tables of one profile). A *format* recognises a source by its content and reads it into a stage.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trnprof.tracer.ingest.stage import Stage

HEAD_BYTES = 1 << 16
"""How much of a source a format sees when it is asked whether it knows it."""


class ByteStream(Protocol):
    """The decompressed bytes of a source, read once from the front.

    Attributes:
        truncated: why the stream ended early (a cut gzip, …), None while nothing is known to be missing. Set at the latest
            when ``read`` has returned ``b""``.
        position: decompressed bytes handed out so far.
    """

    truncated: str | None
    position: int

    def read(self, size: int) -> bytes:
        """The next bytes, at most ``size``, fewer only at the end; ``b""`` after it. Never raises for damaged compression."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


@dataclass(frozen=True)
class Source:
    """One profile to import.

    Attributes:
        label: what people know it by: its path as given, ``archive.zip!member.json`` for a member.
        path: file or directory on disk, the archive for a member.
        is_directory: a directory that is one profile.
        size_bytes: on disk, compressed; of all files for a directory.
        open: its decompressed bytes; not for directories.
        on_disk: a context manager that yields a path with its decompressed content, for libraries that need a file; the file itself
            where it is not compressed, else a temporary one.
    """

    label: str
    path: Path
    is_directory: bool
    size_bytes: int
    open: Callable[[], ByteStream]
    on_disk: Callable[[], AbstractContextManager[Path]]


@dataclass(frozen=True)
class Head:
    """What a format may look at to recognise a source.

    Attributes:
        name: file name without the endings of compression, in lower case.
        data: the first decompressed bytes, at most HEAD_BYTES; empty for a directory.
        files: names of the files in a directory, sorted, at most 10,000; empty for a file.
    """

    name: str
    data: bytes
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """One format that can be imported. The entry-point group ``trnprof.formats`` takes such objects from other packages.

    Attributes:
        name: as ``--format`` takes it.
        title: for people.
        recognise: how sure it is that a source is of this format: 0 (not) to 100 (a signature). Fast; never raises.
        read: read a source into an empty stage; raises ``ProfileError`` if nothing of it can be used.
    """

    name: str
    title: str
    recognise: Callable[[Head], int]
    read: Callable[[Source, Stage], None]
