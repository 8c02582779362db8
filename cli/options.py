"""Which options do several commands share?"""

from __future__ import annotations

from enum import StrEnum

import typer


class Execution(StrEnum):
    """Execution models of the lowering."""

    FUSED = "fused"
    EAGER = "eager"


class Edges(StrEnum):
    """Which dependencies a trace keeps."""

    NONE = "none"
    BINDING = "binding"
    ALL = "all"


class Flows(StrEnum):
    """Which dependencies an export draws."""

    NONE = "none"
    CRITICAL = "critical"
    COLLECTIVE = "collective"
    ALL = "all"


class Align(StrEnum):
    """How the clocks of several ranks are brought together."""

    AUTO = "auto"
    NONE = "none"
    COLLECTIVES = "collectives"


class Fidelity(StrEnum):
    """How exactly a collective is timed."""

    CLOSED_FORM = "closed-form"
    CHUNKED = "chunked"
    FLUID = "fluid"


class Forwarding(StrEnum):
    """When a hop passes a chunk on."""

    CUT_THROUGH = "cut-through"
    STORE_AND_FORWARD = "store-and-forward"


class Ties(StrEnum):
    """Which of two ways of equal length a route takes."""

    CLOCKWISE = "clockwise"
    BALANCED = "balanced"


SYSTEM = typer.Option(
    "--system",
    help="System to emulate: a name such as trn2, a .toml file, or ASTRA-sim's NETWORK.yml,SYSTEM.json.",
)
EXECUTION = typer.Option(
    "--execution",
    help="fused: chains of operations share SBUF; eager: one kernel an operation, all through HBM.",
)
EDGES = typer.Option(
    "--edges", help="Dependencies to keep; by default all, up to 20 M events, then binding."
)
REPRODUCIBLE = typer.Option("--reproducible", help="Leave out dates, paths and the command.")
FORCE = typer.Option("--force", help="Replace an output that is there already.")
TRACE = typer.Argument(metavar="TRACE", help="A trace directory, NAME.trnprof.")
