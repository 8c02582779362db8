"""Which moments does the ruler name, and how? Round steps in ns; as many decimals as the step needs."""

from __future__ import annotations

_UNITS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))


def tick_step(span_ns: int, most: int) -> int:
    """The smallest step of 1, 2 or 5 times a power of ten ns that gives at most ``most`` ticks.

    >>> tick_step(7_100, 8), tick_step(20_000_000_000, 6)
    (1000, 5000000000)
    """
    least = max(-(-span_ns // max(most, 1)), 1)
    power = int(10 ** (len(str(least)) - 1))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least)


def ticks(t0: int, t1: int, step: int) -> range:
    """The multiples of the step in [t0, t1)."""
    return range(-(-t0 // step) * step, t1, step)


def format_moment(t_ns: int, resolution_ns: int, scale_ns: int | None = None) -> str:
    """A moment to a resolution, in the unit of ``scale_ns`` (default: its own magnitude).

    >>> format_moment(12_304_000, 1_000), format_moment(0, 1_000, 5_000), format_moment(2_500_000_000, 500_000_000)
    ('12.304 ms', '0 µs', '2.5 s')
    """
    scale = abs(t_ns) if scale_ns is None else abs(scale_ns)
    size, unit = next((u for u in _UNITS if scale >= u[0]), _UNITS[-1])
    whole, rest = divmod(abs(t_ns), size)
    keep = len(str(size)) - len(str(max(min(resolution_ns, size), 1)))
    fraction = str(rest).zfill(len(str(size)) - 1)[:keep] if size > 1 else ""
    sign = "-" if t_ns < 0 else ""
    text = f"{sign}{whole:,}" + (f".{fraction}" if fraction and t_ns else "")
    return f"{text} {unit}"
