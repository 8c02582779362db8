"""System descriptions: published totals, sources of every figure, and what a user's own file may get wrong."""

from __future__ import annotations

import copy
import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trnprof.emulator.system import System, load_system
from trnprof.emulator.system_files import list_systems
from trnprof.tracer.errors import SystemDescriptionError

NAMES = [
    "trn1",
    "trn2",
    "trn2-ultra",
    "trn3-gen1",
    "trn3-gen1-pcie320",
    "trn3-gen2",
    "trn3-gen2-awsdocs",
    "trn3-gen2-pcie320",
    "trn3-gen2-ualink",
    "trn4",
]
COMPARATORS = ["gb200-nvl36x2", "gb200-nvl72", "gb300-nvl72", "h100-hgx"]
TRN2_TEXT = (files("trnprof.emulator.systems") / "trn2.toml").read_text(encoding="utf-8")
TRN2_TABLE = tomllib.loads(TRN2_TEXT)


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    """What loading a file says; one line, with the file's name."""
    with pytest.raises(SystemDescriptionError) as caught:
        load_system(str(path))
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def test_these_come_with_trnprof() -> None:
    assert list_systems() == [*COMPARATORS, *NAMES]


@pytest.mark.parametrize(
    ("name", "bfloat16", "float32", "float8"),
    [
        ("trn1", 91.75, 22.94, None),
        ("trn2", 78.64, 19.66, 157.3),
        ("trn2-ultra", 78.64, 19.66, 157.3),
        ("trn3-gen1", 78.64, 19.66, 314.6),
        ("trn3-gen2", 78.64, 19.66, 314.6),
    ],
)
def test_published_peaks_of_a_core(
    name: str, bfloat16: float, float32: float, float8: float | None
) -> None:
    # NKI guides: 92 / 79 TFLOP/s bf16, 23 / 20 fp32, 158 fp8; to four digits 128 x 128 x 2 x clock
    tensor = load_system(name).core.tensor
    assert tensor.peak_flops() / 1e12 == pytest.approx(bfloat16, rel=1e-3)
    assert tensor.peak_flops("float32") / 1e12 == pytest.approx(float32, rel=1e-3)
    if float8 is not None:
        assert tensor.peak_flops("float8") / 1e12 == pytest.approx(float8, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "cores", "hbm_gb", "bandwidth", "chips", "engines", "sbuf_mib"),
    [
        ("trn1", 2, 32, 0.82e12, 16, 32, 48),
        ("trn2", 8, 96, 2.9e12, 16, 128, 224),
        ("trn2-ultra", 8, 96, 2.9e12, 64, 128, 224),
        ("trn3-gen1", 8, 144, 4.9e12, 64, 128, 256),
        ("trn3-gen2", 8, 144, 4.9e12, 144, 128, 256),
    ],
)  # fmt: skip
def test_published_totals_of_a_chip(
    name: str, cores: int, hbm_gb: int, bandwidth: float, chips: int, engines: int, sbuf_mib: int
) -> None:
    system = load_system(name)
    assert system.chip.cores == cores
    assert system.chip.hbm_bytes == pytest.approx(hbm_gb * 1e9, rel=0.08)  # printed as GiB by some
    assert system.chip.hbm_bytes_per_s == bandwidth
    assert system.topology.chips == chips
    assert system.core.dma.engines * cores == engines
    assert (
        system.core.sbuf_partitions * system.core.sbuf_bytes_per_partition * cores == sbuf_mib << 20
    )
    assert system.core.psum_banks * 512 * 4 == system.core.psum_bytes_per_partition
    assert system.hbm_bytes_per_core * cores <= system.chip.hbm_bytes
    # one stack, as Neuron Explorer's denominator: 410 GB/s on Trainium1, about 716 to 725 on Trainium2, 1,225 on 3
    expected = {"trn1": 410e9, "trn2": 725e9, "trn3": 1225e9}[name[:4]]
    assert system.hbm_bytes_per_s_per_core == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source_and_every_estimate_a_reason(name: str) -> None:
    system = load_system(name)
    assert len(system.figures) > 50
    for key, figure in system.figures.items():
        assert figure.source.strip(), key
        assert not figure.estimate or figure.reason.strip(), key
    assert set(system.estimates) == {k for k, f in system.figures.items() if f.estimate}
    assert len(system.estimates) > 0
    assert len(system.estimates) < len(system.figures) / 2 or name == "trn4"


@pytest.mark.parametrize("name", NAMES)
def test_the_description_is_plain_data(name: str) -> None:
    described = load_system(name).describe()
    assert json.loads(json.dumps(described)) == json.loads(json.dumps(described))
    assert described["topology"]["chips"] == load_system(name).topology.chips
    assert described["figures"]["core.tensor.clock_ghz"]["source"]


def test_extends_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    text = """
extends = "trn2"
name = "mine"
[sources]
ME = "my bench"
[chip]
hbm_bytes_per_s = { value = 3.2e12, source = "ME", estimate = true, reason = "planned" }
[core.tensor.cycles_per_column]
int4 = { value = 0.25, source = "ME" }
"""
    base, mine = load_system("trn2"), load_system(str(own(tmp_path, text)))
    assert mine.chip.hbm_bytes_per_s == 3.2e12
    assert (mine.core.vector, mine.core.dma, mine.topology) == (
        base.core.vector,
        base.core.dma,
        base.topology,
    )
    assert mine.core.tensor.peak_flops("int4") == 4 * base.core.tensor.peak_flops()
    assert "chip.hbm_bytes_per_s" in mine.estimates
    assert mine.sources == {**base.sources, "ME": "my bench"}
    assert (mine.name, mine.description) == ("mine", f"based on trn2: {base.description}")


def test_a_figure_is_replaced_whole(tmp_path: Path) -> None:
    text = 'extends = "trn2"\n[core]\nsemaphore_ns = { value = 40, source = "measured" }\n'
    mine = load_system(str(own(tmp_path, text)))
    assert "core.semaphore_ns" in load_system("trn2").estimates
    assert "core.semaphore_ns" not in mine.estimates


def test_trn2_ultra_is_trn2_with_more_chips() -> None:
    ultra, base = load_system("trn2-ultra"), load_system("trn2")
    assert (ultra.core, ultra.chip) == (base.core, base.chip)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = 1\nname = ", "line 2"),
        ("schema = 1\n[chip\n", "line 2"),
        ("x = " + "9" * 5000, "not valid TOML"),
        ("x = " + "[" * 5000, "not valid TOML"),
        ("", "schema"),
        ("schema = 1", ":1: [top level] schema: expected 2, found 1"),
        ('extends = "trn9"', ":1: [top level] extends: expected one of gb200-nvl36x2, gb200-nvl72"),
        ("extends = 3", "extends: expected one of"),
        ('extends = "trn2"\n\n[chip]\ncores = 8', ":4: [chip] cores: a number needs its source"),
        ('extends = "trn2"\n[chip]\ncores = { value = 8 }', ":3: [chip] cores: a figure without source"),
        ('extends = "trn2"\n[chip]\ncores = { value = 8, source = 7 }', "a figure without source"),
        ('extends = "trn2"\n[chip]\ncores = { source = "x" }', "[chip] cores: a figure without value"),
        ('extends = "trn2"\n[chip]\ncores = { value = 8, source = "x", estimate = true }', "an estimate without its reason"),
        ('extends = "trn2"\n[chip]\ncores = { value = 7.5, source = "x" }', "expected a whole number, found 7.5"),
        ('extends = "trn2"\n[chip]\ncores = { value = "8", source = "x" }', "expected a number of 0 or more, found '8'"),
        ('extends = "trn2"\n[chip]\ncores = { value = true, source = "x" }', "expected a number of 0 or more, found true"),
        ('extends = "trn2"\n[chip]\ncores = { value = nan, source = "x" }', "found nan"),
        ('extends = "trn2"\n[chip]\nhbm_bytes_per_s = { value = inf, source = "x" }', "found inf"),
        ('extends = "trn2"\n[chip]\ncores = { value = -8, source = "x" }', "found -8"),
        ('extends = "trn2"\n[chip]\ncores = { value = 0, source = "x" }', ":3: [chip] cores: must be positive, found 0"),
        ('extends = "trn2"\n[core.dma]\nread_bytes_per_s_per_engine = { value = 0, source = "x" }', "must be positive"),
        ('extends = "trn2"\n[core.tensor]\nclock_ghz = { value = 0.0, source = "x" }', "must be positive"),
        ('extends = "trn2"\n[chip]\ncroes = { value = 8, source = "x" }', ":3: [chip] croes: unknown key; known are name, cores, hbm_bytes"),
        ('extends = "trn2"\n[chpi]\ncores = { value = 8, source = "x" }', "chpi: unknown key; known are schema, name"),
        ('extends = "trn2"\nname = ""', "name: expected text, found ''"),
        ('extends = "trn2"\nsources = "x"', "sources: expected a table"),
        ('extends = "trn2"\nchip = "x"', "chip"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(own(tmp_path, text))


def test_a_missing_key_names_its_table(tmp_path: Path) -> None:
    text = "\n".join(line for line in TRN2_TEXT.splitlines() if not line.startswith("psum_banks"))
    line = text.splitlines().index("[core]") + 1
    assert refusal(own(tmp_path, text)) == f":{line}: [core] psum_banks: missing"


@pytest.mark.parametrize(
    ("name", "near"),
    [("trn3", "trn"), ("trn2ultra", "trn2-ultra"), ("tnr1", "trn1"), ("h100", "h100-hgx")],
)
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    with pytest.raises(SystemDescriptionError, match=f"did you mean '{near}") as caught:
        load_system(name)
    assert f"known are {', '.join([*COMPARATORS, *NAMES])}" in str(caught.value)


def test_a_name_like_nothing_gets_no_suggestion() -> None:
    with pytest.raises(SystemDescriptionError) as caught:
        load_system("Cerebras")
    assert "did you mean" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    assert "directory" in refusal(tmp_path / "folder.toml")
    latin = tmp_path / "latin.toml"
    latin.write_bytes('name = "Größe"'.encode("latin-1"))
    assert "not UTF-8" in refusal(latin)


def dump(value: Any) -> str:
    """TOML of plain data, on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {dump(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    if isinstance(value, float) and value != value:
        return "nan"
    return json.dumps(value).replace("Infinity", "inf")


def places(table: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in table.items():
        found.append((*prefix, key))
        if isinstance(value, dict):
            found += places(value, (*prefix, key))
    return found


PLACES = places(TRN2_TABLE)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**6), st.floats(), st.text(max_size=5), st.just([]),
    st.lists(st.floats(0, 10), max_size=3), st.just({}), st.just({"value": 1}), st.just(10**400),
    st.fixed_dictionaries({"value": st.one_of(st.integers(0, 9), st.floats()), "source": st.just("x")}),
)  # fmt: skip


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(["", "x", "drop"]), VALUES),
        min_size=1,
        max_size=3,
    )
)
def test_any_change_loads_or_is_refused_with_its_file(
    tmp_path: Path, changes: list[tuple[tuple[str, ...], str, Any]]
) -> None:
    table: dict[str, Any] = copy.deepcopy(TRN2_TABLE)
    for place, change, value in changes:
        inner: Any = table
        for part in place[:-1]:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            continue
        if change == "drop" or value is None:
            inner.pop(place[-1], None)
        else:
            inner[place[-1] + change] = value
    path = own(tmp_path, "\n".join(f"{json.dumps(k)} = {dump(v)}" for k, v in table.items()))
    try:
        system: System | str = load_system(str(path))
    except SystemDescriptionError as error:
        system = str(error)
    if isinstance(system, System):
        assert json.dumps(system.describe())
    else:
        assert str(path) in system
        assert "\n" not in system
