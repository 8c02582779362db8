"""How is a chart drawn? As a Vega-Lite specification, made with Altair; colours of text and background are the page's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

from trnprof.analysis.charts.chart import Chart
from trnprof.analysis.charts.extra import drawing
from trnprof.analysis.sections.section import Column
from trnprof.analysis.sections.text import cell_texts
from trnprof.analysis.text_layout import fit, time_unit

PALETTE: Final = (
    "#4c8bf5",
    "#f28e2b",
    "#3fa76a",
    "#d1495b",
    "#9b6bd6",
    "#c9a227",
    "#2aa7b8",
    "#c76a94",
    "#7f8c3a",
    "#a5714b",
)
"""Told apart on white and on black."""
QUIET: Final = "#9aa0a6"
_QUIET_NAMES: Final = ("idle", "waits", "before", "after", "unknown")
ROW_PX: Final = 24
LABEL: Final = 40
"""Characters of a name on an axis or in a legend."""


def specification(chart: Chart, width: int | str = "container") -> dict[str, Any]:
    """A chart as Vega-Lite, without configuration.

    Args:
        chart: with rows.
        width: in pixels, or as wide as what holds it.

    Raises:
        MissingExtraError: altair is not installed.
    """
    alt, _ = drawing()
    drawn = {
        "bars": _bars,
        "heat_map": _heat_map,
        "scatter": _scatter,
        "area": _area,
        "timeline": _timeline,
    }[chart.kind](alt, chart)
    across = alt.AutoSizeParams(type="fit-x", contains="padding")
    return dict(drawn.properties(width=width, autosize=across, description=chart.title).to_dict())


def _data(alt: Any, chart: Chart) -> Any:
    """Values under short names (x, y, color, …), times in one unit, and what a person reads under t0, t1, …."""
    scale = _x_unit(chart)[0]
    texts = [cell_texts(column, chart.rows) for column in chart.columns]
    values = []
    for number, row in enumerate(chart.rows):
        value = {"x": _number(row[chart.x.key], scale), "y": _placed(chart.y, row)}
        if chart.x_end is not None:
            value["x2"] = _number(row[chart.x_end.key], scale)
        if chart.color is not None:
            value["color"] = _placed(chart.color, row)
        if chart.size is not None:
            value["size"] = row[chart.size.key]
        value |= {f"t{i}": fit(column[number], 4 * LABEL) for i, column in enumerate(texts)}
        values.append(value)
    return alt.InlineData(values=values)


def _number(value: Any, scale: float) -> Any:
    return None if value is None else float(f"{value / scale:.9g}")


def _placed(column: Column, row: Any) -> Any:
    value = row[column.key]
    return fit("–" if value is None else str(value), LABEL) if column.form == "text" else value


def _x_unit(chart: Chart) -> tuple[float, str]:
    if chart.x.form != "ns":
        return 1.0, ""
    keys = [c.key for c in (chart.x, chart.x_end) if c is not None]
    if chart.kind == "bars":
        sums: dict[Any, float] = {}
        for row in chart.rows:
            sums[row[chart.y.key]] = sums.get(row[chart.y.key], 0.0) + row[chart.x.key]
        longest = max(sums.values(), default=0.0)
    else:
        longest = max((abs(row[k]) for row in chart.rows for k in keys), default=0.0)
    scale, unit, _ = time_unit(longest)
    return scale, unit


def _axis(alt: Any, column: Column, unit: str = "") -> Any:
    """An axis with the unit in its title, and metric prefixes on its labels."""
    if column.form == "percent":
        return alt.Axis(title=column.label, format=".0%")
    if column.form == "ns":
        return alt.Axis(title=f"{column.label} ({unit})")
    if column.form == "number":
        return alt.Axis(title=column.label, format=",.4~r")
    suffix = {"bytes": "B", "bytes_per_s": "B/s", "flops_per_s": "FLOP/s"}.get(column.form, "")
    expression = f"replace(format(datum.value, '.3~s'), /([kMGTP])$/, ' $1') + '{suffix}'"
    return alt.Axis(title=column.label, labelExpr=expression)


def _x(alt: Any, chart: Chart, **more: Any) -> Any:
    kind = alt.Scale(type="log", nice=False, padding=12) if chart.is_logarithmic else alt.Scale(nice=False)  # fmt: skip
    axis = _axis(alt, chart.x, _x_unit(chart)[1])
    return alt.X("x:Q", scale=kind, axis=axis, **more)


def _y(alt: Any, chart: Chart) -> Any:
    if chart.y.form == "text":
        return alt.Y("y:N", sort=None, axis=alt.Axis(title=None, labelLimit=120))
    kind = alt.Scale(type="log", nice=False, padding=12) if chart.is_logarithmic else alt.Scale(zero=True)  # fmt: skip
    return alt.Y("y:Q", scale=kind, axis=_axis(alt, chart.y))


def _color(alt: Any, chart: Chart) -> Any:
    assert chart.color is not None
    names = list(dict.fromkeys(_placed(chart.color, row) for row in chart.rows))
    palette = cycle(PALETTE)
    colors = [QUIET if name in _QUIET_NAMES else next(palette) for name in names]
    scale = alt.Scale(domain=names, range=colors)
    return alt.Color("color:N", scale=scale, sort=None, legend=_legend(alt, chart.color, names))


def _legend(alt: Any, column: Column, names: Sequence[str]) -> Any:
    if len(names) < 2:
        return None
    return alt.Legend(title=None, orient="top", direction="horizontal", labelLimit=150, columns=_columns(names))  # fmt: skip


def _columns(names: Sequence[str]) -> int:
    """Of a legend that fits a telephone."""
    return max(1, min(len(names), 40 // (max(map(len, names)) + 4)))


def _tips(alt: Any, chart: Chart) -> list[Any]:
    return [alt.Tooltip(f"t{i}:N", title=c.label) for i, c in enumerate(chart.columns)]


def _base(alt: Any, chart: Chart) -> Any:
    return alt.Chart(_data(alt, chart))


def _rows_px(chart: Chart) -> int:
    """A height in pixels: a step a row would be the same, but Vega-Lite warns of it beside a width that follows the page."""
    return ROW_PX * len({row[chart.y.key] for row in chart.rows})


def _bars(alt: Any, chart: Chart) -> Any:
    marks = _base(alt, chart).mark_bar()
    encoded = marks.encode(
        x=_x(alt, chart, stack="zero"),
        y=_y(alt, chart),
        color=_color(alt, chart),
        order=alt.value(0),
        tooltip=_tips(alt, chart),
    )
    return encoded.properties(height=_rows_px(chart))


def _heat_map(alt: Any, chart: Chart) -> Any:
    assert chart.color is not None
    legend = alt.Legend(title=chart.color.label, orient="top", format=".0%", gradientLength=160)
    color = alt.Color("color:Q", scale=alt.Scale(domain=[0, 1]), legend=legend)
    encoded = (
        _base(alt, chart)
        .mark_rect()
        .encode(x=_x(alt, chart), x2="x2", y=_y(alt, chart), color=color, tooltip=_tips(alt, chart))
    )
    return encoded.properties(height=_rows_px(chart))


def _timeline(alt: Any, chart: Chart) -> Any:
    encoded = (
        _base(alt, chart)
        .mark_bar()
        .encode(
            x=_x(alt, chart),
            x2="x2",
            y=_y(alt, chart),
            color=_color(alt, chart),
            tooltip=_tips(alt, chart),
        )
    )
    return encoded.properties(height=_rows_px(chart))


def _area(alt: Any, chart: Chart) -> Any:
    marks = _base(alt, chart).mark_area(interpolate="step-after", line=True, opacity=0.35)
    encoded = marks.encode(
        x=_x(alt, chart),
        y=_y(alt, chart).stack(None),
        color=_color(alt, chart),
        tooltip=_tips(alt, chart),
    )
    return encoded.properties(height=240)


def _scatter(alt: Any, chart: Chart) -> Any:
    points = _base(alt, chart).mark_point(filled=True, opacity=0.8)
    encoding: dict[str, Any] = {"x": _x(alt, chart), "y": _y(alt, chart), "tooltip": _tips(alt, chart)}  # fmt: skip
    if chart.color is not None:
        encoding["color"] = _color(alt, chart)
    if chart.size is not None:
        encoding["size"] = alt.Size("size:Q", scale=alt.Scale(range=[30, 500]), legend=None)
    layers = [points.encode(**encoding)]
    if chart.lines:
        layers.insert(0, _lines(alt, chart))
    return alt.layer(*layers).properties(height=340)


def _lines(alt: Any, chart: Chart) -> Any:
    """What bounds the points: dashed in another way each, named by a legend."""
    values = [
        {"x": line[chart.x.key], "y": line[chart.y.key], "line": line["label"]}
        for line in chart.lines
    ]
    names = list(dict.fromkeys(v["line"] for v in values))
    dashes = alt.Scale(domain=names, range=[[1, 0], [6, 3], [2, 2]][: len(names)])
    legend = alt.Legend(title=None, orient="top", direction="horizontal", columns=_columns(names))
    return (
        alt.Chart(alt.InlineData(values=values))
        .mark_line(color=QUIET, strokeWidth=2)
        .encode(x="x:Q", y="y:Q", strokeDash=alt.StrokeDash("line:N", scale=dashes, legend=legend))
    )
