"""trnprof systems: the list, one machine in full, two side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.runner import trnprof

from trnprof.emulator.system_files import list_systems

ALL = list_systems()


def lines_of(*arguments: str) -> list[str]:
    """What is printed: never wider than a terminal."""
    done = trnprof("systems", *arguments)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def test_all_are_listed_with_their_totals() -> None:
    lines = lines_of()
    rows = {line.split()[0]: line.split() for line in lines[2 : 2 + len(ALL)]}
    assert list(rows) == ALL
    # published: 144 chips, 362 PFLOP/s of FP8, 20.7 TB, 706 TB/s
    assert " ".join(rows["trn3-gen2"]) == "trn3-gen2 144 90.6 PF 362 PF 20.7 TB 706 TB/s 9.22 TB/s"
    # of Trainium4 only sizes and speeds of one chip were announced
    assert rows["trn4"][1] == "~144"
    assert any("gb200-nvl36x2" in line for line in lines[2 + len(ALL) :])


def test_the_list_as_json() -> None:
    document = json.loads(trnprof("systems", "--json").out)
    assert document["schema"] == 2
    assert document["tool_version"]
    assert [each["name"] for each in document["systems"]] == ALL


def test_one_is_shown_in_full() -> None:
    text = "\n".join(lines_of("show", "trn3-gen2"))
    for said in (
        "144 chips",
        "1,152",  # cores
        "20.74 TB",
        "705.6 TB/s",
        "362.4 PF",
        "2,517",  # sparse bfloat16, and MXFP8
        "NeuronCore-v4",
        "latency ~170 ns",
        "10 switches of 20 ports for each 18 chips (0, 4, 8 .. 68 first), 80 in all",
        "farthest 5 links",
        "9.216 TB/s",  # bisection
        "~15 µs from HBM to HBM",
        "– AWS lists no price of Trn3",
        "Trainium2's; never published for Trainium3",
        "core.dma.queue_slot_ns 865 ns",
    ):
        assert said in text, said


@pytest.mark.parametrize("name", ["h100-hgx", "trn4"])
def test_every_estimate_is_listed_with_its_reason(name: str) -> None:
    text = " ".join(" ".join(lines_of("show", name)).split())
    told = json.loads(trnprof("systems", "show", name, "--json").out)
    assert told["estimates"]
    for key, figure in told["estimates"].items():
        assert f"{key} " in text
        assert f"~ {figure['reason']}" in text


def test_a_comparator_has_no_engines() -> None:
    text = "\n".join(lines_of("show", "gb200-nvl36x2"))
    assert "Engines" not in text
    assert "roofline and fabric only" in text
    assert "18 switches of 72 ports for each 36 chips (0..35 first), 36 in all" in text


def test_instances_are_joined_over_efa() -> None:
    text = "\n".join(lines_of("show", "trn2-ultra", "--instances", "4"))
    assert "256 chips" in text
    assert "racks, an instance           2" in text
    assert "price an hour, an instance" in text
    assert "efa: switch over x, y, z, instance, 25 GB/s a link each way, ~6.5 µs" in text
    told = json.loads(trnprof("systems", "show", "trn2-ultra", "--instances", "4", "--json").out)
    assert told["chips"] == 256
    assert told["totals"]["scale_out_bytes_per_s"] == 4 * 12_800e9 / 8


def test_two_side_by_side() -> None:
    lines = lines_of("diff", "trn2", "trn2-ultra")
    rows = {
        line[2:36].strip(): (line[36:58].strip(), line[58:]) for line in lines if line[:1] == " "
    }
    assert rows["bisection_bytes_per_s"] == ("1.024 TB/s", "2.048 TB/s")
    assert rows["link_ns"] == ("–", "~300 ns")  # of z alone: x and y are the same
    assert rows["chips"] == ("16", "64")
    assert "clock_ghz" not in rows
    assert lines_of("diff", "trn2", "trn2") == ["trn2 and trn2 do not differ"]


def test_differences_as_json() -> None:
    document = json.loads(trnprof("systems", "diff", "trn2", "trn4", "--json").out)
    assert document["systems"] == ["trn2", "trn4"]
    found = {each["key"]: each for each in document["differences"]}
    assert found["chip.hbm_bytes"]["values"] == [96e9, 288e9]
    assert found["chip.hbm_bytes"]["is_estimate"] == [False, False]
    assert "chip.cores" not in found  # 8 of each, if only by estimate
    assert found["chips"]["is_estimate"] == [False, True]


def test_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "trn2"\nname = "mine"\n[chip]\n'
        'hbm_bytes = { value = 128e9, source = "me", estimate = true, reason = "planned" }\n'
    )
    assert any(
        line.startswith("HBM ") and "~128 GB" in line for line in lines_of("show", str(path))
    )
    assert any("~2.048 TB" in line for line in lines_of("diff", "trn2", str(path)))
    path.write_text('extends = "trn2"\n[chip]\ncores = 9\n')
    error = trnprof("systems", "show", path).only_error
    assert f"{path}:3: [chip] cores: a number needs its source" in error


def test_names_from_a_file_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "trn2"\nname = "red"\ndescription = "\\u001b[2J"\n[chip]\nname = "\\u001b]0;x"\n'
    )
    assert "\x1b" not in "\n".join(lines_of("show", str(path)))
    assert "\x1b" not in "\n".join(lines_of("diff", str(path), "trn2"))
    path.write_text('extends = "trn2"\nname = "two\\nlines"\n')
    for command in ("show", "diff"):
        others = ["trn2"] if command == "diff" else []
        error = trnprof("systems", command, path, *others).only_error
        assert f"{path}:2: [top level] name: expected one line" in error


@pytest.mark.parametrize("columns", [24, 40, 60, 79])
@pytest.mark.parametrize(
    "line",
    [
        "",
        "show trn2",
        "show trn3-gen2 --instances 2",
        "show gb200-nvl36x2",
        "show h100-hgx",
        "diff trn2 trn3-gen2",
        "diff trn2 h100-hgx",
    ],
)
def test_on_a_narrow_terminal_no_line_is_too_long(line: str, columns: int) -> None:
    wide, narrow = (
        trnprof("systems", *line.split(), env={"COLUMNS": str(width)}).out
        for width in (200, columns)
    )
    assert max(map(len, narrow.splitlines())) <= columns
    # figures and words are the same, but for columns of the list and names that are cut in the middle
    if line.startswith("show"):
        words = re.findall(r"[A-Za-z0-9.,]+", wide)
        told = re.sub(r"\s", "", narrow)
        assert [word for word in words if word not in told] == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("show trn5", "unknown system 'trn5': did you mean"),
        ("show none.toml", "none.toml: No such file"),
        ("show trn2 --instances 0", "0 instances: expected 1 or more"),
        ("show trn2 --instances 100000", "is too large; at most 65,536 chips"),
        ("show", "Missing argument 'SYSTEM'"),
        ("diff trn2", "Missing argument 'OTHER'"),
        ("shwo trn2", "No such command 'shwo'"),
    ],
)
def test_a_mistake_is_one_line(line: str, says: str) -> None:
    assert says in trnprof("systems", *line.split()).only_error


def test_a_comparator_is_not_emulated(tmp_path: Path) -> None:
    output = tmp_path / "x.trnprof"
    error = trnprof("record", "--system", "h100-hgx", "-o", output, "--", "true").only_error
    assert "only the roofline and the fabric of H100 SXM5" in error
    assert not output.exists()
