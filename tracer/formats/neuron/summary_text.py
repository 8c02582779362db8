"""Which figures does Neuron's ``summary-text`` show? Its two layouts, with units brought back to the names' own.

The older one is a table (Group, Name, Value) with units of people (``53.78 ms``, ``85.22 %``, ``4.334 GiB``) and a table of device
memory; the newer one indents ``name  value`` under each profile's hash, without units. Copies of it have been through Markdown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from trnprof.tracer.formats.neuron.schema import packaged_schema

UNITS: Final = {
    "": 1.0,
    "%": 0.01,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
    "B": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "FLOPS": 1.0,
    "KFLOPS": 1e3,
    "MFLOPS": 1e6,
    "GFLOPS": 1e9,
    "TFLOPS": 1e12,
    "PFLOPS": 1e15,
    "flops/byte": 1.0,
    "cycles": 1.0,
}
_TIMES: Final = ("s", "ms", "us", "µs", "ns")
_CELL: Final = re.compile(r"[|│┃]")
_BARE: Final = re.compile(r"\s{2,}|\t")
_RULE: Final = re.compile(r"[\s|+\-=:│┃─━┼├┤┌┐└┘┬┴╭╮╰╯╞╡╪]*")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{2,}")
_HASH: Final = re.compile(r"[ns]_[0-9a-f]{6,64}")
_AMOUNT: Final = re.compile(r"(-?[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ%/]*)")
_STRINGS: Final = ("version", "instance_type")
LONGEST_LINE: Final = 4_096


@dataclass
class SummaryText:
    """What a summary shows.

    Attributes:
        profiles: figures by profile; the name is empty where the layout has none.
        system: figures of system profiles (``s_…``) by profile and dotted path.
        memory: device memory by ``nd<i>/nc<j>`` and usage type, in bytes.
        rounded: figures that were shown with a unit, so that only some digits are left.
        unread: lines that look like figures and could not be read.
    """

    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)
    system: dict[str, dict[str, Any]] = field(default_factory=dict)
    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    rounded: int = 0
    unread: int = 0


def parse_summary_text(text: str) -> SummaryText:
    """Read a summary."""
    found = SummaryText()
    profile, section, tables = "", "", 0
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or len(line) > LONGEST_LINE or _RULE.fullmatch(line):
            continue
        if _HASH.fullmatch(stripped):
            profile, section = stripped, ""
            continue
        cells = _cells(stripped)
        if cells[0].lower() == "group" and "name" in [c.lower() for c in cells]:
            tables += 1
            profile = (
                profile if profile.startswith("n_") else ("" if tables == 1 else f"table {tables}")
            )
        elif stripped.endswith(":") and len(cells) == 1:
            section = stripped[:-1].strip()
        elif len(cells) >= 4 and cells[0].isdigit() and cells[1].isdigit():
            _memory(found, cells)
        elif profile.startswith("s_"):
            _system(found, profile, section, cells)
        else:
            _figure(found, profile, cells)
    return found


def _cells(line: str) -> list[str]:
    """The cells of a row that have something in them, without Markdown's marks."""
    parts = _CELL.split(line) if _CELL.search(line) else _BARE.split(line)
    cleaned = [re.sub(r"\*\*|`", "", part).replace("\\_", "_").strip() for part in parts]
    return [cell for cell in cleaned if cell] or [""]


def _figure(found: SummaryText, profile: str, cells: list[str]) -> None:
    """``[group,] name, value``: the group stands only in the first row of each, or was lost."""
    if len(cells) < 2 or not _NAME.fullmatch(cells[-2]):
        return
    name, shown = cells[-2], cells[-1]
    figures = found.profiles.setdefault(profile, {})
    if name.endswith(_STRINGS):
        figures[name] = shown
        return
    amount = _AMOUNT.fullmatch(shown)
    if amount is None:
        found.unread += 1
        return
    value = in_own_unit(name, amount[1], amount[2])
    if value is None:
        found.unread += 1
        return
    found.rounded += bool(amount[2])
    figures[name] = value


def in_own_unit(name: str, number: str, unit: str) -> float | int | None:
    """A figure in the unit of its name: ``_ns`` in ns, other times in s, sizes in bytes, percents as fractions; None: unknown unit."""
    bare = number.replace(",", "")
    if not unit:
        value = float(bare)
        return int(bare) if bare.lstrip("-").isdigit() else value
    factor = UNITS.get(unit, UNITS.get(unit.upper()) if unit.upper().endswith("FLOPS") else None)
    if factor is None:
        return None
    value = float(bare) * factor
    if unit in _TIMES and name.endswith("_ns"):
        return value * 1e9
    return round(value) if _is_whole(name) else value


def _is_whole(name: str) -> bool:
    field = packaged_schema()["Summary"].get(name)
    return field is not None and field.kind == "int64"


def _memory(found: SummaryText, cells: list[str]) -> None:
    amount = _AMOUNT.fullmatch(cells[3])
    value = in_own_unit("bytes", amount[1], amount[2]) if amount is not None else None
    if value is None:
        found.unread += 1
        return
    where = f"nd{int(cells[0])}/nc{int(cells[1])}"
    found.memory.setdefault(where, {})[cells[2]] = value


def _system(found: SummaryText, profile: str, section: str, cells: list[str]) -> None:
    if len(cells) != 2 or not re.fullmatch(r"-?\d+(\.\d+)?", cells[1]):
        return
    key = f"{section}.{cells[0]}" if section else cells[0]
    number = cells[1]
    found.system.setdefault(profile, {})[key] = (
        int(number) if number.lstrip("-").isdigit() else float(number)
    )
