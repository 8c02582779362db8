"""How is one machine shown in full? Chips, peaks, engines, memory, topology, network, collectives, power and price, estimates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trnprof.analysis.text_layout import WIDTH, fit
from trnprof.cli.narrow import as_lists, columns
from trnprof.cli.systems_text import (
    NONE,
    SIGN,
    chips_text,
    estimate_lines,
    figure,
    fold,
    number,
    paragraph,
    table_lines,
)
from trnprof.emulator.machine_summary import is_guess
from trnprof.tracer.units import format_ns, printable

Summary = Mapping[str, Any]
_ECONOMICS: Final = {
    "racks": "racks",
    "chip_power_w": "power of a chip",
    "rack_power_w": "power of a rack",
    "usd_per_hour": "price an hour, whole system",
    "usd_per_chip_hour": "price a chip-hour, reserved",
    "chip_capex_usd": "cost of a chip to its buyer",
}
_OF_ALL_CHIPS: Final = ("racks", "usd_per_hour")
"""Of these, those of a whole system."""


def show_lines(summary: Summary) -> list[str]:
    """Everything there is to say, at most 80 columns wide."""
    several = f" x {summary['instances']} instances" if summary["instances"] > 1 else ""
    lines = paragraph(f"{summary['name']}{several}: {summary['description']}")
    lines.append("─" * columns(WIDTH))
    for title, part in (
        ("", _totals),
        ("Peaks, TFLOP/s", _peaks),
        ("Engines of a core", _engines),
        ("Topology", _topology),
        ("Links between chips", _hops),
        ("Collectives and network", _network),
        ("Power and price", _economics),
        ("Estimates: nobody published these figures", _estimates),
    ):
        body = part(summary)
        if body:
            lines += ["", *paragraph(title), *(f"  {line}" for line in body)] if title else body
    return lines


def _said(summary: Summary, key: str) -> str:
    """A figure by its dotted key."""
    value: Any = summary
    for part in key.split("."):
        value = value[part]
    return figure(key, value, is_guess(summary, key))


def _totals(summary: Summary) -> list[str]:
    """A chip, all chips, and what the vendor prints for them."""
    printed = summary["published"] if summary["instances"] == 1 else {}
    network = printable(summary["scale_out"]["network"])
    chips = f"{_said(summary, 'chips')} chips"
    rows: list[tuple[str, ...]] = [("", fit(summary["chip"]["name"], 17), chips, "as printed")]
    for name, key, published in (
        ("cores", "cores", ""),
        ("HBM", "hbm_bytes", "hbm_bytes"),
        ("HBM bandwidth", "hbm_bytes_per_s", "hbm_bytes_per_s"),
        ("SBUF", "sbuf_bytes", ""),
        ("links, each way", "link_bytes_per_s", ""),
        (network, "scale_out_bytes_per_s", "efa_bytes_per_s"),
    ):
        if summary["chip"][key]:
            both = (_said(summary, f"{part}.{key}") for part in ("chip", "totals"))
            vendor = figure(published, printed.get(published)) if published else ""
            rows.append((fit(name, 17), *both, vendor))
    rows.append(("bisection", "", _said(summary, "fabric.bisection_bytes_per_s"), ""))
    return table_lines(rows, (18, 18, 18, 16))


def _peaks(summary: Summary) -> list[str]:
    """A row a datatype; sparse ones count the zeros, as vendors do."""
    chips = f"{_said(summary, 'chips')} chips"
    rows: list[tuple[str, ...]] = [
        ("", "a core", "a chip", chips, "sparse a chip", "chip, as printed")
    ]
    peaks = summary["chip"]["peaks"]
    rows += [
        _peak_row(summary, dtype)
        for dtype in dict.fromkeys([*peaks["dense_flops"], *peaks["sparse_flops"]])
    ]
    if not summary["is_emulated"]:
        without = [(row[0], *row[2:5]) for row in rows]
        return [*table_lines(without, (12, 12, 14, 16)), *fold("as the vendor prints them", "")]
    note = "of the tensor engines alone; printed ones sum all engines (dense / sparse)"
    return [*table_lines(rows, (12, 9, 10, 13, 15, 18)), *fold(note, "")]


def _peak_row(summary: Summary, dtype: str) -> tuple[str, ...]:
    chip = summary["chip"]
    dense, sparse = (chip["peaks"][f"{kind}_flops"].get(dtype) for kind in ("dense", "sparse"))
    total = summary["totals"]["dense_flops"].get(dtype)
    printed = [chip[f"printed_{kind}_flops"].get(dtype) for kind in ("dense", "sparse")]
    one, all_chips, thin = (
        SIGN if is_guess(summary, f"{key}_flops.{dtype}") else ""
        for key in ("chip.peaks.dense", "totals.dense", "chip.peaks.sparse")
    )
    return (
        fit(dtype, 11),
        _tera(dense / chip["cores"] if dense and chip["cores"] else None, one),
        _tera(dense, one),
        NONE if total is None else f"{_tera(total / 1000, all_chips)} PF",
        _tera(sparse, thin),
        " / ".join(_tera(value) for value in printed if value) or NONE,
    )


def _tera(flops: float | None, sign: str = "") -> str:
    return NONE if flops is None else sign + number(float(f"{flops / 1e12:.4g}"))


def _engines(summary: Summary) -> list[str]:
    core = summary["core"]
    if core is None:
        return []

    def said(key: str) -> str:
        return _said(summary, f"core.{key}")

    mebibytes = [
        core["sbuf_partitions"] * core[f"{kind}_bytes_per_partition"] / 2**20
        for kind in ("sbuf", "psum")
    ]
    lines = [
        f"{core['name']}, {said('base_clock_ghz')}: SBUF {mebibytes[0]:g} MiB, PSUM {mebibytes[1]:g} MiB in "
        f"{said('psum_banks')} banks, {said('sbuf_partitions')} partitions",
        f"Tensor  {said('tensor.clock_ghz')}, {said('tensor.rows')} x {said('tensor.columns')}, latency "
        f"{said('tensor.latency_ns')}",
    ]
    lines += [
        f"{name:7} {said(f'{key}.clock_ghz')}, latency {said(f'{key}.latency_ns')}"
        for name, key in (("Vector", "vector"), ("Scalar", "scalar"), ("GpSimd", "gpsimd"))
    ]
    rates = [said(f"dma.{way}_bytes_per_s_per_engine") for way in ("read", "write")]
    lines.append(
        f"DMA     {said('dma.engines')} engines of {said('dma.queues')} queues, {rates[0]} read, {rates[1]} write each"
    )
    return [part for line in lines for part in fold(line, "        ")]


def _topology(summary: Summary) -> list[str]:
    topology = summary["topology"]
    grid = zip(topology["coordinates"], topology["sizes"], strict=True)
    lines = fold("coordinates " + ", ".join(f"{printable(n)} {size}" for n, size in grid), "  ")
    for name, tier in topology["tiers"].items():
        key = "scale_out" if _is_scale_out(summary, name) else f"topology.tiers.{name}"
        lines += _tier_lines(summary, name, tier, key)
    return lines


def _tier_lines(summary: Summary, name: str, tier: Summary, key: str) -> list[str]:
    """The links of a tier, and which chips they join."""

    def said(figure_name: str) -> str:
        return figure(figure_name, tier[figure_name], is_guess(summary, f"{key}.{figure_name}"))

    crossing = f" + {said('switch_ns')} a switch" if tier["kind"] == "switch" else ""
    head = (
        f"{printable(name)}: {tier['kind']} over {', '.join(map(printable, tier['spans']))}, "
        f"{said('link_bytes_per_s')} a link each way, {said('link_ns')}{crossing}"
    )
    lines = fold(head, "    ")
    joined = f"{len(tier['first_group'])} chips ({chips_text(tier['first_group'])} first)"
    if tier["kind"] != "switch":
        return [*lines, *fold(f"  {tier['groups']:,} groups of {joined}", "    ")]
    ports = f" of {said('ports')} ports" if tier["ports"] else ""
    noun = "switch" if tier["switches"] == 1 else "switches"
    shared = (
        f"  {said('switches')} {noun}{ports} for each {joined}, {tier['all_switches']:,} in all"
    )
    lines += fold(shared, "    ")
    if tier["trunk_bytes_per_s"]:
        lines += fold(f"  {said('trunk_bytes_per_s')} from those to the next ones", "    ")
    return lines


def _is_scale_out(summary: Summary, tier: str) -> bool:
    return bool(summary["instances"] > 1 and tier == summary["scale_out"]["name"])


def _hops(summary: Summary) -> list[str]:
    fabric = summary["fabric"]
    rows = [("chips that differ in", "by way of", "peers", "links")]
    for hops in fabric["hops"]:
        least, most = hops["least_links"], hops["most_links"]
        rows.append(
            (
                fit(", ".join(hops["coordinates"]), 32),
                fit(", ".join(hops["tiers"]), 26),
                number(hops["peers"]),
                str(least) if least == most else f"{least} to {most}",
            )
        )
    lines = [f"{row[0]:33}{row[1]:27}{row[2]:>7}{row[3]:>10}" for row in rows]
    if columns(WIDTH) < WIDTH:
        lines = [part for line in as_lists(rows) for part in fold(line, "    ")]
    note = f"farthest {fabric['diameter_links']} links, mean {fabric['mean_distance_links']:.2f} (a way through a switch has two)"
    return [*lines, *fold(note, "")]


def _network(summary: Summary) -> list[str]:
    def said(key: str) -> str:
        return _said(summary, key)

    costs, network = summary["collectives"], summary["scale_out"]
    way = 2 * network["link_ns"] + network["switch_ns"]
    lines = []
    if costs is None:
        lines += fold("no figures of collectives: of theirs the fabric alone is counted", "  ")
    else:
        step = sum(costs[f"{part}_ns"] for part in ("post", "dma_start", "dma_done"))
        way += step
        lines += fold(
            f"start {said('collectives.start_ns')}; a message {format_ns(step)}: post {said('collectives.post_ns')}, DMA start "
            f"{said('collectives.dma_start_ns')}, done {said('collectives.dma_done_ns')}",
            "  ",
        )
        lines += fold(
            f"{said('collectives.cc_cores')} CC-cores, DMA {said('collectives.dma_bytes_per_s')} a chip; direct below "
            f"{said('collectives.direct_below_bytes')}, halving-doubling below {said('collectives.halving_doubling_below_bytes')}",
            "  ",
        )
    lines += fold(
        f"{printable(network['network'])}: {said('scale_out.link_bytes_per_s')} a chip each way, {SIGN}{format_ns(way)} from HBM to HBM",
        "  ",
    )
    return lines


def _economics(summary: Summary) -> list[str]:
    economics = summary["economics"]
    lines = []
    of_one = ", an instance" if summary["instances"] > 1 else ""
    for key, name in _ECONOMICS.items():
        label = name
        if of_one and key in _OF_ALL_CHIPS:
            label = name.removesuffix(", whole system") + of_one
        if economics[key] is None:
            reason = printable(economics["absent"][key])
            lines += fold(f"{label:29}{NONE} {reason}", " " * 31)
        else:
            lines += fold(f"{label:29}{_said(summary, f'economics.{key}')}", " " * 31)
    return lines


def _estimates(summary: Summary) -> list[str]:
    return estimate_lines(summary["estimates"])
