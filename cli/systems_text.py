"""How is a machine shown to people: as a row of a list, in full, or beside another one?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from trnprof.analysis.text_layout import WIDTH, fit, wrapped
from trnprof.cli.narrow import as_lists, columns, kept_columns
from trnprof.emulator.machine_summary import Difference, is_guess
from trnprof.tracer.units import format_bytes, format_ns, format_rate, printable

SIGN: Final = "~"
"""Before a figure that nobody published."""
NONE: Final = "–"
_COLUMN: Final = 30
"""At least so much room a folded line has, as far as there is any."""
_LIST: Final = (18, 6, 10, 10, 10, 12, 12)
"""Widths of the columns of the list."""
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
    rows: list[tuple[str, ...]] = [("", "chips", "bf16", "fp8", "HBM", "HBM/s", "bisection")]
    for each in summaries:
        cells = [
            _cell(each, "chips", ""),
            _cell(each, "totals.dense_flops.bfloat16", "F"),
            _cell(each, "totals.dense_flops.float8", "F"),
            _cell(each, "totals.hbm_bytes", "B"),
            _cell(each, "totals.hbm_bytes_per_s", "B/s"),
            _cell(each, "fabric.bisection_bytes_per_s", "B/s"),
        ]
        rows.append((each["name"], *cells))
    kept = kept_columns(_LIST, columns(WIDTH), range(len(_LIST) - 1, 0, -1))
    widths = [_LIST[column] for column in kept]
    lines = table_lines([[row[column] for column in kept] for row in rows], widths)
    lines.insert(1, "─" * sum(widths))
    compared = ", ".join(each["name"] for each in summaries if not each["is_emulated"])
    left_out = len(_LIST) - len(kept)
    more = f"; {left_out} columns left out, a wider terminal shows them" if left_out else ""
    for text in (
        f"PF: dense PFLOP/s; bisection in one direction; {SIGN} marks estimates{more}",
        f"Roofline and fabric only, nothing is emulated on them: {compared}.",
        "next: trnprof systems show trn2 · trnprof systems diff trn2 trn3-gen2",
    ):
        lines += ["", *paragraph(text)] if text.startswith("PF") else paragraph(text)
    return lines


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
    room = columns(WIDTH)
    is_wide = room >= WIDTH
    head = f"{'':36}{names[0]:<22}{names[1]}" if is_wide else fit(" and ".join(names), room)
    lines = [head, "─" * room]
    table = ""
    for each in found:
        own, _, name = each.key.rpartition(".")
        if own != table:
            lines.append(fit(f"[{own}]", room))
            table = own
        one, other = (
            fit(figure(each.key, value, guess), 21)
            for value, guess in zip(each.values, each.is_estimate, strict=True)
        )
        if is_wide:
            lines.append(f"  {fit(name, 33):34}{one:<22}{other}")
        else:
            half = (room - 4) // 2
            lines += [
                f"  {fit(name, room - 2)}",
                f"    {fit(one, half - 1):<{half}}{fit(other, half)}",
            ]
    if not found:
        return paragraph(f"{first['name']} and {second['name']} do not differ")
    if any(any(each.is_estimate) for each in found):
        note = f"{SIGN} an estimate: nobody published it; trnprof systems show says why"
        lines += ["", *paragraph(note)]
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


def paragraph(text: str) -> list[str]:
    """Lines that are as wide as the terminal."""
    return wrapped(printable(text), "", width=columns(WIDTH))


def fold(text: str, then: str) -> list[str]:
    """Lines that leave room for two columns before them; ``then`` stands before all but the first, shortened where there is no room."""
    room = columns(WIDTH)
    indent, then = text[: len(text) - len(text.lstrip())], then[: max(room - _COLUMN, 2)]
    folded = wrapped(printable(text.strip()), f"  {indent}", f"  {then}", room)
    return [line[2:] for line in folded]


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
    """The first column to the left, the others to the right; as lists where they do not fit, with two columns before them."""
    rows = list(rows)
    if sum(widths) + 2 > columns(WIDTH):
        return [part for line in as_lists(rows) for part in fold(line, "    ")]
    return [
        f"{row[0]:<{widths[0]}}"
        + "".join(f"{cell:>{w}}" for cell, w in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]
