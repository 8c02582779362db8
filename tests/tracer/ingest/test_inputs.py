"""What a user names is found once, in the order of ranks; what is no file is told and never opened."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from tests.tracer.ingest.named_files import content, write

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest import inputs
from trnprof.tracer.ingest.inputs import Found, find_sources
from trnprof.tracer.ingest.source import Head

RANKS = ["rank10.json", "rank2.json", "rank0.json", "rank1.json"]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def find(*paths: str, **options: object) -> Found:
    return find_sources(paths, workspace=Path(".."), **options)  # type: ignore[arg-type]


def labels(found: Found) -> list[str]:
    return [source.label for source in found.sources]


def test_ranks_are_in_the_order_of_their_numbers_however_they_are_named() -> None:
    write(Path("run"), RANKS)
    expected = [f"run/rank{n}.json" for n in (0, 1, 2, 10)]
    assert labels(find("run")) == expected
    # a glob that no shell has expanded, as on Windows or in quotes
    assert labels(find("run/rank*.json")) == expected
    assert labels(find("**/*.json")) == expected
    # one that a shell has: in the order of letters
    assert labels(find(*sorted(str(p) for p in Path("run").iterdir()))) == expected
    # an order that somebody chose stays
    assert labels(find("run/rank2.json", "run/rank0.json")) == ["run/rank2.json", "run/rank0.json"]


def test_a_file_that_is_named_twice_counts_once() -> None:
    write(Path("run"), ["a.json"])
    Path("link.json").symlink_to("run/a.json")
    os.link("run/a.json", "hard.json")
    assert labels(find("run/a.json", "run", "run/../run/a.json", "link.json", "hard.json")) == [
        "run/a.json"
    ]


def test_a_name_with_brackets_is_a_name_first() -> None:
    write(Path(), ["rank[0].json"])
    assert labels(find("rank[0].json")) == ["rank[0].json"]
    with pytest.raises(ProfileError, match=r"^rank\[1\]\*: no file matches$"):
        find("rank[1]*")


def test_directories_are_walked_without_hidden_files_and_traces() -> None:
    write(Path("run"), ["b/2.json", "a/deep/er/1.json", "0.json", ".x.json", ".d/y.json"])
    write(Path("run/old.trnprof/manifest.d"), ["w.json"])
    assert labels(find("run")) == ["run/0.json", "run/a/deep/er/1.json", "run/b/2.json"]
    with pytest.raises(ProfileError, match=r"run/old\.trnprof is a trace of trnprof already"):
        find("run/old.trnprof")


def test_links_that_go_in_circles_end() -> None:
    write(Path("run/a"), ["1.json"])
    Path("run/a/up").symlink_to("..")
    Path("run/self").symlink_to("self")
    Path("run/gone").symlink_to("nowhere")
    found = find("run")
    assert labels(found) == ["run/a/1.json"]
    (finding,) = found.findings
    assert (finding.kind, finding.count) == ("unreadable", 2)
    assert finding.example.startswith("run/gone: a link to nothing")
    with pytest.raises(ProfileError, match="run/gone: a link to nowhere, which is not there"):
        find("run/gone")
    with pytest.raises(ProfileError, match="run/self: a link to self"):
        find("run/self")


def test_what_is_no_file_is_never_opened() -> None:
    write(Path("run"), ["1.json"])
    os.mkfifo("run/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("run/socket")
        # opening the pipe would wait for somebody to write into it
        found = find("run")
    assert labels(found) == ["run/1.json"]
    (finding,) = found.findings
    assert (finding.kind, finding.severity, finding.count) == ("not_a_file", "note", 2)
    for path, kind in (("run/pipe", "pipe"), ("run/socket", "socket"), ("/dev/zero", "device")):
        with pytest.raises(ProfileError, match=f"^{path} is a {kind}; write the profile to a file"):
            find(path)


def test_what_is_not_there_is_said_with_what_is() -> None:
    write(Path("run"), ["rank0.json"])
    with pytest.raises(
        ProfileError, match=r"^no such profile: run/rnk0\.json; did you mean run/rank0\.json\?$"
    ):
        find("run/rnk0.json")
    with pytest.raises(ProfileError, match=r"^no such profile: a␀b$"):
        find("a\0b")
    with pytest.raises(ProfileError, match="cannot be read: Not a directory"):
        find("run/rank0.json/x")
    with pytest.raises(ProfileError, match="cannot be read: File name too long"):
        find("x" * 5000)


def refuse(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a path not be opened or listed (this may run as root, whom no permission stops)."""
    real_open, real_list = Path.open, os.listdir

    def opened(self: Path, *arguments: object, **options: object) -> object:
        if str(self) == path:
            raise PermissionError(13, "Permission denied", path)
        return real_open(self, *arguments, **options)  # type: ignore[call-overload]

    def listed(folder: str | Path = ".") -> list[str]:
        if str(folder) == path:
            raise PermissionError(13, "Permission denied", path)
        return real_list(folder)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(os, "listdir", listed)


@pytest.mark.parametrize("name", ["2.json", "sub"])
def test_what_may_not_be_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("run"), ["1.json", "2.json", "sub/3.json"])
    refuse(f"run/{name}", monkeypatch)
    with pytest.raises(ProfileError, match=rf"^run/{name}: cannot be read: Permission denied$"):
        find(f"run/{name}")
    found = find("run")
    assert f"run/{name}" not in labels(found)
    assert "run/1.json" in labels(found)
    (finding,) = found.findings
    assert (finding.kind, finding.severity) == ("unreadable", "warning")
    assert "Permission denied" in finding.example


def test_names_are_shown_without_escape_sequences() -> None:
    write(Path(), ["a\x1b]0;b.json"])
    Path(os.fsdecode(b"\xff.json")).write_bytes(b"{}")
    Path(os.fsdecode(b"\xfe.json")).write_bytes(b"[]")
    found = find("a\x1b]0;b.json", os.fsdecode(b"\xff.json"), os.fsdecode(b"\xfe.json"))
    # names that look alike remain two
    assert labels(found) == ["a␛]0;b.json", "\ufffd.json", "\ufffd.json (2)"]
    assert {content(source) for source in found.sources} == {b"ALPHA profile\n", b"{}", b"[]"}


def test_whole_directories_are_claimed_before_their_files() -> None:
    write(Path("run/host0"), ["Main.parquet", "Part_0.parquet", "log.txt", "sub/x.json"])
    write(Path("run/host1"), ["Main.parquet"])
    write(Path("run/other"), ["loose.parquet"])
    asked = []

    def claims(head: Head) -> bool:
        asked.append(head)
        return "Main.parquet" in head.files

    found = find("run", claims=claims)
    assert labels(found) == [
        "run/host0",
        "run/host0/log.txt",
        "run/host0/sub/x.json",
        "run/host1",
        "run/other/loose.parquet",
    ]
    first = found.sources[0]
    assert (first.is_directory, first.size_bytes) == (True, 2 * len(b"ALPHA profile\n"))
    with first.on_disk() as path:
        assert path == Path("run/host0")
    # what a directory is called says nothing
    assert Head("", b"", ("Main.parquet", "Part_0.parquet", "log.txt")) in asked
    # a table that is named beside its directory is in it already
    assert labels(find("run/host1", "run/host1/Main.parquet", claims=claims)) == ["run/host1"]


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("run"), [f"{n}.json" for n in range(5)], bytes(1000))
    with pytest.raises(
        ProfileError, match=r"the profiles have 5 kB, more than 4 kB; .* --max-input-bytes"
    ):
        find("run", max_bytes=4000)
    monkeypatch.setattr(inputs, "MAX_FILES", 4)
    with pytest.raises(ProfileError, match="run: more than 4 files; name the directory"):
        find("run")


def test_an_empty_directory_has_no_sources() -> None:
    Path("empty").mkdir()
    assert find("empty").sources == ()
