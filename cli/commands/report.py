"""``trnprof report``: where the time went, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import FORCE, TRACE


def report(
    trace: Annotated[Path, TRACE],
    step: Annotated[int | None, typer.Option(help="Look at this step first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write to a file instead of stdout.")
    ] = None,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Print utilization, what bounds each operator, why engines idle, and what to try.

    Example: trnprof report run.trnprof
    """
    import json
    import shlex

    from trnprof.analysis.render_text import render_text
    from trnprof.analysis.report import build_report
    from trnprof.cli.diagnostics import say
    from trnprof.cli.output import show, write_text
    from trnprof.cli.reading import open_and_tell
    from trnprof.emulator.capture.store import holds_workload

    opened = open_and_tell(trace)
    document = build_report(opened, step=step)
    text = json.dumps(document, indent=2, allow_nan=False) if as_json else render_text(document)
    if output is None:
        show(text)
    else:
        write_text(output, text, force=force)
    if not opened.manifest and holds_workload(trace):
        name = shlex.quote(str(trace))
        say(f"not timed yet: trnprof emulate {name} --system trn2 -o timed.trnprof does that")
