"""Validity of a header's values, checked before anything is counted, listed or built from them."""

from __future__ import annotations

from ..errors import ModelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGEST = (1 << 32) - 1  # llama.cpp keeps sizes as uint32_t


def is_kind(value: Any, like: object) -> bool:
    """Return whether `value` is a number, a text or a list as `like` is, whatever its range."""
    for kind in (bool, float, int):
        if isinstance(like, kind):
            return isinstance(value, (int, float) if kind is float else int)
    return isinstance(value, type(like))


def _is_like(value: Any, like: object, largest: int) -> bool:
    """Return whether `value` is of the kind of `like` and in its range."""
    if isinstance(like, bool):
        return isinstance(value, int) and 0 <= value <= 1
    if isinstance(like, int):
        return isinstance(value, int) and min(like, 0) <= value <= largest
    if isinstance(like, float):
        return isinstance(value, (int, float))
    if isinstance(like, tuple):
        return isinstance(value, tuple) and all(_is_like(item, -1, largest) for item in value)
    return isinstance(value, str)


def checked(key: str, value: Any, like: object, largest: int = LARGEST) -> Any:
    """Return `value` if it is of the kind of `like`. Raises ModelError naming the key.

    An int is from 0 (-1 where `like` is below 0) to `largest`. Where `like` is a float any number
    will do, and where it is a tuple a tuple of such ints or -1.
    """
    if not _is_like(value, like, largest):
        raise ModelError(f"{key} has an impossible value: {value!r:.60}")
    return int(value) if isinstance(like, int) and not isinstance(like, bool) else value
