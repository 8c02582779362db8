"""Where do the bytes of one source lie, and how are they had? A file, or a member of an archive, compressed or not.

Places are plain data: they go to the processes of a pool, and open there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.files import writing
from trnprof.tracer.ingest.bytestreams import (
    Checked,
    Decompressed,
    FileBytes,
    Layer,
    first_bytes,
    layers,
)
from trnprof.tracer.ingest.source import HEAD_BYTES, ByteStream, Source

_COPIED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Place:
    """The bytes of one source.

    Attributes:
        label: what people know it by, free of control characters.
        path: the file on disk.
        workspace: an existing directory for temporary files.
        max_bytes: no more is decompressed.
        start, length: the part of the file that it is; length None: to its end.
        codec: of a member: ``deflate``, ``bzip2``, ``zstd``, or empty.
        size, crc32: of a member's bytes, where the archive says so.
    """

    label: str
    path: Path
    workspace: Path
    max_bytes: int
    start: int = 0
    length: int | None = None
    codec: str = ""
    size: int | None = None
    crc32: int | None = None

    @property
    def is_whole_file(self) -> bool:
        """Whether it is all of a file."""
        return self.start == 0 and self.length is None


def open_place(place: Place) -> ByteStream:
    """The decompressed bytes of a place.

    Raises:
        ProfileError: it cannot be opened.
    """
    with reading(place.label):
        return layers(place.label, _stored(place), place.max_bytes)()


def head_bytes(place: Place) -> bytes:
    """The first HEAD_BYTES decompressed bytes of a place.

    Raises:
        ProfileError: it cannot be opened.
    """
    with reading(place.label):
        return first_bytes(layers(place.label, _stored(place), place.max_bytes), HEAD_BYTES)


@contextmanager
def place_on_disk(place: Place) -> Iterator[Path]:
    """A file with the decompressed content of a place: itself if it is one, else a temporary one.

    Raises:
        ProfileError: it cannot be read, or was cut: what needs a file cannot read half of it.
        WriteError: the temporary file cannot be written.
    """
    with reading(place.label):
        stored = _stored(place)
        opened = layers(place.label, stored, place.max_bytes)
    if place.is_whole_file and opened is stored:
        yield place.path
        return
    with writing(place.workspace):
        number, name = tempfile.mkstemp(dir=place.workspace)
    try:
        with open(number, "wb") as file:
            cut = copy(place.label, opened, file.write, place.workspace)
        if cut:
            raise ProfileError(f"{place.label}: {cut}; a file of this kind is read whole or not")
        yield Path(name)
    finally:
        os.unlink(name)


def copy(
    label: str, opens: Callable[[], Layer], write: Callable[[bytes], object], target: Path
) -> str | None:
    """Copy a stream to its end.

    Returns:
        Why it ended early or what follows it that is of another kind; None if all of it was copied.

    Raises:
        ProfileError: it cannot be opened.
        WriteError: ``target``, where it is written, is full.
    """
    with reading(label):
        stream = opens()
    try:
        while data := stream.read(_COPIED_AT_ONCE):
            with writing(target):
                write(data)
        return stream.truncated or stream.trailing
    finally:
        stream.close()


def source_of(place: Place, size_bytes: int) -> Source:
    """The source whose bytes lie at a place."""
    return Source(
        label=place.label,
        path=place.path,
        is_directory=False,
        size_bytes=size_bytes,
        open=partial(open_place, place),
        on_disk=partial(place_on_disk, place),
    )


def directory_source(label: str, path: Path, size_bytes: int) -> Source:
    """A directory that is one profile."""
    return Source(
        label=label,
        path=path,
        is_directory=True,
        size_bytes=size_bytes,
        open=partial(_no_bytes, label),
        on_disk=partial(_itself, path),
    )


def spooled(place: Place) -> tuple[Place, str | None]:
    """The same bytes, decompressed once into the workspace, so that parts of them can be read; and why they end early."""
    with writing(place.workspace):
        number, name = tempfile.mkstemp(dir=place.workspace)
    with open(number, "wb") as file, reading(place.label):
        opened = layers(place.label, _stored(place), place.max_bytes)
        cut = copy(place.label, opened, file.write, place.workspace)
    return Place(place.label, Path(name), place.workspace, place.max_bytes), cut


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Turn any OSError inside into a ProfileError that names ``label``."""
    try:
        yield
    except OSError as error:
        raise ProfileError(f"{label}: cannot be read: {error.strerror or error}") from error


def _stored(place: Place) -> Callable[[], Layer]:
    """What opens the bytes as somebody has put them there: only what a zip does to its members is undone."""
    opened: Callable[[], Layer] = partial(FileBytes, place.path, place.start, place.length)
    if place.codec:
        opened = partial(Decompressed, place.label, opened, place.codec, place.max_bytes)
    if place.size is not None:
        opened = partial(Checked, opened, place.size, place.crc32)
    return opened


def _no_bytes(label: str) -> ByteStream:
    raise ProfileError(f"{label}: a directory has no bytes of its own")


@contextmanager
def _itself(path: Path) -> Iterator[Path]:
    yield path
