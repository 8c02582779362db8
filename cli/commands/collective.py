"""``trnprof collective``: how long does a collective take on a machine or a made-up fabric, and what bounds it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import (
    EDGES,
    FORCE,
    REPRODUCIBLE,
    Edges,
    Fidelity,
    Forwarding,
    Ties,
)


def collective(
    name: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE",
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, permute, send_recv or barrier.",
        ),
    ],
    size: Annotated[
        str | None,
        typer.Option(
            "--bytes", metavar="SIZE", help="The full buffer as nccl-tests counts it: 1GiB."
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(metavar="A..B", help="A table and a plot over sizes, each twice the last."),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Ranks of the group, such as 0..3,8; by default all."),
    ] = None,
    root: Annotated[
        int | None,
        typer.Option(metavar="RANK", help="Who broadcasts or sends; else the first rank."),
    ] = None,
    send_bytes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", help="Ragged all_to_all: a row a sender, a column a receiver."
        ),
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="SPEC",
            help="Another one in flight: all_gather:bytes=64MiB.",
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="The machine: a name such as trn2-ultra, or a .toml file.")
    ] = None,
    instances: Annotated[
        int | None, typer.Option(min=1, help="So many of that machine, joined by its network.")
    ] = None,
    fold: Annotated[
        bool | None,
        typer.Option(
            "--fold/--no-fold",
            help="Emulate one instance for all, which do the same; by default above 1024 chips.",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="A made-up fabric: ring:16, torus:4x4x4, switch:64, mesh:16 or switch:16,ring:4.",
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            metavar="RATE", help="Of its links in one direction, 50GiB/s; or one a dimension."
        ),
    ] = None,
    latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of its links, 500ns; or one a dimension.")
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="ring, direct, halving-doubling, tree, kangaring, hierarchical, multi-ring, or one a dimension; by default the policy chooses.",
        ),
    ] = None,
    fidelity: Annotated[
        Fidelity | None,
        typer.Option(help="By default chunked; with several in flight, fluid."),
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(min=1, help="Chunks a message; by default 16, none below 64 KiB."),
    ] = None,
    forwarding: Annotated[
        Forwarding | None, typer.Option(help="At every hop of a route; by default cut-through.")
    ] = None,
    ties: Annotated[
        Ties, typer.Option(help="Which way round a ring to the chip opposite.")
    ] = Ties.CLOCKWISE,
    degrade: Annotated[
        list[str] | None,
        typer.Option(metavar="link=3-7:0.5", help="A link with half its bandwidth (3>7: one way)."),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(metavar="link=3-7", help="A link that is not there: routes go round it."),
    ] = None,
    slow: Annotated[
        list[str] | None,
        typer.Option(metavar="chip=7:0.8", help="A chip that moves bytes at 0.8 of its rates."),
    ] = None,
    skew: Annotated[
        list[str] | None,
        typer.Option(metavar="rank=5:40us", help="A rank that comes late."),
    ] = None,
    jitter: Annotated[
        list[str] | None,
        typer.Option(metavar="seed=1,sigma=2%", help="Log-normal noise on every transfer."),
    ] = None,
    astra_sim: Annotated[
        str | None,
        typer.Option(
            metavar="active=2,…", help="Count as ASTRA-sim 2.0 does, to compare with it; or: on."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Trace directory to write: every link, every chunk (chunked)."
        ),
    ] = None,
    edges: Annotated[Edges | None, EDGES] = None,
    reproducible: Annotated[bool, REPRODUCIBLE] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    force: Annotated[bool, FORCE] = False,
) -> None:
    """Time a collective on a machine, down to each link: time, bandwidths, what bounds it.

    Example: trnprof collective all_reduce --system trn2-ultra --bytes 1GiB
    """
    from trnprof.cli.collective_options import Options
    from trnprof.cli.collective_running import run_and_show

    options = Options(
        collective=name,
        system=system,
        instances=instances,
        fold=fold,
        topology=topology,
        bandwidth=bandwidth,
        latency=latency,
        size=size,
        ranks=ranks,
        algorithm=algorithm,
        fidelity=fidelity.value if fidelity else None,
        chunks=chunks,
        forwarding=forwarding.value if forwarding else None,
        ties=ties.value,
        root=root,
        send_bytes=send_bytes,
        others=tuple(others or ()),
        degrade=tuple(degrade or ()),
        fail=tuple(fail or ()),
        slow=tuple(slow or ()),
        skew=tuple(skew or ()),
        jitter=tuple(jitter or ()),
        astra_sim=astra_sim,
    )
    run_and_show(
        options,
        sweep=sweep,
        output=output,
        edges=edges.value if edges else None,
        reproducible=reproducible,
        as_json=as_json,
        force=force,
    )
