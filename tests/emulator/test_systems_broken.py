"""A user's own machine: what a file may leave out, what it takes over, and how it is told what is wrong."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from trnprof.emulator.figures import Description, is_figure
from trnprof.emulator.machine import load_machine, read_machine
from trnprof.emulator.system_files import list_systems
from trnprof.tracer.errors import SystemDescriptionError

MINIMAL = """schema = 2
name = "mine"
description = "two chips"
[chip]
name = "C"
hbm_bytes = { value = 1e9, source = "me" }
hbm_bytes_per_s = { value = 1e12, source = "me" }
[topology]
coordinates = ["a", "b"]
sizes = { value = [2, 3], source = "me" }
[topology.tiers.one]
kind = "switch"
spans = ["a", "b"]
link_bytes_per_s = { value = 1e9, source = "me" }
link_ns = { value = 5, source = "me" }
[scale_out]
network = "wire"
link_bytes_per_s = { value = 1e9, source = "me" }
link_ns = { value = 5, source = "me" }
switch_ns = { value = 5, source = "me" }
"""


def own(tmp_path: Path, text: str) -> str:
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(path: str) -> str:
    """What loading a file says; one line that begins with the file's name."""
    with pytest.raises(SystemDescriptionError) as caught:
        load_machine(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:")
    assert "\n" not in message
    return message.removeprefix(path)


def test_a_chip_and_a_fabric_are_a_machine(tmp_path: Path) -> None:
    machine = load_machine(own(tmp_path, MINIMAL))
    assert machine.topology.chips == 6
    assert machine.collectives is None
    assert machine.economics.usd_per_hour is None
    assert machine.economics.absent["usd_per_hour"] == "not in the description"
    assert (machine.chip.cores, machine.published.hbm_bytes) == (0, None)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"switch"', '"hub"', ":12: [topology.tiers.one] kind: expected one of ring, mesh, switch, found 'hub'"),
        ('spans = ["a", "b"]', 'spans = ["a", "c"]', ":13: [topology.tiers.one] spans: expected some of a, b, found 'c'"),
        ('spans = ["a", "b"]', 'spans = ["a"]', ":8: [topology] tiers: no tier spans 'b': chips are apart"),
        ('spans = ["a", "b"]', 'spans = ["a", "a"]', ":11: [topology.tiers] one: tier 'one': expected the names"),
        ('spans = ["a", "b"]', "spans = [1]", ":13: [topology.tiers.one] spans: expected a list of names, found [1]"),
        ('spans = ["a", "b"]', 'spans = "a"', ":13: [topology.tiers.one] spans: expected a list of names, found 'a'"),
        ('spans = ["a", "b"]', "spans = []", "spans: expected a list of names, found []"),
        ('spans = ["a", "b"]', 'spans = ["a", "b"]\nleaf = ["c"]', ":14: [topology.tiers.one] leaf: expected some of a, b, found 'c'"),
        ('spans = ["a", "b"]', 'spans = ["a", "b"]\nleaf = ["a"]', ":11: [topology.tiers] one: tier 'one': bandwidth of trunks"),
        ('spans = ["a", "b"]', 'spans = ["a", "b"]\nlaef = ["a"]', ":14: [topology.tiers.one] laef: unknown key; known are kind, spans"),
        ('"switch"', '"ring"', ":11: [topology.tiers] one: tier 'one': a ring spans one coordinate, not a, b"),
        ("[topology.tiers.one]", '[topology.tiers.one]\nswitches = { value = 0, source = "me" }', ":12: [topology.tiers.one] switches: must be positive"),
        ("[topology.tiers.one]", "[topology.tiers.one]\nports = 8", ":12: [topology.tiers.one] ports: a number needs its source"),
        ("[topology.tiers.one]", '[topology.tiers.one]\nports = { value = 7.5, source = "me" }', ":12: [topology.tiers.one] ports: expected a whole number"),
        ('["a", "b"]\nsizes', '["a", "a"]\nsizes', ":9: [topology] coordinates: coordinates a, a: two have the same name"),
        ('["a", "b"]\nsizes', '["a"]\nsizes', ":10: [topology] sizes: expected one a coordinate, 1, found 2"),
        ("value = [2, 3]", "value = [2, 0]", ":10: [topology] sizes: must be positive, found 0"),
        ("value = [2, 3]", "value = [2, 3.5]", ":10: [topology] sizes: expected a whole number, found 3.5"),
        ("value = [2, 3]", "value = []", ":10: [topology] sizes: expected a list of numbers"),
        ("value = [2, 3]", 'value = ["2", 3]', ":10: [topology] sizes: expected a number"),
        ("value = [2, 3]", "value = [20000, 30000]", ":9: [topology] coordinates: a fabric of 600,000,000 chips is too large"),
        ('{ value = [2, 3], source = "me" }', "[2, 3]", ":10: [topology] sizes: a number needs its source"),
        ("value = 1e9, source = \"me\" }\nlink_ns", "value = 0, source = \"me\" }\nlink_ns", ":14: [topology.tiers.one] link_bytes_per_s: must be positive"),
        ("link_ns = { value = 5", "link_ns = { value = 1e13", ":11: [topology.tiers] one: tier 'one': latency of 1e+13 ns"),
        ("[topology.tiers.one]", "[topology.tires.one]", "[topology] tires: unknown key; known are coordinates, sizes"),
        ("coordinates =", "cordinates =", "cordinates: unknown key; known are coordinates, sizes"),
        ("[scale_out]", "[scaleout]", ":16: [top level] scaleout: unknown key; known are schema, name"),
        ('network = "wire"\n', "", ":16: [scale_out] network: missing"),
        ('"wire"', "3", ":17: [scale_out] network: expected text, found 3"),
        ('name = "C"\n', 'name = "C"\nprinted_dense_flops = 3\n', ":6: [chip] printed_dense_flops: expected a table, found 3"),
        ('name = "C"\n', 'name = "C"\nprinted_dense_flops.float8 = { value = 3 }\n', ":6: [chip.printed_dense_flops] float8: a figure without source"),
        ('name = "C"\n', 'name = "C"\nprinted_dense_flops = "much"\n', ":6: [chip] printed_dense_flops: expected a table, found 'much'"),
    ],
)  # fmt: skip
def test_a_wrong_topology_names_file_line_table_and_key(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert MINIMAL.count(old) >= 1
    assert said in refusal(own(tmp_path, MINIMAL.replace(old, new, 1)))


SWITCHED = """extends = "trn2"
[topology]
coordinates = ["chip", "rack"]
sizes = { value = [64, 2], source = "me" }
[topology.tiers.one]
kind = "switch"
spans = ["chip", "rack"]
leaf = ["chip"]
trunk_bytes_per_s = { value = 1e9, source = "me" }
link_bytes_per_s = { value = 1e9, source = "me" }
link_ns = { value = 5, source = "me" }
switch_ns = { value = 5, source = "me" }
switches = { value = 3, source = "me" }
ports = { value = 65, source = "me" }
"""


def test_switches_have_a_port_for_each_chip_and_one_to_the_others(tmp_path: Path) -> None:
    where = ": [topology.tiers.one] "
    assert load_machine(own(tmp_path, SWITCHED)).topology.tiers[0].ports == 65
    said = refusal(own(tmp_path, SWITCHED.replace("value = 65", "value = 64")))
    assert f"{where}ports: 64 chips and a way to the other switches need 65 ports" in said
    one_level = re.sub("(leaf|trunk_bytes_per_s) = .*\n", "", SWITCHED)
    said = refusal(own(tmp_path, one_level))
    assert f"{where}ports: 128 chips need 128 ports of each switch, found 65" in said
    ring = one_level.replace('"switch"', '"mesh"')
    assert f"{where}switches: a mesh has no switches" in refusal(own(tmp_path, ring))
    assert f"{where}switches: must be positive" in refusal(
        own(tmp_path, SWITCHED.replace("value = 3", "value = 0"))
    )


def test_what_is_taken_over_says_of_what_it_is(tmp_path: Path) -> None:
    mine, base = load_machine(own(tmp_path, SWITCHED)), load_machine("trn2")
    assert mine.name == "trn2, changed"
    assert mine.description == f"based on trn2: {base.description}"
    assert (base.economics.racks, mine.economics.racks) == (1, None)
    assert mine.economics.chip_power_w == base.economics.chip_power_w
    assert mine.economics.absent["racks"] == "that of trn2 is for its own chips"
    told = load_machine(own(tmp_path, f'name = "m"\ndescription = "d"\n{SWITCHED}'))
    assert (told.name, told.description) == ("m", "d")


COSTS = """[collectives]
start_ns = { value = 1, source = "me" }
post_ns = { value = 1, source = "me" }
dma_start_ns = { value = 1, source = "me" }
dma_done_ns = { value = 1, source = "me" }
cc_cores = { value = 1, source = "me" }
dma_bytes_per_s = { value = 1, source = "me" }
reduce_touches = { value = 1, source = "me" }
direct_below_bytes = { value = 1, source = "me" }
halving_doubling_below_bytes = { value = 1, source = "me" }
"""
WORTH = """[economics]
racks = { value = 1, source = "me" }
chip_power_w = { value = 1, source = "me" }
rack_power_w = { value = 1, source = "me" }
usd_per_hour = { value = 1, source = "me" }
usd_per_chip_hour = { value = 1, source = "me" }
absent.chip_capex_usd = "built at home"
"""


@pytest.mark.parametrize(
    ("table", "old", "new", "said"),
    [
        (COSTS, "cc_cores = { value = 1", "cc_cores = { value = 1.5", ":26: [collectives] cc_cores: expected a whole number"),
        (COSTS, 'post_ns = { value = 1, source = "me" }\n', "", ":21: [collectives] post_ns: missing"),
        (COSTS, "reduce_touches", "reduce_touch", "reduce_touch: unknown key; known are start_ns"),
        (WORTH, 'absent.chip_capex_usd = "built at home"', "", ':21: [economics] chip_capex_usd: missing: give a figure, or the reason why there is none: absent.chip_capex_usd = "…"'),
        (WORTH, "absent.chip_capex_usd", "absent.racks", ":27: [economics.absent] racks: there is a figure too"),
        (WORTH, "absent.chip_capex_usd", "absent.price", ":27: [economics.absent] price: unknown key; known are racks"),
        (WORTH, '"built at home"', '""', ":27: [economics.absent] chip_capex_usd: expected text, found ''"),
        (WORTH, '"built at home"', "4", ":27: [economics.absent] chip_capex_usd: expected text, found 4"),
        (WORTH, "racks = { value = 1", "racks = { value = 1.5", ":22: [economics] racks: expected a whole number"),
        (WORTH, "absent.chip_capex_usd", "absent", "absent: expected a table, found 'built at home'"),
        ('[published]\nhbm_bytes = { value = 1, source = "me" }\n', "hbm_bytes", "hbm", ":22: [published] hbm: unknown key; known are hbm_bytes"),
        ('[published.dense_flops]\nfloat8 = { value = 1, source = "me" }\n', "value = 1", 'value = "1"', ":22: [published.dense_flops] float8: expected a number"),
        ('[published.dense_flops]\nfloat8 = { value = 1, source = "me" }\n', ', source = "me"', "", ":22: [published.dense_flops] float8: a figure without source"),
    ],
)  # fmt: skip
def test_a_wrong_table_names_file_line_table_and_key(
    tmp_path: Path, table: str, old: str, new: str, said: str
) -> None:
    load_machine(own(tmp_path, MINIMAL + table))
    assert table.count(old) == 1
    assert said in refusal(own(tmp_path, MINIMAL + table.replace(old, new)))


def test_a_core_needs_all_of_its_tables(tmp_path: Path) -> None:
    text = (files("trnprof.emulator.systems") / "trn2.toml").read_text(encoding="utf-8")
    start, end = text.index("[core.vector]"), text.index("[core.scalar]")
    assert "[core] vector: this table is missing" in refusal(
        own(tmp_path, text[:start] + text[end:])
    )
    assert "bfloat16: missing" in refusal(own(tmp_path, text.replace("\nbfloat16 =", "\nbf16 =")))


def test_a_topology_with_coordinates_is_another_one(tmp_path: Path) -> None:
    start = MINIMAL.index("[topology]")
    text = 'extends = "trn2"\nname = "mine"\n' + MINIMAL[start : MINIMAL.index("[scale_out]")]
    mine, base = load_machine(own(tmp_path, text)), load_machine("trn2")
    assert [tier.name for tier in mine.topology.tiers] == ["one"]
    assert (mine.chip, mine.collectives) == (base.chip, base.collectives)


def test_a_topology_without_coordinates_is_changed_key_by_key(tmp_path: Path) -> None:
    text = (
        'extends = "trn2"\n[topology.tiers.y]\nlink_bytes_per_s = { value = 1e9, source = "me" }\n'
    )
    mine, base = load_machine(own(tmp_path, text)), load_machine("trn2")
    assert [tier.link_bytes_per_s for tier in mine.topology.tiers] == [128e9, 1e9]
    assert mine.topology.tiers[0] == base.topology.tiers[0]


def test_totals_printed_for_another_machine_are_not_taken_over(tmp_path: Path) -> None:
    assert load_machine("trn2").published.hbm_bytes is not None
    mine = load_machine(own(tmp_path, 'extends = "trn2"\nname = "mine"\n'))
    assert mine.published.hbm_bytes is None
    assert mine.published.dense_flops == {}


def test_a_figure_takes_the_place_of_a_reason_and_a_reason_that_of_a_figure(tmp_path: Path) -> None:
    text = """extends = "trn2"
[economics]
usd_per_hour = { value = 30, source = "my bill" }
absent.chip_power_w = "the meter is broken"
"""
    base, mine = load_machine("trn2").economics, load_machine(own(tmp_path, text)).economics
    assert (base.usd_per_hour, base.chip_power_w) == (None, 500)
    assert (mine.usd_per_hour, mine.chip_power_w) == (30, None)
    assert set(mine.absent) == {"usd_per_chip_hour", "chip_power_w"}
    assert mine.rack_power_w == base.rack_power_w


@pytest.mark.parametrize("table", ["economics", "topology", "published", "chip", "core"])
def test_text_in_place_of_a_table(tmp_path: Path, table: str) -> None:
    assert table in refusal(own(tmp_path, f'extends = "trn2"\n{table} = "x"\n'))


def test_the_example_of_the_documentation_is_what_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "systems.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    mine = load_machine(own(tmp_path, text))
    assert mine.chip.hbm_bytes_per_s == 3.2e12
    assert [tier.link_bytes_per_s for tier in mine.topology.tiers] == [256e9, 128e9]
    (said,) = re.findall(r"`mine\.toml(:.*?)`", page)
    assert said == refusal(own(tmp_path, text.replace("3.2e12", "0")))
    rows = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == list_systems()


TOP_LEVEL = ("schema", "name", "description")
"""Checked where the file is opened."""


def leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every table, figure and text of a description."""
    for key, value in table.items():
        yield (*path, key)
        if isinstance(value, dict) and not is_figure(value):
            yield from leaves(value, (*path, key))


def test_a_value_of_another_type_is_told_what_was_expected() -> None:
    own_text = (files("trnprof.emulator.systems") / "trn2.toml").read_text(encoding="utf-8")
    paths = [path for path in leaves(tomllib.loads(own_text)) if path[0] not in TOP_LEVEL]
    assert len(paths) > 80
    for path in paths:
        for wrong in (True, 5, [], [True]):
            table = tomllib.loads(own_text)
            inner = table
            for part in path[:-1]:
                inner = inner[part]
            inner[path[-1]], right = wrong, inner[path[-1]]
            with pytest.raises(SystemDescriptionError) as caught:
                read_machine(Description(Path("own.toml"), table, own_text))
            said = str(caught.value)
            is_number = isinstance(right, dict) and "value" in right
            needs_source = wrong == 5 and is_number and not isinstance(right["value"], list)
            expected = "a number needs its source" if needs_source else "expected "
            assert f"{path[-1]}: {expected}" in said, (path, wrong)


@pytest.mark.parametrize("key", ["name", "description"])
def test_text_of_the_top_level_is_text(key: str, tmp_path: Path) -> None:
    text = re.sub(rf"(?m)^{key} = .*$", f"{key} = 3", MINIMAL)
    assert f"[top level] {key}: expected text, found 3" in refusal(own(tmp_path, text))
    text = re.sub(rf"(?m)^{key} = .*$", "", MINIMAL)
    assert f"[top level] {key}: missing" in refusal(own(tmp_path, text))


def test_a_name_is_one_line(tmp_path: Path) -> None:
    for name in (r"two\nlines", r"red\u001b[31m"):
        text = MINIMAL.replace('name = "mine"', f'name = "{name}"')
        assert "[top level] name: expected one line" in refusal(own(tmp_path, text))


def test_a_figure_has_no_other_keys(tmp_path: Path) -> None:
    text = MINIMAL.replace("hbm_bytes = { value", "hbm_bytes = { unit = 1, value")
    assert "[chip] hbm_bytes: a figure with 'unit'; it may have value, source" in refusal(
        own(tmp_path, text)
    )
