"""``trnprof emulate``: time a captured workload again, on another system, without its script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import (
    EDGES,
    EXECUTION,
    FORCE,
    INSTANCES,
    LNC,
    PLACEMENT,
    REPRODUCIBLE,
    SYSTEM,
    TRACE,
    Edges,
    Execution,
)


def emulate(
    trace: Annotated[Path, TRACE],
    system: Annotated[str, SYSTEM],
    output: Annotated[Path, typer.Option("-o", "--output", help="Trace directory to write.")],
    instances: Annotated[int, INSTANCES] = 1,
    placement: Annotated[str, PLACEMENT] = "packed",
    lnc: Annotated[int | None, LNC] = None,
    execution: Annotated[Execution, EXECUTION] = Execution.FUSED,
    edges: Annotated[Edges | None, EDGES] = None,
    slow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="rank=7:0.8",
            help="A rank whose engines, DMA and HBM run at 0.8 of their speed; chip=7:0.8: all ranks of a chip, and its links.",
        ),
    ] = None,
    skew: Annotated[
        list[str] | None,
        typer.Option(metavar="rank=5:40us", help="A rank that begins late."),
    ] = None,
    degrade: Annotated[
        list[str] | None,
        typer.Option(metavar="link=3-7:0.5", help="A link with half its bandwidth (3>7: one way)."),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(metavar="link=3-7", help="A link that is not there: routes go round it."),
    ] = None,
    fold: Annotated[
        bool,
        typer.Option(
            "--fold/--no-fold",
            help="Emulate one of the ranks that are equal, or each of them: the same answers, at so many times the cost.",
        ),
    ] = True,
    reproducible: Annotated[bool, REPRODUCIBLE] = False,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Time the workload saved in a trace on another system, with its ranks placed otherwise, or with faults.

    Example: trnprof emulate run.trnprof --system trn2-ultra -o other.trnprof
    """
    from trnprof.emulator.system import load_system

    machine = load_system(system).scaled(instances)
    # after what is quickly refused: this import takes half a second
    from trnprof.cli.faults import read_faults
    from trnprof.cli.recording import Timing, emulate_trace

    faults = read_faults(slow or (), skew or (), degrade or (), fail or ())
    emulate_trace(
        trace,
        machine,
        output,
        Timing(
            execution.value,
            edges.value if edges else None,
            reproducible,
            placement,
            lnc,
            faults,
            fold,
        ),
        force=force,
    )
