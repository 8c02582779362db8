"""The first screen on a real Dask cluster of several processes, and of a trace in a real S3-compatible server: the same as here."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

from trnprof.analysis.cells import pieces_of
from trnprof.analysis.mapping import on_threads
from trnprof.analysis.report import build_report
from trnprof.analysis.scope import Scope, device_scope
from trnprof.analysis.screen import facts_of, grids_of, screen_of
from trnprof.analysis.sweep import sweep
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.reader import Trace, open_trace

distributed = pytest.importorskip("distributed")
pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ROOT = Path(__file__).parents[2]
SCREEN = ("counters", "engines", "waits", "breakdown", "phases", "operators")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 60 steps of two ranks, in a shard a few steps."""
    spec = importlib.util.spec_from_file_location("large_trace", ROOT / "benchmarks/large_trace.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SHARD_ROWS = 5_000
    target: Path = tmp_path_factory.mktemp("large") / "run.trnprof"
    module.write_large_trace(target, 60 * 2 * 300, ranks=2, events_per_step=300)
    return target


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, host="127.0.0.1", **options) as started:
        yield started


def scope_of(trace: Trace) -> Scope:
    scope = device_scope(trace)
    assert scope is not None
    return scope


def test_a_cluster_adds_up_to_the_same(path: Path, cluster: Any) -> None:
    from trnprof.analysis.dask_mapping import on_dask

    trace = open_trace(path)
    here = screen_of(trace, scope_of(trace), piece_events=2_000)
    with on_dask(cluster.scheduler_address) as mapper:
        surveyed = open_trace(path).surveyed(mapper)
        there = screen_of(surveyed, scope_of(surveyed), mapper, piece_events=2_000)
        report = build_report(surveyed, mapper=mapper)
    assert_frame_equal(surveyed.survey, trace.survey)
    for name in SCREEN:
        assert_frame_equal(getattr(there, name)(), getattr(here, name)())
    assert json.dumps(report) == json.dumps(build_report(trace))


def test_a_worker_that_is_killed_costs_nothing_but_time(path: Path, cluster: Any) -> None:
    from trnprof.analysis.dask_mapping import on_dask

    trace = open_trace(path)
    grid, ranks, events = grids_of(trace, scope_of(trace))
    pieces = list(pieces_of(trace, grid, ranks or grid, events, 600))
    assert len(pieces) > 20
    _, facts = facts_of(trace)
    expected = list(on_threads(sweep, pieces, facts))
    with on_dask(cluster.scheduler_address) as mapper:
        results = mapper(sweep, pieces, facts)
        found = [next(results)]
        victim = next(iter(cluster.workers.values()))
        os.kill(victim.pid if hasattr(victim, "pid") else victim.process.pid, signal.SIGKILL)
        found += list(results)
    for ours, theirs in zip(found, expected, strict=True):
        for name, frame in theirs.items():
            assert_frame_equal(ours[name], frame, check_row_order=False)


def test_no_scheduler_is_told_in_one_line() -> None:
    from trnprof.analysis.dask_mapping import on_dask

    with pytest.raises(TrnprofError, match="no Dask scheduler answers"), on_dask("tcp://127.0.0.1:1"):  # fmt: skip
        pass


@pytest.fixture(scope="module")
def store(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server with the trace in ``s3://traces/run.trnprof``; what a process needs to know to read it."""
    import s3fs

    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    known = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "TRNPROF_CACHE": str(tmp_path_factory.mktemp("cache")),
    }
    try:
        files = s3fs.S3FileSystem(
            key="nobody", secret="nothing", endpoint_url=known["AWS_ENDPOINT_URL"],
            skip_instance_cache=True, asynchronous=False,
        )  # fmt: skip
        files.mkdir("traces")
        files.put(f"{path}/", "traces/run.trnprof", recursive=True)
        yield known
    finally:
        server.stop()


def trnprof(known: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trnprof", *arguments]
    environment = {**os.environ, **known, "COLUMNS": "80"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)  # fmt: skip


def test_a_trace_in_a_store_reads_as_here(path: Path, store: dict[str, str], cluster: Any) -> None:
    urls = {"s3://traces/run.trnprof": (), f"file://{path}": ("--scheduler", cluster.scheduler_address)}  # fmt: skip
    here = trnprof(store, "report", "--json", str(path))
    assert here.returncode == 0, here.stderr
    for url, options in urls.items():
        there = trnprof(store, "report", "--json", url, *options)
        assert there.returncode == 0, there.stderr
        # the commands that findings name are of the trace that was given
        assert there.stdout.replace(url, str(path)).splitlines() == here.stdout.splitlines()


def test_what_is_not_there_is_told_in_one_line(store: dict[str, str]) -> None:
    for url in ("s3://nowhere/run.trnprof", "s3://traces/other.trnprof"):
        done = trnprof(store, "report", url)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert url in done.stderr
