"""What is in an archive? Each member of a zip or tar becomes a place of its own; nothing is extracted by its name.

Archives in archives are not followed.
"""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import IO, Final

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest.bytestreams import BOMB_BYTES, BOMB_RATIO
from trnprof.tracer.ingest.cut_zips import whole_members
from trnprof.tracer.ingest.names import natural_key, shown
from trnprof.tracer.ingest.place import Place, reading, spooled
from trnprof.tracer.units import format_bytes

MAX_MEMBERS: Final = 100_000
_MAX_DIRECTORY_BYTES: Final = 1 << 26
_MAX_TAR_HEADER: Final = 1 << 24
_ZIP_CODECS: Final = {0: "", 8: "deflate", 12: "bzip2", 93: "zstd"}
_ZIP_STARTS: Final = (b"PK\x03\x04", b"PK\x05\x06")
_TAR_BLOCK: Final = 512


@dataclass(frozen=True)
class Members:
    """What an archive holds.

    Attributes:
        places: its files with their size on disk, in order of their names.
        left_out: (name, why) of members that cannot be read.
        cut: why the archive ends early, None if it does not.
    """

    places: tuple[tuple[Place, int], ...]
    left_out: tuple[tuple[str, str], ...] = ()
    cut: str | None = None


def archive_kind(start: bytes) -> str | None:
    """``zip`` or ``tar`` if these first decompressed bytes are of one, else None."""
    if start.startswith(_ZIP_STARTS):
        return "zip"
    return "tar" if _is_tar(start[:_TAR_BLOCK]) else None


def members(place: Place, kind: str, *, is_compressed: bool) -> Members:
    """The files in an archive.

    Args:
        place: of the archive.
        kind: as ``archive_kind`` gives it.
        is_compressed: whether the archive as a whole is: a tar is then decompressed once into the workspace.

    Raises:
        ProfileError: it is damaged or encrypted, or more than a profile can be.
        WriteError: the workspace is full.
    """
    if kind == "zip":
        if is_compressed:
            raise ProfileError(f"{place.label}: a compressed zip; decompress it first")
        return _zip_members(place)
    whole, cut = spooled(place) if is_compressed else (place, None)
    found = _tar_members(whole)
    return replace(found, cut=cut or found.cut)


def _zip_members(place: Place) -> Members:
    with reading(place.label), place.path.open("rb") as file:
        _check_zip_directory(place, file)
        listed, cut = _zip_entries(place, file)
        _check_zip_sizes(place, listed)
        found, left_out = [], []
        for info in sorted(listed, key=lambda i: natural_key(i.filename)):
            if info.is_dir() or _is_hidden(info.filename):
                continue
            if info.flag_bits & 1:
                raise ProfileError(
                    f"{_label(place, info.filename)}: encrypted; unpack the archive with its password first"
                )
            start = _data_start(file, info)
            codec = _ZIP_CODECS.get(info.compress_type)
            if start is None or codec is None:
                method = f"compressed by method {info.compress_type}; unpack it first"
                why = "its header is damaged" if start is None else method
                left_out.append((info.filename, why))
                continue
            member = replace(
                place,
                label=_label(place, info.filename),
                start=start,
                length=info.compress_size,
                codec=codec,
                size=info.file_size,
                crc32=info.CRC,
            )
            found.append((member, info.compress_size))
    return Members(tuple(found), tuple(left_out), cut)


def _zip_entries(place: Place, file: IO[bytes]) -> tuple[list[zipfile.ZipInfo], str | None]:
    """What the directory of a zip lists; if it has none any more, the whole members at its beginning, and why there are no others."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.infolist(), None
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        entries = list(islice(whole_members(file, place.max_bytes), MAX_MEMBERS + 1))
        if not entries:
            raise ProfileError(
                f"{place.label}: a damaged or cut zip without a whole member ({shown(str(error))}); copy it again"
            ) from error
        return entries, f"its directory of members is damaged or cut off ({shown(str(error))})"


def _check_zip_directory(place: Place, file: IO[bytes]) -> None:
    """Refuse a directory of members that is too large to list, before it is listed."""
    size = file.seek(0, 2)
    file.seek(max(0, size - (1 << 16) - 22))
    tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    if end >= 0 and len(tail) >= end + 16:
        listing = int.from_bytes(tail[end + 12 : end + 16], "little")
        wide = tail.rfind(b"PK\x06\x06", 0, end)
        if listing == 0xFFFFFFFF and wide >= 0:
            listing = int.from_bytes(tail[wide + 40 : wide + 48], "little")
        if listing > _MAX_DIRECTORY_BYTES:
            raise ProfileError(_too_many(place))
    file.seek(0)


def _check_zip_sizes(place: Place, listed: list[zipfile.ZipInfo]) -> None:
    if len(listed) > MAX_MEMBERS:
        raise ProfileError(_too_many(place))
    total = sum(info.file_size for info in listed)
    on_disk = place.path.stat().st_size
    if total > BOMB_BYTES and total > BOMB_RATIO * on_disk:
        raise ProfileError(
            f"{place.label}: its members have {format_bytes(total)}, more than {BOMB_RATIO} times its size: "
            "no profile does that; if these do, unpack it first"
        )
    if total > place.max_bytes:
        raise ProfileError(
            f"{place.label}: its members have {format_bytes(total)}, more than {format_bytes(place.max_bytes)}; "
            "if that is right, allow more with --max-input-bytes"
        )


def _data_start(file: IO[bytes], info: zipfile.ZipInfo) -> int | None:
    """Where a member's bytes begin: behind its own header, whose length only itself knows."""
    file.seek(info.header_offset)
    header = file.read(30)
    if len(header) < 30 or not header.startswith(b"PK\x03\x04"):
        return None
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    return info.header_offset + 30 + int(name_bytes) + int(extra_bytes)


def _tar_members(place: Place) -> Members:
    found, left_out = [], []
    with reading(place.label), place.path.open("rb") as file:
        entries, cut = _tar_entries(place, file)
    for info in entries:
        if info.isdir() or _is_hidden(info.name):
            continue
        if not info.isreg() or info.issparse():
            left_out.append((info.name, "a link, device or sparse file"))
            continue
        label = _label(place, info.name)
        member = replace(place, label=label, start=info.offset_data, length=info.size)
        found.append((member, info.size))
    found.sort(key=lambda pair: natural_key(pair[0].label))
    return Members(tuple(found), tuple(left_out), cut)


def _tar_entries(place: Place, file: IO[bytes]) -> tuple[list[tarfile.TarInfo], str | None]:
    """Entries up to where the archive ends or is damaged, and why it ends there if that is not its end."""
    entries: list[tarfile.TarInfo] = []
    offset = 0
    try:
        with tarfile.open(fileobj=_Limited(file), mode="r:") as archive:
            for info in archive:
                if len(entries) >= MAX_MEMBERS:
                    raise ProfileError(_too_many(place))
                if info.size < 0 or (entries and info.offset_data <= entries[-1].offset_data):
                    return entries, f"the header at byte {info.offset} is damaged"
                entries.append(info)
                offset = archive.offset
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, TypeError):
        return entries, f"it is cut off or damaged at byte {offset}"
    file.seek(offset)
    block = file.read(_TAR_BLOCK)
    if not block:
        return entries, f"it is cut off at byte {offset}"
    return entries, f"the header at byte {offset} is damaged" if any(block) else None


class _Limited(io.RawIOBase):
    """A file of which nobody reads a large piece at once: headers of a tar may ask for any size."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_TAR_HEADER:
            raise tarfile.ReadError("a header of this size is no header")
        return self._file.read(size)


def _is_tar(block: bytes) -> bool:
    if len(block) < _TAR_BLOCK:
        return False
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _is_hidden(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any((p.startswith(".") and p not in (".", "..")) or p == "__MACOSX" for p in parts)


def _label(place: Place, name: str) -> str:
    return f"{place.label}!{shown(name)}"


def _too_many(place: Place) -> str:
    return f"{place.label}: an archive of more than {MAX_MEMBERS} members; unpack it and name what is wanted"
