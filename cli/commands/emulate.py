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
    reproducible: Annotated[bool, REPRODUCIBLE] = False,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Time the workload saved in a trace on another system, or with its ranks placed otherwise.

    Example: trnprof emulate run.trnprof --system trn2-ultra -o other.trnprof
    """
    from trnprof.emulator.system import load_system

    machine = load_system(system).scaled(instances)
    # after what is quickly refused: this import takes half a second
    from trnprof.cli.recording import Timing, emulate_trace

    emulate_trace(
        trace,
        machine,
        output,
        Timing(execution.value, edges.value if edges else None, reproducible, placement, lnc),
        force=force,
    )
