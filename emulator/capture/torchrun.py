"""Which world does a command start? torchrun, accelerate and their kin are recognised, and replaced by a process that plays rank 0 of it (and one for each rank that differs).

The launcher itself is not run: of its options only those that say how many ranks there are matter, the others are accepted.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from trnprof.emulator.capture.accelerate_launch import (
    Launched,
    accelerate_arguments,
    ask_accelerate,
)
from trnprof.tracer.errors import CaptureError

_OLD: Final = "torch.distributed.launch"
_MODULES: Final = ("torch.distributed.run", _OLD)
_FLAGS: Final = ("--standalone", "--run-path", "--virtual-local-rank")
_VALUES: Final = (
    "--rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts --monitor-interval --start-method "
    "--event-log-handler --role --log-dir --redirects --tee --local-ranks-filter --duplicate-stdout-filters --duplicate-stderr-filters --node-rank "
    "--master-addr --master-port --local-addr --logs-specs --numa-binding --signals-to-handle --shutdown-timeout"
).split()
_LOCAL_RANK: Final = "--local-rank={}"
_SHORT: Final = {"--redirects": "-r", "--tee": "-t"}


@dataclass(frozen=True)
class RankCommand:
    """A command, and the world in which it plays rank 0.

    Attributes:
        command: what to run, the launcher taken away.
        world_size: ranks in all; None where the command is no distributed program.
        local_size: ranks on each node.
        launcher: the name of a launcher that was recognised.
        variables: of the environment, that it sets.
        rank: which one it plays.
        local_rank_at: position in the command of the local rank, as the old launcher gives it; -1 for none.
    """

    command: tuple[str, ...]
    world_size: int | None = None
    local_size: int = 1
    launcher: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    rank: int = 0
    local_rank_at: int = -1

    def of_rank(self, rank: int) -> RankCommand:
        """The same for another rank."""
        command = list(self.command)
        if self.local_rank_at >= 0:
            command[self.local_rank_at] = _LOCAL_RANK.format(rank % self.local_size)
        return replace(self, command=tuple(command), rank=rank)

    def environment(self) -> dict[str, str]:
        """What a launcher sets for the rank; of ranks nothing where there is no world."""
        if self.world_size is None:
            return dict(self.variables)
        node, local = divmod(self.rank, self.local_size)
        ranks = {
            "RANK": self.rank,
            "LOCAL_RANK": local,
            "GROUP_RANK": node,
            "ROLE_RANK": self.rank,
            "NODE_RANK": node,
        }
        sizes = {
            "WORLD_SIZE": self.world_size,
            "ROLE_WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": self.local_size,
            "GROUP_WORLD_SIZE": self.world_size // self.local_size,
        }
        fixed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        if self.launcher:
            fixed |= {"TORCHELASTIC_RUN_ID": "trnprof", "TORCHELASTIC_RESTART_COUNT": "0"}
        own = {name: str(value) for name, value in (ranks | sizes).items()}
        return dict(self.variables) | own | fixed


def rank_command(command: Sequence[str], world_size: int | None = None) -> RankCommand:
    """The command of rank 0, and its world.

    Args:
        command: program and arguments; a launcher may stand first.
        world_size: as asked with --world-size.

    Raises:
        CaptureError: the launcher's numbers are not fixed, contradict ``world_size``, or what it starts is no Python.
    """
    if world_size is not None and world_size < 1:
        raise CaptureError(f"--world-size {world_size}: a world has at least one rank")
    split = _split(command)
    if split is None:
        return RankCommand(tuple(command), world_size, world_size or 1)
    python, name, arguments = split
    if name == "accelerate":
        return _accelerated(ask_accelerate(python, arguments, world_size), world_size)
    is_old = name == _OLD
    options = _parser().parse_args(arguments)
    if options.no_python:
        raise CaptureError(
            f"{options.script} is started with --no-python: only a Python program can play rank 0"
        )
    local = _local_size(options, world_size)
    nodes = _number(options.nnodes, "--nnodes", world_size, 1)
    if world_size is not None and options.nproc is not None and world_size != local * nodes:
        raise CaptureError(
            f"--world-size {world_size}, but the launcher starts {local} x {nodes} ranks: leave out --world-size"
        )
    script = ["-m", options.script] if options.module else [options.script]
    rank = [_LOCAL_RANK.format(0)] if is_old and not options.use_env else []
    whole = (*python, *script, *rank, *options.arguments)
    local_rank_at = len(python) + len(script) if rank else -1
    return RankCommand(whole, local * nodes, local, "torchrun", local_rank_at=local_rank_at)


def _accelerated(found: Launched, world_size: int | None) -> RankCommand:
    size = found.local * found.nodes
    if size and world_size not in (None, size):
        raise CaptureError(
            f"--world-size {world_size}, but accelerate starts {size} ranks: leave out --world-size"
        )
    if not size:
        return RankCommand(
            found.command, world_size, world_size or 1, "accelerate", found.variables
        )
    return RankCommand(found.command, size, found.local, "accelerate", found.variables)


def _split(command: Sequence[str]) -> tuple[list[str], str, list[str]] | None:
    """The Python that would run each rank, the launcher's name and arguments; None without one."""
    if not command:
        return None
    name = Path(command[0]).name
    if name == "torchrun":
        return [_python_of(command[0])], name, list(command[1:])
    found = accelerate_arguments(name, command[1:])
    if found is not None:
        return [_python_of(command[0])], "accelerate", found
    if not name.startswith(("python", "pypy")):
        return None
    for position, option in enumerate(command[1:], 1):
        if option == "-m" and command[position + 1 : position + 2]:
            module, rest = command[position + 1], list(command[position + 2 :])
            if module in _MODULES:
                return list(command[:position]), module, rest
            found = accelerate_arguments(module, rest)
            return None if found is None else (list(command[:position]), "accelerate", found)
        if not option.startswith("-"):
            return None
    return None


def _python_of(launcher: str) -> str:
    """The interpreter in the first line of the launcher's script; else the one beside it, else python3.

    A launcher that is not on the PATH is not missed, as it is not run: the interpreter is ours.
    """
    path = shutil.which(launcher)
    if path is None and "/" in launcher:
        raise CaptureError(f"{launcher}: no such file or command")
    if path is None:
        return sys.executable
    with Path(path).open("rb") as file:
        first = file.readline(4096).decode("utf-8", "replace").strip()
    interpreter = first.removeprefix("#!").split(" ")[0] if first.startswith("#!") else ""
    if Path(interpreter).name.startswith("python"):
        return interpreter
    beside = Path(path).resolve().parent / "python3"
    return str(beside) if beside.exists() else "python3"


class _Parser(argparse.ArgumentParser):
    """Reports what is wrong as an error of ours."""

    def error(self, message: str) -> NoReturn:
        raise CaptureError(f"torchrun: {message}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False)
    parser.add_argument(*_spellings("--nproc-per-node"), dest="nproc")
    parser.add_argument("--nnodes", default="1")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument(*_spellings("--no-python"), dest="no_python", action="store_true")
    parser.add_argument(*_spellings("--use-env"), dest="use_env", action="store_true")
    for name in _FLAGS:
        parser.add_argument(*_spellings(name), action="store_true")
    for name in _VALUES:
        parser.add_argument(*_spellings(name), *([_SHORT[name]] if name in _SHORT else []))
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _spellings(name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((name, "--" + name[2:].replace("-", "_"))))


def _local_size(options: argparse.Namespace, world_size: int | None) -> int:
    if options.nproc is None and world_size is not None:
        nodes = _number(options.nnodes, "--nnodes", None, 1)
        if world_size % nodes:
            raise CaptureError(f"--world-size {world_size} does not divide over {nodes} nodes")
        return world_size // nodes
    return _number(options.nproc or "1", "--nproc-per-node", world_size, world_size)


def _number(text: str, name: str, world_size: int | None, otherwise: int | None) -> int:
    """A count of the launcher; where it is found out at run time, what the world asked for leaves."""
    if text.isdigit() and int(text):
        return int(text)
    if world_size is not None and otherwise is not None:
        return otherwise
    raise CaptureError(f"{name} {text}: give a number, or --world-size before --")
