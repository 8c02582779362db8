"""What-ifs against the real thing: the emulator on a machine, or with operators, changed in that way. Within 2 %, as promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.emulator.ranks.pipelines import pipeline
from tests.emulator.ranks.worlds import group, layers, mesh, run, world

from trnprof.analysis.whatif.changes import parse_remove, parse_scale
from trnprof.analysis.whatif.outcome import what_if
from trnprof.emulator.capture.store import load_workload
from trnprof.emulator.lowering.tasks import SERVER_ID, TaskLabel, TaskList
from trnprof.emulator.system import System, load_system
from trnprof.emulator.workload import Workload
from trnprof.tracer.errors import TrnprofError
from trnprof.tracer.reader import Trace

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRN2 = load_system("trn2")
ULTRA = load_system("trn2-ultra")
WITHIN = 0.02


def sample(name: str) -> Workload:
    return load_workload(SAMPLES / f"{name}.trnprof")


PROGRAMS: dict[str, Callable[[], tuple[Workload, System, dict[str, Any]]]] = {
    "mlp": lambda: (sample("mlp-trn2"), TRN2, {}),
    "transformer": lambda: (sample("transformer-trn2"), TRN2, {}),
    "convnet": lambda: (sample("convnet-trn2-eager"), TRN2, {"execution": "eager"}),
    "fsdp": lambda: (world(layers(6, 2048, 512, 8), [group("dp", mesh(8)[0])], 8), ULTRA, {}),
    "gpipe": lambda: (pipeline("gpipe", 4, 4), ULTRA, {"placement": "spread", "lnc": 1}),
}
EVERY = pytest.mark.parametrize("name", ["transformer", "convnet", "fsdp", "gpipe"])
SINGLE = pytest.mark.parametrize("name", ["transformer", "convnet"])
MANY = pytest.mark.parametrize("name", ["fsdp", "gpipe"])


def emulated(path: Path, name: str, change: Callable[[System], System] = lambda s: s) -> Trace:
    workload, system, options = PROGRAMS[name]()
    return run(path, workload, change(system), **options).trace


def step_ns(trace: Trace, step: int | None) -> int:
    spans = trace.steps.filter(trace.steps["step"] == step) if step is not None else trace.steps
    start, end = spans["start_ns"].min(), spans["end_ns"].max()
    assert isinstance(start, int)
    assert isinstance(end, int)
    return end - start


def saved(outcome: dict[str, Any]) -> int:
    return int(outcome["step_ns"] - outcome["changes"][0]["step_ns"])


def slower_tasks(
    monkeypatch: pytest.MonkeyPatch, meant: Callable[[TaskLabel, int], bool], factor: float
) -> None:
    """Have the emulator charge so many times the cost of some tasks, wherever lowering adds them."""
    plain = TaskList.add

    def add(
        self: TaskList, label: TaskLabel, duration_ps: int, servers: Any, *rest: Any, **more: Any
    ) -> int:
        if meant(label, servers[0][0]):
            duration_ps = round(duration_ps * factor)
            servers = tuple((server, round(held * factor)) for server, held in servers)
        return plain(self, label, duration_ps, servers, *rest, **more)

    monkeypatch.setattr(TaskList, "add", add)


def with_dma(system: System, **values: float) -> System:
    return replace(system, core=replace(system.core, dma=replace(system.core.dma, **values)))


@EVERY
def test_unchanged_it_is_the_trace(tmp_path: Path, name: str) -> None:
    outcome = what_if(emulated(tmp_path / "t", name), [parse_scale("class=compute:1")])
    assert abs(outcome["error"]) < 0.001
    assert outcome["changes"][0]["saved_ns"] == 0


@EVERY
@pytest.mark.parametrize("factor", [0.0, 2.0])
@pytest.mark.parametrize("what", ["compute", "dma", "Vector"])
def test_a_class_or_engine_as_emulated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str, factor: float
) -> None:
    before = emulated(tmp_path / "before", name)
    change = f"engine={what}:{factor}" if what == "Vector" else f"class={what}:{factor}"
    outcome = what_if(before, [parse_scale(change)], 0)
    if what == "Vector":
        slower_tasks(monkeypatch, lambda _, server: server == SERVER_ID[what], factor)
    else:
        slower_tasks(monkeypatch, lambda label, _: label.category == what, factor)
    after = emulated(tmp_path / "after", name)
    assert outcome["changes"][0]["step_ns"] == pytest.approx(step_ns(after, 0), rel=WITHIN)


@EVERY
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_issue_cost_as_emulated_again_on_such_a_machine(
    tmp_path: Path, name: str, factor: float
) -> None:
    def changed(system: System) -> System:
        return with_dma(system, issue_ns=system.core.dma.issue_ns * factor)

    outcome = what_if(emulated(tmp_path / "before", name), [parse_scale(f"dma-issue:{factor}")], 0)
    after = emulated(tmp_path / "after", name, changed)
    assert outcome["changes"][0]["step_ns"] == pytest.approx(step_ns(after, 0), rel=WITHIN)


@SINGLE
@pytest.mark.parametrize("operator", ["mm", "add"])
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_an_operator_as_emulated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, operator: str, factor: float
) -> None:
    before = emulated(tmp_path / "before", name)
    try:
        outcome = what_if(before, [parse_scale(f"op=*{operator}:{factor}")], 0)
    except TrnprofError:
        pytest.skip("the program has no such operator")
    operations = PROGRAMS[name]()[0].operations
    meant = {
        i for i, o in enumerate(operations) if o.name.removeprefix("aten::").endswith(operator)
    }
    slower_tasks(monkeypatch, lambda label, _: label.op in meant, factor)
    after = emulated(tmp_path / "after", name)
    assert outcome["changes"][0]["step_ns"] == pytest.approx(step_ns(after, 0), rel=WITHIN)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_links_as_emulated_again_on_such_a_fabric(tmp_path: Path, factor: float) -> None:
    def changed(system: System) -> System:
        tiers = tuple(
            replace(tier, link_bytes_per_s=tier.link_bytes_per_s / factor)
            if tier.name == "x"
            else tier
            for tier in system.machine.topology.tiers
        )
        topology = replace(system.machine.topology, tiers=tiers)
        return replace(system, machine=replace(system.machine, topology=topology))

    outcome = what_if(emulated(tmp_path / "before", "gpipe"), [parse_scale(f"link=x:{factor}")], 0)
    after = emulated(tmp_path / "after", "gpipe", changed)
    assert outcome["changes"][0]["step_ns"] == pytest.approx(step_ns(after, 0), rel=WITHIN)


@MANY
def test_without_communication_only_inputs_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    outcome = what_if(
        emulated(tmp_path / "before", name), [parse_remove("exposed-communication")], 0
    )
    slower_tasks(monkeypatch, lambda label, _: label.category == "collective", 0.0)
    after = emulated(tmp_path / "after", name)
    assert outcome["changes"][0]["step_ns"] == pytest.approx(step_ns(after, 0), rel=WITHIN)


def test_several_changes_are_timed_alone_and_together(tmp_path: Path) -> None:
    trace = emulated(tmp_path / "t", "mlp")
    one, other = parse_scale("class=compute:0.5"), parse_scale("class=dma:0.5")
    both = what_if(trace, [one, other])
    alone = [what_if(trace, [each])["changes"][0] for each in (one, other)]
    assert both["changes"] == alone
    assert both["together"]["saved_ns"] >= max(row["saved_ns"] for row in alone)
    path = both["critical_path"]
    assert sum(row["duration_ns"] for row in path) == pytest.approx(
        both["together"]["step_ns"], rel=0.001
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("op=attention", "needs a factor"),
        ("op=attention:-1", "needs a factor"),
        ("op=attention:nan", "needs a factor"),
        ("attention:0.5", "says not of what"),
        ("op=:0.5", "says not of what"),
        ("class=foo:0.5", "no class 'foo'"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(TrnprofError, match=said):
        parse_scale(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("op=nothing:0.5", "most frequent are"),
        ("link=x:0.5", "has no links"),
        ("exposed-communication:0.5", "has none"),
        ("rank=9:0.5", "most frequent are 0"),
    ],
)
def test_what_is_not_there_is_said(tmp_path: Path, change: str, said: str) -> None:
    trace = emulated(tmp_path / "t", "mlp")
    with pytest.raises(TrnprofError, match=said):
        what_if(trace, [parse_scale(change)])


def test_binding_edges_are_too_few(tmp_path: Path) -> None:
    workload, system, _ = PROGRAMS["transformer"]()
    trace = run(tmp_path / "t", workload, system, edges="binding").trace
    with pytest.raises(TrnprofError, match="--edges all"):
        what_if(trace, [parse_scale("class=compute:0.5")])
