"""What would ``accelerate launch`` start? Run by the launcher's own Python, as a script: it asks accelerate, and starts nothing.

Arguments: a file for the answer, the devices that a node has, those of ``accelerate launch``. The answer is JSON: the command, ranks on a
node, nodes (0 for no distributed program), and the variables that are set for it.
"""

import json
import os
import subprocess
import sys
from typing import Any, NoReturn


class Answered(BaseException):
    """The launcher has told what it starts."""


def main() -> None:
    """Let accelerate read its configuration and go on to the place where it would start processes."""
    answer, devices, *arguments = sys.argv[1:]
    before = dict(os.environ)

    def tell(command: list[str], local: int, nodes: int, environment: Any) -> NoReturn:
        changed = {k: v for k, v in environment.items() if before.get(k) != v}
        told = {"command": command, "local": local, "nodes": nodes, "environment": changed}
        with open(answer, "w", encoding="utf-8") as file:
            json.dump(told, file)
        raise Answered

    def start_ranks(args: Any) -> NoReturn:
        script = ["-m", args.training_script] if args.module else [args.training_script]
        if args.no_python:
            raise ValueError("only a Python program can play rank 0, not one with --no_python")
        command = [sys.executable, *script, *args.training_script_args]
        nodes = str(args.nnodes).rpartition(":")[2]  # torch's default is a range
        tell(command, int(args.nproc_per_node), int(nodes), os.environ)

    def start_one(command: Any, *_: Any, env: Any = None, **__: Any) -> NoReturn:
        if command and os.path.basename(command[0]) != os.path.basename(sys.executable):
            raise ValueError(f"it would start {command[0]}, which cannot be played")
        tell(list(command), 1, 0, env or os.environ)

    import accelerate.utils.launch
    import torch
    import torch.distributed.run
    from accelerate.commands import launch

    asked = launch.launch_command_parser().parse_args(arguments)
    count = max(int(devices), asked.num_processes or 1)
    accelerate.utils.launch.is_port_in_use = lambda *_: False
    launch.get_torch_accelerator_backend = lambda *_, **__: ("cuda", torch.cuda)
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: count
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_name = lambda *_: "emulated device"
    torch.distributed.run.run = start_ranks
    subprocess.Popen = start_one  # type: ignore[assignment,misc]
    try:
        launch.launch_command(asked)
    except Answered:
        return
    except Exception as error:
        sys.exit(" ".join(f"{error}".split()) or type(error).__name__)
    sys.exit("it starts nothing that can be played")


if __name__ == "__main__":
    main()
