"""Reading one source: an empty one is told, whatever its format, and what does not fit is refused with its name."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from trnprof.tracer.batches import ColumnError
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest.reading import ReadSource, read_source
from trnprof.tracer.ingest.registry import Registry
from trnprof.tracer.ingest.run import import_profiles
from trnprof.tracer.ingest.source import ByteStream, Format, Source
from trnprof.tracer.ingest.stage import Stage, Timeline


def unopened() -> ByteStream:
    raise AssertionError("nobody opens it")


def source(path: Path) -> Source:
    return Source("a.x", path, False, 0, unopened, lambda: nullcontext(path))


def test_a_source_without_anything_is_told_whatever_its_format(tmp_path: Path) -> None:
    format = Format("x", "X", lambda head: 0, lambda source, stage: None)
    read = read_source(source(tmp_path), format, tmp_path / "stage", 0)
    assert isinstance(read, ReadSource)
    (found,) = read.stage.audit.findings
    assert (found.kind, found.severity, found.where) == ("no_events", "warning", "a.x")


@pytest.mark.parametrize(
    "error",
    [
        ColumnError("tracks.rank: values do not fit int32"),
        pa.ArrowInvalid("odd\nmore"),
        pl.exceptions.InvalidOperationError("cannot cast List type"),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_the_source(
    tmp_path: Path, error: Exception
) -> None:
    def read(source: Source, stage: Stage) -> None:
        raise error

    format = Format("x", "X", lambda head: 0, read)
    refused = read_source(source(tmp_path), format, tmp_path / "stage", 0)
    assert isinstance(refused, ProfileError)
    assert str(refused).startswith("a.x: its columns are not those of x (")
    assert str(error).splitlines()[0] in str(refused)
    assert "\n" not in str(refused)


def test_all_ranks_of_one_source_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(source: Source, stage: Stage) -> None:
        stage.facts.world_size = 2
        at = np.arange(4, dtype=np.int64)
        for rank in range(2):
            chip = stage.timeline(rank, Timeline("stream", f"GPU {rank}", rank=rank))
            stage.add_events(
                timeline=chip, start_ns=at, end_ns=at + 1, name="k", category="compute"
            )

    known = Registry({"x": Format("x", "X", lambda head: 95, read)}, {})
    monkeypatch.setattr("trnprof.tracer.ingest.detect.registry", lambda: known)
    path = tmp_path / "a.x"
    path.write_bytes(b"x")
    summary = import_profiles([path], tmp_path / "t")
    assert [s.ranks for s in summary.sources] == [(0, 1)]
    assert "missing_ranks" not in {f.kind for f in summary.findings}
