"""What does a figure of the report mean? Name, unit, formula, source and what moves it, from ``metric_data.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.nearest import nearest

ENGINES: Final = ("tensor", "vector", "scalar", "gpsimd", "sync")
_LABELS: Final = {e: "GpSimd" if e == "gpsimd" else e.capitalize() for e in ENGINES}
SOURCES: Final = {
    "neuron": "Neuron Explorer's summary-json 7.4.0: same name, unit and formula",
    "trnprof": "trnprof's own",
}


@dataclass(frozen=True)
class Metric:
    """A figure.

    Attributes:
        key: in JSON.
        place: the object of a report's JSON that it is first found in: metrics, breakdown, phases, operators, ranks, or a section.
        name: what people call it.
        unit: of its value.
        formula: in keys of other figures.
        source: whose definition it is.
        moves: what makes it larger or smaller.
    """

    key: str
    place: str
    name: str
    unit: str
    formula: str
    source: str
    moves: str


def known_metrics() -> dict[str, Metric]:
    """All figures by key."""
    text = (files("trnprof.analysis") / "metric_data.toml").read_text("utf-8")
    found: dict[str, Metric] = {}
    for place, entries in tomllib.loads(text).items():
        for key, entry in entries.items():
            for engine in ENGINES if "ENGINE" in key else ("",):
                own = key.replace("ENGINE", engine)
                words = {k: v.replace("ENGINE_", f"{engine}_").replace("ENGINE", _LABELS.get(engine, "")) for k, v in entry.items()}  # fmt: skip
                words["source"] = SOURCES[words["source"]]
                found[own] = Metric(own, place, **words)
    return found


def explain(key: str) -> Metric:
    """One figure; short names such as ``mfu`` and ``roofline`` mean the metric that begins so.

    Raises:
        TrnprofError: there is none of that name; the nearest are told.
    """
    metrics = known_metrics()
    asked = key.strip().lower()
    for name in (asked, f"{asked}_estimated_percent", f"{asked}_s", f"{asked}_ns"):
        if name in metrics:
            return metrics[name]
    like = [name for name in metrics if asked and asked in name][:4]
    short = {name.removesuffix("_estimated_percent"): name for name in metrics}
    near = nearest(asked, [*metrics, *short], 0.6)
    meant = ", ".join(like or ([short.get(near, near)] if near else []))
    hint = f"; did you mean {meant}?" if meant else "; trnprof explain lists all"
    raise TrnprofError(f"no metric {key!r} in reports{hint}")
