"""Functions that pass their keyword arguments on, with a signature that names them."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable


def keywords_from(source: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For functions whose ``**options`` are keyword-only parameters of ``source``, which have defaults there."""
    passed = [p for p in inspect.signature(source).parameters.values() if p.kind is p.KEYWORD_ONLY]

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(fn)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        parameters = [*own, *[p for p in passed if p.name not in signature.parameters]]
        names = {p.name for p in parameters}

        @functools.wraps(fn)
        def call(*args: Any, **options: Any) -> Any:
            for name in options:
                if name not in names:
                    raise TypeError(f"{call.__name__}() got an unexpected keyword argument {name!r}")
            return fn(*args, **options)

        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate
