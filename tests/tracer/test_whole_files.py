"""A pipe is read to its end if somebody writes to it; nothing is waited for that never comes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trnprof.cli.send_bytes import read_send_bytes
from trnprof.emulator.figures import read_description
from trnprof.emulator.ranks.placement import parse_placement
from trnprof.emulator.system_files import MAX_NAME, list_systems, open_system
from trnprof.tracer.errors import SystemDescriptionError, TraceError, TrnprofError
from trnprof.tracer.manifest import create_trace_directory
from trnprof.tracer.reader import open_trace
from trnprof.tracer.whole_files import read_whole, read_whole_text

TOML = "name = 'a'\n"
# begins late, and has more than a pipe holds
SLOW_WRITER = """
import sys, time
with open(sys.argv[1], "w") as pipe:
    time.sleep(0.2)
    pipe.write(sys.argv[2])
    pipe.flush()
    time.sleep(0.2)
    pipe.write("#" * 300_000)
"""


def test_a_pipe_that_is_written_is_read_to_its_end(tmp_path: Path) -> None:
    reading, writing = os.pipe()  # as <(…) of a shell gives it
    writer = subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, f"/dev/fd/{writing}", TOML], pass_fds=[writing]
    )
    os.close(writing)
    path = Path(f"/dev/fd/{reading}")
    try:
        assert read_description(path).table == {"name": "a"}
    finally:
        os.close(reading)
        assert writer.wait() == 0


def test_a_pipe_that_nobody_writes_to_and_a_device_are_refused(tmp_path: Path) -> None:
    pipe, device = tmp_path / "pipe", tmp_path / "zero"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path, says in (
        (pipe, "a pipe that nobody writes to"),
        (device, "a device or a socket, not a file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file or directory"),
    ):
        with pytest.raises(OSError, match=says) as error:
            read_whole(path)
        assert error.value.strerror == says


READERS: dict[str, Callable[[Path], object]] = {
    "toml": lambda path: open_system(str(path)),
    "placement.csv": lambda path: parse_placement(str(path)),
    "bytes.csv": lambda path: read_send_bytes(path, 4),
}


@pytest.mark.parametrize("name", READERS)
def test_every_small_input_refuses_it_in_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"pipe.{name}"
    os.mkfifo(path)
    with pytest.raises(TrnprofError, match=f"{path}: .*a pipe that nobody writes to"):
        READERS[name](path)


def test_pipes_in_a_trace_are_no_tables(tmp_path: Path) -> None:
    path = create_trace_directory(tmp_path / "t.trnprof", force=False)
    for name in ("peaks.arrow", "manifest.d/w.json"):
        os.mkfifo(path / name)
    assert open_trace(path).peaks.is_empty()
    os.mkfifo(path / "manifest.json")
    with pytest.raises(TraceError, match="cannot be read: a pipe that nobody writes to"):
        open_trace(path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TOML.encode())
    assert read_whole_text(path) == TOML
    assert read_description(path).table == {"name": "a"}
    table = tmp_path / "places.csv"
    table.write_bytes(b"\xef\xbb\xbfrank,chip,core\n0,3,1\n")
    assert parse_placement(str(table)) == {0: (3, 1)}


@pytest.mark.parametrize(
    "name", ["../../a/b", "a/b", "a\\\\b", ".a", "-a", " a", "a ", "a" * (MAX_NAME + 1)]
)
def test_a_name_that_is_no_plain_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'schema = 2\nname = "{name}"\ndescription = "d"\n')
    with pytest.raises(SystemDescriptionError, match=r":2: \[top level\] name: expected a plain"):
        open_system(str(path))


def test_plain_names(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    for name in (*list_systems(), "Our Trn2 (new), rack 7", "Größe-1.5", "a" * MAX_NAME):
        path.write_text(f'schema = 2\nname = "{name}"\ndescription = "d"\n')
        assert open_system(str(path)).table["name"] == name
