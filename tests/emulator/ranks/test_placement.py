"""Where ranks are: against the rule written out by hand, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnprof.emulator.ranks.placement import parse_placement, place_ranks
from trnprof.emulator.system import load_system
from trnprof.tracer.errors import SystemDescriptionError

ULTRA = load_system("trn2-ultra")  # 64 chips of 8 cores and 4 HBM stacks
TRN1 = load_system("trn1")  # 16 chips of 2 cores that cannot be joined


def test_packed_fills_chip_after_chip() -> None:
    placed = place_ranks(ULTRA, 10)
    assert placed.lnc == 2
    assert placed.chips == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2)
    assert placed.cores == (0, 2, 4, 6, 0, 2, 4, 6, 0, 2)


def test_spread_gives_each_chip_one_and_begins_again() -> None:
    placed = place_ranks(ULTRA, 66, "spread")
    assert placed.chips == (*range(64), 0, 1)
    assert placed.cores == (0,) * 64 + (2, 2)


@pytest.mark.parametrize(
    ("world_size", "lnc", "sharers"), [(1, None, 1), (1, 2, 2), (2, 1, 2), (8, 1, 2), (4, None, 2)]
)
def test_two_cores_of_a_chip_share_a_stack(world_size: int, lnc: int | None, sharers: int) -> None:
    assert place_ranks(ULTRA, world_size, lnc=lnc).hbm_sharers == sharers


def test_spread_shares_no_stack() -> None:
    assert place_ranks(ULTRA, 64, "spread", lnc=1).hbm_sharers == 1


@pytest.mark.parametrize(
    ("world_size", "expected"), [(1, 1), (2, 2)], ids=["one rank", "two ranks"]
)
def test_cores_are_joined_for_several_ranks(world_size: int, expected: int) -> None:
    assert place_ranks(ULTRA, world_size).lnc == expected
    assert place_ranks(TRN1, world_size).lnc == 1


@pytest.mark.parametrize(
    ("world_size", "lnc", "message"),
    [
        (257, None, r"257 ranks do not fit trn2-ultra.* hold 256 \(with --lnc 1, 512\)"),
        (513, 1, "hold 512; choose a larger --system"),
        (2, 3, "1 or 2 physical ones"),
    ],
)
def test_what_does_not_fit_is_refused(world_size: int, lnc: int | None, message: str) -> None:
    with pytest.raises(SystemDescriptionError, match=message):
        place_ranks(ULTRA, world_size, lnc=lnc)


def test_all_places_can_be_taken() -> None:
    for lnc, count in ((1, 512), (2, 256)):
        placed = place_ranks(ULTRA, count, lnc=lnc)
        assert len(set(zip(placed.chips, placed.cores, strict=True))) == count


def test_cores_that_cannot_be_joined_are_refused() -> None:
    with pytest.raises(SystemDescriptionError, match="use --lnc 1"):
        place_ranks(TRN1, 2, lnc=2)


def test_a_table_places_rank_by_rank(tmp_path: Path) -> None:
    table = tmp_path / "ranks.csv"
    table.write_text("rank,chip,core\n1,0,3\n0,5,1\n")
    placed = place_ranks(ULTRA, 2, str(table))
    assert (placed.chips, placed.cores) == ((5, 0), (2, 6))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected the columns rank, chip, core"),
        ("rank;chip;core\n", "line 1: expected the columns"),
        ("rank,chip,core\n0,0\n", "line 2: '0,0' is not three whole numbers"),
        ("rank,chip,core\n0,0,x\n", "line 2: '0,0,x'"),
        ("rank,chip,core\n0,0,0\n0,0,1\n", "line 3: rank 0 again"),
        ("rank,chip,core\n0,0,0\n", r"no row for rank 1 \(1 of 2 are missing\)"),
        ("rank,chip,core\n0,0,0\n1,64,0\n", r"rank 1 on chip 64, core 0: there are chips 0\.\.63"),
        ("rank,chip,core\n0,0,0\n1,0,4\n", r"logical cores 0\.\.3"),
        ("rank,chip,core\n0,2,1\n1,2,1\n", "ranks 0 and 1 are both on chip 2, core 1"),
    ],
)
def test_a_broken_table_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "ranks.csv"
    table.write_text(text)
    with pytest.raises(SystemDescriptionError, match=message):
        place_ranks(ULTRA, 2, str(table))


@pytest.mark.parametrize("text", ["pack", "missing.csv", "."])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(SystemDescriptionError, match="placement"):
        parse_placement(text)
