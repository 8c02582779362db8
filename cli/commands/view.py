"""``trnprof view``: browse a trace in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import FORCE, TRACE


def view(
    trace: Annotated[Path, TRACE],
    as_text: Annotated[
        bool, typer.Option("--print", help="Write one frame as text instead of opening the viewer.")
    ] = False,
    size: Annotated[
        str, typer.Option(metavar="WxH", help="Size of that frame in columns and rows.")
    ] = "100x30",
    at: Annotated[
        str | None, typer.Option(metavar="A..B", help="Window to show, such as 1.2ms..1.5ms.")
    ] = None,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Only ASCII characters.")] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Write that frame as an SVG picture to this file.")
    ] = None,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Browse the timeline in the terminal (? shows the keys).

    Example: trnprof view run.trnprof
    """
    from trnprof.cli.viewing import open_viewer, print_frame

    if as_text or svg is not None:
        print_frame(trace, size=size, at=at, ascii_only=ascii_only, svg=svg, force=force)
    else:
        open_viewer(trace, ascii_only=ascii_only)
