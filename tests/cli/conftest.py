"""One recording that all tests read, and disks that are small or read-only."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

from tests.cli.runner import PYTHON, SCRIPTS, trnprof  # noqa: E402


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of three training steps, recorded once for all workers; only read it."""
    pytest.importorskip("torch")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    trace = shared / "mlp.trnprof"
    with (shared / "mlp.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not trace.exists():
            made = trnprof("record", "-o", trace, "--", PYTHON, SCRIPTS / "mlp.py")
            assert made.code == 0, made.err
            assert [line.split()[0] for line in made.out.splitlines()] == ["0", "1", "2"]
            assert f"next: trnprof report {trace}" in made.err
    return trace


@pytest.fixture
def copied(recording: Path, tmp_path: Path) -> Path:
    """The recording, free to be changed."""
    return Path(shutil.copytree(recording, tmp_path / "copied.trnprof"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    _mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def read_only(small_disk: Path) -> Path:
    """A directory that nobody can write, not even root."""
    _mount("-o", "remount,ro", str(small_disk))
    return small_disk


def _mount(*arguments: str) -> None:
    if shutil.which("mount") is None:
        pytest.skip("there is no mount here: full and read-only disks are not tested")
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(
            f"mount is not permitted, full and read-only disks are not tested: {done.stderr}"
        )
