"""``trnprof emulate``: time a captured workload again, on another system, without its script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import (
    DEGRADE,
    EDGES,
    EXECUTION,
    FAIL,
    FOLD,
    FORCE,
    INSTANCES,
    LNC,
    PLACEMENT,
    REPRODUCIBLE,
    SKEW,
    SLOW,
    STRICT,
    STRICT_MEMORY,
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
    instances: Annotated[int, INSTANCES] = 1,
    placement: Annotated[str, PLACEMENT] = "packed",
    lnc: Annotated[int | None, LNC] = None,
    execution: Annotated[Execution, EXECUTION] = Execution.FUSED,
    edges: Annotated[Edges | None, EDGES] = None,
    slow: Annotated[list[str] | None, SLOW] = None,
    skew: Annotated[list[str] | None, SKEW] = None,
    degrade: Annotated[list[str] | None, DEGRADE] = None,
    fail: Annotated[list[str] | None, FAIL] = None,
    fold: Annotated[bool, FOLD] = True,
    strict: Annotated[float | None, STRICT] = None,
    strict_memory: Annotated[bool, STRICT_MEMORY] = False,
    reproducible: Annotated[bool, REPRODUCIBLE] = False,
    force: Annotated[bool, FORCE] = False,
) -> int:
    """Time the workload saved in a trace, or that of Chakra execution traces, on another system, with its ranks placed otherwise, or with faults.

    Example: trnprof emulate run.trnprof --system trn2-ultra -o other.trnprof

    Example: trnprof emulate rank.*.et groups.json --system trn2-ultra -o run.trnprof
    """
    from trnprof.emulator.system import load_system

    machine = load_system(system).scaled(instances)
    # after what is quickly refused: this import takes half a second
    from trnprof.cli.faults import read_faults
    from trnprof.cli.recording import Timing, emulate_trace
    from trnprof.cli.strict import Checks

    faults = read_faults(slow or (), skew or (), degrade or (), fail or ())
    return emulate_trace(
        traces,
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
            Checks(strict, strict_memory),
        ),
        force=force,
    )
