"""Compressed bytes come out whole, or up to where they are damaged, never more than allowed, and never with an exception."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import random
import tempfile
import zlib
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest import bytestreams
from trnprof.tracer.ingest.bytestreams import (
    MAGICS,
    Decompressed,
    FileBytes,
    Layer,
    compression,
    layers,
)


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
}
CHECKED = ("gzip", "bzip2", "xz")
"""Codecs whose files have a checksum."""
codecs = st.sampled_from(sorted(COMPRESS))
contents = st.one_of(
    st.binary(max_size=3000),
    st.builds(lambda piece, n: piece * n, st.binary(max_size=40), st.integers(0, 5000)),
    st.builds(lambda seed, n: random.Random(seed).randbytes(n), st.integers(), st.integers(0, 1 << 17)),
)  # fmt: skip


_FOLDER = tempfile.TemporaryDirectory()
_numbers = itertools.count()


def opened(data: bytes, codec: str | None = None) -> Layer:
    """A stream over some bytes on disk: of a codec, or whatever their start says."""
    file = Path(_FOLDER.name) / str(next(_numbers))
    file.write_bytes(data)
    below = partial(FileBytes, file)
    return Decompressed("x", below, codec) if codec else layers("x", below, 1 << 40)()


def rest(stream: Layer, size: int = 1 << 20) -> bytes:
    """Everything that is left, as readers read it."""
    parts = []
    with closing(stream):
        while data := stream.read(size):
            parts.append(data)
        assert stream.read(size) == b""
    return b"".join(parts)


def test_every_codec_is_known_by_its_first_bytes() -> None:
    assert {compression(compress(b"x")) for compress in COMPRESS.values()} == set(MAGICS)
    for plain in (b"", b"{", b"PK\x03\x04", b"SQLite format 3\0", b"\x1f", b"BZ"):
        assert compression(plain) is None


@settings(max_examples=60, deadline=None)
@given(
    codec=codecs, members=st.lists(contents, min_size=1, max_size=3), size=st.integers(1, 300_000)
)
def test_members_come_out_one_after_the_other(codec: str, members: list[bytes], size: int) -> None:
    stream = opened(b"".join(COMPRESS[codec](data) for data in members), codec)
    whole = b"".join(members)
    first = stream.read(size)
    # fewer bytes than asked for only at the end
    assert first == whole[:size]
    assert stream.position == len(first)
    assert first + rest(stream) == whole
    assert stream.truncated is None


@settings(max_examples=80, deadline=None)
@given(codec=codecs, data=contents, where=st.floats(0, 1), size=st.integers(1, 300_000))
def test_what_is_cut_off_gives_what_came_before(
    codec: str, data: bytes, where: float, size: int
) -> None:
    packed = COMPRESS[codec](data)
    magic = len(MAGICS[codec])
    cut = packed[: magic + int(where * (len(packed) - 1 - magic))]
    stream = opened(cut, codec)
    found = rest(stream, size)
    assert data.startswith(found)
    assert stream.truncated is not None


@pytest.mark.parametrize("codec", sorted(COMPRESS))
def test_next_to_nothing_is_lost_before_the_cut(codec: str) -> None:
    # random bytes do not compress: half of the file is half of the content
    data = random.Random(5).randbytes(3 << 20)
    packed = COMPRESS[codec](data)
    found = rest(opened(packed[: len(packed) // 2], codec), 16 << 20)
    assert data.startswith(found)
    # bzip2 has blocks of 900 kB, zstd of 128 KiB, xz flushes as it goes
    lost = len(packed) // 2 - len(found)
    assert lost <= {"bzip2": 900_000, "zstd": 131_200}.get(codec, 20_000)


@settings(max_examples=80, deadline=None)
@given(codec=codecs, data=contents, where=st.floats(0, 1), flip=st.integers(1, 255))
def test_a_damaged_byte_never_raises(codec: str, data: bytes, where: float, flip: int) -> None:
    packed = bytearray(COMPRESS[codec](data))
    at = int(where * (len(packed) - 1))
    packed[at] ^= flip
    stream = opened(bytes(packed), codec)
    found = rest(stream)
    if codec in CHECKED and found != data:
        assert stream.truncated is not None


@settings(max_examples=60, deadline=None)
@given(codec=codecs, junk=st.binary(max_size=400))
def test_junk_behind_a_magic_number_never_raises(codec: str, junk: bytes) -> None:
    stream = opened(MAGICS[codec] + junk, codec)
    rest(stream)


@pytest.mark.parametrize("codec", sorted(COMPRESS))
def test_what_follows_the_end_is_told_and_zeros_are_not(codec: str) -> None:
    packed = COMPRESS[codec](b"content" * 1000)
    stream = opened(packed + b"and then something else", codec)
    assert rest(stream) == b"content" * 1000
    # zstd without a checksum cannot tell it from damage
    assert (stream.truncated is None, stream.trailing is None) == (codec != "zstd", codec == "zstd")
    if codec != "zstd":  # gzip of a tape pads its end
        padded = opened(packed + bytes(4096), codec)
        assert rest(padded) == b"content" * 1000
        assert (padded.truncated, padded.trailing) == (None, None)


def test_the_members_before_a_wrong_checksum_are_kept() -> None:
    packed = bytearray(gzip.compress(b"a" * 500_000) + gzip.compress(b"b" * 500_000))
    packed[-6] ^= 1
    stream = opened(bytes(packed), "gzip")
    found = rest(stream)
    assert found[:500_000] == b"a" * 500_000
    # zlib keeps the last byte to itself when it finds the checksum wrong
    assert 499_999 <= found.count(b"b") <= 500_000
    assert stream.truncated is not None
    assert "check" in stream.truncated


def test_layers_are_followed_but_not_for_ever() -> None:
    assert rest(opened(gzip.compress(zstd(b"{}")))) == b"{}"
    with pytest.raises(ProfileError, match="compressed 3 times over; decompress it first"):
        opened(gzip.compress(gzip.compress(gzip.compress(b"{}"))))


def test_plain_files_and_parts_of_them(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"0123456789")
    assert rest(FileBytes(file)) == b"0123456789"
    part = FileBytes(file, 2, 5)
    with closing(part):
        assert (part.read(3), part.read(3), part.read(3)) == (b"234", b"56", b"")
    assert part.truncated is None
    short = FileBytes(file, 8, 5)
    assert rest(short) == b"89"
    assert short.truncated == "the file ends 3 bytes too early"


def test_an_error_of_the_disk_ends_the_stream() -> None:
    # the first page of this process is not mapped: reading it is an I/O error, as on a bad disk
    stream = FileBytes(Path("/proc/self/mem"))
    assert rest(stream) == b""
    assert stream.truncated == "byte 0 cannot be read: Input/output error"


@pytest.mark.parametrize("codec", ["bzip2", "xz", "zstd"])
def test_a_bomb_is_refused(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytestreams, "BOMB_BYTES", 1 << 20)
    stream = opened(COMPRESS[codec](bytes(64 << 20)), codec)
    with pytest.raises(ProfileError, match="decompresses to more than 1000 times its size"):
        rest(stream)
    assert stream.position < 16 << 20


def test_profiles_that_compress_well_are_no_bombs() -> None:
    line = b'{"ph":"X","name":"kernel","ts":1000,"dur":1},\n' * 100_000
    assert rest(opened(gzip.compress(line))) == line


def test_no_more_than_the_limit_is_decompressed(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(random.Random(1).randbytes(5_000_000)))
    opens = layers("x.gz", partial(FileBytes, file), 1_000_000)
    with pytest.raises(ProfileError, match=r"x\.gz: more than 1 MB .* with --max-input-bytes"):
        rest(opens())


def test_memory_for_decompression_is_bounded() -> None:
    # a dictionary of 1.5 GiB, which xz would allocate at once
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1536 << 20}]
    packed = lzma.compress(b"x" * 1000, filters=filters)
    stream = opened(packed, "xz")
    assert rest(stream) == b""
    assert stream.truncated is not None
    assert "emory" in stream.truncated


def test_deflate_without_a_header_ends_where_it_ends() -> None:
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(b"abc" * 1000) + packer.flush()
    assert rest(opened(packed, "deflate")) == b"abc" * 1000
