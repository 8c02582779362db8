"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();

  // the colours of the page; a heat map goes from its background to what stands out from it
  const theme = () => {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const ramp = dark.matches
      ? ["#1e2127", "#1f4a86", "#3f83d6", "#9cc7ff", "#ffffff"]
      : ["#f3f5f8", "#b5d1f3", "#5e9de2", "#1f62b4", "#0b2e63"];
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      view: { stroke: color("--line") },
      range: { heatmap: ramp, ramp: ramp },
      axis: {
        labelColor: color("--text"), titleColor: color("--quiet"), gridColor: color("--line"), domainColor: color("--line"),
        tickColor: color("--line"), labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelOverlap: true,
        gridOpacity: 0.6,
      },
      axisX: { tickCount: 6 },
      legend: { labelColor: color("--text"), titleColor: color("--quiet"), labelFontSize: 12, titleFontSize: 12 },
    };
  };

  const draw = async (place) => {
    const spec = specs[place.dataset.chart];
    views.get(place)?.finalize();
    views.set(place, await vegaEmbed(place, spec, { actions: false, renderer: "svg", config: theme() }));
  };

  const drawAll = async () => {
    const places = [...document.querySelectorAll("[data-chart]")];
    for (const place of places) {
      try {
        await draw(place);
      } catch (error) {
        place.textContent = "This chart could not be drawn.";
        console.error(place.dataset.chart, error);
      }
    }
    document.documentElement.dataset.drawn = String(places.length);
  };

  // a click sorts a table by a column, numbers from the largest, text from A; another one turns it round; unknown values stay last
  const sort = (head) => {
    const isNumber = head.classList.contains("n");
    const now = head.getAttribute("aria-sort");
    const next = now === null ? (isNumber ? "descending" : "ascending") : now === "ascending" ? "descending" : "ascending";
    const sign = next === "ascending" ? 1 : -1;
    const index = [...head.parentNode.children].indexOf(head);
    const body = head.closest("table").tBodies[0];
    const value = (row) => {
      const cell = row.cells[index];
      if (!isNumber) return cell.textContent;
      return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
    };
    const compare = (a, b) => (isNumber ? a - b : a.localeCompare(b, undefined, { numeric: true }));
    const rows = [...body.rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", next);
  };

  document.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (head !== null && head.querySelector("button") !== null) sort(head);
  });
  dark.addEventListener("change", drawAll);
  drawAll();
})();
