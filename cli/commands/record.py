"""``trnprof record``: run a command unchanged, capture what its PyTorch or JAX code does, emulate it."""

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
    SKEW,
    SLOW,
    STRICT,
    STRICT_MEMORY,
    SYSTEM,
    Edges,
    Execution,
)


def record(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="What to run, with its arguments, after --."),
    ],
    system: Annotated[str, SYSTEM] = "trn2",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Trace directory to write.")
    ] = Path("run.trnprof"),
    world_size: Annotated[
        int | None,
        typer.Option(
            "--world-size",
            min=1,
            help="Ranks of a distributed program: it runs as rank 0 of so many. torchrun's own numbers need no option.",
        ),
    ] = None,
    fake: Annotated[
        bool | None,
        typer.Option(
            "--fake/--real",
            help="Run on fake tensors (no memory, no results), or really run the script. Real for one rank, fake for several.",
        ),
    ] = None,
    moe_load: Annotated[
        str | None,
        typer.Option(
            "--moe-load",
            metavar="uniform|zipf:S|FILE",
            help="How tokens of fake tensors are spread over experts: evenly (the default), by Zipf's law, or by the shares in a file.",
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="A..B", help="Record only these steps, inclusive.")
    ] = None,
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
    reproducible: Annotated[
        bool,
        typer.Option("--reproducible", help="Leave out host times, dates, paths and the command."),
    ] = False,
    force: Annotated[bool, FORCE] = False,
) -> int:
    """Run a command and record it on an emulated system.

    The command's output and exit code come through. Recorded are the aten operations of forward, backward and
    optimizer, or what JAX compiles for each device; each is lowered to engine and DMA tasks of one NeuronCore and scheduled. A
    distributed program (--world-size, or torchrun as the command) runs as its rank 0 alone, in a world of process groups that answer
    at once; its collectives are timed on the links of the system, and all ranks are taken to do the same, but for stages of a pipeline, which
    are run beside it.

    Example: trnprof record --system trn2 -o run.trnprof -- python train.py --epochs 1

    Example: trnprof record --system trn2-ultra -- torchrun --nproc-per-node 64 train.py
    """
    from trnprof.emulator.system import load_system
    from trnprof.tracer.units import parse_range

    machine = load_system(system).scaled(instances)
    window = parse_range(steps) if steps else None
    # after what is quickly refused: this import takes half a second
    from trnprof.cli.faults import read_faults
    from trnprof.cli.recording import Timing, record_command
    from trnprof.cli.strict import Checks

    faults = read_faults(slow or (), skew or (), degrade or (), fail or ())
    timing = Timing(
        execution.value,
        edges.value if edges else None,
        reproducible,
        placement,
        lnc,
        faults,
        fold,
        Checks(strict, strict_memory),
    )
    return record_command(
        command,
        machine,
        output,
        timing,
        world_size=world_size,
        fake=fake,
        steps=window,
        force=force,
        moe_load=moe_load,
    )
