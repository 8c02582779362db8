"""The page of findings tells every kind that the sources can give, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trnprof.tracer.ingest.audit import SEVERITIES

ROOT = Path(__file__).parents[3]
FOLDERS = (ROOT / "tracer" / "ingest", ROOT / "tracer" / "formats")
KIND = re.compile(r"[a-z][a-z0-9_]+")
ROW = re.compile(r"^\| ((?:`[a-z0-9_]+`(?:, )?)+) \| ([a-z, ]+) \|", re.MULTILINE)


def literals(node: ast.expr) -> list[str]:
    """The texts that an expression can be: a literal, or either branch of a choice."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return literals(node.body) + literals(node.orelse)
    return []


def given(node: ast.AST) -> list[ast.expr]:
    """Arguments of a call, elements of a tuple."""
    if isinstance(node, ast.Call):
        return [*node.args, *(k.value for k in node.keywords)]
    return list(node.elts) if isinstance(node, ast.Tuple) else []


def beside_a_severity(tree: ast.AST) -> Iterator[str]:
    """Names that stand before a severity in a call or tuple."""
    for node in ast.walk(tree):
        values = [literals(value) for value in given(node)]
        for place, words in enumerate(values):
            if words and set(words) <= set(SEVERITIES):
                yield from (w for before in values[:place] for w in before if KIND.fullmatch(w))
                break


def is_named_kind(node: ast.AST) -> bool:
    return (isinstance(node, ast.Name) and node.id == "kind") or (
        isinstance(node, ast.Attribute) and node.attr == "kind"
    )


def hands_on_a_kind(node: ast.AST) -> bool:
    """Whether a function adds a finding whose kind is in a variable."""
    return any(
        isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith((".add", "_Pending"))
        and len(call.args) > 2
        and is_named_kind(call.args[0])
        for call in ast.walk(node)
    )


def through_variables(tree: ast.Module) -> Iterator[str]:
    """Names that reach a finding by a variable ``kind``: of a loop, an assignment, a parameter or a field."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and hands_on_a_kind(n)]
    callees = {f.name: [a.arg for a in f.args.args if a.arg != "self"] for f in functions}
    if functions:
        fields = [
            [
                s.target.id
                for s in c.body
                if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
            ]
            for c in tree.body
            if isinstance(c, ast.ClassDef)
        ]
        names = [c.name for c in tree.body if isinstance(c, ast.ClassDef)]
        callees |= {n: f for n, f in zip(names, fields, strict=True) if f[:1] == ["kind"]}
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.For) and is_named_kind(next(iter(given(node.target)), node)):
                yield from (w for each in given(node.iter) for w in literals(given(each)[0]))
            if isinstance(node, ast.Assign):
                target, value = node.targets[0], node.value
                for t, v in zip(given(target) or [target], given(value) or [value], strict=False):
                    yield from literals(v) if is_named_kind(t) else []
                if isinstance(value, ast.IfExp) and is_named_kind(
                    next(iter(given(target)), target)
                ):
                    yield from literals(value)
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        parameters = callees.get(ast.unparse(call.func).removeprefix("self."), [])
        for parameter, value in zip(parameters, call.args, strict=False):
            yield from literals(value) if parameter == "kind" else []


def plain_calls(tree: ast.AST) -> Iterator[str]:
    """Kinds of calls of ``audit.add`` whose severity is in a variable; ``profiler_…`` made of a severity."""
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and len(n.args) > 2):
        called = ast.unparse(call.func)
        if called.endswith("audit.add"):
            yield from literals(call.args[0])
        if called.endswith("add") and isinstance(call.args[0], ast.JoinedStr):
            yield from (
                ast.unparse(call.args[0])[2:-1].replace("{severity}", s) for s in SEVERITIES[:2]
            )


def kinds_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    found = {*beside_a_severity(tree), *through_variables(tree), *plain_calls(tree)}
    return found - set(SEVERITIES)


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """Severities by kind, as the page has them."""
    page = (ROOT / "docs" / "import-audit.md").read_text()
    return {
        kind: severities
        for kinds, severities in ROW.findall(page)
        for kind in kinds.replace("`", "").split(", ")
    }


def test_every_kind_is_on_the_page_and_no_other(told: dict[str, str]) -> None:
    known = set().union(*(kinds_of(p) for folder in FOLDERS for p in folder.rglob("*.py")))
    known -= {
        "metadata",
        "instruction_usage",
        "cc_stream",
    }  # arrays of a profile, one of them called "warning"
    assert known - set(told) == set(), "kinds that the page lacks"
    assert set(told) - known == set(), "kinds of the page that nothing gives"


def test_severities_of_the_page_are_severities(told: dict[str, str]) -> None:
    assert all(set(severities.split(", ")) <= set(SEVERITIES) for severities in told.values())


@pytest.mark.parametrize(
    ("module", "kinds"),
    [
        ("ingest/quarantine.py", {"negative_duration", "impossible_timestamp", "duplicate_events", "unfinished"}),
        ("ingest/detect.py", {"unreadable", "empty_file", "unknown_format", "missing_ranks"}),
        ("ingest/inputs.py", {"unreadable", "not_a_file", "nested_archive"}),
        ("ingest/checks.py", {"dominant_event", "zero_duration", "overlapping_exclusive"}),
        ("formats/trace_json/findings.py", {"bare_words", "truncated", "invalid_utf8"}),
        ("formats/neuron/json_text.py", {"malformed_json", "stray_commas", "not_events", "truncated"}),
        ("formats/nsys/facts.py", {"dropped_events", "profiler_warning"}),
        ("formats/perfetto_import/packets.py", {"truncated", "malformed_protobuf"}),
        ("formats/kineto/times.py", {"odd_timestamps", "missing_time"}),
    ],
)  # fmt: skip
def test_kinds_are_found_however_they_are_given(module: str, kinds: set[str]) -> None:
    assert kinds <= kinds_of(ROOT / "tracer" / module)
