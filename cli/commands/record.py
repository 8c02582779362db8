"""``trnprof record``: run a command unchanged, capture what its PyTorch or JAX code does, emulate it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import EDGES, EXECUTION, FORCE, SYSTEM, Edges, Execution


def record(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="What to run, with its arguments, after --."),
    ],
    system: Annotated[str, SYSTEM] = "trn2",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Trace directory to write.")
    ] = Path("run.trnprof"),
    fake: Annotated[
        bool,
        typer.Option(
            "--fake/--real",
            help="Run on fake tensors (no memory, no results), or really run the script.",
        ),
    ] = False,
    steps: Annotated[
        str | None, typer.Option(metavar="A..B", help="Record only these steps, inclusive.")
    ] = None,
    execution: Annotated[Execution, EXECUTION] = Execution.FUSED,
    edges: Annotated[Edges | None, EDGES] = None,
    reproducible: Annotated[
        bool,
        typer.Option("--reproducible", help="Leave out host times, dates, paths and the command."),
    ] = False,
    force: Annotated[bool, FORCE] = False,
) -> int:
    """Run a command and record it on an emulated system.

    The command's output and exit code come through. Recorded are the aten operations of forward, backward and
    optimizer, or what JAX compiles for each device; each is lowered to engine and DMA tasks of one NeuronCore and scheduled.

    Example: trnprof record --system trn2 -o run.trnprof -- python train.py --epochs 1
    """
    from trnprof.emulator.system import load_system
    from trnprof.tracer.units import parse_range

    machine, window = load_system(system), parse_range(steps) if steps else None
    # after what is quickly refused: this import takes half a second
    from trnprof.cli.recording import record_command

    return record_command(
        command,
        machine,
        output,
        fake=fake,
        steps=window,
        execution=execution.value,
        edges=edges.value if edges else None,
        reproducible=reproducible,
        force=force,
    )
