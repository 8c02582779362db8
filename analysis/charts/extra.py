"""Is what draws charts installed? Altair and vl-convert, of the extra ``html``."""

from __future__ import annotations

from typing import Any

from trnprof.tracer.errors import MissingExtraError


def drawing() -> tuple[Any, Any]:
    """The modules altair and vl_convert.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    try:
        import altair
        import vl_convert
    except ImportError as error:
        raise MissingExtraError(error.name or "altair", "html") from None
    return altair, vl_convert
