"""Which phase is it? What optimizers and the autograd engine say."""

from __future__ import annotations

import torch


class Phases:
    """What the hooks of optimizers and the autograd engine say.

    Attributes:
        optimizers: identities of the optimizers whose step runs, innermost last.
        after_backward: gradients are there and no forward has begun since: clipping and scaling belong to the optimizer.
    """

    def __init__(self) -> None:
        self.optimizers: list[int] = []
        self.after_backward = False

    def enter_optimizer(self, identity: int) -> None:
        """Its step begins; if it was running, that step ended in an exception."""
        if identity in self.optimizers:
            del self.optimizers[self.optimizers.index(identity) :]
        self.optimizers.append(identity)

    def leave_optimizer(self, identity: int) -> bool:
        """Its step has ended; False if it was not running."""
        if identity not in self.optimizers:
            return False
        del self.optimizers[self.optimizers.index(identity) :]
        return True

    def current(self, in_module: bool, on_state: bool) -> str:
        """The phase of an operation.

        Args:
            in_module: it runs in the forward of a module.
            on_state: it reads parameters, gradients or optimizer state, with gradient mode off.
        """
        if torch._C._current_graph_task_id() != -1:
            self.after_backward = True
            return "backward"
        if in_module:
            return "forward"
        if self.optimizers or (self.after_backward and on_state):
            return "optimizer"
        return "forward"
