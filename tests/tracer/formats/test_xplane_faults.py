"""Damaged and hostile XSpaces: cut anywhere, bits turned, lengths that lie, rewritten as text."""

from __future__ import annotations

import gzip
import lzma
import random
import tracemalloc
from pathlib import Path

import pytest
from tests.tracer.formats.staged import events, head_of, kinds, staged
from tests.tracer.formats.xla_profiles import tpu_space
from tests.tracer.formats.xspaces import MESSAGES, Space, decoded

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.xplane.format import FORMAT
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.source import Head
from trnprof.tracer.ingest.stage import Stage

DATA = Path(__file__).parents[2] / "data"
SHARED = Path(__file__).parents[3].parent / "shared"


def real() -> bytes:
    return lzma.decompress((DATA / "jax_cpu.xplane.pb.xz").read_bytes())


def read(tmp_path: Path, data: bytes, name: str = "x.xplane.pb") -> Stage:
    path = tmp_path / name
    path.write_bytes(data)
    number = len(list(tmp_path.glob("stage*")))
    return staged(FORMAT, path, tmp_path / f"stage{number}")


def read_or_refused(tmp_path: Path, data: bytes) -> Stage | None:
    said = ""
    try:
        return read(tmp_path, data)
    except ProfileError as error:
        said = str(error)
    assert "\n" not in said
    assert "x.xplane.pb" in said
    return None


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes, length: int | None = None) -> bytes:
    size = len(content) if length is None else length
    return varint(number << 3 | 2) + varint(size) + content


def test_a_cut_file_keeps_whole_events(tmp_path: Path) -> None:
    data = real()
    times = {row[2:4] for row in decoded(data)}
    kept = []
    for size in range(40, len(data), 331):
        stage = read_or_refused(tmp_path, data[:size])
        assert stage is not None
        starts, ends = stage.times("start_ns"), stage.times("end_ns")
        assert set(zip(starts.tolist(), ends.tolist(), strict=True)) <= times
        kept.append(stage.rows)
        assert "truncated" in kinds(stage) or "malformed_protobuf" in kinds(stage)
    assert kept == sorted(kept)
    assert kept[-1] == 279
    # half of the file holds half of the events or so, without their names, which stand behind them
    half = read(tmp_path, data[: len(data) // 2])
    assert half.rows > 50
    assert {"truncated", "names_missing"} <= kinds(half)
    assert events(half)["name"].str.starts_with("event ").all()


def test_a_cut_gzip_keeps_whole_events(tmp_path: Path) -> None:
    data = gzip.compress(tpu_space().bytes())
    stage = read(tmp_path, data[: len(data) * 2 // 3], "x.xplane.pb.gz")
    assert stage.rows > 0
    assert "truncated" in kinds(stage)


@pytest.mark.parametrize("seed", range(3))
def test_turned_bits_never_crash(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for base in (real(), tpu_space().bytes()):
        for _ in range(25):
            data = bytearray(base)
            for _ in range(chance.choice([1, 1, 3, 30])):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            stage = read_or_refused(tmp_path, bytes(data))
            assert stage is None or stage.rows <= 2 * len(decoded(base))


def test_noise_is_refused_or_empty(tmp_path: Path) -> None:
    chance = random.Random(5)
    for _ in range(30):
        read_or_refused(tmp_path, chance.randbytes(chance.randrange(1, 3000)))


def test_lengths_beyond_the_file_allocate_nothing(tmp_path: Path) -> None:
    line = field(2, b"main") + field(4, b"\x08\x01", 1 << 60)
    plane = field(2, b"/host:CPU") + field(3, line, 1 << 61)
    entry = field(4, b"\x08\x01", 1 << 50)
    read_or_refused(tmp_path, field(1, b""))  # what is compiled, is now
    tracemalloc.start()
    for data in (
        field(1, plane, 1 << 62),
        field(1, plane),
        field(1, field(2, b"/host:CPU") + entry),
        field(1, field(2, b"/host:CPU") + field(5, b"", 1 << 63)),
        field(2, b"an error", 1 << 40),
    ):
        read_or_refused(tmp_path, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def test_millions_of_empty_events_stay_in_bounded_memory(tmp_path: Path) -> None:
    line = field(2, b"main") + b"\x22\x00" * 1_500_000
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(field(1, field(2, b"/host:CPU") + field(3, line)))
    stage = staged(FORMAT, path, tmp_path / "stage")
    assert stage.rows == 1_500_000
    assert "names_missing" in kinds(stage)


def test_a_file_that_was_rewritten_as_text_is_refused_by_name_and_byte(tmp_path: Path) -> None:
    text = tpu_space().bytes().decode("utf-8", "replace").encode()
    path = tmp_path / "tpu.xplane.pb"
    path.write_bytes(text)
    with pytest.raises(ProfileError, match=r"tpu\.xplane\.pb: .*U\+FFFD at byte \d+.* as binary"):
        staged(FORMAT, path, tmp_path / "stage")


def test_a_public_file_that_was_rewritten_as_text_ends_the_import(tmp_path: Path) -> None:
    path = SHARED / "traces/xprof/tpu_inference_2.xplane.pb"
    if not path.exists():
        pytest.skip("needs the shared traces")
    out = tmp_path / "run.trnprof"
    with pytest.raises(ProfileError, match=r"U\+FFFD at byte 1\)"):
        import_profiles([path], out)
    assert not out.exists()


def test_empty_files_are_refused(tmp_path: Path) -> None:
    for data in (b"", b"\x0a\x00", field(2, b"")):
        with pytest.raises(ProfileError, match="no plane of an XSpace"):
            read(tmp_path, data)


def test_a_host_that_recorded_nothing_is_empty_not_wrong(tmp_path: Path) -> None:
    space = Space()
    space.message.hostnames.append("worker-7")
    stage = read(tmp_path, space.bytes())
    assert (stage.rows, stage.facts.host) == (0, "worker-7")


def test_what_the_profiler_reports_is_told(tmp_path: Path) -> None:
    space = tpu_space()
    space.message.errors.append("cannot read device 3")
    space.message.warnings.extend(["dropped 5 events", "dropped 9 events"])
    found = {f.kind: f for f in read(tmp_path, space.bytes()).audit.findings}
    assert found["profiler_error"].example == "cannot read device 3"
    assert found["profiler_warning"].count == 2
    assert found["profiler_warning"].severity == "warning"


def test_fields_that_nobody_knows_are_passed_over(tmp_path: Path) -> None:
    more = b"\xf8\x07\x05" + field(200, b"more") + b"\xfd\x08abcd" + b"\xf9\x08abcdefgh"
    event = MESSAGES["XEvent"](metadata_id=1, offset_ps=5000, duration_ps=7000).SerializeToString()
    line = field(2, b"main") + more + field(4, event + more) + more
    entry = field(4, b"\x08\x01" + field(2, b"\x08\x01" + field(2, b"work") + more) + more)
    data = field(1, more + field(2, b"/host:CPU") + field(3, line) + entry + more) + more
    stage = read(tmp_path, data)
    assert events(stage).select("name", "start_ns", "end_ns").rows() == [("work", 5, 12)]
    assert kinds(stage) == set()


def test_names_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    entry = field(4, b"\x08\x01" + field(2, field(2, b"w\xffrk")))
    line = field(2, b"m\xfein") + field(4, b"\x08\x01\x18\x01")
    stage = read(tmp_path, field(1, field(2, b"/host:CPU") + field(3, line) + entry))
    assert events(stage).select("name", "track").rows() == [("w�rk", "m�in")]


def test_events_of_what_no_metadata_describe_are_named_by_number(tmp_path: Path) -> None:
    space = Space()
    plane = space.plane("/host:CPU")
    line = plane.line("main")
    plane.event(line, "known", 0, 1000)
    plane.event(line, 77, 2000, 1000).stats.add(metadata_id=88, int64_value=3)
    found = events(read(tmp_path, space.bytes()))
    assert found["name"].to_list() == ["known", "event 77"]
    assert found["attributes"].to_list() == [None, '{"stat 88":3}']


def test_content_and_name_tell_the_format(tmp_path: Path) -> None:
    path = tpu_space().write(tmp_path / "odd.bin")
    assert FORMAT.recognise(head_of(path)) >= 90
    assert FORMAT.recognise(Head("x.xplane.pb", b"\x0a\x05\x08\x01\x12\x01z")) >= 80
    for other in (b"{}", b"\x1f\x8b", b"\x0a\x07hello..", b"", b"\x80\x04."):
        assert FORMAT.recognise(Head("odd.bin", other)) == 0
