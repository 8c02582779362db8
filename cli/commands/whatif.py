"""``trnprof whatif``: what a change would be worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import FORCE, TO_FILE, TRACE


def whatif(
    trace: Annotated[Path, TRACE],
    scale: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT:FACTOR",
            help="Let something take so many times as long: op=attention:0.5, layer=mlp:0, class=compute:2, engine=Vector:0.5, "
            "rank=3:2, link=x:0.5, dma-issue:0.5. Several: each alone, and all together.",
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT", help="Let it take no time: exposed-communication, op=attention, …."
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="The step to time again; by default the median one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    output: Annotated[Path | None, TO_FILE] = None,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Time a step of a trace again, with some of its events faster, slower or gone.

    Example: trnprof whatif run.trnprof --scale op=attention:0.5 --remove exposed-communication
    """
    import json

    from trnprof.analysis.sections.text import section_lines
    from trnprof.analysis.whatif.changes import parse_remove, parse_scale
    from trnprof.analysis.whatif.outcome import what_if
    from trnprof.analysis.whatif.table import what_if_section
    from trnprof.cli.output import show, write_text
    from trnprof.cli.progress import bar
    from trnprof.cli.reading import open_and_tell
    from trnprof.tracer.errors import TrnprofError
    from trnprof.tracer.version import __version__

    wanted = [*map(parse_scale, scale or ()), *map(parse_remove, remove or ())]
    if not wanted:
        raise TrnprofError("nothing to change: give --scale or --remove")
    opened = open_and_tell(trace)
    with bar("timing a step again"):
        outcome = what_if(opened, wanted, step)
    if as_json:
        head = {
            "schema": 1,
            "tool_version": __version__,
            "trace": opened.path.name,
            "system": opened.system.get("name"),
            "is_simulation": opened.is_simulation,
        }
        text = json.dumps(head | outcome, indent=2, allow_nan=False) + "\n"
    else:
        text = "\n".join(section_lines(what_if_section(outcome))) + "\n"
    if output is None:
        show(text)
    else:
        write_text(output, text, force=force)
