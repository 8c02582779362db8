"""What the options of ``collective`` mean, and what is said of those that mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trnprof.cli.collective_options import (
    Options,
    read_another,
    read_astra_sim,
    read_jitter,
    read_ranks,
    read_skew,
    read_slow,
    read_sweep,
)
from trnprof.cli.collectives import Setting, prepare
from trnprof.cli.send_bytes import read_send_bytes
from trnprof.emulator.collectives.request import AstraSim, Jitter
from trnprof.tracer.errors import TrnprofError


def ring(**options: Any) -> Options:
    given: dict[str, Any] = {
        "collective": "all_reduce",
        "topology": "ring:16",
        "bandwidth": "50GiB/s",
        "latency": "500ns",
        "size": "1MiB",
        "ties": "clockwise",
    }
    return Options(**given | options)


def test_ranks_are_inclusive_ranges_in_the_order_given() -> None:
    assert read_ranks("0..3,8", 16) == (0, 1, 2, 3, 8)
    assert read_ranks("5,2..3", 16) == (5, 2, 3)


def test_a_sweep_doubles_from_its_first_size() -> None:
    assert read_sweep("1KiB..8KiB") == (1024, 2048, 4096, 8192)
    assert read_sweep("3B..13B") == (3, 6, 12)
    assert len(read_sweep("1KiB..1GiB")) == 21


def test_faults_and_noise() -> None:
    assert read_skew(["rank=5:40us", "rank=6:0"]) == {5: 40_000_000, 6: 0}
    assert read_slow(["chip=7:80%", "chip=6:.5"]) == {7: 0.8, 6: 0.5}
    assert read_jitter(["seed=1,sigma=2%"]) == Jitter(1, 0.02)
    assert read_jitter([]) is None
    assert read_astra_sim("active=2,memory=1600GB/s") == AstraSim(2, 1000, 1.6e12)
    assert read_astra_sim("on") == AstraSim()


def test_commas_in_a_list_do_not_end_it() -> None:
    other = read_another("all_gather:ranks=0..3,8,bytes=64MiB,algorithm=ring,direct,root=8")
    assert (other.collective, other.bytes, other.ranks) == ("all_gather", 64 << 20, "0..3,8")
    assert (other.algorithms, other.root) == (("ring", "direct"), 8)


def test_options_become_a_fabric_and_requests() -> None:
    setting = prepare(
        ring(
            collective="broadcast",
            ranks="8..15",
            root=9,
            others=("all_gather:bytes=1KiB,ranks=0..7",),
            skew=("rank=9:1us", "rank=0:2us"),
            degrade=("link=3-4:0.5",),
            fail=("link=0>1",),
        ),
        None,
    )
    first, other = setting.requests
    assert (first.bytes, first.ranks, first.root) == (1 << 20, tuple(range(8, 16)), 1)
    assert (other.bytes, other.ranks, other.root) == (1024, tuple(range(8)), 0)
    assert (first.release_ps, other.release_ps) == ({1: 10**6}, {0: 2 * 10**6})
    assert (first.fidelity, other.fidelity) == ("fluid", "fluid")
    half = setting.fabric.bytes_per_s == 25 * 2**30
    assert sorted(zip(setting.fabric.source[half], setting.fabric.target[half], strict=True)) == [
        (3, 4),
        (4, 3),
    ]
    assert setting.fabric.is_failed.sum() == 1
    assert setting.faults == (
        "--degrade link=3-4:0.5",
        "--fail link=0>1",
        "--skew rank=9:1us",
        "--skew rank=0:2us",
    )


def test_bandwidth_and_latency_may_differ_by_dimension() -> None:
    fabric = prepare(
        ring(topology="switch:4,ring:4", bandwidth="100GB/s,50GB/s", latency="1us,0.5ns"), None
    ).fabric
    assert set(zip(fabric.tier.tolist(), fabric.bytes_per_s.tolist(), strict=True)) == {
        (0, 100e9),
        (1, 50e9),
    }
    assert set(zip(fabric.tier.tolist(), fabric.latency_ps.tolist(), strict=True)) == {
        (0, 10**6),
        (1, 500),
    }


def test_instances_are_joined_and_their_figures_count_among_the_estimates() -> None:
    one, two = (
        prepare(Options("all_reduce", system="trn2", instances=n, size="1MiB"), None)
        for n in (None, 2)
    )
    assert (two.fabric.chips, two.place) == (2 * one.fabric.chips, "2 x trn2")
    assert set(one.estimates) <= set(two.estimates)


def table(folder: Path, text: str) -> Path:
    path = folder / "sent.csv"
    path.write_text(text)
    return path


def test_a_table_of_bytes_is_read(tmp_path: Path) -> None:
    path = table(tmp_path, "0, 4KiB, 1\n2,0,3\n4,5,0\n")
    assert read_send_bytes(path, 3) == ((0, 4096, 1), (2, 0, 3), (4, 5, 0))
    setting: Setting = prepare(
        ring(collective="all_to_all", ranks="0..2", size=None, send_bytes=path), None
    )
    assert setting.requests[0].bytes == 4097
    # spreadsheets begin their files with a mark of the byte order
    path.write_bytes(b"\xef\xbb\xbf0,1\n2,0\n")
    assert read_send_bytes(path, 2) == ((0, 1), (2, 0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,2\n3\n", ":2: 1 columns, but there are 2 ranks"),
        ("1,2\n", "1 rows, but there are 2 ranks"),
        ("1,2\n3,x\n", ":2: 'x': expected a size"),
        ("1,2\n3,-4\n", ":2: -4: expected 0 bytes to 1 PiB"),
        ("0,0\n0,0\n", ": nobody sends anything"),
    ],
)
def test_a_table_of_another_shape_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(TrnprofError) as raised:
        read_send_bytes(table(tmp_path, text), 2)
    assert f"{says}" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"collective": "all_reduc"}, "unknown collective 'all_reduc': did you mean all_reduce?"),
        ({"size": "1.5XB"}, "size '1.5XB': unknown unit 'XB'"),
        ({"size": "4G"}, "size '4G' is ambiguous: write GiB (powers of 1024) or GB (1000)"),
        ({"size": "0"}, "--bytes 0: expected at least 1 byte"),
        ({"size": "-4KiB"}, "--bytes -4KiB: expected at least 1 byte"),
        ({"size": "1e400"}, "'1e400': expected a size"),
        ({"size": "2000000TiB"}, "at most 1 PiB"),
        ({"size": "2PiB"}, "--bytes 2PiB: expected at least 1 byte and at most 1 PiB"),
        ({"size": "1P"}, "write PiB (powers of 1024) or PB (1000)"),
        ({"size": None}, "how much? give --bytes"),
        ({"ranks": "0..16"}, "rank 16 is out of range: there are chips 0..15"),
        ({"ranks": "0..999999999"}, "out of range"),
        ({"ranks": "3..1"}, "the end of 3..1 lies before its start"),
        ({"ranks": "0-3"}, "expected a list such as 0..7"),
        ({"ranks": "٣"}, "expected a list such as 0..7"),
        ({"root": 3}, "--root 3: all_reduce has no root; those that have are broadcast, send_recv"),
        ({"collective": "broadcast", "root": 16}, "--root 16: that rank is not in the group"),
        ({"others": ("barrier:root=0",)}, "--with … root 0: barrier has no root"),
        ({"size": ""}, "--bytes '': a size is missing, such as 64MiB"),
        ({"ranks": ""}, "ranks '': expected a list such as 0..7"),
        ({"ranks": "0..3,"}, "expected a list such as 0..7"),
        ({"latency": ""}, "--latency '': a time is missing, such as 500ns"),
        ({"latency": "500"}, "--latency '500': a time needs its unit, such as 500ns"),
        ({"bandwidth": ""}, "--bandwidth '': a bandwidth is missing, such as 50GiB/s"),
        ({"algorithm": ""}, "algorithm '': a name is missing; give one, such as ring"),
        ({"algorithm": "ring,"}, "algorithm 'ring,': a name is missing"),
        ({"others": ("all_gather:bytes=1,algorithm=ring,",)}, "algorithm 'ring,': a name is missing"),
        ({"astra_sim": ""}, "--astra-sim '': a part is missing; expected active=2"),
        ({"astra_sim": "endpoint=1"}, "a time needs its unit, such as endpoint=1ns"),
        ({"bandwidth": "0B/s"}, "--bandwidth '0B/s': expected at least 1 B/s"),
        ({"bandwidth": "-5GB/s"}, "--bandwidth '-5GB/s': expected at least 1 B/s"),
        ({"bandwidth": "50GiB"}, "expected a bandwidth such as 50GiB/s"),
        ({"bandwidth": "50Gb/s"}, "unknown unit 'Gb'"),
        ({"bandwidth": "1GB/s,2GB/s"}, "has 1 dimension, but bandwidth has 2 values"),
        ({"bandwidth": None}, "--topology needs --bandwidth"),
        ({"latency": "-1ns"}, "--latency '-1ns': a time is 0 or more"),
        ({"latency": "2000s"}, "--latency '2000s': expected 1000 s at most"),
        ({"skew": ("rank=1:-5us",)}, "--skew 'rank=1:-5us': a time is 0 or more"),
        ({"skew": ("rank=1:2000s",)}, "--skew 'rank=1:2000s': expected 1000 s at most"),
        ({"astra_sim": "endpoint=-1ns"}, "--astra-sim 'endpoint=-1ns': a time is 0 or more"),
        ({"astra_sim": "on", "forwarding": "cut-through"}, "leave out --forwarding cut-through"),
        ({"others": ("barrier:bytes=4KiB",)}, "--with barrier: a barrier has no buffer"),
        ({"topology": "rign:16"}, "unknown kind 'rign'"),
        ({"topology": None, "bandwidth": None}, "on what? give --system"),
        ({"system": "trn2"}, "give --system or --topology, not both"),
        ({"system": "trn9", "topology": None, "bandwidth": None, "latency": None}, "unknown system 'trn9': did you mean 'trn"),
        ({"system": "trn2", "topology": None}, "--bandwidth goes with --topology"),
        ({"instances": 2}, "--instances goes with --system"),
        ({"degrade": ("3-4:0.5",)}, "expected link=3-7:0.5"),
        ({"degrade": ("link=3-4:0",)}, "factor 0, expected more than 0"),
        ({"degrade": ("link=3-4:fast",)}, "expected a fraction such as 0.8"),
        ({"fail": ("link=3-5",)}, "nothing joins the two; 3 has links to 2, 4"),
        ({"slow": ("chip=x:0.8",)}, "expected chip=7:0.8"),
        ({"skew": ("rank=16:1us",)}, "that rank is in no group"),
        ({"skew": ("rank=1:soon",)}, "expected a time such as"),
        ({"skew": ("rank=1:5",)}, "a time needs its unit, such as rank=5:40us"),
        ({"skew": ("rank=1:5us", "rank=1:6us")}, "--skew 'rank=1:6us': rank 1 is given twice"),
        ({"slow": ("chip=1:0.5", "chip=1:0.6")}, "--slow 'chip=1:0.6': chip 1 is given twice"),
        ({"jitter": ("seed=1",)}, "expected seed=1,sigma=2%"),
        ({"jitter": ("",)}, "--jitter '': a part is missing; expected seed=1,sigma=2%"),
        ({"jitter": ("sigma=2%", "sigma=1%")}, "--jitter is given 2 times; give it once"),
        ({"jitter": ("sigma=2%,sigma=1%",)}, "--jitter 'sigma=2%,sigma=1%': sigma is given twice"),
        ({"jitter": ("sigma=200%",)}, "expected a sigma between 0 and 100%"),
        ({"jitter": ("sigm=2%",)}, "'sigm=2%' is not seed=1,sigma=2%"),
        ({"astra_sim": "active=1,active=2"}, "active is given twice; give it once"),
        ({"others": ("all_gather:bytes=1,bytes=2",)}, "bytes is given twice; give it once"),
        ({"others": ("all_gather:ranks=0..7",)}, "--with all_gather: bytes is missing"),
        ({"others": ("all_gather:byte=1",)}, "'byte=1' is not such as all_gather:bytes=64MiB"),
        ({"send_bytes": Path("x.csv")}, "--send-bytes is for all_to_all, not for all_reduce"),
        ({"collective": "barrier"}, "a barrier has no buffer: leave out --bytes"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said_in_one_line(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TrnprofError) as raised:
        prepare(ring(**options), None)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1MiB..1KiB", "its end lies before its start; write 1KiB..1MiB"),
        ("1MiB", "expected A..B"),
        ("1..", "--sweep '': a size is missing"),
        ("0..1KiB", "at least 1 byte"),
    ],
)
def test_a_sweep_upside_down_is_refused(text: str, says: str) -> None:
    with pytest.raises(TrnprofError) as raised:
        read_sweep(text)
    assert says in str(raised.value)


def scaled(**given: Any) -> Setting:
    return prepare(Options(**({"collective": "all_reduce", "system": "trn2"} | given)), 1 << 20)


def test_what_is_large_is_folded_unless_told_otherwise() -> None:
    """1,024 chips are the limit."""
    assert scaled(instances=64).replicas == 1
    large = scaled(instances=65)
    assert (large.replicas, large.fabric.chips, large.place) == (65, 16, "65 x trn2")
    assert scaled(instances=65, fold=False).fabric.chips == 65 * 16
    assert scaled(instances=2, fold=True).requests[0].ranks == tuple(range(16))
    assert scaled(instances=65, skew=("rank=3:1us",)).replicas == 1
    assert scaled(instances=65, ranks="0..15").replicas == 1
    some = ",".join(str(16 * instance + rank) for instance in range(65) for rank in (2, 7))
    assert scaled(instances=65, ranks=some).requests[0].ranks == (2, 7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fold": True}, "--fold: there is one instance"),
        ({"fold": True, "instances": 2, "ranks": "0,17"}, "same ranks of every instance"),
        ({"fold": True, "instances": 2, "ranks": "0..2"}, "same ranks of every instance"),
        ({"fold": True, "instances": 2, "slow": ("chip=1:0.5",)}, "--slow can make instances"),
        ({"fold": True, "instances": 2, "others": ("barrier",)}, "--with has several"),
        ({"fold": True, "instances": 2, "collective": "broadcast"}, "in a broadcast instances"),
        ({"fold": True, "instances": 2, "algorithm": "multi-ring"}, "by multi-ring instances"),
        ({"instances": 9000, "jitter": ("sigma=1%",)}, "too large; .* as --jitter can make"),
        ({"instances": 9000, "fold": False}, "too large; .* as --no-fold says so"),
        ({"instances": 10**9}, "chips are too many"),
    ],
)
def test_what_cannot_be_folded_is_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TrnprofError, match=message) as caught:
        scaled(**given)
    assert "\n" not in str(caught.value)
