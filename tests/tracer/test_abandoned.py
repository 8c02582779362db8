"""What killed processes left beside an output is removed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trnprof.tracer.files import directory_beside, remove_abandoned


def dead_process() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead, alive = dead_process(), os.getppid()
    gone = [f".a.b.{dead}.tmp", f".a.b.{os.getpid()}.tmp", ".a.b.9999999999.tmp"]
    kept = [f".a.b.{alive}.tmp", f".axb.{dead}.tmp", f".a.b.{dead}.old", f"a.b.{dead}.tmp"]
    kept += [".a.b.0.tmp", ".a.b.-1.tmp", ".a.b.x.tmp", "a.b"]
    for name in (*gone, *kept):
        (tmp_path / name / "stage").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    second = dead_process()
    (tmp_path / f".file.{second}.tmp").write_text("no folder")
    (tmp_path / f".link.{second}.tmp").symlink_to(tmp_path / "a.b")
    for name in ("a.b", "file", "link"):
        remove_abandoned(tmp_path / name)
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {*kept, "file", f".file.{second}.tmp", f".link.{second}.tmp"}
    assert (tmp_path / "a.b" / "stage").is_dir()


def test_a_folder_that_an_earlier_process_of_our_number_left_is_no_obstacle(tmp_path: Path) -> None:
    """In a container every process may have the same number."""
    (tmp_path / f".out.{os.getpid()}.tmp").mkdir()
    remove_abandoned(tmp_path / "out")
    with directory_beside(tmp_path / "out") as beside:
        (beside / "x").write_text("x")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    remove_abandoned(tmp_path / "nowhere" / "out")
