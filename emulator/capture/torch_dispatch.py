"""What does the program tell the device? A dispatch mode sees every operation and makes a row of it."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from trnprof.emulator.capture.steps import Steps
from trnprof.emulator.capture.store import Row, arguments_json
from trnprof.emulator.capture.torch_collectives import asked, flat
from trnprof.emulator.capture.torch_flops import model_flops
from trnprof.emulator.capture.torch_modules import TOP, ModulePlace, Modules
from trnprof.emulator.capture.torch_operators import Operator, describe, kept_arguments
from trnprof.emulator.capture.torch_phases import Phases
from trnprof.emulator.capture.torch_source import caller_line
from trnprof.emulator.capture.torch_tensors import Ref, Storages, tensors_among
from trnprof.emulator.collectives.messages import SEND_RECV

if TYPE_CHECKING:
    from trnprof.emulator.capture.torch_groups import Groups

Location = tuple[ModulePlace, str, int]
_STATE: Final = frozenset(("parameter", "gradient", "optimizer_state"))
_SETUP_ROWS: Final = 20_000
"""So many operations before the first forward are kept, for a program that never has one."""


class _Seen(NamedTuple):
    """What is known of an operation before it runs."""

    phase: str
    location: Location
    inputs: list[Ref]
    freed: list[int]


class CaptureMode(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """Runs each operation and hands its row to ``sink``.

    Attributes:
        state: ``setup`` until the first device operation, then ``recording``; ``off`` when another process captures.
        setup_rows: what ran during set-up, bounded.
        host_operations: how many ran on the host (data loading) since the start.
        thread: the thread that is watched; operations of others just run.
        groups: the process groups; None where torch has no distributed package.
        message_number: of the latest message from one rank to another; None where nobody numbers them.
        is_paused: what runs is not recorded.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        storages: Storages,
        modules: Modules,
        phases: Phases,
        steps: Steps,
        begin: Callable[[bool], None],
        sink: Callable[[Row], None],
        run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None,
    ) -> None:
        super().__init__()
        self.state = "setup"
        self.setup_rows: list[Row] = []
        self.host_operations = 0
        self.thread = get_ident()
        self.cut: Callable[[str], object] = lambda phase: None
        self.fail: Callable[[Exception], object] = lambda failure: None
        self.groups: Groups | None = None
        self.message_number: Callable[[], int] | None = None
        self.is_paused = False
        self._storages, self._modules = storages, modules
        self._phases, self._steps = phases, steps
        self._begin, self._sink, self._run = begin, sink, run
        self._operators: dict[Any, Operator] = {}
        self._locations: dict[int, Location] = {}
        self._older_locations: dict[int, Location] = {}
        self._foreign: dict[type, bool] = {}
        self._setup_messages: list[tuple[Row, list[torch.Tensor]]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper it would add imports torch._dynamo, a second, at the first operation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for kind in types:
            if self._is_foreign(kind):
                return NotImplemented  # tensors in a tensor: their operations come one by one
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = describe(func)
        if operator.is_composite:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        is_seen = self.state != "off" and not self.is_paused
        if not is_seen or operator.is_metadata or get_ident() != self.thread:
            return self._run(func, args, kwargs) if self._run else func(*args, **kwargs)
        return self._observe(func, operator, args, kwargs)

    def forget_old_locations(self) -> None:
        """A step has ended: keep the places of its forward for a graph that is still used, drop those before."""
        self._older_locations, self._locations = self._locations, {}

    def _observe(
        self, func: Any, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        seen = None
        try:
            seen = self._before(operator, args, kwargs)
        except Exception as failure:  # the program must not notice
            self.give_up(failure)
        out = self._run(func, args, kwargs) if self._run else func(*args, **kwargs)
        if seen is not None:
            try:
                self._after(operator, args, kwargs, out, seen)
            except Exception as failure:
                self.give_up(failure)
        return out

    def _before(
        self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Seen | None:
        """What an operation reads, and from where it is called; None if it is not the device's."""
        if operator.collective is not None:
            args = _whole(operator, args, kwargs)
            read = _at(args, operator.collective.reads)
        else:
            read = tensors_among(args)
            if kwargs:
                read += tensors_among(kwargs.values())
        sequence = torch.autograd._get_sequence_nr() - 1
        if not self._is_device(operator, read):
            self.host_operations += self.state == "recording"
            return None
        if operator.collective is not None and operator.collective.kind == SEND_RECV:
            self._steps.before_forward()  # a pipeline's next step begins with what a stage receives
        phase, location = self._enter_operation(operator, read, sequence)
        inputs = self._inputs(operator, args, kwargs, read)
        return _Seen(phase, location, inputs, self._storages.take_freed())

    def _after(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        seen: _Seen,
    ) -> None:
        arguments = kept_arguments(operator, args, kwargs)
        if operator.collective is not None:
            args = _whole(operator, args, kwargs)
            arguments["collective"] = self._collective(operator, args)
            outputs = self._received(operator, args, kwargs, out, seen)
            flops = 0.0
        else:
            outputs = self._outputs(operator, args, kwargs, out, seen.phase)
            flops = model_flops(operator.packet, args, kwargs, out)
        self._steps.operations += 1
        given = arguments_json(arguments)
        row = _row(operator, self._steps.number, seen, outputs, flops, given)
        if self.state == "recording":
            self._sink(row)
        elif len(self.setup_rows) < _SETUP_ROWS:
            self.setup_rows.append(row)
            spec = operator.collective
            if spec is not None and "message" in arguments["collective"]:
                self._setup_messages.append((row, _at(args, spec.reads + spec.writes)))

    def take_setup_messages(self) -> list[Row]:
        """What was sent and received before the first forward: the other end may have begun by then."""
        found, self._setup_messages = self._setup_messages, []
        rows = []
        for row, tensors in found:
            pairs = zip(tensors, row.role, strict=True)
            numbers = [self._storages.ref(tensor, role)[0] for tensor, role in pairs]
            rows.append(row._replace(tensor=numbers, freed=()))
        self._steps.operations += len(rows)
        return rows

    def give_up(self, failure: Exception) -> None:
        """Something of ours failed: watch no longer, say so once."""
        if self.state != "off":
            self.state = "off"
            self.fail(failure)

    def _is_device(self, operator: Operator, read: list[torch.Tensor]) -> bool:
        """Whether the device does this operation; starts the recording when the first one comes."""
        if self._modules.depth or self._phases.optimizers:
            return True
        if operator.collective is not None and self.state == "recording":
            return True
        if torch._C._current_graph_task_id() != -1:
            if self.state == "setup":
                self._begin(True)
            return True
        if not operator.is_view and torch.is_grad_enabled() and any(t.requires_grad for t in read):
            if self.state == "setup":
                self._begin(False)
            return True
        if self.state == "setup":
            return len(self.setup_rows) < _SETUP_ROWS
        return any(self._storages.is_device(tensor) for tensor in read)

    def _enter_operation(
        self, operator: Operator, read: list[torch.Tensor], sequence: int
    ) -> tuple[str, Location]:
        in_module = self._modules.depth > 0
        on_state = not torch.is_grad_enabled() and self._reads_state(read)
        phase = self._phases.current(in_module, on_state)
        if phase == "forward" and operator.name != "_local_scalar_dense":
            if torch.is_grad_enabled() and self._phases.after_backward and _is_work(operator, read):
                self._phases.after_backward = False
                self.cut("backward")
            if in_module or _is_work(operator, read):
                self._steps.before_forward()
        return phase, self._location(phase, in_module, sequence)

    def _location(self, phase: str, in_module: bool, sequence: int) -> Location:
        """Module and line; a backward operation has those of the forward operation that it differentiates."""
        if phase == "backward" and not in_module:
            node = torch._C._current_autograd_node()
            if node is not None:
                number = node._sequence_nr()
                known = self._locations.get(number) or self._older_locations.get(number)
                if known is not None:
                    return known
                variable = getattr(node, "variable", None)
                owner = TOP if variable is None else self._modules.owner(variable)
                return (owner, *caller_line())
        location = (self._modules.current(), *caller_line())
        self._locations.setdefault(sequence, location)
        return location

    def _reads_state(self, read: list[torch.Tensor]) -> bool:
        known = (self._storages.find(tensor) for tensor in read)
        return any(s is not None and (s.role in _STATE or s.of_optimizer) for s in known)

    def _inputs(
        self, operator: Operator, args: tuple[Any, ...], kwargs: Any, read: list[torch.Tensor]
    ) -> list[Ref]:
        if operator.collective is None and (operator.reads_not or operator.writes_keywords):
            read = tensors_among(a for i, a in enumerate(args) if i not in operator.reads_not)
            read += tensors_among(v for k, v in kwargs.items() if k not in operator.writes_keywords)
        return [self._storages.ref(t, "parameter" if _is_parameter(t) else "input") for t in read]

    def _outputs(
        self, operator: Operator, args: tuple[Any, ...], kwargs: Any, out: Any, phase: str
    ) -> list[Ref]:
        role = "gradient" if phase == "backward" and not self._modules.depth else "activation"
        written = tensors_among(args[i] for i in operator.writes if i < len(args))
        written += tensors_among(kwargs.get(name) for name in operator.writes_keywords)
        refs = {ref[:2]: ref for ref in (self._storages.ref(t, role) for t in written)}
        for tensor in tensors_among((out,)):
            ref = self._storages.ref(tensor, role)
            refs.setdefault(ref[:2], ref)
        if phase == "optimizer":
            for tensor in tensors_among((out,)):
                storage = self._storages.find(tensor)
                if storage is not None:
                    storage.of_optimizer = True
        if phase == "forward":
            self._hold_results(written)
        return list(refs.values())

    def _hold_results(self, written: list[torch.Tensor]) -> None:
        """Inputs that are written in place hold a result from now on."""
        for tensor in written:
            storage = self._storages.find(tensor)
            if storage is not None and storage.role == "input":
                storage.role = "activation"

    def _collective(self, operator: Operator, args: tuple[Any, ...]) -> dict[str, Any]:
        """What a collective asks, as replay reads it."""
        assert operator.collective is not None
        assert self.groups is not None
        call = asked(operator.collective, args)
        numbered = {}
        if call.kind == SEND_RECV and self.message_number is not None:
            numbered = {"message": self.message_number(), "setup": self.state == "setup"}
        return {
            **numbered,
            "kind": call.kind,
            "group": self.groups.number(call.group),
            "nbytes": call.nbytes,
            "root": call.root,
            "target": call.target,
            "sent_bytes": call.sent_bytes,
            "received_bytes": call.received_bytes,
        }

    def _received(
        self, operator: Operator, args: tuple[Any, ...], kwargs: Any, out: Any, seen: _Seen
    ) -> list[Ref]:
        """What a collective writes: of the role of what it sends, but a copy of parameters is none of them."""
        assert operator.collective is not None
        role = seen.inputs[0][5] if seen.inputs else "activation"
        role = role if role == "gradient" else "activation"
        written = _at(args, operator.collective.writes) + tensors_among(kwargs.values()) + flat(out)
        refs = {ref[:2]: ref for ref in (self._storages.ref(t, role) for t in written)}
        self._hold_results(written)
        return list(refs.values())

    def _is_foreign(self, kind: type) -> bool:
        known = self._foreign.get(kind)
        if known is None:
            known = self._foreign[kind] = is_traceable_wrapper_subclass_type(kind)
        return known


def _row(
    operator: Operator, step: int, seen: _Seen, outputs: list[Ref], flops: float, arguments: str
) -> Row:
    (path, class_name), file, line = seen.location
    inputs, refs = len(seen.inputs), seen.inputs + outputs
    tensor, shapes, dtype, nbytes, storage_nbytes, role, contiguous = (
        zip(*refs, strict=True) if refs else ((),) * 7
    )
    return Row(
        "op",
        operator.name,
        seen.phase,
        step,
        path,
        class_name,
        file,
        line,
        flops,
        operator.is_view or _is_alias(operator, tensor, inputs),
        inputs,
        tensor,
        [len(shape) for shape in shapes],
        [size for shape in shapes for size in shape],
        dtype,
        nbytes,
        storage_nbytes,
        role,
        contiguous,
        seen.freed,
        arguments,
    )


def _is_alias(operator: Operator, tensor: tuple[int, ...], inputs: int) -> bool:
    """Whether it only returns storages it was given (such as a dropout of zero)."""
    if (
        operator.writes
        or operator.writes_keywords
        or operator.collective
        or not 0 < inputs < len(tensor)
    ):
        return False
    return set(tensor[inputs:]) <= set(tensor[:inputs])


def _is_work(operator: Operator, read: list[torch.Tensor]) -> bool:
    """Whether it computes with parameters; looking at a loss does not begin another forward."""
    return not operator.is_view and any(t.requires_grad and t.is_leaf for t in read)


def _is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)


def _whole(operator: Operator, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, ...]:
    """The positional arguments of a collective, those among them that were given by name."""
    return (*args, *(kwargs.get(name) for name in operator.positions[len(args) :]))


def _at(args: tuple[Any, ...], positions: tuple[int, ...]) -> list[torch.Tensor]:
    return [tensor for position in positions for tensor in flat(args[position])]
