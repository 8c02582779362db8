"""Is the wheel whole, and does it work where nothing but it is installed?"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("tracer", "emulator", "analysis", "tui", "cli", "sample_traces")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a clean copy: a stale SOURCES.txt beside the code would add what was forgotten."""
    if importlib.util.find_spec("build") is None:
        pytest.skip("the package build is not installed: the wheel is not tested")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in (".src", *FOLDERS):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "-o",
            str(folder),
            str(source),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_holds_every_file_of_the_folders(wheel: Path) -> None:
    wanted = {
        f"trnprof/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__"} & set(path.parts)
    }
    wanted |= {"trnprof/__init__.py", "trnprof/__main__.py", "trnprof/py.typed"}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert sorted(wanted - held) == []
    assert sorted(held - wanted) == []


def test_the_installed_command_starts_and_finds_its_data(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    flags = ["--no-deps", "--no-index", "--no-compile", "--target", str(tmp_path), str(wheel)]
    subprocess.run([*pip, *flags], check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}

    def output(*command: str | Path) -> str:
        done = subprocess.run(
            list(map(str, command)),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert output(tmp_path / "bin" / "trnprof", "--help").startswith("Usage: trnprof ")
    code = (
        "import json, trnprof, trnprof.emulator.system_files as s; "
        "print(json.dumps([trnprof.__file__, s.__file__, s.list_systems()]))"
    )
    package, module, systems = json.loads(output(sys.executable, "-c", code))
    assert Path(package).is_relative_to(tmp_path)
    assert Path(module).is_relative_to(tmp_path)
    assert systems == sorted(p.stem for p in (ROOT / "emulator" / "systems").glob("*.toml"))


def test_there_is_one_copy_of_each_package() -> None:
    code = (
        "import trnprof.cli.main, trnprof.cli.recording, trnprof.tui.app, sys; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "trnprof.tracer.schema" in loaded
    assert not loaded & set(FOLDERS)
