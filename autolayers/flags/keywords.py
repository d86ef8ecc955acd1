"""Flags as Python's keyword arguments: gpu="rtx-3060", ctx=8192, cache_type_k="q8_0",
mmap=False."""

from __future__ import annotations

from ..errors import WrongType
from .own import own_flags
from .table import lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def words_of(flags: Mapping[str, object], command: str = "plan") -> list[str]:
    """Return the words of keyword arguments, by a flag's long name with _ for -, or its short one;
    None: not given. Raises WrongType for a name that is no flag, and for a value that none takes.

    >>> words_of({"gpu": ["rtx-3060", "8GiB"], "ctx": 8192, "mmap": False, "ngl": None})
    ['--gpu', 'rtx-3060,8GiB', '--ctx', '8192', '--no-mmap']
    """
    words: list[str] = []
    # In the order given: what llama-server adds up (-ot) depends on it
    for name, value in flags.items():
        if value is None:
            continue
        flag, switch = _flag(name, command)
        # Before numbers: True is an int in Python
        if isinstance(value, bool):
            negated = f"--no-{name.replace('_', '-')}"
            # True of a switch is its own word: embedding=True
            if value and switch:
                words.append(flag)
            # mmap=False is --no-mmap, where llama-server has such a word
            elif not value and lookup(negated):
                words.append(negated)
            # False of a switch without a negation is its default
            elif value or not switch:
                raise WrongType(f"{name}={value}: {flag} takes a value")
        elif switch:
            raise WrongType(f"{name} is True or False, not {value!r:.60}")
        # As all of llama-server's lists are written: gpu=["rtx-3060", "8GiB"]
        elif isinstance(value, (list, tuple)) and value and all(map(_is_plain, value)):
            words += [flag, ",".join(map(str, value))]
        elif _is_plain(value):
            words += [flag, str(value)]
        else:
            raise WrongType(f"{name} is a number, a text or a list of them, not {value!r:.60}")
    return words


def is_flag(name: str, command: str = "plan") -> bool:
    """Return whether words_of takes such a name."""
    try:
        _flag(name, command)
    except WrongType:
        return False
    return True


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _flag(name: str, command: str) -> tuple[str, bool]:
    """Return the flag of a keyword, and whether it takes no value. Raises WrongType."""
    own = own_flags(command)
    text = name.replace("_", "-")
    # cache_type_k is --cache-type-k, ngl is -ngl
    for word in (f"--{text}", f"-{text}"):
        if word in own:
            return word, not own[word].takes_value
        argument = lookup(word)
        if argument is not None:
            # no_mmap=True names the negated form, which takes no value
            row, affirmed = argument
            return word, not affirmed or not row.takes_value
    import difflib

    # Among our own flags: there are too many of llama-server's for a good guess
    near = difflib.get_close_matches(f"--{text}", own, 1)
    raise WrongType(
        f"no flag is called {name!r}"
        + (f": {near[0].lstrip('-').replace('-', '_')}?" if near else "")
    )
