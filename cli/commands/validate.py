"""``trnprof validate``: what is wrong with a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import TRACE


def validate(
    trace: Annotated[Path, TRACE],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check a trace against its schema; exit code 1 if anything is wrong.

    Example: trnprof validate run.trnprof
    """
    import json
    from dataclasses import asdict

    from trnprof.cli.diagnostics import ExitCode
    from trnprof.cli.output import show
    from trnprof.tracer.reader import open_trace
    from trnprof.tracer.units import printable

    problems = open_trace(trace).validate()
    if as_json:
        show(json.dumps([asdict(p) for p in problems], indent=2))
    else:
        lines = [printable(f"{p.severity}: {p.kind}: {p.where}: {p.message}") for p in problems]
        show("\n".join(lines) or f"{trace}: nothing wrong")
    return int(ExitCode.FOUND if problems else ExitCode.FINE)
