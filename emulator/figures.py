"""How is a system description read from TOML, so that every figure keeps its source and every fault its place?"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from trnprof.tracer.errors import SystemDescriptionError
from trnprof.tracer.whole_files import read_whole_text

T = TypeVar("T")

_PARTS = ("value", "source", "estimate", "reason")
"""Of a figure."""
LARGEST = 1e30
"""Beyond any figure of a machine; infinities and typing errors end here."""


@dataclass(frozen=True)
class Figure:
    """Where one number comes from.

    Attributes:
        value: the number (or list of numbers).
        source: document, as a tag of the file's ``[sources]`` or in words.
        estimate: nobody published it.
        reason: why this value, for estimates.
    """

    value: Any
    source: str
    estimate: bool
    reason: str


class Description:
    """A parsed system file: tables of figures, with errors that name file, line, table and key."""

    def __init__(self, path: Path, table: dict[str, Any], text: str) -> None:
        self.path = path
        self.table = table
        self._text = text

    def fail(self, key: str, what: str) -> SystemDescriptionError:
        """The error for a dotted key: ``FILE:LINE: [table] key: what``."""
        table, _, name = key.rpartition(".")
        return SystemDescriptionError(
            f"{self.path}:{self._line_of(table, name)}: [{table or 'top level'}] {name}: {what}"
        )

    def figures(self) -> dict[str, Figure]:
        """Every figure by its dotted key.

        Raises:
            SystemDescriptionError: a figure without value or source, or an estimate without its reason.
        """
        found: dict[str, Figure] = {}
        self._collect(self.table, "", found)
        return found

    def read(self, kind: type[T], prefix: str, **given: Any) -> T:
        """Fill a frozen dataclass from the table ``prefix``: one key a field.

        Raises:
            SystemDescriptionError: a key is missing, unknown, or its value is of another type.
        """
        table = self.table_of(prefix)
        hints = get_type_hints(kind)
        wanted = [f for f in fields(kind) if f.name not in given]  # type: ignore[arg-type]
        names = [f.name for f in wanted]
        for key in table:
            if key not in names and key not in given:
                raise self.fail(f"{prefix}.{key}", f"unknown key; known are {', '.join(names)}")
        values = {
            f.name: self._value(prefix, f.name, table, hints[f.name])
            for f in wanted
            if f.name in table or f.default is MISSING
        }
        return kind(**values, **given)

    def numbers(self, prefix: str) -> dict[str, float]:
        """A table whose keys are free and whose values are positive numbers; empty where there is none."""
        if not self.has(prefix):
            return {}
        table = self.table_of(prefix)
        return {key: self._value(prefix, key, table, float) for key in table}

    def texts(self, prefix: str) -> dict[str, str]:
        """A table whose keys are free and whose values are texts; empty where there is none."""
        if not self.has(prefix):
            return {}
        table = self.table_of(prefix)
        for key, value in table.items():
            if not _is_text(value):
                raise self.fail(f"{prefix}.{key}", f"expected text, found {_shown(value)}")
        return table

    def has(self, prefix: str) -> bool:
        """Whether there is anything of this dotted name, or in the place of a table above it, which ``table_of`` then refuses."""
        table: Any = self.table
        for part in prefix.split("."):
            if not isinstance(table, dict):
                return True
            if part not in table:
                return False
            table = table[part]
        return True

    def table_of(self, prefix: str) -> dict[str, Any]:
        """A table by its dotted name.

        Raises:
            SystemDescriptionError: it is missing, or no table.
        """
        table: Any = self.table
        parts = prefix.split(".")
        for count, part in enumerate(parts, 1):
            table = table.get(part)
            if table is None:
                raise self.fail(prefix, "this table is missing")
            if not isinstance(table, dict):
                raise self.fail(".".join(parts[:count]), f"expected a table, found {_shown(table)}")
        return dict(table)

    def _value(self, prefix: str, name: str, table: dict[str, Any], hint: Any) -> Any:
        key = f"{prefix}.{name}"
        optional = "None" in str(hint)
        if name not in table:
            if optional:
                return None
            raise self.fail(key, "missing")
        raw = table[name]
        has_source = isinstance(raw, dict) and is_figure(raw)
        value: Any = raw["value"] if has_source else raw
        if hint is str:
            if not isinstance(value, str):
                raise self.fail(key, f"expected text, found {_shown(value)}")
            return value
        if "tuple[str" in str(hint):
            if not isinstance(value, list) or not value or not all(map(_is_text, value)):
                raise self.fail(key, f"expected a list of names, found {_shown(value)}")
            return tuple(value)
        number = self._numbers(key, value, str(hint))
        if not has_source:
            shown = _shown(value)
            raise self.fail(key, f'a number needs its source: {{ value = {shown}, source = "…" }}')
        return number

    def _numbers(self, key: str, value: Any, hint: str) -> float | tuple[float, ...]:
        """A number, or several where the hint is a tuple."""
        if "tuple" not in hint:
            return self._number(key, value, whole="int" in hint)
        if not isinstance(value, list) or not value:
            raise self.fail(key, f"expected a list of numbers, found {_shown(value)}")
        return tuple(self._number(key, v, whole="int" in hint) for v in value)

    def _number(self, key: str, value: Any, *, whole: bool) -> float:
        if not _is_number(value) or not 0 <= value <= LARGEST:
            raise self.fail(key, f"expected a number of 0 or more, found {_shown(value)}")
        if whole and value != int(value):
            raise self.fail(key, f"expected a whole number, found {_shown(value)}")
        return int(value) if whole else float(value)

    def _collect(self, table: dict[str, Any], prefix: str, found: dict[str, Figure]) -> None:
        for name, raw in table.items():
            key = f"{prefix}.{name}" if prefix else name
            if not isinstance(raw, dict) or key == "sources":
                continue
            if not is_figure(raw):
                self._collect(raw, key, found)
                continue
            for part in raw:
                if part not in _PARTS:
                    raise self.fail(key, f"a figure with {part!r}; it may have {', '.join(_PARTS)}")
            if "value" not in raw:
                raise self.fail(key, "a figure without value")
            if not _is_text(raw.get("source")):
                raise self.fail(key, "a figure without source")
            if raw.get("estimate") and not _is_text(raw.get("reason")):
                raise self.fail(key, "an estimate without its reason")
            found[key] = Figure(
                raw["value"], raw["source"], bool(raw.get("estimate")), str(raw.get("reason", ""))
            )

    def _line_of(self, table: str, name: str) -> int:
        """The line where a key stands, or what it would be a part of, or 1."""
        wanted = f"{table}.{name}" if table else name
        current, nearest, line_of_nearest = "", "", 1
        for number, line in enumerate(self._text.splitlines(), start=1):
            stripped = line.strip()
            if stripped.startswith("["):
                found = current = stripped.split("]")[0].strip("[ ")
            elif "=" in stripped:
                key = stripped.split("=")[0].replace('"', "").strip()
                found = f"{current}.{key}" if current else key
            else:
                continue
            if found == wanted:
                return number
            if wanted.startswith(f"{found}.") and len(found) > len(nearest):
                nearest, line_of_nearest = found, number
        return line_of_nearest


def read_description(path: Path) -> Description:
    """Parse one TOML file.

    Raises:
        SystemDescriptionError: unreadable, or not TOML (file, line and column are named).
    """
    try:
        text = read_whole_text(path)
    except OSError as error:
        raise SystemDescriptionError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SystemDescriptionError(f"{path}: not UTF-8 text (byte {error.start})") from error
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise SystemDescriptionError(f"{path}: not valid TOML: nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError, and integers beyond what Python parses
        end = f"at line {text.count(chr(10)) + 1}, the end of the file"
        what = str(error).replace("at end of document", end)
        raise SystemDescriptionError(f"{path}: not valid TOML: {what}") from error
    return Description(path, table, text)


def is_figure(table: dict[str, Any]) -> bool:
    """Whether a table is one figure, complete or not, rather than a table of figures."""
    return not table.keys().isdisjoint(_PARTS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _shown(value: Any) -> str:
    """A wrong value, as an error shows it: one line, not too long."""
    text = repr(value) if isinstance(value, str | list) else str(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 40 else f"{text[:39]}…"
