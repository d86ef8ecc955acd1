"""Params as llama-server's words: parse(to_words(params)).params == params."""

from __future__ import annotations

from itertools import groupby

from .kinds import (
    DEVICES,
    EXPERTS,
    EXPERTS_OF,
    FFN_OF,
    FILE_OF,
    FILES,
    LOAD_MODE,
    OVERRIDES,
    REPOSITORY,
    SCALED,
    Kind,
)
from .params import EXPERTS_REGEX, FFN_REGEX, HOST_BUFFER, Params, Scaled
from .table import ARGUMENTS, Argument, rows_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


# the modes in builds without --load-mode
_OLD_LOAD_MODES = {
    "auto": [],
    "mmap": ["--mmap"],
    "none": ["--no-mmap"],
    "mlock": ["--no-mmap", "--mlock"],
    "mmap+mlock": ["--mlock"],
    "dio": ["-dio"],
}


def to_words(params: Params, knows: Callable[[str], bool] | None = None) -> list[str]:
    """Return the words for `params`, as canonical short flags. `knows`: whether the build that
    reads them has a flag, None for today's; older equivalents are used if there are any: -ot places
    tensors, --no-mmap is -lm none.

    Raises ValueError for values that a command line cannot express (a comma in an override's
    pattern).
    """
    # In the order of llama.cpp's own list, so that equal launches have equal words
    return [word for words in _words_by_flag(params, knows).values() for word in words]


def rewritten(words: Sequence[str], before: Params, after: Params) -> tuple[str, ...]:
    """`words`, which express `before`, changed to express `after`: other values stay in place, new
    flags come last."""
    old, new, result = _words_by_flag(before), _words_by_flag(after), list(words)
    # Where the old words of a flag stand, its new ones take their place
    for flag, flag_words in old.items():
        at = next(
            (i for i in range(len(result)) if result[i : i + len(flag_words)] == flag_words), None
        )
        if new.get(flag) != flag_words and at is not None:
            result[at : at + len(flag_words)] = new.get(flag, [])
    return (
        *result,
        *(word for flag, flag_words in new.items() if flag not in old for word in flag_words),
    )


def _words_by_flag(
    params: Params, knows: Callable[[str], bool] | None = None
) -> dict[str, list[str]]:
    """Return the words of each argument that is set."""
    by_flag: dict[str, list[str]] = {}
    for row in ARGUMENTS:
        if not row.field or row.kind.write is None:
            continue
        # Rows without a field touch no memory: they are not in a Params
        value: Any = getattr(params, row.field)
        if value is not None and _is_written(row, value, params):
            by_flag[row.canonical] = _words(row, value, knows)
    return by_flag


def _is_written(row: Argument, value: Any, params: Params) -> bool:
    """Return whether an argument, of those of its field, expresses this value."""
    # () of -dev is "--device none", of every other list it is nothing
    if value == () and row.kind is not DEVICES:
        return False
    # Several arguments may set one field, and one of them says this value: model is -m, but
    # "hf:..." of the same field is -hf, "https://..." is -mu
    others = [other for other in rows_of(row.field) if other.kind.write is not None]
    plain = next(other for other in others if not other.kind.prefixes)
    with_prefix = [other for other in others if other.kind.prefixes]
    says = (other for other in with_prefix if value.startswith(other.kind.prefixes))
    if next(says, plain) is not row:
        return False
    # -mmdev sets both fields: one word says it
    if row.field == "mmproj_offload" and value:
        return params.mmproj_device is None  # otherwise -mmdev sets it
    # A switch that is off has a word only if it has a negation
    return bool(row.takes_value or value or row.negated)


def _words(row: Argument, value: Any, knows: Callable[[str], bool] | None) -> list[str]:
    """Return the words of an argument with this value."""
    if not row.takes_value:
        return [row.written(value)]
    if row.kind is OVERRIDES:
        return _override_words(value, row, knows)
    # builds before --load-mode had a switch for each
    if row.kind is LOAD_MODE and knows is not None and not knows(row.canonical):
        return list(_OLD_LOAD_MODES[value])
    if row.kind is REPOSITORY:
        # -hf REPOSITORY -hff FILE for hf:USER/NAME/FILE, if the field has an argument for
        # the file
        # "user/name/folder/file.gguf", or "user/name:Q4_K_M" without a file
        where = value.removeprefix("hf:")
        file_flag = next(
            (other.canonical for other in rows_of(row.field) if other.kind is FILE_OF), None
        )
        repository, file = "/".join(where.split("/")[:2]), "/".join(where.split("/")[2:])
        return (
            [row.canonical, repository, file_flag, file]
            if file and file_flag
            else [row.canonical, where]
        )
    if row.kind is FILES:
        # --lora FILE,..., and --lora-scaled FILE:SCALE,... for those with a scale, in their order.
        words: list[str] = []
        for has_scale, group in groupby(value, lambda file: isinstance(file, Scaled)):
            kind = SCALED if has_scale else FILES
            flag = next(other for other in rows_of(row.field) if other.kind is kind)
            assert kind.write is not None
            words += [flag.canonical, kind.write(tuple(group))]
        return words
    assert row.kind.write is not None  # only such rows have words
    return [row.canonical, row.kind.write(value)]


def _override_words(
    pairs: tuple[tuple[str, str], ...], row: Argument, knows: Callable[[str], bool] | None
) -> list[str]:
    """Return the shortest form: -cmoe and -ncmoe N for llama.cpp's own patterns, -ot for all
    others."""
    flags = {
        other.kind: other.canonical
        for other in rows_of(row.field)
        if knows is None or knows(other.canonical)
    }
    words: list[str] = []
    # patterns of -ot that wait for the next short form, to share one flag
    pending: list[str] = []
    i = 0
    while i < len(pairs):
        short, length = _short_form(pairs, i, flags)
        # The order stays: of two patterns that match a tensor the first one counts
        if short:
            words += [*_one_flag(row, pending), *short]
            pending = []
            i += length
        else:
            pattern, buffer_type = pairs[i]
            # parse_tensor_buffer_overrides splits at every comma, then at the first "="
            if "," in pattern + buffer_type or "=" in pattern:
                raise ValueError(f"-ot cannot express {pattern}={buffer_type}")
            pending.append(f"{pattern}={buffer_type}")
            i += 1
    return words + _one_flag(row, pending)


def _one_flag(row: Argument, values: list[str]) -> list[str]:
    """Return the words of one flag with all of these values; none without a value."""
    return [row.canonical, ",".join(values)] if values else []


def _short_form(
    pairs: tuple[tuple[str, str], ...], i: int, flags: Mapping[Kind, str]
) -> tuple[list[str], int]:
    """Return (words, number of pairs) of the longest of llama.cpp's own forms that begins at `i`;
    ([], 0) if there is none. `flags`: kind -> name of the flags that the build knows."""
    words: list[str] = []
    length = 0
    # -cmoe: the experts of all layers are one pattern
    if EXPERTS in flags and pairs[i] == (EXPERTS_REGEX, HOST_BUFFER):
        words, length = [flags[EXPERTS]], 1
    for kind, regex in ((EXPERTS_OF, EXPERTS_REGEX), (FFN_OF, FFN_REGEX)):
        if kind not in flags:
            continue
        count = 0
        # -ncmoe N writes a pattern for each layer from 0 on
        while pairs[i + count : i + count + 1] == ((rf"blk\.{count}{regex}", HOST_BUFFER),):
            count += 1
        if count > length:
            words, length = [flags[kind], str(count)], count
    return words, length
