"""``trnprof diff``: a prediction beside what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def diff(
    predicted: Annotated[
        Path, typer.Argument(metavar="PREDICTED", help="A trace that was emulated.")
    ],
    measured: Annotated[
        Path, typer.Argument(metavar="MEASURED", help="A trace of the same workload, imported.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Hold an emulated run against a measured one: steps, breakdown, operators and collectives, the largest differences first.

    Example: trnprof diff emulated.trnprof imported.trnprof
    """
    import json

    from trnprof.analysis.sections.prediction import build
    from trnprof.analysis.sections.section import as_json as section_as_json
    from trnprof.analysis.sections.text import section_lines
    from trnprof.cli.output import show
    from trnprof.cli.reading import open_and_tell

    section = build(open_and_tell(predicted), open_and_tell(measured))
    if as_json:
        show(json.dumps({"schema": 1, **section_as_json(section)}, indent=2))
        return
    show("\n".join(section_lines(section)))
