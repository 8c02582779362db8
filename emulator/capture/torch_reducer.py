"""Which buckets does DistributedDataParallel reduce, and when? torch's own reducer asks for data, so this one stands in for it.

The rules are those of torch's reducer (torch/csrc/distributed/c10d/reducer.cpp): gradients are copied into flat buckets as they
become ready, a bucket is reduced when it and those before it are full, and the gradients are copied back at the end of the backward.
Buckets are built anew before the second forward (of a static graph, whose first backward is reduced at its end, the third), in the
order in which gradients became ready, 1 MiB first and 25 MiB after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist


def install_reducer() -> None:
    """DistributedDataParallel uses this reducer from now on."""
    from torch.nn.parallel import distributed

    dist.Reducer, dist.Logger = Reducer, Logger
    dist._register_comm_hook = Reducer.register_hook
    dist._register_builtin_comm_hook = lambda reducer, kind: None
    distributed._verify_param_shape_across_processes = lambda *_, **__: None


class Bucket:
    """Gradients that are reduced together.

    Attributes:
        indices: numbers of the parameters.
        flat: the buffer.
        pending: gradients that it still waits for.
        future: what a communication hook returned for it.
    """

    def __init__(self, indices: Sequence[int], parameters: Sequence[torch.Tensor]) -> None:
        self.indices = list(indices)
        self.parameters = [parameters[i] for i in indices]
        first = self.parameters[0]
        self.flat = torch.empty(
            sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device
        )
        sizes = [p.numel() for p in self.parameters]
        parts = self.flat.split(sizes)
        self.views = [v.view(p.shape) for v, p in zip(parts, self.parameters, strict=True)]
        self.pending = len(self.indices)
        self.future: Any = None


class GradBucket:
    """A bucket as a communication hook sees it."""

    def __init__(self, bucket: Bucket, index: int, is_last: bool) -> None:
        self._bucket, self._index, self._is_last = bucket, index, is_last

    def buffer(self) -> torch.Tensor:
        """The flat gradients."""
        return self._bucket.flat

    def set_buffer(self, tensor: torch.Tensor) -> None:
        """Reduce another buffer."""
        self._bucket.flat = tensor

    def gradients(self) -> list[torch.Tensor]:
        """Views of it, one a parameter."""
        return self._bucket.views

    def parameters(self) -> list[torch.Tensor]:
        """The parameters."""
        return self._bucket.parameters

    def index(self) -> int:
        """Its place in the order."""
        return self._index

    def is_last(self) -> bool:
        """Whether none follows."""
        return self._is_last


class Reducer:
    """The reducer of one DistributedDataParallel; called as torch's own is."""

    def __init__(
        self,
        parameters: list[torch.Tensor],
        bucket_indices: list[list[int]],
        per_bucket_size_limits: list[int],
        process_group: Any,
        expect_sparse_gradients: list[bool],
        bucket_bytes_cap: int,
        find_unused_parameters: bool,
        gradient_as_bucket_view: bool,
        param_to_name_mapping: dict[int, str],
        first_bucket_bytes_cap: int,
        skip_all_reduce_unused_params: bool = False,
        use_python_reducer: bool = False,
        bucket_size_limits_for_rebuilding: Sequence[int] = (),
        *_: Any,
    ) -> None:
        self._parameters, self._group = parameters, process_group
        self._sparse = expect_sparse_gradients
        self._limits = list(bucket_size_limits_for_rebuilding) or [
            first_bucket_bytes_cap,
            bucket_bytes_cap,
        ]
        self._finds_unused, self._is_view = find_unused_parameters, gradient_as_bucket_view
        self._is_static = self._was_delayed = self._has_rebuilt = self._expects = False
        self._hook: Callable[[GradBucket], Any] | None = None
        self._ready_order: list[int] = []
        self._triggered: list[int] = []
        self._unused: list[int] = []
        self._next = 0
        self._buckets = [Bucket(indices, parameters) for indices in bucket_indices]
        self._handles = [
            p.register_post_accumulate_grad_hook(self._accumulated(i))
            for i, p in enumerate(parameters)
        ]

    def prepare_for_forward(self) -> None:
        """A forward begins that will be followed by a reduction."""

    def prepare_for_backward(self, outputs: list[torch.Tensor]) -> None:
        """A backward will come: parameters that none of the outputs depend on count as ready at its start."""
        self._expects, self._next, self._ready_order = True, 0, []
        for bucket in self._buckets:
            bucket.pending = len(bucket.indices)
            bucket.future = None
        if outputs:
            used = _parameters_below(outputs)
            self._unused = [i for i, p in enumerate(self._parameters) if id(p) not in used]

    def register_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """Buckets are reduced by this instead."""
        self._hook = lambda bucket: hook(state, bucket)

    def _rebuild_buckets(self) -> bool:
        """Build the buckets in the order in which gradients became ready; once, and only where that order is the same each time."""
        if not self._should_rebuild() or len(self._ready_order) != len(self._parameters):
            return False
        order = self._ready_order
        groups, _ = dist._compute_bucket_assignment_by_size(
            [self._parameters[i] for i in order], self._limits, [self._sparse[i] for i in order]
        )
        indices = [[order[i] for i in group] for group in groups]
        device = self._parameters[0].device
        for count in (len(order) + 1, len(indices)):  # all ranks take the order of rank 0
            agreed = torch.empty(count, dtype=torch.int32, device=device)
            self._group.broadcast([agreed]).wait()
        self._buckets = [Bucket(group, self._parameters) for group in indices]
        self._has_rebuilt, self._ready_order = True, []
        return True

    def _set_static_graph(self) -> None:
        self._is_static = True

    def _delay_all_reduce(self) -> None:
        """The first backward of a static graph is over: reduce all of it."""
        self._was_delayed = True
        self._share_used()
        rest = [i for i in range(len(self._parameters)) if i not in set(self._triggered)]
        for index in (*self._triggered, *rest):
            self._mark(index)

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def __getattr__(self, name: str) -> Callable[..., None]:
        """What else DistributedDataParallel tells its reducer changes nothing here."""
        return lambda *_, **__: None

    def _should_rebuild(self) -> bool:
        return (self._is_static or not self._finds_unused) and not self._has_rebuilt

    def _accumulated(self, index: int) -> Callable[[torch.Tensor], None]:
        def accumulated(_: torch.Tensor) -> None:
            if not self._expects:
                return
            if self._is_static and not self._was_delayed:
                self._triggered.append(index)
                return
            if self._should_rebuild():
                self._ready_order.append(index)
            unused, self._unused = self._unused, []
            for other in unused:
                self._mark(other)
            self._mark(index)

        return accumulated

    def _mark(self, index: int) -> None:
        """A gradient is ready, or will not come."""
        bucket = next(b for b in self._buckets if index in b.indices)
        self._fill(bucket, bucket.indices.index(index))
        bucket.pending -= 1
        while self._next < len(self._buckets) and not self._buckets[self._next].pending:
            self._reduce(self._buckets[self._next])
            self._next += 1
        if self._next == len(self._buckets):
            self._expects = False
            if self._finds_unused and not self._is_static:
                self._share_used()
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _fill(self, bucket: Bucket, position: int) -> None:
        view, grad = bucket.views[position], bucket.parameters[position].grad
        size = self._group.size()
        with torch.no_grad():
            if grad is None:
                view.zero_()
            elif grad.untyped_storage()._cdata == view.untyped_storage()._cdata:
                view.div_(size)
            elif self._hook is None:
                torch.mul(grad, 1.0 / size, out=view)
            else:
                view.copy_(grad)
            if self._is_view and grad is not None:
                bucket.parameters[position].grad = view

    def _reduce(self, bucket: Bucket) -> None:
        with torch.no_grad():
            if self._hook is None:
                self._group.allreduce([bucket.flat])
                return
            is_last = bucket is self._buckets[-1]
            bucket.future = self._hook(GradBucket(bucket, self._next, is_last))

    def _share_used(self) -> None:
        """All ranks learn which parameters any of them used."""
        device = self._parameters[0].device
        used = torch.empty(len(self._parameters), dtype=torch.int32, device=device)
        self._group.allreduce([used])

    def _finish(self) -> None:
        """The backward is over: gradients are what was reduced."""
        with torch.no_grad():
            for bucket in self._buckets:
                if bucket.future is not None:
                    reduced = bucket.future.wait()
                    reduced = reduced[0] if isinstance(reduced, list | tuple) else reduced
                    if reduced is not bucket.flat:
                        bucket.flat.copy_(reduced)
                for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                    if parameter.grad is not None and parameter.grad is not view:
                        parameter.grad.copy_(view)


class Logger:
    """DistributedDataParallel's logger, which logs nothing."""

    def __init__(self, _: Any) -> None:
        return None

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _parameters_below(outputs: Sequence[torch.Tensor]) -> set[int]:
    """Identities of the leaves that outputs were computed from."""
    found: set[int] = set()
    seen: set[Any] = set()
    nodes = [t.grad_fn for t in outputs if t.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        nodes.extend(parent for parent, _ in node.next_functions if parent is not None)
    return found
