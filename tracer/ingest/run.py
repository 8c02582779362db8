"""How do the profiles a user names become one trace?

Every source is first read into a stage of its own, in parallel; then it is decided which rank each is and how their clocks stand to
one another; then each is written as one writer of the trace, in parallel again. Between the two nothing is in memory but what
the formats say of their sources, so memory does not grow with the number of ranks.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import polars as pl

from trnprof.tracer.batches import ColumnError, to_batch
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.files import writing
from trnprof.tracer.ingest.align import Method
from trnprof.tracer.ingest.audit import Finding, gravest_first
from trnprof.tracer.ingest.bytestreams import DEFAULT_MAX_BYTES
from trnprof.tracer.ingest.checks import audit_sources
from trnprof.tracer.ingest.detect import Profiles, choose_profiles
from trnprof.tracer.ingest.plan import plan_writers
from trnprof.tracer.ingest.pool import Listener, Pool
from trnprof.tracer.ingest.reading import ReadSource, read_source
from trnprof.tracer.ingest.source import Source
from trnprof.tracer.ingest.stage import Stage
from trnprof.tracer.ingest.write import WriterPlan, Written, write_stage
from trnprof.tracer.manifest import trace_beside, write_manifest
from trnprof.tracer.merge import add_collective_flows
from trnprof.tracer.schema import PEAKS
from trnprof.tracer.seal import write_sealed
from trnprof.tracer.units import counted

_WORKSPACE: Final = ".workspace"


@dataclass(frozen=True)
class ImportedSource:
    """One source, imported.

    Attributes:
        label: what people know it by.
        format: name of its format.
        writer: its writer in the trace.
        rank: None if it is of no rank.
        events: rows of ``events``.
        findings: what is doubtful of it.
        ranks: all that it has rows of.
    """

    label: str
    format: str
    writer: str
    rank: int | None
    events: int
    findings: tuple[Finding, ...]
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class ImportSummary:
    """What an import gave.

    Attributes:
        events: rows of ``events`` in all.
        sources: those imported.
        findings: all, those of sources included, gravest first.
        alignment: how the clocks were brought together, a line each; empty with one source.
    """

    events: int
    sources: tuple[ImportedSource, ...]
    findings: tuple[Finding, ...]
    alignment: tuple[str, ...]


def import_profiles(
    paths: Sequence[Path],
    output: Path,
    *,
    format: str | None = None,
    align: Method = "auto",
    jobs: int = 1,
    force: bool = False,
    max_input_bytes: int = DEFAULT_MAX_BYTES,
    progress: Listener | None = None,
) -> ImportSummary:
    """Import profiles of other tools as one trace.

    Args:
        paths: files, directories, globs and archives.
        output: trace directory to write.
        format: name of the format of all; None: by content.
        align: how clocks are related: ``auto``, ``none`` or ``collectives``, see ``trnprof.tracer.ingest.align``.
        jobs: processes; with more than one the calling script must be importable (``if __name__ == "__main__"``).
        force: replace an output that is a trace.
        max_input_bytes: most decompressed bytes all sources may have together.
        progress: is told how far it is, now and then.

    Raises:
        ProfileError: no source could be imported.
        OutputExistsError: the output is there already.
        WriteError: the trace could not be written.
    """
    with trace_beside(output, force=force) as root:
        workspace = root / _WORKSPACE
        with writing(workspace):
            workspace.mkdir()
        chosen = choose_profiles(
            paths, workspace=workspace, wanted=format, max_bytes=max_input_bytes
        )
        return _import(chosen, root, workspace, align, jobs, progress)


def _import(
    chosen: Profiles,
    root: Path,
    workspace: Path,
    method: Method,
    jobs: int,
    progress: Listener | None,
) -> ImportSummary:
    profiles = chosen.profiles
    findings = list(chosen.findings)
    with Pool(jobs, [p.expected_bytes for p in profiles], progress) as pool:
        read = pool.map(
            "reading",
            read_source,
            [(p.source, p.format, workspace / f"stage{i}", i) for i, p in enumerate(profiles)],
        )
        usable, failed = _usable([p.source for p in profiles], read)
        plans, alignment, doubts = plan_writers([r.stage for r in usable], method)
        written = pool.map(
            "writing", _write, [(r, root, plan) for r, plan in zip(usable, plans, strict=True)]
        )
    shutil.rmtree(workspace)
    imported = [
        ImportedSource(
            r.stage.label, r.format, p.writer, p.rank, w.events, tuple(own), _ranks_of(r.stage, p)
        )
        for r, p, (w, own) in zip(usable, plans, written, strict=True)
    ]
    findings += [*failed, *doubts, *_missing_ranks(usable, plans)]
    if len(imported) > 1:
        add_collective_flows(root)
    stages = [r.stage for r in usable]
    _write_peaks(root, stages)
    _write_manifest(root, stages, imported, findings, alignment.lines)
    everything = [*findings, *(f for s in imported for f in s.findings)]
    return ImportSummary(
        sum(s.events for s in imported),
        tuple(imported),
        tuple(gravest_first(everything)),
        alignment.lines,
    )


def _write(read: ReadSource, root: Path, plan: WriterPlan) -> tuple[Written, list[Finding]]:
    try:
        written = write_stage(read.stage, root, plan)
    except ColumnError as error:
        raise ProfileError(f"{read.stage.label}: {error}") from error
    return written, read.stage.audit.findings


def _usable(
    sources: Sequence[Source], read: Sequence[ReadSource | ProfileError]
) -> tuple[list[ReadSource], list[Finding]]:
    """Those that could be read, and a finding for each of the others.

    Raises:
        ProfileError: none could.
    """
    usable = [r for r in read if isinstance(r, ReadSource)]
    errors = [(s, r) for s, r in zip(sources, read, strict=True) if isinstance(r, ProfileError)]
    if not usable:
        more = f" (and {counted(len(errors) - 1, 'more source')})" if len(errors) > 1 else ""
        raise ProfileError(f"{errors[0][1]}{more}")
    return usable, [
        Finding(
            "unreadable_source",
            "error",
            source.label,
            f"is left out: {error}",
            unreliable="everything that compares ranks",
        )
        for source, error in errors
    ]


def _ranks_of(stage: Stage, plan: WriterPlan) -> tuple[int, ...]:
    """All ranks that a source has rows of, or else the one that it is."""
    of_rows = {t.rank for t in stage.timelines if t.rank is not None}
    own = of_rows or ({plan.rank} if plan.rank is not None else set())
    return tuple(sorted(own))


def _missing_ranks(read: Sequence[ReadSource], plans: Sequence[WriterPlan]) -> list[Finding]:
    """Ranks without a profile; of one profile on its own nobody expects the others."""
    ranks: dict[str, int] = {}
    for each, plan in zip(read, plans, strict=True):
        own = _ranks_of(each.stage, plan)
        label = each.stage.label
        ranks |= {f"{label}, rank {n}" if len(own) > 1 else label: n for n in own}
    world_size = max((r.stage.facts.world_size or 0 for r in read), default=0) or None
    found = audit_sources(ranks, world_size)
    return [replace(f, severity="note") for f in found] if len(read) == 1 else found


def _write_peaks(root: Path, stages: Sequence[Stage]) -> None:
    """The one table that all writers share."""
    parts = [pl.DataFrame(to_batch(PEAKS, s.facts.peaks)) for s in stages if s.facts.peaks]
    if parts:
        peaks = pl.concat(parts).unique(maintain_order=True)
        batch = to_batch(PEAKS, {name: peaks[name] for name in peaks.columns})
        write_sealed(root / "peaks.arrow", batch.schema, [batch], None)


def _write_manifest(
    root: Path,
    stages: Sequence[Stage],
    imported: Sequence[ImportedSource],
    findings: Sequence[Finding],
    alignment: Sequence[str],
) -> None:
    facts = [stage.facts for stage in stages]
    systems = [f.system for f in facts if f.system]
    write_manifest(
        root,
        is_simulation=any(f.is_simulation for f in facts),
        system=systems[0] if systems else None,
        notes=list(alignment),
        imported={
            "sources": [
                {
                    "label": one.label,
                    "format": one.format,
                    "writer": one.writer,
                    "rank": one.rank,
                    "events": one.events,
                    "metadata": fact.metadata,
                    "metrics": fact.metrics,
                }
                for one, fact in zip(imported, facts, strict=True)
            ],
            "audit": [finding.to_json() for finding in findings],
        },
    )
