"""How is a machine shown to people: as a row of a list, in full, or beside another one?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from trnprof.analysis.text_layout import WIDTH, fit, wrapped
from trnprof.emulator.machine_summary import Difference, is_guess
from trnprof.tracer.units import format_bytes, format_ns, format_rate, printable

SIGN: Final = "~"
"""Before a figure that nobody published."""
NONE: Final = "–"
_UNITS: Final = (
    ("bytes_per_s", lambda v: format_rate(v, "B/s")),
    ("flops", lambda v: format_rate(v, "FLOP/s")),
    ("sbuf_bytes.", lambda v: f"{v / 2**20:g} MiB" if v < 2**30 else f"{v / 2**30:,.4g} GiB"),
    ("bytes", lambda v: format_bytes(v) if v >= 1e6 else f"{v:,.0f} B"),
    ("_ns", format_ns),
    ("_ghz", lambda v: f"{v:g} GHz"),
    ("power_w", lambda v: format_rate(v, "W")),
    ("capex_usd", lambda v: f"${v:,.0f}"),
    ("usd_per", lambda v: f"${v:,.3f}".removesuffix("0")),
)
"""By a part of a key's last two names, each with its dot."""


def figure(key: str, value: Any, is_estimate: bool = False) -> str:
    """A value with the unit that its key names.

    >>> figure("core.tensor.clock_ghz", 2.4), figure("chip.hbm_bytes", 96e9, True)
    ('2.4 GHz', '~96 GB')
    """
    if value is None or value == []:
        return NONE
    text = _with_unit(key, value)
    return f"{SIGN}{text}" if is_estimate else text


def _with_unit(key: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return printable((" x " if key.endswith("sizes") else ", ").join(map(str, value)))
    if isinstance(value, str):
        return printable(value)
    names = ".".join(key.split(".")[-2:]) + "."
    for part, written in _UNITS:
        if part in names:
            return str(written(value))
    return number(value)


def number(value: float) -> str:
    """Five digits, never with an exponent.

    >>> number(2.0), number(314.57), number(362_387.9)
    ('2', '314.57', '362,388')
    """
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.5g}"


def list_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row a system, totals of all its chips."""
    widths = (18, 6, 10, 10, 10, 12, 12)
    lines = table_lines([("", "chips", "bf16", "fp8", "HBM", "HBM/s", "bisection")], widths)
    lines.append("─" * sum(widths))
    for each in summaries:
        cells = [
            _cell(each, "chips", ""),
            _cell(each, "totals.dense_flops.bfloat16", "F"),
            _cell(each, "totals.dense_flops.float8", "F"),
            _cell(each, "totals.hbm_bytes", "B"),
            _cell(each, "totals.hbm_bytes_per_s", "B/s"),
            _cell(each, "fabric.bisection_bytes_per_s", "B/s"),
        ]
        lines += table_lines([(each["name"], *cells)], widths)
    compared = ", ".join(each["name"] for each in summaries if not each["is_emulated"])
    lines += ["", f"PF: dense PFLOP/s; bisection in one direction; {SIGN} marks estimates"]
    lines += wrapped(f"Roofline and fabric only, nothing is emulated on them: {compared}.", "")
    return [*lines, "next: trnprof systems show trn2 · trnprof systems diff trn2 trn3-gen2"]


def _cell(summary: Mapping[str, Any], key: str, unit: str) -> str:
    value: Any = summary
    for part in key.split("."):
        value = value.get(part)
    sign = SIGN if is_guess(summary, key) else ""
    return NONE if value is None else sign + format_rate(value, unit, 3).strip()


def diff_lines(
    first: Mapping[str, Any], second: Mapping[str, Any], found: Sequence[Difference]
) -> list[str]:
    """Key, first, second: what differs, a heading a table."""
    names = [fit(each["name"], 21) for each in (first, second)]
    lines = [f"{'':36}{names[0]:<22}{names[1]}", "─" * WIDTH]
    table = ""
    for each in found:
        own, _, name = each.key.rpartition(".")
        if own != table:
            lines.append(f"[{own}]")
            table = own
        one, other = (
            fit(figure(each.key, value, guess), 21)
            for value, guess in zip(each.values, each.is_estimate, strict=True)
        )
        lines.append(f"  {fit(name, 33):34}{one:<22}{other}")
    if not found:
        return [f"{first['name']} and {second['name']} do not differ"]
    if any(any(each.is_estimate) for each in found):
        lines += ["", f"{SIGN} an estimate: nobody published it; trnprof systems show says why"]
    return lines


def estimate_lines(estimates: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Reasons, each with the figures that it stands for."""
    by_reason: dict[str, list[str]] = {}
    for key, each in estimates.items():
        by_reason.setdefault(each["reason"], []).append(f"{key} {figure(key, each['value'])}")
    lines = []
    for reason, keys in by_reason.items():
        lines += fold(f"{SIGN} {reason}", "  ")
        lines += fold(f"    {', '.join(keys)}", "    ")
    return lines


def fold(text: str, then: str) -> list[str]:
    """Lines that leave room for two columns before them; ``then`` stands before all but the first."""
    indent = text[: len(text) - len(text.lstrip())]
    return [line[2:] for line in wrapped(printable(text.strip()), f"  {indent}", f"  {then}")]


def chips_text(chips: Sequence[int]) -> str:
    """Numbers of chips, shortly.

    >>> chips_text([0, 1, 2, 3]), chips_text([0, 4, 8, 12]), chips_text([0, 72]), chips_text([0, 1, 4, 5])
    ('0..3', '0, 4, 8 .. 12', '0, 72', '0, 1, 4 .. 5')
    """
    if len(chips) <= 3:
        return ", ".join(map(str, chips))
    if chips[-1] - chips[0] == len(chips) - 1:
        return f"{chips[0]}..{chips[-1]}"
    return f"{chips[0]}, {chips[1]}, {chips[2]} .. {chips[-1]}"


def table_lines(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """The first column to the left, the others to the right."""
    return [
        f"{row[0]:<{widths[0]}}"
        + "".join(f"{cell:>{w}}" for cell, w in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
