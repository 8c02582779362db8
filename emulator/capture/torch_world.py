"""How does one process play a rank of a whole world? Process groups that exist, and communicate with nobody.

Whatever backend, store or address a program asks for, it gets torch's own fake process group of the world's size.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes

from trnprof.emulator.capture.torch_devices import is_accelerator
from trnprof.emulator.capture.torch_exchanged import watch_reductions
from trnprof.emulator.capture.torch_objects import Objects

_MESH_METHODS: Final = (
    "__init__ __repr__ __getitem__ _compute_coordinates_from_mesh _create_sub_mesh _create_flatten_mesh "
    "_create_unflatten_mesh _get_all_submeshes _flatten _unflatten _concatenate from_group _sym_get_coordinate "
    "_compute_coordinate_on_dim _init_process_groups get_all_groups"
).split()
"""Methods of DeviceMesh that look at the values of tensors, of the fake kind too."""
_WITHOUT_META: Final = (
    "allreduce_coalesced_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)
"""Operators of c10d that torch gives no fake kernel."""


class FakeWorld:
    """The world of which this process plays one rank.

    Attributes:
        size: its ranks.
        rank: the one that is played.
    """

    def __init__(
        self,
        size: int,
        rank: int,
        objects: Objects,
        note: Callable[[str], object],
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self.size = size
        self.rank = rank
        self._note = note
        self._objects = objects
        self._refuse = refuse
        self._library: Any = None

    def install(self) -> None:
        """From now on the program finds itself in the world."""
        replace_everywhere(dist.init_process_group, self._init(dist.init_process_group))
        c10d._new_group_with_tag = _fake_backend(c10d._new_group_with_tag)
        replace_everywhere(dist.split_group, _split_group)
        watch_reductions(replace_everywhere)
        self._patch_meshes()
        self._add_meta_kernels()
        for original, replacement in self._objects.replacements():
            replace_everywhere(original, replacement)

    def _init(self, init: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(init)
        def init_process_group(
            backend: Any = None,
            init_method: Any = None,
            timeout: Any = None,
            world_size: int = -1,
            rank: int = -1,
            *_: Any,
            **__: Any,
        ) -> None:
            if world_size not in (-1, None, self.size):
                self._refuse(f"world size {world_size} asked, --world-size {self.size} given")
            if rank not in (-1, None, self.rank):
                self._refuse(
                    f"rank {rank} asked: the program plays rank {self.rank}; take its rank from the environment (RANK)"
                )
            init("fake", timeout=timeout, world_size=self.size, rank=self.rank)

        return init_process_group

    def _patch_meshes(self) -> None:
        mesh = device_mesh.DeviceMesh
        for name in _MESH_METHODS:
            method = mesh.__dict__.get(name)
            if isinstance(method, staticmethod):
                setattr(mesh, name, staticmethod(_on_emulated(_on_host(method.__func__))))
            elif method is not None:
                setattr(mesh, name, _on_emulated(_with_values(_on_host(method))))
        init = _on_emulated(_on_host(device_mesh.init_device_mesh))

        @functools.wraps(init)
        def init_device_mesh(device_type: str, mesh_shape: Any, **kwargs: Any) -> Any:
            shape, ranks = " x ".join(map(str, mesh_shape)), math.prod(mesh_shape)
            if ranks > self.size:
                self._refuse(f"the mesh {shape} has {ranks} ranks, --world-size {self.size} given")
            if ranks < self.size:
                self._note(
                    f"the mesh {shape} has {ranks} of {self.size} ranks: the others are emulated as if they did the same"
                )
            return init(device_type, mesh_shape, **kwargs)

        replace_everywhere(device_mesh.init_device_mesh, init_device_mesh)

    def _add_meta_kernels(self) -> None:
        from torch.distributed._meta_registrations import create_fakework

        self._library = torch.library.Library("c10d", "IMPL")
        for name in _WITHOUT_META:
            self._library.impl(name, lambda *args: create_fakework(args, False), "Meta")


def replace_everywhere(original: Any, replacement: Any) -> None:
    """Put a function in the place of another in all modules of torch that hold it."""
    for name, module in list(sys.modules.items()):
        if name == "torch" or name.startswith("torch."):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, replacement)


def _fake_backend(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def new_group(ranks: Any = None, timeout: Any = None, *_: Any, **kwargs: Any) -> Any:
        for name in ("backend", "backend_options", "device_id"):
            kwargs.pop(name, None)
        return make(ranks, timeout, "fake", **kwargs)

    return new_group


def _split_group(
    parent_pg: Any = None, split_ranks: Any = None, *_: Any, group_desc: Any = None, **__: Any
) -> Any:
    """The groups into which a group is split, one after the other; that of this rank."""
    parent = dist.get_process_group_ranks(parent_pg or dist.group.WORLD)
    own = None
    for part in split_ranks or ():
        ranks = [parent[position] for position in part]
        group = dist.new_group(ranks, group_desc=group_desc)
        own = group if dist.get_rank() in ranks else own
    return own


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its tensors real and its operations unseen."""

    @functools.wraps(function)
    def on_host(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return on_host


def _with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, fake tensors among its arguments made lists of their values: ranks that a program computes are known."""

    def valued(value: Any) -> Any:
        return value.tolist() if isinstance(value, FakeTensor) else value

    @functools.wraps(function)
    def with_values(*args: Any, **kwargs: Any) -> Any:
        return function(*map(valued, args), **{k: valued(v) for k, v in kwargs.items()})

    return with_values


def _on_emulated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, names of devices among its arguments made that of the emulated one."""

    def mapped(value: Any) -> Any:
        return "cpu" if isinstance(value, str) and is_accelerator(value) else value

    @functools.wraps(function)
    def on_emulated(*args: Any, **kwargs: Any) -> Any:
        return function(*map(mapped, args), **{k: mapped(v) for k, v in kwargs.items()})

    return on_emulated
