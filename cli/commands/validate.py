"""``trnprof validate``: what is wrong with a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.options import TRACE


def validate(
    trace: Annotated[Path, TRACE],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check a trace against its schema, and tell what its import found doubtful; exit code 1 if anything is more than a note.

    Example: trnprof validate run.trnprof
    """
    import json
    import sys
    from dataclasses import asdict

    from trnprof.cli.diagnostics import ExitCode, folded
    from trnprof.cli.output import show
    from trnprof.cli.validating import problem_lines
    from trnprof.tracer.ingest.audit import is_doubtful
    from trnprof.tracer.ingest.kept import kept_findings
    from trnprof.tracer.reader import open_trace
    from trnprof.tracer.version import __version__

    opened = open_trace(trace)
    problems, findings = opened.validate(), kept_findings(opened)
    if as_json:
        document = {
            "schema": opened.manifest.get("schema"),
            "tool_version": __version__,
            "problems": [asdict(problem) for problem in problems],
            "findings": [finding.to_json() for finding in findings],
        }
        show(json.dumps(document, indent=2))
    else:
        lines = problem_lines(trace, problems, findings)
        show("\n".join(folded(line, sys.stdout) for line in lines))
    return int(ExitCode.FOUND if problems or is_doubtful(findings) else ExitCode.FINE)
