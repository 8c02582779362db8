"""trnprof: where the time of a Trainium-class workload goes, with or without the hardware.

The public face, loaded lazily (PEP 562) so that ``import trnprof`` stays cheap:

``record``, ``span``, ``step``, ``counter``, ``instant``
    mark host code; with a system, capture and emulate the device work too.
``open``
    read a trace: ``trnprof.open("run.trnprof").events`` is a polars LazyFrame.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trnprof.tracer.version import __version__

if TYPE_CHECKING:
    from trnprof.emulator.recording import record as record
    from trnprof.tracer.reader import open_trace as open
    from trnprof.tracer.recorder import counter as counter
    from trnprof.tracer.recorder import instant as instant
    from trnprof.tracer.recorder import span as span
    from trnprof.tracer.recorder import step as step

_HOME = {
    "record": ("trnprof.emulator.recording", "record"),
    "open": ("trnprof.tracer.reader", "open_trace"),
    "span": ("trnprof.tracer.recorder", "span"),
    "step": ("trnprof.tracer.recorder", "step"),
    "counter": ("trnprof.tracer.recorder", "counter"),
    "instant": ("trnprof.tracer.recorder", "instant"),
}

__all__ = ["__version__", "counter", "instant", "open", "record", "span", "step"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trnprof' has no attribute {name!r}")
    module, attribute = _HOME[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
