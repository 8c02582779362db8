"""What does ``collective`` do with what was asked: one run, with a trace or without, or a sweep?"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from trnprof.cli.collective_document import collective_document, sweep_document
from trnprof.cli.collective_options import Options, read_collective, read_sweep
from trnprof.cli.collective_sweep import sweep_text
from trnprof.cli.collective_text import outcome_text
from trnprof.cli.collectives import Setting, prepare, run, sweep_runs, write_trace
from trnprof.cli.diagnostics import say
from trnprof.cli.output import show
from trnprof.emulator.collectives.messages import BARRIER
from trnprof.emulator.collectives.request import CHUNKED
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.manifest import check_replaceable
from trnprof.tracer.units import format_count


def run_and_show(
    options: Options,
    *,
    sweep: str | None,
    output: Path | None,
    edges: str | None,
    reproducible: bool,
    as_json: bool,
    force: bool,
) -> None:
    """Run, write, print.

    Raises:
        TrnprofError: what was asked makes no sense, or cannot be done or written.
    """
    if output is None and (edges is not None or reproducible or force):
        raise TrnprofError("--edges, --reproducible and --force go with -o")
    if sweep is not None:
        _sweep(options, sweep, output, as_json)
        return
    setting = prepare(options, None)
    if output is not None:
        _check_output(setting, output, force)
    outcomes = run(setting)
    if output is not None:
        events = write_trace(
            output,
            setting,
            outcomes,
            edges=edges,
            reproducible=reproducible,
            command=sys.argv,
            force=force,
        )
        name = shlex.quote(str(output))
        say(f"{output}: {format_count(events)} events")
        say(f"next: trnprof view {name} · trnprof report {name}")
    show(
        json.dumps(collective_document(setting, outcomes), indent=2, allow_nan=False)
        if as_json
        else outcome_text(setting, outcomes)
    )


def _sweep(options: Options, sizes_text: str, output: Path | None, as_json: bool) -> None:
    if output is not None:
        raise TrnprofError("-o writes the trace of one run: give --bytes instead of --sweep")
    if options.size is not None or options.send_bytes is not None:
        raise TrnprofError("--sweep chooses the sizes: leave out --bytes and --send-bytes")
    if read_collective(options.collective) == BARRIER:
        raise TrnprofError("a barrier has no buffer: leave out --sweep")
    sizes = read_sweep(sizes_text)
    setting = prepare(options, sizes[0])
    rows = sweep_runs(setting, sizes)
    show(
        json.dumps(sweep_document(setting, rows), indent=2, allow_nan=False)
        if as_json
        else sweep_text(setting, rows)
    )


def _check_output(setting: Setting, output: Path, force: bool) -> None:
    if setting.requests[0].fidelity != CHUNKED:
        raise TrnprofError(
            f"-o needs --fidelity {CHUNKED}: {setting.requests[0].fidelity} has no events to write"
        )
    check_replaceable(output, force=force)
