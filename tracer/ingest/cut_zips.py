"""Which members of a zip that has lost its directory are whole? Its end is cut off, but each member begins with a header of its own.

Layout: APPNOTE.TXT 6.3.10 of PKWARE, sections 4.3.7 (header), 4.3.9 (descriptor behind the bytes) and 4.5.3 (sizes of 64 bits).
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Final

_HEADER: Final = struct.Struct("<4s5H3L2H")
_MAGIC: Final = b"PK\x03\x04"
_DESCRIPTOR_MAGIC: Final = b"PK\x07\x08"
_SIZES_FOLLOW: Final = 1 << 3
_IS_UTF8: Final = 1 << 11
_WIDE: Final = 0xFFFFFFFF
_DEFLATE: Final = 8
_READ_BYTES: Final = 1 << 20


def whole_members(file: IO[bytes], max_bytes: int) -> Iterator[zipfile.ZipInfo]:
    """The members from the first on, up to one that is cut, damaged, or of a length that nothing says.

    Args:
        file: the zip.
        max_bytes: no member is decompressed further, where its end is only known by doing so.

    Yields:
        Name, place, method, flags, sizes and checksum of each.
    """
    size = file.seek(0, os.SEEK_END)
    offset = 0
    while (info := _member(file, offset)) is not None:
        start = file.tell()
        end = start + info.compress_size
        if info.flag_bits & _SIZES_FOLLOW:
            found = _end_of_deflated(file, info, max_bytes)
            if found is None:
                return
            end = found
        if end > size:
            return
        yield info
        offset = end


def _member(file: IO[bytes], offset: int) -> zipfile.ZipInfo | None:
    """What the header at an offset says, the file then at the member's bytes; None if there is no whole header."""
    file.seek(offset)
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        return None
    _, _, flags, method, _, _, crc32, packed, size, name_bytes, extra_bytes = _HEADER.unpack(header)
    name, extra = file.read(name_bytes), file.read(extra_bytes)
    if len(extra) < extra_bytes or not name:
        return None
    info = zipfile.ZipInfo(name.decode("utf-8" if flags & _IS_UTF8 else "cp437", "replace"))
    info.header_offset, info.flag_bits, info.compress_type = offset, flags, method
    info.CRC, info.compress_size, info.file_size = crc32, packed, size
    if size == _WIDE and packed == _WIDE:
        wide = _wide_sizes(extra)
        if wide is None:
            return None
        info.file_size, info.compress_size = wide
    return info


def _wide_sizes(extra: bytes) -> tuple[int, int] | None:
    """(size, compressed size) of 64 bits."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == 1 and length >= 16 and len(extra) >= 20:
            size, packed = struct.unpack_from("<QQ", extra, 4)
            return size, packed
        extra = extra[4 + length :]
    return None


def _end_of_deflated(file: IO[bytes], info: zipfile.ZipInfo, max_bytes: int) -> int | None:
    """Where a member ends that was written without knowing its sizes, which are filled in; None if it is cut or cannot be told.

    The file is at its bytes.
    """
    if info.compress_type != _DEFLATE:
        return None
    start, size, crc32 = file.tell(), 0, 0
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        while not inflate.eof and size <= max_bytes:
            packed = inflate.unconsumed_tail or file.read(_READ_BYTES)
            if not packed:
                return None
            data = inflate.decompress(packed, _READ_BYTES)
            size, crc32 = size + len(data), zlib.crc32(data, crc32)
    except zlib.error:
        return None
    end = file.tell() - len(inflate.unused_data)
    file.seek(end)
    descriptor = file.read(24)
    is_marked = descriptor.startswith(_DESCRIPTOR_MAGIC)
    body = descriptor[4:] if is_marked else descriptor
    said = crc32, end - start, size
    for form in (struct.Struct("<LLL"), struct.Struct("<LQQ")):
        if len(body) >= form.size and form.unpack_from(body) == said:
            info.CRC, info.compress_size, info.file_size = crc32, end - start, size
            return end + form.size + 4 * is_marked
    return None
