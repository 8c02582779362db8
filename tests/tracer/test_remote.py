"""Traces behind URLs, with the stores that fsspec itself has: files and memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from trnprof.tracer.compact import compact
from trnprof.tracer.errors import TraceError
from trnprof.tracer.reader import open_trace
from trnprof.tracer.remote import url_of

fsspec = pytest.importorskip("fsspec")
SAMPLE = Path(__file__).parents[2] / "sample_traces" / "transformer-trn2.trnprof"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNPROF_CACHE", str(tmp_path / "cache"))


def shards(cache: Path) -> list[Path]:
    return sorted((cache / "shards").glob("*")) if (cache / "shards").exists() else []


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("s3://b/run.trnprof", "s3://b/run.trnprof"),
        (Path("s3://b/run.trnprof"), "s3://b/run.trnprof"),
        (Path("file:///a/run.trnprof"), "file:///a/run.trnprof"),
        ("memory://run.trnprof", "memory://run.trnprof"),
        ("run.trnprof", None),
        ("/a/b:c/run.trnprof", None),
        ("C:/run.trnprof", None),
    ],
)
def test_what_is_a_url(path: str | Path, url: str | None) -> None:
    assert url_of(path) == url


def test_it_reads_as_the_directory_and_copies_shards_when_they_are_read(tmp_path: Path) -> None:
    here, there = open_trace(SAMPLE), open_trace(f"file://{SAMPLE}")
    assert (there.path.name, there.problems) == (SAMPLE.name, ())
    assert_frame_equal(there.tracks, here.tracks)
    assert_frame_equal(there.ops.collect(), here.ops.collect())
    assert not shards(tmp_path / "cache")
    events = there.events.collect()
    assert_frame_equal(events, here.events.collect())
    read = shards(tmp_path / "cache")
    assert read
    assert_frame_equal(there.flows.collect(), here.flows.collect())
    assert len(shards(tmp_path / "cache")) > len(read)


def test_what_has_changed_in_the_store_is_copied_anew(tmp_path: Path) -> None:
    stored = tmp_path / "run.trnprof"
    shutil.copytree(SAMPLE, stored)
    assert not open_trace(f"file://{stored}").manifest.get("mark")
    manifest = stored / "manifest.json"
    manifest.write_text(manifest.read_text().replace("{", '{"mark": 1, ', 1))
    assert open_trace(f"file://{stored}").manifest["mark"] == 1


def test_a_store_in_memory() -> None:
    files = fsspec.filesystem("memory")
    files.put(f"{SAMPLE}/", "/run.trnprof", recursive=True)
    events = open_trace("memory://run.trnprof").events.collect()
    assert events.height == open_trace(SAMPLE).events.collect().height


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such trace"):
        open_trace("file:///nowhere/x.trnprof")
    with pytest.raises(TraceError, match="Protocol not known"):
        open_trace("xyz://b/x.trnprof")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("a")
    with pytest.raises(TraceError, match="is not a trace"):
        open_trace(f"file://{tmp_path}/other")
    with pytest.raises(TraceError, match="copy it to a directory"):
        compact(f"file://{SAMPLE}")
