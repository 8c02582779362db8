"""The import from its command line: what it says, what it writes, how it ends; with a format that is in its own documentation."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.cli.runner import COMMAND, ROOT, Outcome, names_below, trnprof

from trnprof.tracer.reader import open_trace

LOG = "start_ns,end_ns,name\n"
EVENTS = "1000,2000,plan\n1200,1500,sort\n2500,4000,run\n"


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package that docs/importing.md describes, as pip would leave it on the path."""
    page = (ROOT / "docs" / "importing.md").read_text(encoding="utf-8")
    (module,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (project,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    groups = tomllib.loads(project)["project"]["entry-points"]
    folder = tmp_path_factory.mktemp("plugin")
    info = folder / "scheduler_log-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scheduler-log\nVersion: 1.0\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (folder / "scheduler_log.py").write_text(module)
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the logs of three ranks in a folder, and nothing else."""
    for rank in (0, 1, 10):
        log = tmp_path / "run" / f"rank{rank}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text(LOG + EVENTS * (rank + 1))
    return tmp_path


def run(plugin: Path, folder: Path, *line: str, **options: object) -> Outcome:
    env = {"PYTHONPATH": os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")])}
    return trnprof("import", *line, folder=folder, env=env, **options)  # type: ignore[arg-type]


def test_a_directory_of_ranks_becomes_a_trace(plugin: Path, folder: Path) -> None:
    done = run(plugin, folder, "run", "-o", "run.trnprof")
    assert (done.code, done.out) == (0, "")
    first, *rest = done.err.splitlines()
    # where the compiled parts are not kept yet, lines of progress come between
    outcome = next(line for line in rest if " events of " in line)
    assert re.match(
        r"trnprof: 3 sources, about .* decompressed; about .* free\) are needed$", first
    )
    # the repeats of a log are no events of their own
    assert re.match(
        r"trnprof: run\.trnprof: \d+ events of .*3 sources \(scheduler-log\) in ", outcome
    )
    assert "next: trnprof report run.trnprof · trnprof view run.trnprof" in done.err
    assert "trnprof validate run.trnprof shows all" in done.err
    assert [n for n in names_below(folder) if "/" not in n] == ["run", "run.trnprof"]
    trace = open_trace(folder / "run.trnprof")
    assert set(trace.events.collect()["name"].cast(str)) == {"plan", "sort", "run"}
    info = trnprof("info", "run.trnprof", folder=folder)
    listed = re.findall(
        r"^imported from (run/rank\d+\.log) \(scheduler-log", info.out, re.MULTILINE
    )
    assert listed == ["run/rank0.log", "run/rank1.log", "run/rank10.log"]
    assert "(imported)" in info.out.splitlines()[0]
    as_json = json.loads(trnprof("info", "run.trnprof", "--json", folder=folder).out)
    assert [s["format"] for s in as_json["imported"]] == ["scheduler-log"] * 3


def test_globs_archives_and_compression_give_the_same_events(plugin: Path, folder: Path) -> None:
    with zipfile.ZipFile(folder / "run.zip", "w") as archive:
        for file in sorted((folder / "run").iterdir()):
            archive.writestr(f"{file.name}.gz", gzip.compress(file.read_bytes()))
    frames = []
    for number, path in enumerate(["run/rank*.log", "run.zip"]):
        done = run(plugin, folder, path, "-o", f"{number}.trnprof")
        assert done.code == 0, done.err
        events = open_trace(folder / f"{number}.trnprof").events.collect()
        frames.append(events.drop("event_id"))
    assert frames[0].equals(frames[1])


def test_the_findings_are_told_kept_and_decide_the_exit_code(plugin: Path, folder: Path) -> None:
    (folder / "run" / "rank1.log").write_text("")
    strict = run(plugin, folder, "run", "-o", "b.trnprof", "--strict")
    assert strict.code == 1
    assert "trnprof: warning: run/rank1.log: rank 1 is missing: its file is empty" in strict.err
    assert open_trace(folder / "b.trnprof").events.collect().height
    text = trnprof("validate", "b.trnprof", folder=folder)
    assert text.code == 1
    assert "warning: missing_ranks: run/rank1.log: rank 1 is missing" in text.out
    assert "  unreliable: whatever is said of all ranks" in text.out
    document = json.loads(trnprof("validate", "b.trnprof", "--json", folder=folder).out)
    assert "missing_ranks" in {finding["kind"] for finding in document["findings"]}
    assert document["problems"] == []


def test_notes_alone_are_nothing_wrong_and_a_damaged_audit_is_told(
    plugin: Path, folder: Path
) -> None:
    done = run(plugin, folder, "run/rank0.log", "-o", "run.trnprof", "--strict")
    assert done.code == 0, done.err
    manifest = folder / "run.trnprof" / "manifest.json"
    document = json.loads(manifest.read_text())
    note = {"kind": "x", "severity": "note", "where": "here", "message": "a \x1b[31mremark"}
    document["imported"]["audit"] = [note]
    manifest.write_text(json.dumps(document))
    done = trnprof("validate", "run.trnprof", folder=folder)
    assert done.code == 0
    assert done.out.startswith("run.trnprof: nothing wrong\nnote: ")
    assert done.out.endswith("\nnote: x: here: a ␛[31mremark\n")
    (fragment,) = (folder / "run.trnprof" / "manifest.d").glob("[!.]*.json")
    odd = {"audit": [7, {"kind": "x"}, {"kind": ["y"]}]}
    fragment.write_text(json.dumps(json.loads(fragment.read_text()) | odd))
    manifest.write_text(json.dumps(document | {"imported": {"audit": "text", "sources": [1, {}]}}))
    done = trnprof("validate", "run.trnprof", folder=folder)
    assert done.code == 1
    assert re.findall(
        r"^warning: malformed_audit: (.*?): .*?(\(\d\))?$", done.out, re.MULTILINE
    ) == [
        ("writer rank0", "(3)"),
        ("manifest.json", ""),
    ]
    assert "imported from ? (?, 0 events)" in trnprof("info", "run.trnprof", folder=folder).out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("run", "Missing option '-o' / '--output'"),
        ("run -o x --format schedule-log", "did you mean 'scheduler-log'?"),
        ("run -o x --align clocks", "'collectives'"),
        ("run -o x --max-input-bytes 4G", "size '4G' is ambiguous: write GiB"),
        ("run -o x --max-input-bytes 100B", "more than 100 B; if that is right, allow more with"),
        ("/dev/zero -o x", "/dev/zero is a device"),
        ("page.html -o x", "page.html is a web page"),
        ("bad.log -o x", "bad.log: "),
        ("run -o page.html --force", "page.html exists and is not a trace"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    plugin: Path, folder: Path, line: str, says: str
) -> None:
    (folder / "page.html").write_text("<html>")
    (folder / "bad.log").write_text(LOG + "1,2,x\none,two,y\n")
    before = names_below(folder)
    done = run(plugin, folder, *line.split())
    assert (done.code, done.out) == (2, "")
    last = done.err.splitlines()[-1]
    assert last.startswith("trnprof: ")
    assert says in last
    assert len([text for text in done.err.splitlines() if "decompressed" not in text]) == 1
    assert names_below(folder) == before


def test_a_full_disk_is_told_by_the_name_of_the_output(
    plugin: Path, folder: Path, small_disk: Path
) -> None:
    (small_disk / "ballast").write_bytes(bytes(60 << 10))
    (folder / "run" / "rank0.log").write_text(
        LOG + "".join(f"{n},{n + 1},name{n}\n" for n in range(20_000))
    )
    out = small_disk / "run.trnprof"
    done = run(plugin, folder, "run", "-o", str(out))
    assert (done.code, done.out) == (2, "")
    advice = "the disk is full: free space or write elsewhere"
    assert done.err.splitlines()[-1] == f"trnprof: cannot write {out}: {advice}"
    assert names_below(small_disk) == ["ballast"]


def test_an_output_that_exists_is_kept_unless_forced(plugin: Path, folder: Path) -> None:
    assert run(plugin, folder, "run/rank0.log", "-o", "run.trnprof").code == 0
    refused = run(plugin, folder, "run", "-o", "run.trnprof").only_error
    assert refused == "trnprof: run.trnprof exists; give --force to replace it, or choose another path"  # fmt: skip
    again = run(plugin, folder, "run.trnprof", "-o", "run.trnprof", "--force").only_error
    assert "run.trnprof is a trace of trnprof already" in again
    (folder / "run" / "rank1.log").write_text("")
    forced = run(plugin, folder, "run", "-o", "run.trnprof", "--force")
    # without --strict a warning is no failure
    assert forced.code == 0
    assert "rank 1 is missing" in forced.err


def test_a_terminal_is_left_clean(plugin: Path, folder: Path) -> None:
    lines = "".join(f"{n * 10},{n * 10 + 5},work\n" for n in range(400_000))
    for rank in (0, 1, 10):
        (folder / "run" / f"rank{rank}.log").write_text(LOG + lines)
    master, slave = pty.openpty()
    path = os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*COMMAND, "import", "run", "-o", "run.trnprof", "--jobs", "1"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=slave,
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        seen += part
    os.close(master)
    assert process.communicate()[0] == b""
    assert process.returncode == 0, seen
    live, _, rest = seen.decode().rpartition("\r\x1b[K")
    assert re.search(r"\r\x1b\[Ktrnprof: (reading|writing) \d of 3 sources", live)
    assert rest.startswith("trnprof: run.trnprof: 1.2 M events")


def test_an_import_runs_without_anybody_to_read_stderr(plugin: Path, folder: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *COMMAND, "import", "run", "-o", "run.trnprof"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(plugin)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_follows_a_whole_gzip_is_told_and_nothing_is_missing(
    plugin: Path, folder: Path
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "f", "pid": 7, "tid": 7, "ts": 1, "dur": 2}
    profile = json.dumps({"schemaVersion": 1, "traceEvents": [event]}).encode()
    (folder / "a.json.gz").write_bytes(gzip.compress(profile) + b"something else")
    done = run(plugin, folder, "a.json.gz", "-o", "run.trnprof", "--force")
    assert done.code == 0
    assert "too early" not in done.err
    says = "gzip: what follows the compressed data is of another kind"
    assert f"warning: a.json.gz: {says} and was ignored" in done.err
    # what needs a file on disk takes nothing that is not sound
    (folder / "rank0.log.gz").write_bytes(gzip.compress((LOG + EVENTS).encode()) + b"more")
    refused = run(plugin, folder, "rank0.log.gz", "-o", "other.trnprof")
    assert refused.code == 2
    assert f"rank0.log.gz: {says}; a file of this kind is read whole or not" in refused.err
