"""The HTML page, opened in a real Chromium: what it draws, that it asks nobody for anything, that tables sort, and what is escaped."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.analysis.traces import TENSOR, build, event, step

import trnprof
from trnprof.analysis.charts.files import pictures, write_pictures
from trnprof.analysis.charts.registry import CHARTS, charts_of
from trnprof.analysis.report import build_report
from trnprof.analysis.sections.html.page import page
from trnprof.analysis.sections.overview import overview
from trnprof.analysis.sections.section import Column, Section, Table
from trnprof.analysis.sections.subject import subject_of
from trnprof.tracer.errors import OutputExistsError

pytest.importorskip("altair", reason="charts need trnprof[html]")
pytest.importorskip("vl_convert", reason="charts need trnprof[html]")
CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)
SAMPLE = Path(__file__).parents[2] / "sample_traces" / "transformer-trn2.trnprof"
EVIL = "</script><img src=x onerror=alert(1)>"
NUMBERS = (3.0, None, 20.0, 100.0)
WORDS = ("b", EVIL, "A", "ü")


@pytest.fixture(scope="module")
def written() -> str:
    """A page of a sample, and a section with what is hard to show."""
    trace = trnprof.open(SAMPLE)
    subject = subject_of(trace)
    columns = (Column("word", "word"), Column("number", "number", "ns"))
    rows = tuple({"word": w, "number": n} for w, n in zip(WORDS, NUMBERS, strict=True))
    hard = Section("hard", EVIL, (Table("t", EVIL, columns, rows, 9),), (EVIL,))
    return page(EVIL, [overview(build_report(trace)), hard], charts_of(subject, None), CHARTS)


def browse(
    html: str, folder: Path, width: int, *, dark: bool, script: str = ""
) -> tuple[str, list[str]]:
    """The page as it is after its programs and ours ran, and what they said on the console."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here (apt install chromium): the page is not opened")
    file = folder / "page.html"
    before, end, after = html.rpartition("</body>")
    file.write_text(f"{before}<script>{script}</script>{end}{after}", encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder / 'profile'}",
            "--enable-logging=stderr",
            f"--window-size={width},900",
            "--virtual-time-budget=15000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if not done.stdout:
        pytest.skip(f"Chromium does not run here: {done.stderr[-300:]}")
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


MEASURE = """
const wait = setInterval(() => {
  if (document.documentElement.dataset.drawn === undefined) return;
  clearInterval(wait);
  const root = document.documentElement;
  root.dataset.wide = String(root.scrollWidth > root.clientWidth);
  root.dataset.back = getComputedStyle(document.body).backgroundColor;
  root.dataset.requests = String(performance.getEntriesByType("resource").filter((e) => !e.name.startsWith("data:")).length);
  root.dataset.svgs = String(document.querySelectorAll("[data-chart] svg.marks").length);
  root.dataset.images = String(document.images.length);
  const table = document.querySelector("#section-hard table");
  const read = () => [...table.tBodies[0].rows].map((r) => r.cells[1].dataset.v ?? "none").join(" ");
  const [word, number] = table.querySelectorAll("th button");
  number.click(); root.dataset.down = read();
  number.click(); root.dataset.up = read();
  word.click(); root.dataset.words = read();
}, 50);
"""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_page_in_a_browser(written: str, tmp_path: Path, width: int, dark: bool) -> None:
    dom, console = browse(written, tmp_path, width, dark=dark, script=MEASURE)
    assert console == []
    root = dict(re.findall(r'data-(\w+)="([^"]*)"', dom[: dom.index("<head")]))
    drawn = written.count(' data-chart="')
    assert root["drawn"] == str(drawn)
    assert drawn >= 4
    assert root["svgs"] == str(drawn)
    assert root["requests"] == "0"
    assert root["wide"] == "false"
    assert root["back"] == ("rgb(21, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert (root["down"], root["up"]) == ("100.0 20.0 3.0 none", "3.0 20.0 100.0 none")
    assert root["words"].split() == ["none", "20.0", "3.0", "100.0"]
    # what came from a trace is text
    assert root["images"] == "0"


def test_the_page_names_nothing_outside(written: str) -> None:
    outside = re.sub(r"<script>.*?</script>", "", written, flags=re.DOTALL)
    assert not re.search(r"(src|href)=\"(?!#|data:)", outside)
    assert "default-src &#x27;none&#x27;" in written
    assert written.count("</script>") == 3


def test_data_of_a_chart_cannot_end_its_element() -> None:
    trace = build([event(TENSOR, 0, 9, name=EVIL)], steps=[step(0, 0, 9)])
    subject = subject_of(trace)
    html = page("x", [], charts_of(subject), CHARTS)
    data = html.partition('id="charts">')[2].partition("</script>")[0]
    assert "<" not in data
    assert "critical-path" in json.loads(data)


def test_charts_become_pictures(tmp_path: Path) -> None:
    files = pictures(charts_of(subject_of(trnprof.open(SAMPLE)), {"roofline", "memory"}))
    assert sorted(files) == ["memory-over-time.png", "memory-over-time.svg", "roofline.png", "roofline.svg"]  # fmt: skip
    assert files["roofline.svg"].startswith(b"<svg")
    assert files["roofline.png"].startswith(b"\x89PNG")
    write_pictures(tmp_path / "a" / "b", files, force=False)
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == sorted(files)
    with pytest.raises(OutputExistsError):
        write_pictures(tmp_path / "a" / "b", files, force=False)
