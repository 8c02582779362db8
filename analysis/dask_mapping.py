"""How does the map step of a report run on a Dask cluster that is there? One task a piece, a few ahead of what has been added up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from trnprof.analysis.mapping import Mapper
from trnprof.tracer.errors import MissingExtraError, TrnprofError

T = TypeVar("T")
R = TypeVar("R")

WAIT_SECONDS: Final = 10
AHEAD: Final = 2
"""Tasks in flight for each thread of the cluster: enough that none waits, few enough that results do not pile up here."""


@contextmanager
def on_dask(address: str) -> Iterator[Mapper]:
    """A mapper on the cluster of a scheduler.

    A piece whose worker dies runs again on another one; results come in the order of the pieces, so that they add up to the same.

    Args:
        address: of the scheduler, such as ``tcp://host:8786``.

    Raises:
        MissingExtraError: Dask is not installed.
        TrnprofError: no scheduler answers there, it has no workers, or a piece failed on all that tried it.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingExtraError(error.name or "distributed", "dask") from None
    try:
        client = Client(address, timeout=WAIT_SECONDS, set_as_default=False)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrnprofError(
            f"no Dask scheduler answers at {address} ({reason}): start one with dask scheduler, or leave --scheduler out"
        ) from None
    try:
        yield _mapper(client, address)
    finally:
        client.close()


def _mapper(client: Any, address: str) -> Mapper:
    def mapped(function: Callable[[T, Any], R], pieces: Iterable[T], common: Any) -> Iterator[R]:
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        threads = sum(client.nthreads().values())
        if not threads:
            raise TrnprofError(f"the Dask cluster at {address} has no workers: start some first")
        shared = client.scatter(common, broadcast=True, hash=False)
        running: deque[Any] = deque()
        try:
            for piece in pieces:
                running.append(client.submit(function, piece, shared, pure=False))
                if len(running) >= AHEAD * threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        except (KilledWorker, FutureCancelledError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise TrnprofError(f"the Dask cluster at {address} gave up: {reason}") from None
        finally:
            client.cancel(list(running))

    return mapped
