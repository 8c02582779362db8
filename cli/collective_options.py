"""What do the options of ``collective`` mean? Texts become numbers, or one line that says what was expected."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from trnprof.emulator.collectives.messages import COLLECTIVES
from trnprof.emulator.collectives.request import AstraSim, Jitter
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.nearest import nearest
from trnprof.tracer.units import (
    parse_bytes,
    parse_bytes_per_s,
    parse_duration_ps,
    parse_fraction,
)

V = TypeVar("V", int, float)

MAX_BYTES: Final = 2**50
"""Of a buffer, 1 PiB: times stay far within 64 bits of picoseconds."""
MAX_DELAY_PS: Final = 10**15
MAX_SWEEP: Final = 64
"""Sizes of one sweep: each twice the one before."""
_SLOWEST: Final = 1e-6
"""Times beyond a million times their own are beyond what the scheduler counts."""
_RANGE: Final = re.compile(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", re.ASCII)
_ANOTHER: Final = ("bytes", "ranks", "algorithm", "root")


@dataclass(frozen=True)
class Options:
    """The command line, as it was typed.

    Attributes:
        collective: name.
        system: of a machine, None for a made-up fabric.
        instances: of that machine.
        fold: one instance stands for all; None where that follows from what is asked.
        topology: of a made-up fabric.
        bandwidth: of its links.
        latency: of its links.
        size: of the buffer.
        ranks: of the group.
        algorithm: one, or one a dimension.
        fidelity: None where it follows from what is asked.
        chunks: a message.
        forwarding: at every hop, None where it follows from what is asked.
        ties: of routes.
        root: rank.
        send_bytes: a table of bytes, rank by rank.
        others: collectives in flight at the same time.
        degrade: links of less bandwidth.
        fail: links that are not there.
        slow: chips.
        skew: ranks that come late.
        jitter: noise.
        astra_sim: the ways of that simulator.
    """

    collective: str
    system: str | None = None
    instances: int | None = None
    fold: bool | None = None
    topology: str | None = None
    bandwidth: str | None = None
    latency: str | None = None
    size: str | None = None
    ranks: str | None = None
    algorithm: str | None = None
    fidelity: str | None = None
    chunks: int | None = None
    forwarding: str | None = None
    ties: str = ""
    root: int | None = None
    send_bytes: Path | None = None
    others: tuple[str, ...] = ()
    degrade: tuple[str, ...] = ()
    fail: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    skew: tuple[str, ...] = ()
    jitter: tuple[str, ...] = ()
    astra_sim: str | None = None


@dataclass(frozen=True)
class Another:
    """A collective of ``--with``; None where it follows the first one."""

    collective: str
    bytes: int | None
    ranks: str | None
    algorithms: tuple[str, ...]
    root: int | None


def read_collective(text: str) -> str:
    """The name of a collective, with hyphens or underscores.

    Raises:
        TrnprofError: there is none of that name; the nearest is suggested.
    """
    name = text.strip().lower().replace("-", "_")
    if name in COLLECTIVES:
        return name
    near = nearest(name, COLLECTIVES, 0.5)
    hint = f"did you mean {near}? " if near else ""
    raise TrnprofError(f"unknown collective {text!r}: {hint}known are {', '.join(COLLECTIVES)}")


def read_size(text: str, option: str) -> int:
    """Bytes of a buffer.

    Raises:
        TrnprofError: not a size, or one that no buffer has.
    """
    if not text.strip():
        raise TrnprofError(f"{option} {text!r}: a size is missing, such as 64MiB")
    size = parse_bytes(text)
    if not 0 < size <= MAX_BYTES:
        raise TrnprofError(f"{option} {text}: expected at least 1 byte and at most 1 PiB")
    return size


def read_sweep(text: str) -> tuple[int, ...]:
    """Sizes from ``A..B``, each twice the one before.

    Raises:
        TrnprofError: not two sizes, the larger first, or too many in between.
    """
    first, dots, last = text.partition("..")
    if not dots:
        raise TrnprofError(f"--sweep {text!r}: expected A..B, such as 1KiB..1GiB")
    low, high = read_size(first, "--sweep"), read_size(last, "--sweep")
    if high < low:
        raise TrnprofError(
            f"--sweep {text!r}: its end lies before its start; write {last}..{first}"
        )
    sizes = [low]
    while sizes[-1] * 2 <= high and len(sizes) <= MAX_SWEEP:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes)


def read_ranks(text: str, chips: int) -> tuple[int, ...]:
    """Ranks from ``0..3,8``; ranges are inclusive, the order is kept.

    Raises:
        TrnprofError: not such a list, or a rank beyond the last chip.
    """
    ranks: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise TrnprofError(f"ranks {text!r}: expected a list such as 0..7 or 0..3,8")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise TrnprofError(f"ranks {text!r}: the end of {part.strip()} lies before its start")
        if last >= chips:
            raise TrnprofError(f"rank {last} is out of range: there are chips 0..{chips - 1}")
        ranks += range(first, last + 1)
    return tuple(ranks)


def read_algorithms(text: str | None) -> tuple[str, ...]:
    """Names with commas in between; none where there is no text, so that the policy chooses.

    Raises:
        TrnprofError: a name is missing.
    """
    if text is None:
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise TrnprofError(
            f"algorithm {text!r}: a name is missing; give one, such as ring, or one a dimension: ring,direct"
        )
    return names


def read_bandwidths(text: str) -> tuple[int, ...]:
    """Bytes a second, one or one a dimension."""
    parts = text.split(",")
    if not all(part.strip() for part in parts):
        raise TrnprofError(f"--bandwidth {text!r}: a bandwidth is missing, such as 50GiB/s")
    rates = tuple(parse_bytes_per_s(part) for part in parts)
    if min(rates) <= 0:
        raise TrnprofError(f"--bandwidth {text!r}: expected at least 1 B/s")
    return rates


def read_latencies(text: str) -> tuple[int, ...]:
    """Picoseconds, one or one a dimension."""
    times = tuple(_picoseconds(part, f"--latency {text!r}", "500ns") for part in text.split(","))
    if max(times) > MAX_DELAY_PS:
        raise TrnprofError(f"--latency {text!r}: expected 1000 s at most")
    return times


def read_fault(text: str, option: str, key: str) -> tuple[str, float]:
    """What and how much, from ``key=WHAT:FACTOR``.

    Raises:
        TrnprofError: another form.
    """
    what, colon, factor = read_named(text, option, key).rpartition(":")
    if not colon:
        raise TrnprofError(f"{option} {text!r}: expected {_EXPECTED[option]}")
    fraction = parse_fraction(factor)
    if 0 < fraction < _SLOWEST:
        raise TrnprofError(f"{option} {text!r}: expected a factor of {_SLOWEST:g} or more")
    return what, fraction


def read_named(text: str, option: str, key: str) -> str:
    """What stands behind ``key=``.

    Raises:
        TrnprofError: another key.
    """
    name, equals, value = text.partition("=")
    if name.strip() != key or not equals or not value.strip():
        raise TrnprofError(f"{option} {text!r}: expected {_EXPECTED[option]}")
    return value.strip()


def read_slow(texts: Sequence[str], what: str = "chip") -> dict[int, float]:
    """Fractions by chip (or rank), from ``chip=7:0.8`` each.

    Raises:
        TrnprofError: another form, or a chip twice.
    """
    factors: dict[int, float] = {}
    for text in texts:
        digits, factor = read_fault(text, "--slow", what)
        _add(factors, _number(digits, text, "--slow"), factor, f"--slow {text!r}: {what}")
    return factors


def read_skew(texts: Sequence[str]) -> dict[int, int]:
    """Picoseconds by rank, from ``rank=5:40us`` each.

    Raises:
        TrnprofError: another form, a time before the start, or a rank twice.
    """
    delays: dict[int, int] = {}
    for text in texts:
        digits, colon, delay = read_named(text, "--skew", "rank").partition(":")
        if not colon:
            raise TrnprofError(f"--skew {text!r}: expected {_EXPECTED['--skew']}")
        ps = _picoseconds(delay, f"--skew {text!r}", "rank=5:40us")
        if ps > MAX_DELAY_PS:
            raise TrnprofError(f"--skew {text!r}: expected 1000 s at most")
        _add(delays, _number(digits, text, "--skew"), ps, f"--skew {text!r}: rank")
    return delays


def read_jitter(texts: Sequence[str]) -> Jitter | None:
    """Noise from ``seed=1,sigma=2%``; None where there is none.

    Raises:
        TrnprofError: another form, a sigma that is no noise, or more than one.
    """
    if not texts:
        return None
    if len(texts) > 1:
        raise TrnprofError(f"--jitter is given {len(texts)} times; give it once")
    text = texts[0]
    given = _pairs(text.split(","), text, "--jitter", ("seed", "sigma"))
    if "sigma" not in given:
        raise TrnprofError(f"--jitter {text!r}: expected {_EXPECTED['--jitter']}")
    sigma = parse_fraction(given["sigma"])
    if not 0 <= sigma <= 1:
        raise TrnprofError(f"--jitter {text!r}: expected a sigma between 0 and 100%")
    return Jitter(_number(given.get("seed", "0"), text, "--jitter"), sigma)


def read_astra_sim(text: str) -> AstraSim:
    """The ways of ASTRA-sim 2.0 from ``active=2,endpoint=1ns,memory=1600GB/s``; ``on`` for those it has unless told otherwise.

    Raises:
        TrnprofError: another form.
    """
    parts = () if text.strip() == "on" else text.split(",")
    given = _pairs(parts, text, "--astra-sim", ("active", "endpoint", "memory"))
    usual = AstraSim()
    return AstraSim(
        active_chunks=_number(given.get("active", str(usual.active_chunks)), text, "--astra-sim"),
        endpoint_ps=_picoseconds(given["endpoint"], f"--astra-sim {text!r}", "endpoint=1ns")
        if "endpoint" in given
        else usual.endpoint_ps,
        memory_bytes_per_s=parse_bytes_per_s(given["memory"]) if "memory" in given else 0.0,
    )


def read_another(text: str) -> Another:
    """A collective from ``all_gather:bytes=64MiB,ranks=0..3,8,algorithm=ring,root=0``.

    What stands between two commas without ``=`` belongs to the key before.

    Raises:
        TrnprofError: another form.
    """
    name, _, rest = text.partition(":")
    parts: list[str] = []
    for part in rest.split(",") if rest.strip() else []:
        if "=" in part or not parts:
            parts.append(part)
        else:
            parts[-1] += f",{part}"
    given = _pairs(parts, text, "--with", _ANOTHER)
    return Another(
        read_collective(name),
        read_size(given["bytes"], "--with … bytes") if "bytes" in given else None,
        given.get("ranks"),
        read_algorithms(given.get("algorithm")),
        _number(given["root"], text, "--with") if "root" in given else None,
    )


def _add(known: dict[int, V], number: int, value: V, what: str) -> None:
    if number in known:
        raise TrnprofError(f"{what} {number} is given twice; give it once")
    known[number] = value


def _pairs(parts: Sequence[str], text: str, option: str, known: tuple[str, ...]) -> dict[str, str]:
    given = {}
    for part in parts:
        if not part.strip():
            raise TrnprofError(
                f"{option} {text!r}: a part is missing; expected {_EXPECTED[option]}"
            )
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in known or not equals or not value:
            raise TrnprofError(f"{option} {text!r}: {part.strip()!r} is not {_EXPECTED[option]}")
        if key in given:
            raise TrnprofError(f"{option} {text!r}: {key} is given twice; give it once")
        given[key] = value
    return given


def _picoseconds(text: str, where: str, example: str) -> int:
    """A time with its unit; 0 needs none."""
    if not text.strip():
        raise TrnprofError(f"{where}: a time is missing, such as {example}")
    ps = parse_duration_ps(text)
    if ps and text.strip()[-1].isdigit():
        raise TrnprofError(f"{where}: a time needs its unit, such as {example}")
    if ps < 0:
        raise TrnprofError(f"{where}: a time is 0 or more")
    return ps


def _number(digits: str, text: str, option: str) -> int:
    if not re.fullmatch(r"\s*\d{1,9}\s*", digits, re.ASCII):
        raise TrnprofError(f"{option} {text!r}: expected {_EXPECTED[option]}")
    return int(digits)


_EXPECTED: Final = {
    "--degrade": "link=3-7:0.5 (both directions, half the bandwidth) or link=3>7:0.5 (one)",
    "--fail": "link=3-7 (both directions) or link=3>7 (one)",
    "--slow": "chip=7:0.8 (of a program also rank=7:0.8)",
    "--skew": "rank=5:40us",
    "--jitter": "seed=1,sigma=2%",
    "--astra-sim": "active=2,endpoint=1ns,memory=1600GB/s, some of these, or on",
    "--with": "such as all_gather:bytes=64MiB,ranks=0..7,algorithm=ring,root=0",
}
