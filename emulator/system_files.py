"""Which file describes the system of this name, and what does it take over from the one that it extends?"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from trnprof.emulator.figures import Description, is_figure, read_description
from trnprof.tracer.errors import SystemDescriptionError
from trnprof.tracer.nearest import nearest

SYSTEM_SCHEMA: Final = 2
TABLES: Final = (
    "sources",
    "core",
    "chip",
    "topology",
    "collectives",
    "scale_out",
    "economics",
    "published",
)
MAX_NAME: Final = 100
"""Characters of a system's name."""
_TOP_LEVEL: Final = ("schema", "name", "description", "extends", *TABLES)

_OF_ALL_CHIPS: Final = ("racks", "rack_power_w", "usd_per_hour")
"""Of ``[economics]``: of a system with other chips they are others."""


def list_systems() -> list[str]:
    """Names of the systems that come with trnprof."""
    folder = files("trnprof.emulator.systems")
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def open_system(name_or_path: str) -> Description:
    """The description of a name, or of a user's own TOML file; its top level is checked.

    Raises:
        SystemDescriptionError: unknown name (the nearest are suggested), unreadable file, wrong schema, unknown or missing key.
    """
    description = _load(name_or_path)
    if description.table.get("schema") != SYSTEM_SCHEMA:
        raise description.fail(
            "schema", f"expected {SYSTEM_SCHEMA}, found {description.table.get('schema')!r}"
        )
    for key in description.table:
        if key not in _TOP_LEVEL:
            raise description.fail(key, f"unknown key; known are {', '.join(_TOP_LEVEL)}")
    for key in ("name", "description"):
        value = description.table.get(key)
        if not isinstance(value, str) or not value.strip():
            found = "missing" if value is None else f"expected text, found {value!r}"
            raise description.fail(key, found)
    _check_name(description)
    return description


def _check_name(description: Description) -> None:
    """Refuse a name by which nothing could be told or asked for: several lines, a path, what begins as an option does."""
    name = description.table["name"]
    if not name.isprintable():
        raise description.fail("name", "expected one line of letters, found control characters")
    is_plain = name == name.strip() and name[0] not in ".-" and not set(name) & set("/\\")
    if not is_plain or len(name) > MAX_NAME:
        shown = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"
        raise description.fail(
            "name",
            f"expected a plain name of up to {MAX_NAME} characters without / and \\, not beginning with '.' or '-', found {shown!r}",
        )


def _load(name_or_path: str) -> Description:
    known = list_systems()
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        description = read_description(Path(name_or_path))
    elif name_or_path in known:
        folder = files("trnprof.emulator.systems")
        description = read_description(Path(str(folder / f"{name_or_path}.toml")))
    else:
        near = nearest(name_or_path, known, 0.4)
        hint = f"did you mean {near!r}? " if near else ""
        raise SystemDescriptionError(
            f"unknown system {name_or_path!r}: {hint}known are {', '.join(known)}, or give a .toml file"
        )
    base = description.table.pop("extends", None)
    if base is None:
        return description
    if not isinstance(base, str) or base not in known:
        raise description.fail("extends", f"expected one of {', '.join(known)}, found {base!r}")
    description.table = _extend(base, _load(base).table, description.table)
    return description


def _extend(name: str, base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The base with what the own description says otherwise.

    A name and a description that are taken over say of what they are. Figures of the whole system are not taken over where there are other chips.

    Tables are joined key by key and figures replaced whole, but for these: totals that a vendor prints for the base are not those of another
    system; a topology with coordinates of its own is another one; a figure takes the place of the reason why there was none, and a reason
    that of a figure.
    """
    kept = {key: value for key, value in base.items() if key != "published"}
    topology, economics = own.get("topology"), own.get("economics")
    if isinstance(topology, dict) and "coordinates" in topology:
        kept.pop("topology", None)
    if isinstance(economics, dict) and isinstance(economics.get("absent", {}), dict):
        figures = dict(kept.get("economics", {}))
        absent = dict(figures.pop("absent", {}))
        reasons = economics.get("absent", {})
        kept["economics"] = {key: value for key, value in figures.items() if key not in reasons}
        kept["economics"]["absent"] = {k: v for k, v in absent.items() if k not in economics}
    if isinstance(topology, dict) and ("coordinates" in topology or "sizes" in topology):
        kept["economics"] = _of_other_chips(name, kept.get("economics"), economics)
    kept["name"] = f"{name}, changed"
    if "description" in kept:
        kept["description"] = f"based on {name}: {kept['description']}"
    return _merge(kept, own)


def _of_other_chips(name: str, base: Any, own: Any) -> dict[str, Any]:
    """The table ``[economics]`` without what is of the base's number of chips."""
    kept = dict(base or {})
    absent = dict(kept.get("absent", {}))
    given = own if isinstance(own, dict) else {}
    for key in _OF_ALL_CHIPS:
        if kept.pop(key, None) is not None and key not in given:
            absent.setdefault(key, f"that of {name} is for its own chips")
    return kept | {"absent": absent}


def _merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        inner = both_tables and not is_figure(value)
        merged[key] = _merge(merged[key], value) if inner else value
    return merged
