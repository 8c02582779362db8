"""How do charts become pictures? As SVG and PNG, on white, with their title."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from trnprof.analysis.charts.chart import Chart
from trnprof.analysis.charts.extra import drawing
from trnprof.analysis.charts.vega import specification
from trnprof.analysis.text_layout import wrapped
from trnprof.tracer.files import check_output_file, writing, written_beside

WIDTH_PX: Final = 760
LINE: Final = 110
"""Characters of a note that fit that width."""
_CONFIG: Final = {"background": "white", "font": "sans-serif"}


def pictures(charts: Iterable[Chart]) -> dict[str, bytes]:
    """The files of charts that have something to draw: KEY.svg and KEY.png.

    Raises:
        MissingExtraError: what draws them is not installed.
    """
    _, convert = drawing()
    files: dict[str, bytes] = {}
    for chart in charts:
        if chart.nothing_to_say is None:
            drawn = _titled(chart)
            files[f"{chart.key}.svg"] = convert.vegalite_to_svg(drawn).encode()
            files[f"{chart.key}.png"] = convert.vegalite_to_png(drawn, scale=2)
    return files


def write_pictures(folder: Path, files: dict[str, bytes], *, force: bool) -> None:
    """Write files into a folder, which is made if it is not there; none of them if one is there already.

    Raises:
        OutputExistsError: a file is there and ``force`` was not given.
        WriteError: the folder is a file, or cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        check_output_file(folder / name, force=force)
    for name, content in files.items():
        with written_beside(folder / name, force=force) as beside:
            beside.write_bytes(content)


def _titled(chart: Chart) -> dict[str, Any]:
    lines = [line for note in chart.notes for line in wrapped(note, "", width=LINE)]
    title = {"text": chart.title, "subtitle": lines, "anchor": "start"}
    return {**specification(chart, WIDTH_PX), "title": title, "config": _CONFIG, "padding": 12}
