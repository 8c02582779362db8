"""How are the bytes of a profile read, compressed or not, whole or cut, and never more of them than it may have?

Compression is known by its first bytes, not by a name. Layers are followed (a gzip in a zip); damage never raises: what could be
decompressed is given and ``truncated`` says why there is no more.
"""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast

import pyarrow as pa
from zlib_ng import zlib_ng as zlib

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.units import counted, format_bytes

DEFAULT_MAX_BYTES: Final = 10**12
"""How much one source, and all of them as far as that is known before, may have decompressed."""
BOMB_RATIO: Final = 1000
BOMB_BYTES: Final = 1 << 30
"""What decompresses to more than both of these (times its size; bytes) is no profile."""
MAGICS: Final = {
    "gzip": b"\x1f\x8b\x08",
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\x00",
    "zstd": b"\x28\xb5\x2f\xfd",
}

_CHUNK: Final = 1 << 18
_INPUT: Final = 1 << 16
_SALVAGE_INPUT: Final = 1 << 10
_XZ_MEMORY: Final = 1 << 28
_OTHER_KIND: Final = "what follows the compressed data is of another kind"
_MAX_LAYERS: Final = 3


class Layer(Protocol):
    """``source.ByteStream``, with how far it is in the file on disk.

    Attributes:
        trailing: what follows the whole content and is not in it, None while nothing is known to; set as ``truncated`` is.
    """

    truncated: str | None
    trailing: str | None
    position: int

    @property
    def consumed(self) -> int:
        """Bytes of the file on disk that were read so far."""
        ...

    def read(self, size: int) -> bytes:
        """As ``ByteStream.read``."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class FileBytes:
    """A file, or a part of it, as it is on disk."""

    def __init__(self, path: Path, start: int = 0, length: int | None = None) -> None:
        """Open it.

        Raises:
            OSError: it cannot be opened.
        """
        self.truncated: str | None = None
        self.trailing: str | None = None
        self.position = 0
        self._left = length
        self._file = path.open("rb", buffering=0)
        self._file.seek(start)

    @property
    def consumed(self) -> int:
        """Bytes read so far."""
        return self.position

    def read(self, size: int) -> bytes:
        """As ``ByteStream.read``; an error of the disk ends the stream too."""
        wanted = size if self._left is None else min(size, self._left)
        parts = []
        while wanted > 0 and self.truncated is None:
            try:
                data = self._file.read(wanted)
            except OSError as error:
                self.truncated = f"byte {self.position} cannot be read: {error.strerror or error}"
                break
            if not data:
                if self._left:
                    self.truncated = f"the file ends {counted(self._left, 'byte')} too early"
                break
            parts.append(data)
            wanted -= len(data)
            self.position += len(data)
            if self._left is not None:
                self._left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Release the file."""
        self._file.close()


class Decompressed:
    """What a compressed stream has in it."""

    def __init__(
        self, label: str, below: Callable[[], Layer], codec: str, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        """Open it.

        Args:
            label: for errors.
            below: opens the compressed stream; called again to save what it can where it is damaged.
            codec: a key of MAGICS, or ``deflate`` (without any header, in a zip).
            max_bytes: no more is decompressed.

        Raises:
            OSError: the file cannot be opened.
        """
        self.truncated: str | None = None
        self.trailing: str | None = None
        self.position = 0
        self._label = label
        self._open_below = below
        self._codec = codec
        self._max_bytes = max_bytes
        self._start(_INPUT)
        self._is_salvaging = False

    @property
    def consumed(self) -> int:
        """Bytes of the file on disk that were read so far."""
        return self._below.consumed - self._decoder.pending_bytes

    def read(self, size: int) -> bytes:
        """As ``ByteStream.read``.

        Raises:
            ProfileError: a bomb, or more than ``max_bytes``.
        """
        parts: list[bytes] = []
        left = size
        while left > 0 and self.truncated is None:
            data = self._some(min(left, _CHUNK))
            if not data:
                break
            parts.append(data)
            left -= len(data)
            self.position += len(data)
            self._check()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Release the file."""
        self._below.close()

    def _start(self, input_bytes: int) -> None:
        self._below = self._open_below()
        decoder = _Zstd if self._codec == "zstd" else partial(_Members, codec=self._codec)
        self._decoder: _Zstd | _Members = decoder(self._below, input_bytes=input_bytes)

    def _some(self, size: int) -> bytes:
        """Some more bytes; ``b""`` at the end, and where the stream is damaged beyond them."""
        try:
            data = self._decoder.read(1 if self._is_salvaging else size)
        except _TrailingError as error:
            self.truncated = self._below.truncated
            self.trailing = f"{self._codec}: {error}"
            return b""
        except _DAMAGE as error:
            if not self._is_salvaging:
                return self._salvage(size)
            self.truncated = self._below.truncated or f"{self._codec}: {error}"
            return b""
        if not data:
            self.truncated, self.trailing = self._below.truncated, self._below.trailing
        return data

    def _salvage(self, size: int) -> bytes:
        """Start again up to where we are and go on byte by byte: a decoder that fails keeps the rest of its call to itself."""
        self._below.close()
        self._is_salvaging = True
        self._start(_SALVAGE_INPUT)
        try:
            skip = self.position
            while skip and (data := self._decoder.read(min(skip, _CHUNK))):
                skip -= len(data)
        except (*_DAMAGE, _TrailingError) as error:  # the file is not what it was
            self.truncated = f"{self._codec}: {error}"
            return b""
        single: list[bytes] = []
        while len(single) < size:
            data = self._some(1)
            if not data:
                break
            single.append(data)
        return b"".join(single)

    def _check(self) -> None:
        if self.position > self._max_bytes:
            raise ProfileError(
                f"{self._label}: more than {format_bytes(self._max_bytes)} when decompressed; "
                "if that is right, allow more with --max-input-bytes"
            )
        if self.position > BOMB_BYTES and self.position > BOMB_RATIO * self._below.consumed:
            raise ProfileError(
                f"{self._label}: decompresses to more than {BOMB_RATIO} times its size: no profile does that; "
                "if this one does, decompress it first"
            )


class Checked:
    """A member of an archive that says how long it is and what its checksum is."""

    def __init__(self, below: Callable[[], Layer], size: int, crc32: int | None) -> None:
        """Open it.

        Args:
            below: opens the decompressed stream.
            size: bytes that it should have; what is beyond is not read.
            crc32: of its bytes.

        Raises:
            OSError: the file cannot be opened.
        """
        self.truncated: str | None = None
        self.trailing: str | None = None
        self.position = 0
        self._below = below()
        self._size = size
        self._expected = crc32
        self._crc32 = 0

    @property
    def consumed(self) -> int:
        """Bytes of the file on disk that were read so far."""
        return self._below.consumed

    def read(self, size: int) -> bytes:
        """As ``ByteStream.read``."""
        data = self._below.read(min(size, self._size - self.position))
        self.position += len(data)
        self._crc32 = zlib.crc32(data, self._crc32)
        if len(data) < size and self.truncated is None:
            self.truncated = self._below.truncated or self._fault()
            self.trailing = self._below.trailing
        return data

    def close(self) -> None:
        """Release the file."""
        self._below.close()

    def _fault(self) -> str | None:
        if self.position < self._size:
            return f"it ends {counted(self._size - self.position, 'byte')} too early"
        if self._expected is not None and self._crc32 != self._expected:
            return "its checksum is not the one that the archive has: some of it is damaged"
        return None


class _Members:
    """Decoder of gzip, bzip2, xz (one member after another) and bare deflate; ``read`` raises one of _DAMAGE or _TrailingError."""

    def __init__(self, below: Layer, *, codec: str, input_bytes: int) -> None:
        self._below = below
        self._codec = codec
        self._input_bytes = input_bytes
        self._pending = b""
        self._member: Any = _NEW[codec]()

    @property
    def pending_bytes(self) -> int:
        """Bytes that were read and not decoded yet."""
        return len(self._pending)

    def read(self, size: int) -> bytes:
        while self._member is not None or self._next_member():
            data: bytes = self._member.decompress(self._pending, size)
            self._pending = getattr(self._member, "unconsumed_tail", b"")
            if self._member.eof:
                self._pending = self._member.unused_data
                self._member = None
            elif not data and not self._pending:
                self._pending = self._below.read(self._input_bytes)
                if not self._pending:
                    raise _CutError("cut off")
            if data:
                return data
        return b""

    def _next_member(self) -> bool:
        """Whether another member follows; zeros are padding."""
        magic = MAGICS.get(self._codec)
        if magic is None:
            return False
        pending = self._pending.lstrip(b"\0")
        while len(pending) < len(magic):
            more = self._below.read(self._input_bytes)
            if not more:
                break
            pending = (pending + more).lstrip(b"\0")
        self._pending = pending
        if not pending:
            return False
        if not pending.startswith(magic):
            raise _TrailingError(_OTHER_KIND)
        self._member = _NEW[self._codec]()
        return True


class _Zstd:
    """Decoder of zstd, all frames; ``read`` raises one of _DAMAGE.

    Also where something else follows: few frames have a checksum that would tell it from damage.
    """

    pending_bytes = 0  # pyarrow does not say

    def __init__(self, below: Layer, *, input_bytes: int) -> None:
        self._stream = pa.CompressedInputStream(pa.PythonFile(_Readable(below), "r"), "zstd")

    def read(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        return data


class _Readable:
    """What pyarrow asks of a file."""

    closed = False

    def __init__(self, below: Layer) -> None:
        self.read = below.read

    def close(self) -> None:
        self.closed = True


class _CutError(Exception):
    """The compressed stream ends."""


class _TrailingError(Exception):
    """Behind a whole compressed stream something else follows."""


_DAMAGE: Final = (
    cast("type[Exception]", zlib.error),
    lzma.LZMAError,
    OSError,
    EOFError,
    ValueError,
    _CutError,
)
_NEW: Final[dict[str, Callable[[], Any]]] = {
    "gzip": partial(zlib.decompressobj, 31),
    "deflate": partial(zlib.decompressobj, -15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=_XZ_MEMORY),
}


def compression(start: bytes) -> str | None:
    """The codec whose magic number these first bytes are."""
    return next((codec for codec, magic in MAGICS.items() if start.startswith(magic)), None)


def layers(label: str, below: Callable[[], Layer], max_bytes: int) -> Callable[[], Layer]:
    """What opens a stream without its layers of compression.

    Args:
        label: for errors.
        below: opens the stream as it is.
        max_bytes: no layer may have more.

    Raises:
        OSError: the file cannot be opened.
        ProfileError: more layers than anybody puts on purpose.
    """
    for _ in range(_MAX_LAYERS):
        codec = compression(first_bytes(below, 8))
        if codec is None:
            return below
        below = partial(Decompressed, label, below, codec, max_bytes)
    raise ProfileError(f"{label}: compressed {_MAX_LAYERS} times over; decompress it first")


def first_bytes(below: Callable[[], Layer], size: int) -> bytes:
    """The first bytes of a stream.

    Raises:
        OSError: the file cannot be opened.
    """
    stream = below()
    try:
        return stream.read(size)
    finally:
        stream.close()
