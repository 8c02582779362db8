"""The surest format wins; what is no profile is said with what to do; other packages can add formats and cannot break others."""

from __future__ import annotations

import gzip
import pickle
import sqlite3
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tracer.ingest.named_files import ALPHA, BETA, FORMATS, write

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.ingest import detect, registry
from trnprof.tracer.ingest.detect import Profiles, choose_profiles
from trnprof.tracer.ingest.inputs import find_sources
from trnprof.tracer.ingest.registry import Registry, format_named
from trnprof.tracer.ingest.source import Format, Head


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Format]:
    """Three invented formats, which a test may add to, and a folder to work in."""
    formats = dict(FORMATS)
    missing = {"gamma": "format gamma needs libgamma, which is not installed"}
    invented = Registry(formats, missing)
    monkeypatch.setattr(detect, "registry", lambda: invented)
    monkeypatch.setattr(registry, "registry", lambda: invented)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return formats


def choose(*paths: str, wanted: str | None = None) -> Profiles:
    return choose_profiles(paths, workspace=Path(".."), wanted=wanted)


def chosen(found: Profiles) -> dict[str, str]:
    return {profile.source.label: profile.format.name for profile in found.profiles}


@pytest.mark.usefixtures("known")
def test_the_surest_format_is_chosen_by_content() -> None:
    write(Path("run"), ["a.json.gz"], gzip.compress(ALPHA))
    # alpha too has an idea of it, beta a better one
    write(Path("run"), ["b.alpha"], BETA)
    write(Path("run/t"), ["Main.parquet"])
    found = choose("run")
    assert chosen(found) == {"run/a.json.gz": "alpha", "run/b.alpha": "beta", "run/t": "tables"}
    assert found.findings == ()
    by_size = {profile.source.label: profile.expected_bytes for profile in found.profiles}
    assert by_size["run/b.alpha"] == len(BETA)
    for profile in found.profiles:
        assert detect.detect(profile.source) is profile.format
        # they go to other processes
        assert pickle.loads(pickle.dumps(profile.source)).label == profile.source.label


@pytest.mark.usefixtures("known")
def test_the_size_after_decompression_is_foretold() -> None:
    write(Path(), ["a.gz"], gzip.compress(ALPHA * 100_000))
    (profile,) = choose("a.gz").profiles
    assert profile.expected_bytes == pytest.approx(len(ALPHA) * 100_000, rel=0.2)


@pytest.mark.usefixtures("known")
def test_a_mixed_directory_gives_what_is_known_and_tells_the_rest() -> None:
    write(Path("run"), ["rank0.bin", "rank1.bin"])
    write(Path("run"), ["README", "page.html"], b"<!DOCTYPE html>")
    found = choose("run")
    assert list(chosen(found)) == ["run/rank0.bin", "run/rank1.bin"]
    (finding,) = found.findings
    assert (finding.kind, finding.severity, finding.count) == ("unknown_format", "note", 2)
    assert finding.where == "run"
    assert "run/page.html is a web page" in finding.example
    # what the user named himself is more than a note
    (finding,) = choose("run/rank0.bin", "run/README").findings
    assert (finding.severity, finding.where) == ("warning", "run/README")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("packed", [False, True])
def test_an_empty_file_of_a_rank_is_a_missing_rank(packed: bool) -> None:
    write(Path("run"), ["rank0.bin", "rank2.bin"])
    write(Path("run"), ["rank1.bin"], gzip.compress(b"") if packed else b"")
    write(Path("run"), ["stdout_rank0.log", "rank0.err"], b"")
    for found in (choose("run"), choose(*(f"run/rank{n}.bin" for n in range(3)))):
        assert list(chosen(found)) == ["run/rank0.bin", "run/rank2.bin"]
        missing = [f for f in found.findings if f.kind == "missing_ranks"]
        assert [(f.severity, f.where) for f in missing] == [("warning", "run/rank1.bin")]
        assert missing[0].message.startswith("rank 1 is missing: its file is empty (0 bytes)")
        # logs of a rank that is there are not worth a warning
        assert all(f.severity == "note" for f in found.findings if f not in missing)
    with pytest.raises(ProfileError, match=r"^run/rank1\.bin is empty \(0 bytes\)$"):
        choose("run/rank1.bin")


@pytest.mark.usefixtures("known")
def test_a_file_of_which_nothing_is_left() -> None:
    write(Path("run"), ["rank0.bin"])
    write(Path("run"), ["rank1.bin"], gzip.compress(ALPHA)[:13])
    (finding,) = choose("run").findings
    assert finding.kind == "missing_ranks"
    assert "is cut off before its format can be told: gzip: cut off" in finding.message
    with pytest.raises(
        ProfileError, match="is cut off before its format can be told: gzip: cut off"
    ):
        choose("run/rank1.bin")
    write(Path("run"), ["rank1.bin"], gzip.compress(ALPHA)[:10])
    with pytest.raises(ProfileError, match="cannot be decompressed at all: gzip: cut off"):
        choose("run/rank1.bin")


@pytest.mark.usefixtures("known")
def test_a_wanted_format_is_forced_on_files_that_are_named() -> None:
    write(Path("run"), ["a"])
    write(Path("run"), ["b"], BETA)
    write(Path("run"), ["c"], b"something")
    assert chosen(choose("run/c", wanted="beta")) == {"run/c": "beta"}
    # of a directory only those that look like it
    found = choose("run", wanted="beta")
    assert chosen(found) == {"run/b": "beta"}
    (finding,) = found.findings
    assert (finding.kind, finding.count) == ("unknown_format", 2)
    assert "does not look like beta; name the file itself" in finding.example
    with pytest.raises(ProfileError, match=r"^unknown format 'btea': did you mean 'beta'"):
        choose("run", wanted="btea")
    with pytest.raises(ProfileError, match=r"^format gamma needs libgamma"):
        choose("run", wanted="gamma")
    write(Path("run"), ["empty"], b"")
    with pytest.raises(ProfileError, match="run/empty is empty"):
        choose("run/empty", wanted="beta")


@pytest.mark.usefixtures("known")
def test_a_table_that_is_named_stands_for_its_directory() -> None:
    write(Path("run"), ["Main.parquet", "Other.parquet"], b"PAR1....")
    assert chosen(choose("run/Main.parquet", "run/Other.parquet")) == {"run": "tables"}
    assert chosen(choose("run/*.parquet")) == {"run": "tables"}
    write(Path("loose"), ["x.parquet"], b"PAR1....")
    with pytest.raises(ProfileError, match=r"loose/x\.parquet is a table; .* their directory"):
        choose("loose/x.parquet")


@pytest.mark.usefixtures("known")
def test_nothing_to_import_is_one_line() -> None:
    Path("empty").mkdir()
    with pytest.raises(ProfileError, match=r"^empty: there is no profile in it$"):
        choose("empty")
    write(Path("run"), ["a", "b"], b"\0\1\2?")
    with pytest.raises(
        ProfileError,
        match=r"run/a is of no known format \(it begins with '␀␁␂\?'\); known formats: alpha, beta, tables \(and 1 more",
    ):
        choose("run")
    Path("links").mkdir()
    Path("links/gone").symlink_to("nowhere")
    with pytest.raises(ProfileError, match=r"links: there is no profile in it \(.*links/gone"):
        choose("links")


def zipped(names: tuple[str, ...]) -> bytes:
    with zipfile.ZipFile("z", "w") as archive:
        for name in names:
            archive.writestr(name, b"\x80\x02}q\x00.")
    return Path("z").read_bytes()


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.ntff", b"\0\1", "neuron-explorer view -n NEFF -s NTFF --output-format parquet"),
        ("a.neff", b"\0\1", "neuron-explorer capture -n NEFF"),
        ("a.nsys-rep", b"\0\1", "nsys export --type sqlite"),
        ("a.qdrep", b"\0\1", "nsys export --type sqlite"),
        ("a.qdstrm", b"\0\1", "nsys import"),
        ("a.ncu-rep", b"\0\1", "nsys profile"),
        ("a.bin", pickle.dumps({"a": 1}), "pickle, which is never read"),
        ("a.pkl", b"(dp0\n.", "pickle, which is never read"),
        ("a.json", b"\n <HTML><body>please log in", "a web page"),
        ("a.json", b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        ("a.h5", b"\x89HDF\r\n", "nsys export --type sqlite"),
        ("a.json", b'\xef\xbb\xbf {"nodes": []}', "JSON, but neither trace events"),
        ("a.csv.xz", b"Start (ns),End (ns)", "import the profile that it was made of"),
        ("a.et", b"\x07\x0a\x05", "an execution trace of Chakra"),
        ("a.out", b"\x7fELF", "is a program"),
        ("a.txt", b"hello", "is of no known format (it begins with 'hello')"),
    ],
)
def test_what_is_no_profile_is_told_with_what_to_do(name: str, data: bytes, says: str) -> None:
    Path(name).write_bytes(data)
    with pytest.raises(ProfileError) as error:
        choose(name)
    assert says in str(error.value)
    assert str(error.value).startswith(f"{name} is ")
    # where it is known what it is, other formats are of no interest
    assert ("known formats: alpha, beta, tables" in str(error.value)) == ("no known" in says)


@pytest.mark.usefixtures("known")
def test_a_checkpoint_and_a_foreign_database() -> None:
    Path("model.pt").write_bytes(zipped(("model/data.pkl", "model/data/0")))
    with pytest.raises(ProfileError, match=r"model\.pt!model/data\.pkl is a Python pickle"):
        choose("model.pt")
    with sqlite3.connect("notes.db") as database:
        database.execute("CREATE TABLE notes (text TEXT)")
    database.close()
    with pytest.raises(ProfileError, match="an SQLite database, but with none of the tables"):
        choose("notes.db")


def test_a_format_that_fails_when_asked_spoils_nothing(known: dict[str, Format]) -> None:
    def fails(head: Head) -> int:
        raise RuntimeError(f"bad {head.name}")

    known["broken"] = Format("broken", "Broken", fails, FORMATS["alpha"].read)
    write(Path(), ["a"])
    found = choose("a")
    assert chosen(found) == {"a": "alpha"}
    (finding,) = found.findings
    assert (finding.kind, finding.where) == ("broken_format", "format broken")
    assert "RuntimeError: bad a" in finding.example


PLUGINS = {
    "good": "from tests.tracer.ingest.named_files import FORMATS\nFORMAT = FORMATS['alpha']\n",
    "raises": "raise RuntimeError('no \\x1b[31mway')\n",
    "other": "FORMAT = 'a string'\n",
    "needs": "import a_library_that_is_not_there\n",
}


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution on the path as pip leaves one, whose entry points are mostly broken."""
    info = tmp_path / "formats_of_others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: formats-of-others\nVersion: 1.0\n")
    points = [f"{name} = others_{name}:FORMAT" for name in PLUGINS]
    (info / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *points]))
    for name, text in PLUGINS.items():
        (tmp_path / f"others_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    registry.registry.cache_clear()
    yield
    registry.registry.cache_clear()
    for name in PLUGINS:
        sys.modules.pop(f"others_{name}", None)


@pytest.mark.usefixtures("plugins")
def test_other_packages_add_formats_and_broken_ones_are_told(tmp_path: Path) -> None:
    assert format_named("alpha") is FORMATS["alpha"]
    findings = registry.registry().findings
    assert {f.where for f in findings} == {"format raises", "format other", "format needs"}
    assert all((f.kind, f.severity) == ("broken_format", "note") for f in findings)
    assert any("formats-of-others: RuntimeError: no ␛[31mway" in f.example for f in findings)
    for name, why in (
        ("raises", "RuntimeError: no ␛"),
        ("other", "TypeError"),
        ("needs", "a_library"),
    ):
        with pytest.raises(ProfileError, match=f"^format {name} of formats-of-others .*{why}"):
            format_named(name)
    write(tmp_path, ["a.bin"])
    found = choose_profiles([tmp_path / "a.bin"], workspace=tmp_path)
    assert [p.format.name for p in found.profiles] == ["alpha"]
    assert {f.kind for f in found.findings} == {"broken_format"}


def test_a_built_in_format_that_needs_a_library_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BUILT_IN", {"new": "a_module_that_is_not_there"})
    registry.registry.cache_clear()
    try:
        with pytest.raises(ProfileError, match=r"^format new cannot be loaded: No module"):
            format_named("new")

        def absent(name: str) -> object:
            raise ModuleNotFoundError("No module named 'lib.part'", name="lib.part")

        monkeypatch.setattr(registry, "import_module", absent)
        registry.registry.cache_clear()
        with pytest.raises(ProfileError, match=r"^format new needs lib, .* pip install lib$"):
            format_named("new")
    finally:
        registry.registry.cache_clear()


@pytest.mark.usefixtures("known")
def test_sources_alone_can_be_judged() -> None:
    write(Path(), ["a"], b"?")
    (source,) = find_sources(["a"], workspace=Path("..")).sources
    with pytest.raises(ProfileError, match=r"^a is of no known format"):
        detect.detect(source)
    assert detect.detect(source, "beta").name == "beta"


def test_of_the_two_files_of_a_jax_run_one_is_read(tmp_path: Path) -> None:
    data = Path(__file__).parents[2] / "data"
    run = tmp_path / "plugins" / "profile" / "run"
    for name in ("jax_cpu.xplane.pb.xz", "jax_cpu.trace.json.gz"):
        write(run, [name], (data / name).read_bytes())
    write(run, ["perfetto_trace.json.gz"], (data / "jax_cpu.trace.json.gz").read_bytes())
    write(run, ["other.trace.json.gz"], (data / "jax_cpu.trace.json.gz").read_bytes())
    (tmp_path / "work").mkdir()
    found = choose_profiles([run], workspace=tmp_path / "work")
    assert {Path(label).name: format for label, format in chosen(found).items()} == {
        "jax_cpu.xplane.pb.xz": "xplane",
        "other.trace.json.gz": "xprof-json",
    }
    assert [finding.kind for finding in found.findings] == ["same_run", "same_run"]


def test_every_format_goes_to_other_processes() -> None:
    for name, format in registry.registry().formats.items():
        assert pickle.loads(pickle.dumps(format)).name == name
