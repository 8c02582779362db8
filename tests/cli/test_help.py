"""Help, version, and mistakes on the command line."""

from __future__ import annotations

import re

import pytest
from tests.cli.runner import ROOT, trnprof

import trnprof as package

# import is a word of Python: its file is import_.py
COMMANDS = sorted(
    p.stem.rstrip("_") for p in (ROOT / "cli" / "commands").glob("*.py") if p.stem != "__init__"
)


def test_the_help_names_every_command_and_where_to_start() -> None:
    done = trnprof("--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: trnprof ")
    listed = done.out.partition("Commands:")[2].partition("Start with")[0]
    assert sorted(re.findall(r"^  (\w+)  ", listed, re.MULTILINE)) == COMMANDS
    assert "trnprof record --system trn2 -o run.trnprof -- python train.py" in done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_its_options_and_an_example(command: str) -> None:
    done = trnprof(command, "-h")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: trnprof {command} ")
    assert f"Example: trnprof {command} " in done.out
    options = done.out.partition("Options:\n")[2].partition("\n\n")[0].split("\n  -")
    assert len(options) >= 2
    # each says what it does: two words at least, after its name and values
    for option in options:
        assert re.search(r"(  +|\]|>)[\w-]+:? \w+", option), option


def test_without_a_command_the_help_is_shown_as_it_is() -> None:
    done = trnprof()
    assert (done.code, done.out) == (2, "")
    assert done.err == trnprof("--help").out


def test_the_version() -> None:
    done = trnprof("--version")
    assert (done.code, done.out, done.err) == (0, f"trnprof {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("line", "says", "help_of"),
    [
        ("repot a.trnprof", "Did you mean 'report'", "trnprof"),
        ("report --jsn a.trnprof", "--json", "trnprof report"),
        ("record --sytem trn2 -- true", "--system", "trnprof record"),
        ("report", "Missing argument 'TRACE'", "trnprof report"),
        ("record -o x --", "Missing argument 'COMMAND'", "trnprof record"),
        ("emulate a.trnprof -o b.trnprof", "Missing option '--system'", "trnprof emulate"),
        ("emulate a --system trn2 -o b --execution fast", "'fused', 'eager'", "trnprof emulate"),
        ("export a -o b --flows some", "'critical'", "trnprof export"),
        ("report a --step two", "expected a whole number", "trnprof report"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_what_was_meant(line: str, says: str, help_of: str) -> None:
    error = trnprof(*line.split()).only_error
    assert says in error
    assert error.endswith(f"(see {help_of} --help)")
