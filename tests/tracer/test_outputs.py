"""Outputs: nobody replaces what another has put there meanwhile, links are followed, and what cannot be made is told as it is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trnprof.tracer.errors import OutputExistsError, TrnprofError, WriteError
from trnprof.tracer.files import check_output_file, written_beside
from trnprof.tracer.manifest import create_trace_directory, trace_beside

RACER = """
import sys, time
from pathlib import Path
from trnprof.tracer.errors import OutputExistsError
from trnprof.tracer.files import written_beside
from trnprof.tracer.manifest import create_trace_directory, trace_beside
print("ready", flush=True)
sys.stdin.readline()
kind, name = sys.argv[1:]
try:
    if kind == "file":
        with written_beside(Path("out"), force=False) as beside:
            beside.write_text(name)
    elif kind == "recorded":
        (create_trace_directory("out", force=False) / name).touch()
    else:
        with trace_beside(Path("out"), force=kind == "forced") as beside:
            (beside / "manifest.d").mkdir()
            (beside / name).touch()
except OutputExistsError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("kind", ["file", "recorded", "trace", "forced"])
def test_of_processes_that_write_one_path_one_wins(tmp_path: Path, kind: str) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, kind, f"by-{number}"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [racer.communicate()[1] for racer in racers]
    won = [number for number, racer in enumerate(racers) if racer.returncode == 0]
    assert os.listdir(tmp_path) == ["out"]
    out = tmp_path / "out"
    names = {out.read_text()} if kind == "file" else set(os.listdir(out)) - {"manifest.d"}
    if kind == "forced":
        assert (len(won), len(names)) == (4, 1), said
        return
    assert names == {f"by-{won[0]}"}
    assert sorted(said) == [
        "",
        *["out exists; give --force to replace it, or choose another path\n"] * 3,
    ]


def test_what_has_come_meanwhile_and_is_no_trace_stays_with_force_too(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def work() -> None:
        with trace_beside(out, force=True):
            out.mkdir()
            (out / "thesis").touch()

    with pytest.raises(OutputExistsError, match="is not a trace"):
        work()
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")] == [
        "out",
        "out/thesis",
    ]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    out = tmp_path / "out"

    def write(text: str) -> None:
        with written_beside(out, force=False) as beside:
            beside.write_text(text)

    write("first")
    with pytest.raises(OutputExistsError, match="exists; give --force"):
        write("second")
    assert (out.read_text(), os.listdir(tmp_path)) == ("first", ["out"])


def _record(path: Path, name: str) -> None:
    (create_trace_directory(path, force=True) / name).touch()


def _import(path: Path, name: str) -> None:
    with trace_beside(path, force=True) as beside:
        (beside / "manifest.d").mkdir()
        (beside / name).touch()


@pytest.mark.parametrize("write", [_record, _import])
def test_a_link_stays_and_what_it_leads_to_is_written(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "link"
    link.symlink_to("disk/out")
    for name in ("first", "second"):  # the link leads to nothing at first
        write(link, name)
        assert sorted(os.listdir(tmp_path)) == ["disk", "link"]
        assert os.readlink(link) == "disk/out"
        assert os.listdir(tmp_path / "disk") == ["out"]
        assert sorted(os.listdir(tmp_path / "disk" / "out")) == sorted(["manifest.d", name])


def test_a_link_to_a_file_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for text in ("first", "second"):
        with written_beside(tmp_path / "link") as beside:
            beside.write_text(text)
        assert (tmp_path / "file").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def _file(path: Path) -> None:
    check_output_file(path, force=True)
    with written_beside(path):
        pass


def _trace(path: Path) -> None:
    with trace_beside(path, force=True):
        pass


def _recording(path: Path) -> None:
    create_trace_directory(path, force=True)


@pytest.mark.parametrize("make", [_file, _trace, _recording])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("file/x", r"cannot write file/x: file is not a directory: choose another path"),
        ("file/y/x", r"cannot write file/y/x: file is not a directory: choose another path"),
        ("loop", r"cannot write loop: a symbolic link that leads to itself: choose another path"),
        ("a" * 300, r"cannot write a+: the file name is too long: choose a shorter one"),
        ("a" * 300 + "/x", r"cannot write a+/x: (the file name is too long|there is no directory)"),
    ],
)
def test_what_cannot_be_made(
    make: Callable[[Path], None],
    path: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("loop").symlink_to("loop")
    with pytest.raises(WriteError, match=says):
        make(Path(path))
    assert sorted(os.listdir(tmp_path)) == ["file", "loop"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
@pytest.mark.parametrize("make", [_file, _trace, _recording])
def test_a_directory_in_which_nothing_can_be_made(make: Callable[[Path], None]) -> None:
    said = "cannot write /proc/x.trnprof: nothing can be made in /proc: write elsewhere"
    with pytest.raises(WriteError, match=said):
        make(Path("/proc/x.trnprof"))


def test_devices_and_pipes_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(TrnprofError, match="is a device, a pipe or a socket; name a file"):
            check_output_file(path, force=True)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
