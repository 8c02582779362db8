"""``trnprof compact``: a smaller copy of a trace, for archives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import FORCE, TRACE


def compact(
    trace: Annotated[Path, TRACE],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write here instead of in place.")
    ] = None,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Compress a trace (zstd); it opens as before.

    Example: trnprof compact run.trnprof -o archive.trnprof
    """
    from trnprof.cli.diagnostics import say
    from trnprof.tracer.compact import compact as compact_trace

    compact_trace(trace, output, force=force)
    say(f"{output or trace}: compacted")
