"""How does a command open a trace, and what does it say when not all of it could be read?"""

from __future__ import annotations

from pathlib import Path

from trnprof.cli.diagnostics import say
from trnprof.tracer.reader import Trace, open_trace
from trnprof.tracer.units import printable

_SHOWN = 3


def open_and_tell(path: Path) -> Trace:
    """Open a trace; what was met while opening goes to stderr, a line each.

    Raises:
        TraceError: it is no trace, or cannot be read.
    """
    trace = open_trace(path)
    for problem in trace.problems[:_SHOWN]:
        say(printable(f"{problem.severity}: {problem.message}"))
    if len(trace.problems) > _SHOWN:
        say(f"{len(trace.problems) - _SHOWN} problems more: trnprof validate {path}")
    return trace
