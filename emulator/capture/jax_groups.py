"""What is a group of ranks called? By the axes of the mesh that the program's arrays lie on, as the program named them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from trnprof.emulator.capture.hlo.values import Groups
from trnprof.emulator.workload import ProcessGroup


def process_group(
    ranks: tuple[int, ...],
    groups: Groups,
    devices: Sequence[int],
    meshes: Iterable[Any],
    number: int,
) -> ProcessGroup:
    """A group of a program as one of the world.

    Args:
        ranks: positions of its devices in the program.
        groups: those of all groups.
        devices: ids by position: the ranks of the world.
        meshes: that arrays of the program lie on.
        number: to call it by, if no axes are its.
    """
    own = tuple(devices[r] for r in ranks)
    siblings = tuple(sorted(tuple(devices[r] for r in group) for group in groups))
    wanted = {frozenset(group) for group in siblings}
    for mesh in meshes:
        for axes, found in _groups_of(mesh):
            if found == wanted:
                return ProcessGroup("x".join(axes), own, siblings)
    return ProcessGroup(f"group {number}", own, siblings)


def mesh_of(array: Any) -> Any | None:
    """The mesh that an array lies on, if it is sharded over a named one."""
    mesh = getattr(getattr(array, "sharding", None), "mesh", None)
    return mesh if getattr(mesh, "axis_names", ()) and hasattr(mesh, "devices") else None


def _groups_of(mesh: Any) -> Iterable[tuple[tuple[str, ...], set[frozenset[int]]]]:
    """Axes, and the groups along them: fewest axes first."""
    ids = np.vectorize(lambda device: int(device.id), otypes=[int])(mesh.devices)
    names = list(mesh.axis_names)
    for count in range(1, len(names) + 1):
        for chosen in combinations(range(len(names)), count):
            others = [i for i in range(len(names)) if i not in chosen]
            size = int(np.prod([ids.shape[i] for i in chosen]))
            rows = ids.transpose([*others, *chosen]).reshape(-1, size)
            yield tuple(names[i] for i in chosen), {frozenset(map(int, row)) for row in rows}
