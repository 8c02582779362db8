"""Which errors does trnprof raise, and which exit code does each mean?

::

    TrnprofError               exit 2: bad input or our failure, told in one line
    ├── TraceError             a trace directory that is missing, empty, unreadable or of another schema
    ├── ProfileError           a profile to import that cannot be read, or is of no known format
    ├── OutputExistsError      an output is there already and --force was not given
    ├── WriteError             the disk is full, the directory read-only, …
    ├── SystemDescriptionError a system description that is unknown, malformed or incomplete
    ├── GraphError             a task graph that cannot be scheduled (a cycle, an unknown server)
    ├── FabricError            a topology that cannot be built, a link or chip that it lacks, chips that nothing joins
    ├── CollectiveError        a collective that its group, algorithm or fidelity cannot do
    ├── CaptureError           a command that cannot be captured
    └── MissingExtraError      an optional dependency is not installed; the message holds the pip line
"""

from __future__ import annotations


class TrnprofError(Exception):
    """What is wrong, where (file, row, key) and what to do, in one line for a person."""


class TraceError(TrnprofError):
    """A trace that is missing, empty, unreadable or of an unknown schema."""


class ProfileError(TrnprofError):
    """A profile to import that cannot be read, or is of no known format."""


class OutputExistsError(TrnprofError):
    """An output is there already and may not be replaced."""


class WriteError(TrnprofError):
    """An output could not be written: disk full, read-only, gone.

    Attributes:
        path: what could not be written, if the operating system refused it.
        reason: why, and what to do.
    """

    def __init__(self, message: str, path: str = "", reason: str = "") -> None:
        super().__init__(message, path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return str(self.args[0])


class SystemDescriptionError(TrnprofError):
    """A system description that is unknown, malformed or incomplete."""


class GraphError(TrnprofError):
    """A task graph that cannot be scheduled."""


class FabricError(TrnprofError):
    """A topology that cannot be built, a link or chip that it lacks, or chips that nothing joins."""


class CollectiveError(TrnprofError):
    """A collective that its group, algorithm or fidelity cannot do."""


class CaptureError(TrnprofError):
    """A command that cannot be captured."""


class MissingExtraError(TrnprofError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed; install it with: pip install 'trnprof[{extra}]'"
        )
