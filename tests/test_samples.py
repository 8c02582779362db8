"""The sample traces open, are sound and small, and recording them again gives the same tables."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

import trnprof

ROOT = Path(__file__).parents[1]
SAMPLES = sorted((ROOT / "sample_traces").glob("*.trnprof"))
TABLES = ("events", "tracks", "ops", "groups", "steps", "peaks", "flows", "counters")


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "sample_traces/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_three() -> None:
    assert len(SAMPLES) >= 3


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_sample_is_sound_and_small(path: Path) -> None:
    assert trnprof.open(path).validate() == []
    assert sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) < 2e6


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_sample_can_be_recorded_again(path: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13."):
        pytest.skip("the samples were recorded with torch 2.13")
    again = trnprof.open(generator().generate(path.stem, tmp_path))
    sample = trnprof.open(path)
    for table in TABLES:
        ours, theirs = (getattr(t, table).lazy().collect() for t in (sample, again))
        assert_frame_equal(ours, theirs)
    assert sample.manifest == again.manifest


def test_samples_name_no_machine() -> None:
    for path in SAMPLES:
        for file in path.rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                assert str(ROOT).encode() not in content
                assert sys.prefix.encode() not in content
