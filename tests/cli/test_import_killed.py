"""An import that is killed or told to stop leaves no process behind; told to stop, no file either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.runner import COMMAND, names_below

PATIENCE_SECONDS = 60.0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something becomes true before patience ends."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not (is_so := holds()) and time.monotonic() < until:
        time.sleep(0.02)
    return is_so


def workers_of(group: int) -> list[int]:
    """The processes of a session that were spawned to work, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            pid = int(entry.name)
            state = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(state[3]) == group and state[0] != "Z" and pid != group:
                found.append(pid)
        except (ValueError, OSError):
            continue
    return found


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that are together large enough for two processes."""
    folder = tmp_path_factory.mktemp("large")
    event = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":7,"tid":7,"ts":%d.5,"dur":2.25},\n'
    for rank in range(2):
        events = "".join(event % (3 * n) for n in range(260_000))
        head = f'{{"schemaVersion":1,"distributedInfo":{{"rank":{rank},"world_size":2}},"traceEvents":[\n'
        (folder / f"rank{rank}.json").write_text(head + events.rstrip(",\n") + "]}")
    return folder


def started(profiles: Path, folder: Path) -> subprocess.Popen[str]:
    """An import whose two workers have begun."""
    process = subprocess.Popen(
        [*COMMAND, "import", str(profiles), "-o", "run.trnprof", "--jobs", "2"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # the resource tracker of multiprocessing is the third
    running = eventually(lambda: len(workers_of(process.pid)) >= 3 or process.poll() is not None)
    assert running
    assert process.poll() is None
    return process


def test_workers_end_with_a_parent_that_is_killed(profiles: Path, tmp_path: Path) -> None:
    process = started(profiles, tmp_path)
    assert eventually(lambda: any("tmp/" in name for name in names_below(tmp_path)))
    process.kill()
    # ends when nobody holds stderr any more
    process.communicate(timeout=PATIENCE_SECONDS)
    assert eventually(lambda: not workers_of(process.pid))
    assert os.listdir(tmp_path) == [f".run.trnprof.{process.pid}.tmp"]
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "rank0.json").write_text(
        '{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"cpu_op","name":"f","pid":7,"tid":7,"ts":1,"dur":2}]}'
    )
    again = [*COMMAND, "import", "small", "-o", "run.trnprof"]
    subprocess.run(again, cwd=tmp_path, check=True, capture_output=True)
    assert sorted(os.listdir(tmp_path)) == ["run.trnprof", "small"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_and_leaves_nothing(
    profiles: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = started(profiles, tmp_path)
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + number
    assert said.splitlines()[-1] == f"trnprof: stopped by {number.name}"
    assert "Traceback" not in said
    assert eventually(lambda: not workers_of(process.pid))
    assert names_below(tmp_path) == []
