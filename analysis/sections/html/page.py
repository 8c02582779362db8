"""What is in the file? Sections and charts in order, the style, and Vega, all of it inline: opened anywhere, it asks for nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from trnprof.analysis.charts.chart import Chart
from trnprof.analysis.charts.extra import drawing
from trnprof.analysis.charts.vega import specification
from trnprof.analysis.sections.html.tables import section_html, text
from trnprof.analysis.sections.section import Section
from trnprof.tracer.version import __version__

_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "img-src data:"
)
"""A browser that keeps to it loads nothing from anywhere; Vega compiles its expressions."""


def page(
    title: str,
    sections: Sequence[Section],
    charts: Sequence[Chart],
    placed: Mapping[str, str],
) -> str:
    """The file.

    Args:
        title: what the report is of.
        sections: in order.
        charts: in order.
        placed: by key of a chart the key of the section that it stands in; without one of these it has a heading of its own.

    Raises:
        MissingExtraError: what draws charts is not installed.
    """
    _, convert = drawing()
    keys = {section.key for section in sections}
    places = {c.key: placed.get(c.key, c.key) for c in charts}
    blocks = [
        section_html(s, "".join(_place(c) for c in charts if places[c.key] == s.key))
        for s in sections
    ]
    blocks += [
        f'<section id="section-{escape(c.key)}">{_place(c)}</section>'
        for c in charts
        if places[c.key] not in keys
    ]
    specs = {c.key: specification(c) for c in charts if c.nothing_to_say is None}
    own = files("trnprof.analysis.sections.html")
    links = "".join(
        f'<a href="#section-{escape(s.key)}">{text(s.title)}</a>' for s in sections
    )  # fmt: skip
    return "".join(
        (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
            f"<title>{text(title)}</title><style>{(own / 'page.css').read_text('utf-8')}</style></head>",
            f"<body><header><h1>{text(title)}</h1>",
            f"<nav>{links}</nav></header>" if len(sections) > 1 else "</header>",
            f"<main>{''.join(blocks)}</main>",
            f'<footer class="quiet">trnprof {escape(__version__)}</footer>',
            f'<script type="application/json" id="charts">{_inline(specs)}</script>',
            f"<script>{_code(convert.javascript_bundle('window.vegaEmbed=vegaEmbed;'))}</script>",
            f"<script>{_code((own / 'page.js').read_text('utf-8'))}</script>",
            "</body></html>\n",
        )
    )


def _place(chart: Chart) -> str:
    """Where a chart is drawn, with its title and notes."""
    head = f'<figure id="figure-{escape(chart.key)}"><figcaption>{text(chart.title)}</figcaption>'
    if chart.nothing_to_say is not None:
        return f'{head}<p class="quiet">Nothing to draw, {text(chart.nothing_to_say)}.</p></figure>'
    notes = "; ".join(chart.notes)
    said = f'<p class="quiet">{text(notes)}</p>' if notes else ""
    return f'{head}<div class="chart" data-chart="{escape(chart.key)}"></div>{said}</figure>'


def _inline(value: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    plain = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return plain.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _code(source: str) -> str:
    return source.replace("</script", "<\\/script").replace("<!--", "<\\!--")
