"""What is said while functions are compiled, once on a machine?"""

from __future__ import annotations

from typing import Final

from trnprof.cli.diagnostics import command_name, say

_WHAT: Final = {
    "collective": "what times collectives",
    "emulate": "the scheduler",
    "export": "what writes the file",
    "import": "what reads profiles",
    "record": "the scheduler",
}
"""By command; any other may compile too."""


def say_compiling() -> None:
    """Say what is compiled."""
    what = _WHAT.get(command_name(), "what this command needs")
    say(f"compiling {what}, once on this machine (up to a minute)")
