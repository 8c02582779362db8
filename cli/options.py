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


class ReportFormat(StrEnum):
    """How a report is written."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


class QueryFormat(StrEnum):
    """How the answer of a query is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


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
INSTANCES = typer.Option(
    "--instances", min=1, help="So many of that system, joined by its network."
)
PLACEMENT = typer.Option(
    "--placement",
    metavar="packed|spread|FILE.csv",
    help="Where ranks are: packed fills chip after chip, spread puts one on each chip in turn; a table has the columns rank, chip, core.",
)
LNC = typer.Option(
    "--lnc",
    min=1,
    max=2,
    help="Physical cores of a rank's logical core; by default 1 for one rank, else 2 from Trainium2 on.",
)
STRICT = typer.Option(
    "--strict",
    metavar="PERCENT",
    min=0,
    max=100,
    help="Exit with 1 if the roofline fallback has more of the busy time than this; 5 if no number follows.",
)
STRICT_MEMORY = typer.Option(
    "--strict-memory", help="Exit with 1 if the workload does not fit the emulated HBM."
)
REPRODUCIBLE = typer.Option("--reproducible", help="Leave out dates, paths and the command.")
FORCE = typer.Option("--force", help="Replace an output that is there already.")
TO_FILE = typer.Option("-o", "--output", help="Write to a file instead of stdout.")
TRACE = typer.Argument(metavar="TRACE", help="A trace directory, NAME.trnprof.")
SLOW = typer.Option(
    "--slow",
    metavar="rank=7:0.8",
    help="A rank whose engines, DMA and HBM run at 0.8 of their speed; chip=7:0.8: all ranks of a chip, and its links.",
)
SKEW = typer.Option("--skew", metavar="rank=5:40us", help="A rank that begins late.")
DEGRADE = typer.Option(
    "--degrade", metavar="link=3-7:0.5", help="A link with half its bandwidth (3>7: one way)."
)
FAIL = typer.Option(
    "--fail", metavar="link=3-7", help="A link that is not there: routes go round it."
)
FOLD = typer.Option(
    "--fold/--no-fold",
    help="Emulate one of the ranks that are equal, or each of them: the same answers, at so many times the cost.",
)
