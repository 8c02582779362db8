"""``trnprof emulate``: time a captured workload again, on another system, without its script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import (
    EDGES,
    EXECUTION,
    FORCE,
    REPRODUCIBLE,
    SYSTEM,
    Edges,
    Execution,
)


def emulate(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE…",
            help="A trace directory, NAME.trnprof; or Chakra execution traces, one a rank, and their JSON file of groups.",
        ),
    ],
    system: Annotated[str, SYSTEM],
    output: Annotated[Path, typer.Option("-o", "--output", help="Trace directory to write.")],
    execution: Annotated[Execution, EXECUTION] = Execution.FUSED,
    edges: Annotated[Edges | None, EDGES] = None,
    reproducible: Annotated[bool, REPRODUCIBLE] = False,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Time the workload saved in a trace, or that of Chakra execution traces, on another system.

    Example: trnprof emulate run.trnprof --system trn2-ultra -o other.trnprof

    Example: trnprof emulate rank.*.et groups.json --system trn2-ultra -o run.trnprof
    """
    from trnprof.emulator.system import load_system

    machine = load_system(system)
    # after what is quickly refused: this import takes half a second
    from trnprof.cli.recording import emulate_trace

    emulate_trace(
        traces,
        machine,
        output,
        execution=execution.value,
        edges=edges.value if edges else None,
        reproducible=reproducible,
        force=force,
    )
