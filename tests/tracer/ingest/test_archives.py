"""Members of real archives, whole and damaged, become sources; hostile archives become one clear line."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracer.ingest.named_files import content

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest import archives, bytestreams
from trnprof.tracer.ingest.inputs import Found, find_sources

RANKS = {f"run/rank{n}.json": f'{{"rank": {n}}}'.encode() * 1000 for n in (0, 1, 2, 10)}


def zip_bytes(
    files: dict[str, bytes] = RANKS, method: int = zipfile.ZIP_DEFLATED, level: int | None = None
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method, compresslevel=level) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def tar_bytes(files: dict[str, bytes] = RANKS, mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("run")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def found_in(folder: Path, data: bytes, name: str = "x.bin") -> Found:
    """What is found in an archive, named so that its name says nothing."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return find_sources([folder / name], workspace=workspace)


def members(found: Found) -> dict[str, bytes]:
    return {source.label.partition("!")[2]: content(source) for source in found.sources}


ARCHIVES = {
    "zip": zip_bytes(),
    "stored zip": zip_bytes(method=zipfile.ZIP_STORED),
    "bzip2 zip": zip_bytes(method=zipfile.ZIP_BZIP2),
    "tar": tar_bytes(),
    "tar.gz": tar_bytes(mode="w:gz"),
    "tar.bz2": tar_bytes(mode="w:bz2"),
    "tar.xz": tar_bytes(mode="w:xz"),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_members_are_sources_in_the_order_of_their_ranks(kind: str, tmp_path: Path) -> None:
    found = found_in(tmp_path, ARCHIVES[kind])
    assert members(found) == RANKS
    assert [s.label.partition("!")[2] for s in found.sources] == list(RANKS)
    assert found.findings == ()
    assert all(s.label.startswith(str(tmp_path / "x.bin!run/")) for s in found.sources)
    # they can be opened in another process, and again
    for source in pickle.loads(pickle.dumps(found.sources)):
        with source.on_disk() as path:
            assert path.read_bytes() == RANKS[source.label.partition("!")[2]]
        assert not path.exists()


def test_compressed_members_are_decompressed(tmp_path: Path) -> None:
    packed = {"a.json.gz": gzip.compress(b"{}"), "b.xz": lzma.compress(b"[]")}
    assert members(found_in(tmp_path, zip_bytes(packed))) == {"a.json.gz": b"{}", "b.xz": b"[]"}
    assert members(found_in(tmp_path, tar_bytes(packed))) == {"a.json.gz": b"{}", "b.xz": b"[]"}


@pytest.mark.parametrize("make", [zip_bytes, tar_bytes])
def test_names_lead_nowhere_and_hold_no_escape_sequences(make: object, tmp_path: Path) -> None:
    names = ["../../../../etc/passwd", "/root/x", "a\x1b[31mb.json", ".hidden", "d/.x/y", "__MACOSX/z"]  # fmt: skip
    before = sorted(tmp_path.parent.rglob("*"))
    data = make({name: name.encode() for name in names})  # type: ignore[operator]
    found = members(found_in(tmp_path, data))
    shown = {name.replace("\x1b", "␛"): name.encode() for name in names[:3]}
    # tar stores /root/x as root/x, or as it is
    assert {k.lstrip("/"): v for k, v in found.items()} == {
        k.lstrip("/"): v for k, v in shown.items()
    }
    after = [p for p in sorted(tmp_path.parent.rglob("*")) if tmp_path not in p.parents]
    assert after == before


def test_archives_in_archives_are_told_and_not_followed(tmp_path: Path) -> None:
    inner = {"ok.json": b"{}", "inner.zip": zip_bytes(), "inner.tar.gz": tar_bytes(mode="w:gz")}
    for data in (zip_bytes(inner), tar_bytes(inner)):
        found = found_in(tmp_path, data)
        assert members(found) == {"ok.json": b"{}"}
        (finding,) = found.findings
        assert (finding.kind, finding.count) == ("nested_archive", 2)
    with pytest.raises(ProfileError, match=r"x\.bin: a compressed zip; decompress it first"):
        found_in(tmp_path, gzip.compress(zip_bytes()))


def test_an_encrypted_member_is_one_line(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"secret.json": b"{}"}))
    data[6] |= 1  # the flags of the member, and those in the directory
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(ProfileError, match=r"x\.bin!secret\.json: encrypted; unpack .* password"):
        found_in(tmp_path, bytes(data))


def test_a_method_that_is_not_known_leaves_only_its_member_out(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"a.json": b"{}", "b.json": b"[]"}))
    at = data.index(b"PK\x01\x02")
    data[at + 10 : at + 12] = struct.pack("<H", 9)  # deflate64, which Windows writes
    found = found_in(tmp_path, bytes(data))
    assert members(found) == {"b.json": b"[]"}
    (finding,) = found.findings
    assert (finding.kind, finding.severity) == ("unreadable_members", "warning")
    assert finding.example == "a.json: compressed by method 9; unpack it first"


def test_a_wrong_checksum_is_said_and_the_bytes_are_given(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"a.json": b'{"x": 1}'}, zipfile.ZIP_STORED))
    data[data.index(b'{"x"') + 6] = ord("2")
    stream = found_in(tmp_path, bytes(data)).sources[0].open()
    assert stream.read(100) == b'{"x": 2}'
    stream.close()
    assert stream.truncated is not None
    assert "checksum" in stream.truncated


@settings(max_examples=40, deadline=None)
@given(where=st.floats(0, 1))
def test_a_cut_tar_gives_its_first_members(
    where: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = ARCHIVES["tar"]
    found = found_in(tmp_path_factory.mktemp("cut"), data[: 512 + int(where * (len(data) - 513))])
    given_whole = 0
    for source in found.sources:
        whole = RANKS[source.label.partition("!")[2]]
        stream = source.open()
        part = stream.read(1 << 20)
        assert stream.read(1) == b""
        stream.close()
        assert whole.startswith(part)
        assert (part == whole) == (stream.truncated is None)
        given_whole += part == whole
    # an archive of n members that ends before its end mark is said to be cut
    assert found.findings or given_whole == len(RANKS)


def test_a_cut_compressed_tar_says_so(tmp_path: Path) -> None:
    data = ARCHIVES["tar.gz"]
    found = found_in(tmp_path, data[: len(data) * 3 // 4])
    (finding,) = found.findings
    assert (finding.kind, finding.severity) == ("truncated", "error")
    assert "gzip: cut off" in finding.message
    assert found.sources


def test_a_damaged_header_in_a_tar_is_not_taken_for_its_end(tmp_path: Path) -> None:
    data = bytearray(ARCHIVES["tar"])
    second = data.index(b"run/rank1.json")
    data[second] ^= 0xFF
    found = found_in(tmp_path, bytes(data))
    assert list(members(found)) == ["run/rank0.json"]
    (finding,) = found.findings
    assert f"the header at byte {second} is damaged" in finding.message


def test_a_zip_cut_before_the_end_of_its_first_member_is_one_line(tmp_path: Path) -> None:
    data = ARCHIVES["zip"]
    with pytest.raises(ProfileError, match=r"x\.bin: a damaged or cut zip without a whole member"):
        found_in(tmp_path, data[: data.index(b"PK\x03\x04", 4) - 1])


class Pipe(io.BytesIO):
    """A file that cannot seek: what is written to it has its sizes behind it."""

    def seekable(self) -> bool:
        return False

    def seek(self, offset: int, whence: int = 0) -> int:
        raise OSError

    def tell(self) -> int:
        raise OSError


def piped_zip(method: int) -> bytes:
    out = Pipe()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in RANKS.items():
            archive.writestr(name, data)
    return out.getvalue()


@settings(max_examples=40, deadline=None)
@given(is_piped=st.booleans(), where=st.floats(0, 1))
def test_a_cut_zip_gives_its_whole_members(
    is_piped: bool, where: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = piped_zip(zipfile.ZIP_DEFLATED) if is_piped else zip_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        directory = archive.start_dir
    ends = [info.header_offset for info in infos[1:]] + [directory]
    cut = ends[0] + int(where * (len(data) - 1 - ends[0]))
    found = found_in(tmp_path_factory.mktemp("cut"), data[:cut])
    whole = [i.filename for i, end in zip(infos, ends, strict=True) if end <= cut]
    assert members(found) == {name: RANKS[name] for name in whole}
    (finding,) = found.findings
    assert (finding.kind, finding.severity) == ("truncated", "error")
    assert "its directory of members is damaged or cut off" in finding.message


def test_a_cut_zip_of_stored_members_without_sizes_gives_none(tmp_path: Path) -> None:
    data = piped_zip(zipfile.ZIP_STORED)
    with pytest.raises(ProfileError, match="without a whole member"):
        found_in(tmp_path, data[:-30])


def test_a_cut_zip_with_wide_sizes_gives_its_members(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in RANKS.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(data)
    assert members(found_in(tmp_path, out.getvalue()[:-22])) == RANKS


def test_a_bomb_in_a_cut_zip_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "BOMB_BYTES", 1 << 20)
    zeros = {f"rank{n}.json": bytes(1 << 20) for n in range(4)}
    with pytest.raises(ProfileError, match=r"more than 1000 times"):
        found_in(tmp_path, zip_bytes(zeros, zipfile.ZIP_BZIP2)[:-22])


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["zip", "tar", "tar.gz"]),
    where=st.floats(0, 1),
    junk=st.binary(min_size=1, max_size=30),
)
def test_damage_anywhere_is_told_and_nothing_else(
    kind: str, where: float, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(ARCHIVES[kind])
    at = int(where * (len(data) - len(junk)))
    data[at : at + len(junk)] = junk
    with suppress(ProfileError):
        found = found_in(tmp_path_factory.mktemp("damaged"), bytes(data))
        for source in found.sources:
            assert len(content(source)) < 1 << 20


def test_a_zip_bomb_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "BOMB_BYTES", 1 << 20)
    zeros = {f"rank{n}.json": bytes(1 << 20) for n in range(4)}
    bomb = zip_bytes(zeros, zipfile.ZIP_BZIP2)
    assert len(bomb) * 1000 < 4 << 20
    with pytest.raises(ProfileError, match=r"its members have 4\.194 MB, more than 1000 times"):
        found_in(tmp_path, bomb)


def test_a_member_never_has_more_than_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(zip_bytes({"a.json": b"0123456789" * 100}))
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 50)
    (source,) = found_in(tmp_path, bytes(data)).sources
    assert content(source) == b"0123456789" * 5


def test_a_tar_bomb_is_refused_while_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytestreams, "BOMB_BYTES", 1 << 20)
    bomb = lzma.compress(tar_bytes({"a": bytes(32 << 20)}))
    with pytest.raises(ProfileError, match="decompresses to more than 1000 times its size"):
        found_in(tmp_path, bomb)
    unpacked = [p.stat().st_size for p in (tmp_path / "workspace").iterdir()]
    assert sum(unpacked) < 16 << 20


def test_more_members_than_can_be_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    for data in (zip_bytes(), tar_bytes()):
        with pytest.raises(ProfileError, match=r"x\.bin: an archive of more than 3 members"):
            found_in(tmp_path, data)
    data = zip_bytes()
    monkeypatch.setattr(archives, "_MAX_DIRECTORY_BYTES", 100)
    monkeypatch.setattr(zipfile, "ZipFile", None)  # it is refused before it is listed
    with pytest.raises(ProfileError, match="an archive of more than 3 members"):
        found_in(tmp_path, data)


def test_a_tar_header_that_asks_for_much_memory_gets_none(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type = tarfile.XHDTYPE
    info.size = 1 << 33
    # behind a folder and a file, each with its header
    data = tar_bytes({"a.json": b"{}"})[: 3 * 512] + info.tobuf() + bytes(10_000)
    found = found_in(tmp_path, data)
    assert members(found) == {"a.json": b"{}"}
    assert [finding.kind for finding in found.findings] == ["truncated"]


def test_a_negative_size_in_a_tar_ends_it(tmp_path: Path) -> None:
    # CVE-2025-8194: such a header sends tarfile back in the file, for ever
    first = tarfile.TarInfo("a.json").tobuf()
    header = bytearray(tarfile.TarInfo("b.json").tobuf())
    header[124:136] = b"\xff" * 10 + struct.pack(">h", -1024)
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    found = found_in(tmp_path, first + bytes(header) + bytes(1024))
    assert [s.label.partition("!")[2] for s in found.sources] == ["a.json"]
    (finding,) = found.findings
    assert finding.kind == "truncated"


def test_two_members_of_one_name_are_two_sources(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.json", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.json", b"2")
    found = members(found_in(tmp_path, out.getvalue()))
    assert found == {"a.json": b"1", "a.json (2)": b"2"}


def test_links_and_devices_in_a_tar_are_left_out(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind in (("l", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE), ("f", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    found = found_in(tmp_path, out.getvalue())
    assert found.sources == ()
    (finding,) = found.findings
    assert (finding.kind, finding.count) == ("unreadable_members", 3)
