"""Pipelines built by hand: a program a stage, whose microbatches go forward and back between neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.emulator.programs import op, program, ref
from tests.emulator.ranks.worlds import collective

from trnprof.emulator.workload import Operation, ProcessGroup, TensorRef, Workload, World

TOKENS, WIDTH, DEPTH = 1024, 2048, 4


@dataclass
class Stage:
    """One stage under construction: its storages are numbered apart from others'.

    Attributes:
        number: of the stage.
        count: of all stages.
        step: of the operations that are added.
        operations: so far.
        saved: by microbatch, what its forward was given.
    """

    number: int
    count: int
    step: int = 0
    operations: list[Operation] = field(default_factory=list)
    saved: dict[int, TensorRef] = field(default_factory=dict)
    made: int = 1000

    def tensor(self, role: str = "activation") -> TensorRef:
        self.made += 1
        return ref(self.made, TOKENS, WIDTH, dtype="bfloat16", role=role)

    def weight(self, layer: int) -> TensorRef:
        return ref(layer, WIDTH, WIDTH, dtype="bfloat16", role="parameter")

    def exchange(self, tensor: TensorRef, source: int, target: int) -> None:
        sends = source == self.number
        inputs, outputs = ([tensor], []) if sends else ([], [tensor])
        name = "c10d::send" if sends else "c10d::recv_"
        call = collective(
            "send_recv", tensor.nbytes, inputs, outputs, step=self.step, root=source, target=target
        )
        self.operations.append(replace(call, name=name, source_file="pipe.py", source_line=7))

    def forward(self, batch: int) -> TensorRef:
        """Compute a microbatch; returns what goes on."""
        x = self.saved[batch]
        for layer in range(DEPTH):
            y = self.tensor()
            self.operations.append(op("mm", [x, self.weight(layer)], [y], step=self.step))
            x = y
        return x

    def backward(self, batch: int, gradient: TensorRef) -> TensorRef:
        """The same products once more, and those of the weights."""
        for layer in reversed(range(DEPTH)):
            own, back = self.tensor("gradient"), self.tensor("gradient")
            weights = replace(own, shape=(WIDTH, WIDTH), nbytes=2 * WIDTH * WIDTH)
            weights = replace(weights, storage_nbytes=weights.nbytes)
            turned = replace(self.saved[batch], shape=(WIDTH, TOKENS), contiguous=False)
            self.operations += [
                op("mm", [turned, gradient], [weights], "backward", self.step),
                op("mm", [gradient, self.weight(layer)], [back], "backward", self.step),
            ]
            gradient = back
        return gradient

    def receive_forward(self, batch: int) -> None:
        self.saved[batch] = self.tensor("input" if self.number == 0 else "activation")
        if self.number > 0:
            self.exchange(self.saved[batch], self.number - 1, self.number)

    def send_forward(self, tensor: TensorRef) -> None:
        if self.number + 1 < self.count:
            self.exchange(tensor, self.number, self.number + 1)

    def receive_backward(self) -> TensorRef:
        gradient = self.tensor("gradient")
        if self.number + 1 < self.count:
            self.exchange(gradient, self.number + 1, self.number)
        return gradient

    def send_backward(self, tensor: TensorRef) -> None:
        if self.number > 0:
            self.exchange(tensor, self.number, self.number - 1)


def gpipe(stage: Stage, batches: int) -> None:
    """All forward, then all backward."""
    for batch in range(batches):
        stage.receive_forward(batch)
        stage.send_forward(stage.forward(batch))
    for batch in reversed(range(batches)):
        stage.send_backward(stage.backward(batch, stage.receive_backward()))


def one_forward_one_backward(stage: Stage, batches: int) -> None:
    """As many forward as there are stages behind, then one forward and one backward by turns, with both exchanges as a batch."""
    ahead = min(stage.count - 1 - stage.number, batches)
    for batch in range(ahead):
        stage.receive_forward(batch)
        stage.send_forward(stage.forward(batch))
    if ahead < batches:
        stage.receive_forward(ahead)
    for batch in range(batches - ahead):
        made = stage.forward(batch + ahead)
        stage.send_forward(made)
        back = stage.backward(batch, stage.receive_backward())
        stage.send_backward(back)
        if batch + ahead + 1 < batches:
            stage.receive_forward(batch + ahead + 1)
    for batch in range(batches - ahead, batches):
        stage.send_backward(stage.backward(batch, stage.receive_backward()))


SCHEDULES = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def pipeline(
    schedule: str, stages: int, batches: int, *, copies: int = 1, steps: int = 1
) -> Workload:
    """A pipeline of so many stages, of which there are so many copies beside each other; ranks of a stage are neighbours."""
    siblings = tuple(tuple(s * copies + c for s in range(stages)) for c in range(copies))
    group = ProcessGroup("pp", siblings[0], siblings)
    programs = []
    for number in range(stages):
        stage = Stage(number, stages)
        for step in range(steps):
            stage.step = step
            SCHEDULES[schedule](stage, batches)
        programs.append(_workload(stage.operations, group, number, stages, copies))
    return replace(programs[0], others=tuple(programs[1:]))


def _workload(
    operations: Sequence[Operation], group: ProcessGroup, number: int, stages: int, copies: int
) -> Workload:
    first = number * copies
    members = tuple(range(first, first + copies))
    world = World(stages * copies, first, members)
    return replace(program(operations), groups=(group,), world=world)
