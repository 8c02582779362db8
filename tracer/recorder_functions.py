"""How does each call of a function become a span, and what may a name be?"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def decorated(function: Any, span: Callable[[str], Any]) -> Any:
    """The function, or coroutine function, with each of its calls in a span of its qualified name.

    Args:
        function: what to wrap.
        span: makes the context manager of one call.

    Raises:
        TypeError: a generator function: its call returns before its body runs.
    """
    name = function.__qualname__
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"@trnprof.span cannot wrap the generator {name}: use `with` inside it")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with span(name):
                return await function(*args, **kwargs)

        return awaited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with span(name):
            return function(*args, **kwargs)

    return called


def checked_text(text: Any, what: str) -> str:
    """The text as a plain ``str``.

    Raises:
        TypeError: it is none.
    """
    if isinstance(text, str):
        return text if text.__class__ is str else str.__str__(text)
    raise TypeError(f"the {what} must be a str, not {type(text).__name__}: {text!r:.60}")
