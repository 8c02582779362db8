"""Where in the program is an operation? Its module, phase, step and source line, kept by torch's global hooks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

import trnprof
from trnprof.emulator.capture.torch_storages import Storages

_SKIPPED = tuple(
    os.path.dirname(os.path.abspath(str(m.__file__))) + os.sep for m in (torch, trnprof)
) + ("<",)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation was issued."""

    module_path: str
    module_class: str
    source_file: str
    source_line: int


@dataclass
class Context:
    """What the hooks know.

    Attributes:
        storages: to learn roles from modules and optimizers.
        modules: (path, class) of the modules whose forward is running, outermost first.
        optimizers: optimizer steps that are running.
        started: the first forward has begun.
        boundary: a step ended; the next operation opens another. Its value is the source.
        after_backward: a backward pass is over and no forward has come since: clipping and scaling belong to the
            optimizer.
        places: place of the forward operation, by autograd sequence number.
        on_span: called with a name and True when forward or optimizer begins, with False when it ends.
        marked: the program marks its steps itself.
    """

    storages: Storages
    modules: list[tuple[str, str]] = field(default_factory=list)
    optimizers: int = 0
    started: bool = False
    boundary: str = ""
    after_backward: bool = False
    places: dict[int, Place] = field(default_factory=dict)
    on_span: Callable[[str, bool], None] = lambda name, begin: None
    marked: bool = False
    _paths: dict[int, str] = field(default_factory=dict)
    _roots: list[Any] = field(default_factory=list)
    _skipped: dict[str, bool] = field(default_factory=dict)

    def install(self) -> None:
        """Register the global hooks of torch."""
        torch_module.register_module_forward_pre_hook(self._enter)
        torch_module.register_module_forward_hook(self._leave, always_call=True)
        torch_optimizer.register_optimizer_step_pre_hook(self._before_step)
        torch_optimizer.register_optimizer_step_post_hook(self._after_step)

    def phase(self) -> str:
        """forward, backward or optimizer."""
        if self.optimizers:
            return "optimizer"
        if torch._C._current_graph_task_id() != -1:
            self.after_backward = True
            return "backward"
        if self.modules:
            self.after_backward = False
        return "optimizer" if self.after_backward else "forward"

    def place(self, phase: str) -> Place:
        """Module and source line; a backward operation has those of the forward operation it differentiates."""
        if phase == "backward" and not self.modules:
            node = torch._C._current_autograd_node()
            known = self.places.get(node._sequence_nr()) if node is not None else None
            if known is not None:
                return known
        path, name = self.modules[-1] if self.modules else ("", "")
        file, line = self._source()
        here = Place(path, name, file, line)
        if phase == "forward":
            self.places[torch.autograd._get_sequence_nr() - 1] = here
        return here

    def end_marked_step(self, _: str) -> None:
        """The program marks its steps itself (trnprof.step): from now on nothing else does."""
        self.marked = True
        self.boundary = "marker"

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        self.started = True
        if not self.modules:
            self._learn(module)
            self.on_span("forward", True)
        path = self._paths.get(id(module), type(module).__name__)
        self.modules.append((path, type(module).__name__))

    def _leave(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        if self.modules:
            self.modules.pop()
        if not self.modules:
            self.on_span("forward", False)
            inference = not torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1
            if inference and not self.marked and any(True for _ in module.parameters()):
                self.boundary = self.boundary or "forward"

    def _learn(self, root: torch.nn.Module) -> None:
        """Paths of all modules under a root, roles of their parameters and buffers."""
        if id(root) in self._paths:
            return
        prefix = type(root).__name__ if self._roots else ""
        self._roots.append(root)
        for name, module in root.named_modules():
            self._paths[id(module)] = ".".join(p for p in (prefix, name) if p)
        self.storages.mark(root.buffers(), "buffer")
        self.storages.mark(root.parameters(), "parameter")

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self.optimizers:
            self.on_span("optimizer", True)
        self.optimizers += 1
        for group in optimizer.param_groups:
            self.storages.mark((p.grad for p in group["params"] if p.grad is not None), "gradient")

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.optimizers = max(0, self.optimizers - 1)
        for state in optimizer.state.values():
            tensors = (v for v in state.values() if isinstance(v, torch.Tensor))
            self.storages.mark(tensors, "optimizer_state")
        if not self.optimizers:
            self.on_span("optimizer", False)
            self.after_backward = False
            self.places.clear()
            if not self.marked:
                self.boundary = "optimizer"

    def _source(self) -> tuple[str, int]:
        """The innermost line outside torch and trnprof."""
        frame = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            skip = self._skipped.get(file)
            if skip is None:
                skip = self._skipped[file] = file.startswith(_SKIPPED)
            if not skip:
                return file, frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return "", 0
