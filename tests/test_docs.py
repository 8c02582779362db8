"""Do the examples in docstrings and the command lines in the documentation still work?"""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
from pathlib import Path

import pytest
import typer

from trnprof.cli.app import app

ROOT = Path(__file__).parents[1]
PACKAGES = ("tracer", "emulator", "analysis", "tui", "cli")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLANNED = {"check"}
"""Commands that the documentation promises for later."""

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def with_examples() -> list[str]:
    """Modules whose source has a docstring example."""
    files = [f for package in PACKAGES for f in sorted((ROOT / package).rglob("*.py"))]
    with_them = [f for f in files if ">>> " in f.read_text(encoding="utf-8")]
    return [".".join(("trnprof", *f.relative_to(ROOT).with_suffix("").parts)) for f in with_them]


def command_lines() -> list[tuple[str, str]]:
    """Where, and which: every ``trnprof …`` in a code block, in backquotes, in the Makefile, in a command's docstring."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        spans = re.findall(r"`(trnprof [^`\n]+)`", text)
        blocks = re.findall(r"^```.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        spans += [m for b in blocks for m in re.findall(r"^(?:\$ )?(trnprof .+)$", b, re.MULTILINE)]
        found += [(page.name, line) for line in spans]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    in_make = re.findall(
        r"^\t(?:@echo '  )?\$\(BIN\)/(trnprof .+?)(?:'?$|   )", makefile, re.MULTILINE
    )
    found += [("Makefile", line.replace("$(BIN)/", "")) for line in in_make]
    for file in sorted((ROOT / "cli" / "commands").glob("*.py")):
        text = file.read_text(encoding="utf-8")
        found += [
            (file.name, line) for line in re.findall(r"Example: (trnprof .+)$", text, re.MULTILINE)
        ]
    return found


@pytest.mark.parametrize("name", with_examples())
def test_docstring_examples(name: str) -> None:
    if name == "trnprof.emulator.recording":
        pytest.importorskip("numba")
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert (failed, tried > 0) == (0, True)


def test_examples_and_command_lines_are_found() -> None:
    assert len(with_examples()) >= 5
    places = {place for place, _ in command_lines()}
    assert {"README.md", "recording.md", "Makefile", "record.py"} <= places
    assert not PLANNED & set(COMMANDS), "no longer planned: let its lines be checked"


@pytest.mark.parametrize(("place", "line"), command_lines())
def test_a_documented_command_line_parses(place: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if words[0] in PLANNED or words == ["--help"]:
        return
    assert words[0] in COMMANDS, f"{place}: {line}"
    if len(words) == 1:
        return  # a mention of the command, not a line to type
    command = COMMANDS[words[0]]
    command.make_context(words[0], words[1:], resilient_parsing=False).close()
