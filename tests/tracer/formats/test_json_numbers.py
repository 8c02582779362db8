"""Are numbers and times of Chrome-style JSON exact? Python's integers, fractions and floats say what they should be."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tracer.formats.scanning import Bytes, nearest_ns

from trnprof.tracer.formats.trace_json.scan import Fields, Scan
from trnprof.tracer.ingest.audit import Audit

FAR_NS = 2**62


def block_of(texts: list[str], member: str = "ts") -> Any:
    text = ",".join('{"ph":"X","%s":%s}' % (member, t) for t in texts)  # noqa: UP031
    (block,) = Scan(Bytes(f"[{text}]".encode()), Fields((member, "dur")), Audit(), "f")
    return block


digits = st.text("0123456789", max_size=24)
exponents = st.one_of(
    st.just(""),
    st.builds("{}{}".format, st.sampled_from(["e", "E", "e+", "E-"]), st.integers(0, 30)),
)
decimals = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.one_of(st.integers(0, 2**63).map(str), digits.map("0{}".format)),
    st.one_of(st.just(""), st.text("0123456789", min_size=1, max_size=40).map(".{}".format)),
    exponents,
)


@given(texts=st.lists(decimals, min_size=1, max_size=20), quote=st.sampled_from(["", '"', '" ']))
@settings(max_examples=300, deadline=None)
def test_times_are_exact_however_they_are_written(texts: list[str], quote: str) -> None:
    start, _, has, _ = block_of([f"{quote}{t}{quote[::-1]}" for t in texts]).times_ns()
    assert has.all()
    for text, found in zip(texts, start.tolist(), strict=True):
        exact = Fraction(text) * 1000
        if abs(exact) < FAR_NS:
            assert found == nearest_ns(text)
        else:
            assert abs(found) - FAR_NS in (0, 1)
            assert (found > 0) == (exact > 0)


short = st.builds(
    "{}.{}".format, st.integers(0, 2**51), st.text("0123456789", min_size=1, max_size=18)
)


@given(times=st.lists(st.tuples(short, st.sampled_from(["", "-"]), short), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_ends_are_rounded_once_from_exact_sums(times: list[tuple[str, str, str]]) -> None:
    text = ",".join(f'{{"ph":"X","ts":{ts},"dur":{sign}{dur}}}' for ts, sign, dur in times)
    (block,) = Scan(Bytes(f"[{text}]".encode()), Fields(("ts", "dur")), Audit(), "f")
    _, end, _, has_dur = block.times_ns()
    assert has_dur.all()
    assert end.tolist() == [nearest_ns(ts, sign + dur) for ts, sign, dur in times]


def test_times_at_their_limits() -> None:
    texts = [
        "1e300",
        "-1e300",
        '"1757000001000000.123"',
        "NaN",
        '""',
        '"x"',
        "1E3",
        "-0.0005",
        "-0.00051",
        "1e-400",
    ]
    start, _, has, _ = block_of(texts).times_ns()
    assert has.tolist() == [True, True, True, False, False, False, True, True, True, True]
    assert start.tolist() == [FAR_NS, -FAR_NS, 1757000001000000123, 0, 0, 0, 10**6, 0, -1, 0]


@given(st.lists(st.integers(-(2**66), 2**66), min_size=1))
@settings(max_examples=100, deadline=None)
def test_integers_of_64_bits_are_exact(numbers: list[int]) -> None:
    found, valid = block_of([str(n) for n in numbers], "id").integers("id")
    assert valid.tolist() == [-(2**63) <= n < 2**64 for n in numbers]
    fitting = [n for n in numbers if -(2**63) <= n < 2**64]
    assert found[valid].view("uint64").tolist() == [n % 2**64 for n in fitting]


def test_integers_wrap_as_unsigned_and_take_numeric_strings() -> None:
    texts = ["5", "5.0", "5.5", '"7"', '" 8 "', "18446744073709551615", "18446744073709551616", "-9223372036854775808",
             "-9223372036854775809", '"0x1f"', "1e3", "true", '"x"', "null", "00012"]  # fmt: skip
    found, valid = block_of(texts, "id").integers("id")
    assert valid.tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 0, 0, 0, 1]
    assert found[valid].tolist() == [5, 5, 7, 8, -1, -(2**63), 31, 1000, 12]


@given(
    st.lists(
        st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**80), 2**80))
    )
)
@settings(max_examples=100, deadline=None)
def test_floats_are_correctly_rounded(numbers: list[float]) -> None:
    if numbers:
        found = block_of([repr(n) for n in numbers], "id").floats("id")
        assert found.tolist() == [float(n) for n in numbers]


def test_what_is_no_number_is_no_float() -> None:
    text = b'[{"id":"\xff1e400"},{"id":" 1e2 "},{"id":"1e"},{"id":"0x10"},{"id":"+2.50"},{"id":true},{"id":"\xff"}]'
    (block,) = Scan(Bytes(text), Fields(("id",)), Audit(), "f")
    found = block.floats("id")
    assert found[~np.isnan(found)].tolist() == [100.0, 2.5]
    assert np.flatnonzero(~np.isnan(found)).tolist() == [1, 4]
