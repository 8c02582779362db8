"""``trnprof report``: where the time went, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import FORCE, TO_FILE, TRACE, ReportFormat


def report(
    trace: Annotated[Path, TRACE],
    section: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|all",
            help="Print this section in place of the first screen; several with commas, or again. docs/report.md lists them.",
        ),
    ] = None,
    step: Annotated[int | None, typer.Option(help="Look at this step first.")] = None,
    rank: Annotated[int | None, typer.Option(help="Look at the cores of this rank only.")] = None,
    format: Annotated[
        ReportFormat, typer.Option("--format", help="html needs trnprof[html].")
    ] = ReportFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    output: Annotated[Path | None, TO_FILE] = None,
    plots: Annotated[
        Path | None,
        typer.Option(
            "--save-plots", metavar="DIR", help="Write the charts to DIR as SVG and PNG, too."
        ),
    ] = None,
    force: Annotated[bool, FORCE] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="tcp://HOST:PORT",
            help="Add up the first screen on the Dask cluster of this scheduler. docs/scaling.md.",
        ),
    ] = None,
) -> None:
    """Print utilization, what bounds each operator, what holds the step back and what undoing it would save.

    Example: trnprof report run.trnprof

    Example: trnprof report run.trnprof --format html -o report.html
    """
    import shlex

    from trnprof.cli.diagnostics import say
    from trnprof.cli.output import show, write_text
    from trnprof.cli.reading import open_and_tell
    from trnprof.cli.reporting import Asked, mapping_on, report_text, save_plots
    from trnprof.emulator.capture.store import holds_workload

    asked = Asked(section or (), step, rank, ReportFormat.JSON if as_json else format)
    opened = open_and_tell(trace)
    with mapping_on(scheduler) as mapper:
        text = report_text(opened, asked, mapper)
    if plots is not None:
        files = save_plots(opened, asked, plots, force=force)
        say(f"{plots}: {', '.join(files) or 'nothing to draw'}")
    if output is None:
        show(text)
    else:
        write_text(output, text, force=force)
    if not opened.manifest and holds_workload(trace):
        name = shlex.quote(str(trace))
        say(f"not timed yet: trnprof emulate {name} --system trn2 -o timed.trnprof does that")
