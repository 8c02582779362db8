"""Which formats can be imported? The built-in ones, and those of other packages.

A format is a module under ``trnprof.tracer.formats`` with an object ``FORMAT``, or an entry point of the group ``trnprof.formats`` that
is such an object. Modules are imported when a format is first looked for; that one cannot be imported (its library is not installed)
is said only when it is asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest.audit import Audit, Finding
from trnprof.tracer.ingest.names import shown
from trnprof.tracer.ingest.source import Format
from trnprof.tracer.nearest import nearest

GROUP: Final = "trnprof.formats"
"""Entry-point group by which other packages add formats."""
BUILT_IN: Final = {
    "neuron-explorer": "neuron.explorer",
    "neuron-system": "neuron.system",
    "neuron-device": "neuron.device",
    "neuron-summary": "neuron.summary",
    "neuron-monitor": "neuron.monitor",
    "kineto": "kineto.format",
    "nsys": "nsys.format",
    "nsys-parquet": "nsys.parquet",
    "rocpd": "rocpd.format",
    "xplane": "xplane.format",
    "xprof-json": "xprof_json.format",
    "perfetto-trace": "perfetto_import.format",
    "aiu": "aiu.format",
    "chrome": "chrome.format",
}
"""Module of each format; the first of several that are equally sure is taken."""


@dataclass(frozen=True)
class Registry:
    """The formats that can be used here.

    Attributes:
        formats: by name, in order of preference.
        missing: why others cannot be used, by name.
        findings: about formats of other packages that are broken.
    """

    formats: Mapping[str, Format]
    missing: Mapping[str, str]
    findings: tuple[Finding, ...] = ()


@lru_cache(maxsize=1)
def registry() -> Registry:
    """All formats, loaded once a process."""
    formats: dict[str, Format] = {}
    missing: dict[str, str] = {}
    for name, module in BUILT_IN.items():
        try:
            formats[name] = import_module(f"trnprof.tracer.formats.{module}").FORMAT
        except ImportError as error:
            missing[name] = _why_missing(name, error)
    audit = Audit()
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        _add_plugin(point, formats, missing, audit)
    return Registry(formats, missing, tuple(audit.findings))


def format_named(name: str) -> Format:
    """The format with a name.

    Raises:
        ProfileError: there is none, or what it needs is not installed; with the known ones, or the pip line.
    """
    known = registry()
    if name in known.formats:
        return known.formats[name]
    if name in known.missing:
        raise ProfileError(known.missing[name])
    near = nearest(name, known.formats)
    meant = f"did you mean {near!r}? " if near else ""
    raise ProfileError(f"unknown format {shown(name)!r}: {meant}known are {format_names(known)}")


def _add_plugin(
    point: EntryPoint, formats: dict[str, Format], missing: dict[str, str], audit: Audit
) -> None:
    package = point.dist.name if point.dist is not None else point.value
    try:
        format = point.load()
        if not isinstance(format, Format):
            raise TypeError(f"{point.value} is no trnprof Format")
    except Exception as error:  # whatever a foreign package does when it is imported
        why = f"{type(error).__name__}: {error}"
        missing.setdefault(
            point.name, f"format {point.name} of {package} cannot be loaded: {shown(why)}"
        )
        tell_broken(audit, point.name, f"{package}: {why}", "cannot be loaded")
        return
    if format.name in formats:
        tell_broken(audit, format.name, package, "has the name of another one")
    else:
        formats[format.name] = format


def tell_broken(audit: Audit, name: str, example: str, what: str) -> None:
    """Note that a format of another package does not do what it should."""
    message = f"a format of another package {what}; it is left out"
    audit.add("broken_format", "note", f"format {shown(name)}", message, example=shown(example))


def _why_missing(name: str, error: ImportError) -> str:
    needed = (error.name or "").split(".")[0]
    if needed and needed != "trnprof":
        return f"format {name} needs {needed}, which is not installed; install it with: pip install {needed}"
    return f"format {name} cannot be loaded: {shown(str(error))}"


def format_names(known: Registry) -> str:
    """The names of all formats, for people."""
    return ", ".join(sorted(known.formats)) or "none"
