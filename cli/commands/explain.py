"""``trnprof explain``: what a figure of the report means."""

from __future__ import annotations

from typing import Annotated

import typer


def explain(
    metric: Annotated[
        str | None,
        typer.Argument(metavar="METRIC", help="A key of the report's JSON; none: list all."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a figure of the report means: its unit, its formula, whose it is, and what moves it.

    Example: trnprof explain mfu_estimated_percent
    """
    import json
    from dataclasses import asdict

    from trnprof.analysis.explain import explain as find
    from trnprof.analysis.explain import known_metrics
    from trnprof.analysis.text_layout import fit, wrapped
    from trnprof.cli.output import show

    if metric is None:
        metrics = known_metrics()
        if as_json:
            show(json.dumps({k: asdict(m) for k, m in metrics.items()}, indent=2))
            return
        show("\n".join(f"{key:<42}{fit(m.name, 38)}" for key, m in metrics.items()))
        return
    found = find(metric)
    if as_json:
        show(json.dumps(asdict(found), indent=2))
        return
    lines = [f"{found.key}  (JSON: {found.place})"]
    for head, text in (
        ("name", found.name),
        ("unit", found.unit),
        ("formula", found.formula),
        ("source", found.source),
        ("moved by", found.moves),
    ):
        lines += wrapped(f"{head:<9} {text}", "  ", " " * 12)
    show("\n".join(lines))
