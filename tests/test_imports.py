"""What is really loaded? import-linter reads the source; these tests read ``sys.modules`` of processes of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trnprof.tracer.manifest import write_manifest
from trnprof.tracer.writer import TraceWriter

ROOT = Path(__file__).parents[1]
HEAVY = {"numpy", "polars", "pyarrow", "numba", "textual", "torch", "perfetto"}
INTERFACES = {"textual", "typer", "rich"}
AFTERWARDS = "; import sys, json; sys.stderr.write('\\n' + json.dumps(sorted(sys.modules)))"


def loaded_by(code: str) -> set[str]:
    """Names of all modules that a process has loaded after running some code."""
    done = subprocess.run(
        [sys.executable, "-c", code + AFTERWARDS], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def loaded_by_command(*arguments: str | Path) -> set[str]:
    """The same for a command line of trnprof."""
    line = ["trnprof", *map(str, arguments)]
    return loaded_by(
        f"import sys, contextlib; sys.argv = {line!r}\n"
        "from trnprof.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "None"
    )


def modules_of(*folders: str) -> list[str]:
    """All modules of packages, but for those that run in the captured program and import torch at once."""
    names = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if re.search(
                r"^(import torch|from \S+\.capture\.torch)", path.read_text(), re.MULTILINE
            ):
                continue
            if path.name == "sitecustomize.py":
                continue
            name = ".".join(("trnprof", *path.relative_to(ROOT).with_suffix("").parts))
            names.append(name.removesuffix(".__init__"))
    return names


def test_importing_trnprof_loads_nothing_heavy() -> None:
    assert not loaded_by("import trnprof; dir(trnprof)") & (HEAVY | INTERFACES)


@pytest.mark.parametrize(
    "line", [["--help"], ["--version"], ["repot"], ["record", "--system", "trn9", "--", "true"]]
)
def test_help_and_mistakes_load_nothing_heavy(line: list[str]) -> None:
    loaded = loaded_by_command(*line)
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_below_tui_nothing_loads_a_user_interface() -> None:
    names = modules_of("tracer", "emulator", "analysis")
    loaded = loaded_by(f"import {', '.join(names)}")
    assert set(names) <= loaded
    assert not loaded & (INTERFACES | {"torch"})


def test_analysis_and_tui_load_nothing_of_the_emulator() -> None:
    """Only what-ifs reach the scheduler."""
    names = [n for n in modules_of("analysis", "tui") if ".whatif" not in n]
    loaded = loaded_by(f"import {', '.join(names)}")
    assert set(names) <= loaded
    assert not [name for name in loaded if name.startswith(("trnprof.emulator", "trnprof.cli"))]
    assert not loaded & {"torch", "typer"}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of one event."""
    path = tmp_path_factory.mktemp("imports") / "one.trnprof"
    with TraceWriter(path, writer="host") as writer:
        track = {"track_id": [0], "kind": ["thread"], "name": ["main"], "sort_order": [0]}
        writer.add_tracks(
            track
            | {"lane": [0], "exclusive": [True], "clock_id": [0], "host": ["h"]}
            | {"replica_count": [1]}
        )
        event = {"track_id": [0], "start_ns": [0], "duration_ns": [10]}
        writer.append_events(event | {"name": ["work"], "category": ["host"]})
    write_manifest(path)
    return path


@pytest.mark.parametrize("command", ["report", "view", "export", "info", "validate"])
def test_reading_a_trace_never_loads_torch_nor_what_it_does_not_need(
    trace: Path, tmp_path: Path, command: str
) -> None:
    options = {"view": ["--print"], "export": ["-o", str(tmp_path / "out")]}.get(command, [])
    loaded = loaded_by_command(command, trace, *options)
    assert "trnprof.tracer.reader" in loaded
    assert not loaded & {"torch", "textual"}
    assert command == "export" or not loaded & {"numba", "perfetto"}
