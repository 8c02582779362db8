"""What does ``trnprof report`` write? The first screen, or sections, in each format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trnprof.cli.diagnostics import say
from trnprof.cli.options import ReportFormat
from trnprof.cli.progress import Tell, bar
from trnprof.tracer.reader import Trace

if TYPE_CHECKING:
    from trnprof.analysis.charts.chart import Chart
    from trnprof.analysis.mapping import Mapper
    from trnprof.analysis.sections.section import Section, Subject


@dataclass(frozen=True)
class Asked:
    """What was asked of a report.

    Attributes:
        sections: as they were typed; none: the first screen, in HTML everything.
        step: to look at; None: all.
        rank: to look at; None: all.
        format: how it is written.
    """

    sections: Sequence[str]
    step: int | None
    rank: int | None
    format: ReportFormat


@contextmanager
def mapping_on(scheduler: str | None) -> Iterator[Mapper]:
    """What adds up the pieces of a trace: threads here, or a Dask cluster.

    Raises:
        TrnprofError: no scheduler answers there, or Dask is not installed.
    """
    from trnprof.analysis.mapping import on_threads

    if scheduler is None:
        yield on_threads
        return
    from trnprof.analysis.dask_mapping import on_dask

    with on_dask(scheduler) as mapper:
        yield mapper


def report_text(trace: Trace, asked: Asked, mapper: Mapper) -> str:
    """The report as one text, with a bar on a terminal meanwhile.

    Args:
        trace: the trace.
        asked: what of it.
        mapper: what adds up its pieces.

    Raises:
        TrnprofError: there is no such section, step or rank; or what draws charts is not installed.
    """
    if asked.format is ReportFormat.HTML:
        from trnprof.analysis.charts.extra import drawing

        drawing()  # missing, it is told before anything is computed
    from trnprof.analysis.sections.subject import ALL, section_names

    wanted = asked.sections or ((ALL,) if asked.format is ReportFormat.HTML else ())
    names = section_names(wanted)
    with bar("reading the trace") as tell:
        return _text(trace, asked, names, mapper, tell)


def _text(trace: Trace, asked: Asked, names: list[str], mapper: Mapper, tell: Tell) -> str:
    from trnprof.analysis.mapping import counted
    from trnprof.analysis.sections.registry import build_section
    from trnprof.analysis.sections.subject import subject_of

    def sections_of(subject: Subject) -> Iterator[Section]:
        for number, name in enumerate(names):
            tell(number, len(names), name)
            yield build_section(name, subject)

    mapper = counted(mapper, tell)
    trace = trace.surveyed(mapper)
    subject = subject_of(trace, asked.step, asked.rank)
    if subject.rank != asked.rank:
        say(
            f"rank {asked.rank} repeats rank {subject.rank}: the figures are those of rank {subject.rank}"
        )
    if names and asked.format is ReportFormat.TEXT:
        from trnprof.analysis.sections.text import section_lines

        sections = list(sections_of(subject))
        return "\n\n".join("\n".join(section_lines(s)) for s in sections) + "\n"
    from trnprof.analysis.report import build_report

    document = build_report(trace, asked.step, subject.rank, mapper)
    sections = list(sections_of(replace(subject, report=document)))
    if asked.format is ReportFormat.JSON:
        import json

        from trnprof.analysis.sections.section import as_json

        answered = {section.key: as_json(section) for section in sections}
        return json.dumps({**document, "sections": answered}, indent=2, allow_nan=False)
    from trnprof.analysis.render_text import render_text, title_parts

    if asked.format is ReportFormat.TEXT:
        return render_text(document)
    from trnprof.analysis.sections.overview import overview

    title = "  ·  ".join(title_parts(document))
    if asked.format is ReportFormat.MARKDOWN:
        from trnprof.analysis.sections.markdown import markdown

        return markdown(title, sections if names else [overview(document)])
    from trnprof.analysis.charts.registry import CHARTS
    from trnprof.analysis.sections.html.page import page

    return page(title, [overview(document), *sections], _charts(subject, asked), CHARTS)


def save_plots(trace: Trace, asked: Asked, folder: Path, *, force: bool) -> list[str]:
    """Write the charts, of the sections asked for or all, as SVG and PNG.

    Returns:
        The names of the files.

    Raises:
        TrnprofError: as for ``report_text``; or a file is there already.
    """
    from trnprof.analysis.charts.extra import drawing

    drawing()
    from trnprof.analysis.charts.files import pictures, write_pictures
    from trnprof.analysis.sections.subject import subject_of

    files = pictures(_charts(subject_of(trace, asked.step, asked.rank), asked))
    write_pictures(folder, files, force=force)
    return sorted(files)


def _charts(subject: Subject, asked: Asked) -> list[Chart]:
    """Those of the sections asked for, or all."""
    from trnprof.analysis.charts.registry import charts_of
    from trnprof.analysis.sections.subject import ALL, section_names

    everything = not asked.sections or ALL in asked.sections
    return charts_of(subject, None if everything else section_names(asked.sections))
