"""Params as llama-server's words: parse(to_words(params)).params == params."""

from __future__ import annotations

from .kinds import DEVICES, EXPERTS, EXPERTS_OF, FFN_OF, FILE_OF, LOAD_MODE, OVERRIDES, REPOSITORY
from .params import EXPERTS_REGEX, FFN_REGEX, HOST_BUFFER, Params
from .table import ARGUMENTS, Argument, rows_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .kinds import Kind

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
    return [word for words in _said(params, knows).values() for word in words]


def rewritten(words: Sequence[str], before: Params, after: Params) -> tuple[str, ...]:
    """`words`, which express `before`, changed to express `after`: other values stay in place, new
    flags come last."""
    old, new, found = _said(before), _said(after), list(words)
    for flag, said in old.items():
        at = next((i for i in range(len(found)) if found[i : i + len(said)] == said), None)
        if new.get(flag) != said and at is not None:
            found[at : at + len(said)] = new.get(flag, [])
    return (*found, *(word for flag, said in new.items() if flag not in old for word in said))


def _said(params: Params, knows: Callable[[str], bool] | None = None) -> dict[str, list[str]]:
    """Return the words of each argument that is set."""
    found: dict[str, list[str]] = {}
    for row in ARGUMENTS:
        if not row.field or row.kind.write is None:
            continue
        value: Any = getattr(params, row.field)
        is_unset = value is None or (value == () and row.kind is not DEVICES)
        if is_unset or _writer(row.field, value) is not row:
            continue
        if row.field == "mmproj_offload" and value and params.mmproj_device is not None:
            continue  # -mmdev sets it
        if row.kind is OVERRIDES:
            found[row.canonical] = _override_words(value, row, knows)
        elif row.kind is LOAD_MODE and knows is not None and not knows(row.canonical):
            found[row.canonical] = list(_OLD_LOAD_MODES[value])
        elif row.kind is REPOSITORY:
            found[row.canonical] = _repository_words(value, row)
        elif row.takes_value:
            found[row.canonical] = [row.canonical, row.kind.write(value)]
        elif value or row.negated:
            found[row.canonical] = [row.written(value)]
    return found


def _writer(field: str, value: Any) -> Argument:
    """Return the argument of a field that expresses this value."""
    rows = [row for row in rows_of(field) if row.kind.write is not None]
    plain = next(row for row in rows if not row.kind.prefixes)
    return next(
        (row for row in rows if row.kind.prefixes and value.startswith(row.kind.prefixes)), plain
    )


def _repository_words(value: str, row: Argument) -> list[str]:
    """-hf REPOSITORY -hff FILE for hf:USER/NAME/FILE, if the field has an argument for the file."""
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
    pending: list[str] = []
    i = 0
    while i < len(pairs):
        short, length = _short_form(pairs, i, flags)
        if short and pending:
            words += [row.canonical, ",".join(pending)]
            pending = []
        if not short:
            pattern, buffer_type = pairs[i]
            if "," in pattern + buffer_type or "=" in pattern:
                raise ValueError(f"-ot cannot express {pattern}={buffer_type}")
            pending.append(f"{pattern}={buffer_type}")
            length = 1
        words += short
        i += length
    return words + ([row.canonical, ",".join(pending)] if pending else [])


def _short_form(
    pairs: tuple[tuple[str, str], ...], i: int, flags: Mapping[Kind, str]
) -> tuple[list[str], int]:
    """Return (words, number of pairs) of the longest of llama.cpp's own forms that begins at `i`;
    ([], 0) if there is none. `flags`: kind -> name of the flags that the build knows."""
    words: list[str] = []
    length = 0
    if EXPERTS in flags and pairs[i] == (EXPERTS_REGEX, HOST_BUFFER):
        words, length = [flags[EXPERTS]], 1
    for kind, regex in ((EXPERTS_OF, EXPERTS_REGEX), (FFN_OF, FFN_REGEX)):
        if kind not in flags:
            continue
        count = 0
        while pairs[i + count : i + count + 1] == ((rf"blk\.{count}{regex}", HOST_BUFFER),):
            count += 1
        if count > length:
            words, length = [flags[kind], str(count)], count
    return words, length
