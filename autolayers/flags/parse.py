"""llama-server's command line, environment and config files as one Params.

    arguments = parse(["-c", "8192", "-cmoe", "--port", "80"])
    arguments.params.n_ctx        # 8192
    arguments.rest                # ("--port", "80"), nothing that touches memory

Mirrors common_params_parse_ex of llama.cpp's common/arg.cpp: config files first, then LLAMA_ARG_*
variables, then the words, and what comes later wins, except where llama.cpp accumulates (-ot,
-cmoe, -ncmoe, -ncffn, --rpc, --lora, --control-vector, --override-kv, --spec-type).

Understood beyond llama.cpp: `--flag=value`, a bare -fa, --no-mmap and the like (older builds have
the last two), a context of 16k, and autolayers' own flags. An unknown flag stays in `rest`. The
next word counts as its value unless it starts with a dash. `check.read` refuses unknown flags.
"""

from __future__ import annotations

import os

from ..errors import UsageError
from ..files import opened
from ..records import dataclass, field, replace
from .kinds import SWITCH, TRUE, Bad, boolean
from .own import COMMANDS, OwnFlag, own_flags
from .params import Params
from .table import ARGUMENTS, LEGACY, Argument, lookup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any


@dataclass(frozen=True)
class Arguments:
    """The parsed request. `given` has every known argument that was set, from any source and in the
    order applied, as (canonical flag, value); the value of a switch is "". `written` is how each
    was written: a flag, LLAMA_ARG_X, or "PATH: KEY" of a config file."""

    params: Params
    given: tuple[tuple[str, str], ...] = ()
    rest: tuple[str, ...] = ()  # words that do not touch memory, unchanged
    positional: tuple[str, ...] = ()  # words that are neither a flag nor a flag's value
    # values of autolayers' own flags, by their keys
    own: dict[str, Any] = field(default_factory=dict)
    # flags that neither the command nor llama-server has; also in `rest`
    unknown: tuple[str, ...] = ()
    written: tuple[str, ...] = ()

    def value(self, flag: str) -> str | None:
        """Return the last value given for a canonical flag, None if it was not given."""
        return next((value for name, value in reversed(self.given) if name == flag), None)

    def without(self, written: Collection[str]) -> Arguments:
        """Return the same without these variables or config-file keys."""
        # applied again without them, because some accumulate
        # fields that some left-out argument set: only these change
        state, gone = _State(), set()
        for (flag, value), name in zip(self.given, self.written, strict=True):
            row, positive = lookup(flag) or (None, True)
            assert row is not None  # its own canonical flag
            if name in written:
                gone.add(row.field)
            else:
                state.apply(row, name, value, positive)
        left = state.params()
        params = replace(self.params, **{name: getattr(left, name) for name in gone if name})
        return replace(self, params=params, given=tuple(state.given), written=tuple(state.written))


def parse(
    words: Sequence[str],
    environ: Mapping[str, str] | None = None,
    config_files: Sequence[str] = (),
    command: str | None = "plan",
) -> Arguments:
    """Read `config_files`, `environ` (None: no environment) and `words`, in this order.

    `words` may hold the own flags of `command`; None: no own flags, as llama-server reads them.
    Raises UsageError with the flag and its allowed values.
    """
    state = _State()
    # Config files, environment, words:
    # in llama.cpp's order: what comes later wins
    for path in config_files:
        # One llama.cpp config.ini: the section [*], then [default] with everything before the first
        # section. Mirrors parse_ini_from_file and apply_to_params (common/preset.cpp): within a
        # section the keys are applied in the order of the arguments' first names, unknown keys are
        # skipped, and the key of a switch turns it on whatever its value.
        try:
            with opened(path) as file:
                text = file.read(1 << 20).decode("utf-8", "replace").replace("\r\n", "\n")
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        sections = _sections(path, text)
        # common_params_apply_system_config: the global section, then the default preset
        for section in ("*", "default"):
            _apply_section(path, sections.get(section, {}), state)
    if environ is not None:
        _read_environment(environ, state)
    return applied(items(words, command), state)


def applied(found: Iterable[Item], state: _State | None = None) -> Arguments:
    """Return what items set, after what other sources set. Raises UsageError."""
    state = state or _State()
    rest: list[str] = []
    positional: list[str] = []
    unknown: list[str] = []
    own: dict[str, Any] = {}
    # own flag's key -> its text so far, for those that add up; "KEY by" -> the flag that set it
    texts: dict[str, str] = {}
    for item in found:
        if isinstance(item.flag, Argument):
            state.apply(item.flag, item.name, item.value, item.positive)
            # Passed on as it is: no part of the arithmetic
            if not item.flag.field:
                rest += item.words
        elif item.flag is not None:
            # Take the value of one of autolayers' own flags
            if not item.flag.takes_value:
                value: Any = item.value or item.flag.value
            else:
                # `--gpu 24GiB --gpu 8GiB` is `--gpu 24GiB,8GiB`
                text = (
                    f"{texts[item.flag.key]}{item.flag.adds}{item.value}"
                    if item.flag.adds and item.flag.key in texts
                    else item.value
                )
                value = _read(item.flag.read, item.name, text)
                texts[item.flag.key] = text
            # two names of one own flag, such as --json and --format json, may agree
            # The first name of the flag that set a key, for the message
            by = f"{item.flag.key} by"
            if own.get(item.flag.key, value) != value and texts[by] != item.flag.names[0]:
                raise UsageError(
                    f"{texts[by]} and {item.name} contradict each other: give one of them"
                )
            own[item.flag.key], texts[by] = value, item.flag.names[0]
        elif item.name:
            unknown.append(item.name)
            rest += item.words
        else:
            positional += item.words
    return Arguments(
        state.params(),
        tuple(state.given),
        tuple(rest),
        tuple(positional),
        own,
        tuple(unknown),
        tuple(state.written),
    )


def config_files(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the existing config files that llama.cpp reads on this machine, in its order.

    Mirrors common_params_apply_system_config and fs_get_config_directory.
    """
    if os.name == "nt":
        roots = [environ.get("PROGRAMDATA", ""), environ.get("APPDATA", "")]
    else:
        # Without HOME (a service) llama.cpp asks the user database (get_home_directory)
        home = environ.get("HOME") or os.path.expanduser("~")
        roots = ["/etc", environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")]
    paths = (os.path.join(root, "llama.cpp", "config.ini") for root in roots if root)
    return tuple(path for path in paths if os.path.isfile(path))


# --- words


class Item:
    """A flag with its value. `flag` is None for an unknown flag; `name` is empty for a word that is
    not a flag. `words` are as llama-server reads them, `name` as the user wrote it but with dashes
    for underscores; `positive` is False for a negated switch."""

    __slots__ = ("flag", "name", "positive", "value", "words")

    def __init__(
        self,
        flag: Argument | OwnFlag | None,
        name: str,
        words: Sequence[str],
        value: str = "",
        positive: bool = True,
    ) -> None:
        self.flag = flag
        self.name = name
        self.words = tuple(words)
        self.value = value
        self.positive = positive

    @property
    def argument(self) -> Argument | None:
        """llama-server's flag; None of other words and of own flags."""
        return self.flag if isinstance(self.flag, Argument) else None

    @property
    def canonical(self) -> str:
        """The name that llama-server's flag has everywhere; "" of other words."""
        return self.argument.canonical if self.argument else ""


_SWITCHES_OF_FORK = ("--fit", "-dr", "-co", "--color")


def items_of_fork(words: Sequence[str]) -> Iterator[Item]:
    """As items, for a program that may be ik_llama.cpp, which has switches of llama-server's flags
    with values: without a value they are none of these."""
    start = 0
    for i, word in enumerate(words):
        # `--fit -c 8192` is ik_llama.cpp's switch, `--fit off` llama.cpp's flag with its value
        if word in _SWITCHES_OF_FORK and (i + 1 == len(words) or _is_flag(words[i + 1])):
            yield from items(words[start:i])
            yield Item(None, word, [word])
            start = i + 1
    yield from items(words[start:])


def items(words: Sequence[str], command: str | None = None) -> Iterator[Item]:
    """Split the words into flags, with the own flags of a command (None: only llama-server's).
    Raises UsageError."""
    own = {} if command is None else own_flags(command)
    # e.g. devices takes none of llama-server's flags
    llama = command is None or COMMANDS[command].llama
    i = 0
    while i < len(words):
        # llama-server knows no --, autolayers' own commands do
        if words[i] == "--" and command is not None:
            yield from (Item(None, "", [word]) for word in words[i + 1 :])
            return
        item, i = _item(words, i, own, llama)
        yield item


def _item(
    words: Sequence[str], i: int, own: Mapping[str, OwnFlag], llama: bool
) -> tuple[Item, int]:
    """Return the flag or plain word at `i`, and the index after it; `llama`: may be one of
    llama-server's."""
    word = words[i]
    if not _is_flag(word):
        return Item(None, "", [word]), i + 1
    name, joined = word, None
    if word.startswith("--"):
        # With dashes for underscores, and the value after its "="
        name, equals, value = word.partition("=")
        name, joined = name.replace("_", "-"), value if equals else None
    # An own flag hides llama-server's of the same name: `ollama ... -c` is num_ctx there
    flag: Argument | OwnFlag | None
    if name in own:
        flag, positive = own[name], True
    else:
        argument = lookup(name) if llama else None
        flag, positive = argument or (None, True)
    if flag is None:
        # Passed on as two words, which every build of llama.cpp reads
        if joined is not None:
            return Item(None, word, [name, joined]), i + 1
        # a guess, so that a newer llama.cpp's flags keep their value with them
        has_value = i + 1 < len(words) and not _is_flag(words[i + 1])
        return Item(None, word, words[i : i + 1 + has_value]), i + 1 + has_value
    # llama.cpp knows no joined value, so nobody can have meant one
    choices = flag.choices if isinstance(flag, OwnFlag) else ()
    if not flag.takes_value and joined is not None and joined not in choices:
        but = f" but {', '.join(choices)}" if choices else ""
        raise UsageError(f"{name} takes no value{but}, got {joined!r}")
    value, end = joined or "", i + 1
    if flag.takes_value and joined is None:
        value, end = _value(flag, name, words, i + 1)
    # llama.cpp knows no --flag=value
    written = words[i:end] if joined is None else [name, value]
    if isinstance(flag, Argument) and flag.kind.plain is not None:
        # 16k becomes 16384, which llama.cpp reads too
        plain: str = _read(flag.kind.plain, name, value)
        if plain != value:
            value, written = plain, [name, plain]
    return Item(flag, name, written, value, positive), end


def _is_flag(word: str) -> bool:
    """Return whether a word is a flag: negative numbers are values."""
    # e.g. the -1 of `-ngl -1`; "-" alone is standard input
    return word.startswith("-") and len(word) > 1 and not word[1:].replace(".", "", 1).isdigit()


def _value(flag: Argument | OwnFlag, name: str, words: Sequence[str], i: int) -> tuple[str, int]:
    """Return (the value of a flag, the index after it)."""
    count = 1
    if isinstance(flag, Argument):
        kind, count = flag.kind, flag.kind.words
        # Older builds had -fa as a switch: `-fa -c 8192` is still pasted
        follows = words[i] if i < len(words) else ""
        # a misspelt value is still a value: the flag is not a bare one
        if (
            kind.bare is not None
            and follows not in kind.choices
            and (_is_flag(follows) or not follows.isalpha())
        ):
            return kind.bare, i
    if i + count > len(words):
        raise UsageError(f"{name} needs a value")
    return " ".join(words[i : i + count]), i + count


def _read(read: Callable[[str], Any], name: str, text: str) -> Any:
    try:
        return read(text)
    except Bad as error:
        raise UsageError(f"{name} {text!r}: expected {error}") from None


# --- from all sources to one set of values


class _State:
    """The Params fields set so far, and the source of each."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.given: list[tuple[str, str]] = []
        self.written: list[str] = []

    def apply(self, row: Argument, name: str, value: str, positive: bool = True) -> None:
        """Apply one argument. `name` is how it was written."""
        # By its canonical name, so that `value("-c")` also finds --ctx-size
        self.given.append((row.written(positive), value))
        self.written.append(name)
        if not row.field:
            return
        try:
            # A negated switch sets its field like a value "off"
            row.kind.read(self.values, row.field, value if positive else "off")
        except Bad as error:
            raise UsageError(f"{name} {value!r}: expected {error}") from None

    def params(self) -> Params:
        return Params(**self.values)


def _read_environment(environ: Mapping[str, str], state: _State) -> None:
    """Apply LLAMA_ARG_* in the order of llama.cpp's argument list. LLAMA_ARG_NO_X set to anything,
    even "0", means off."""
    for row in ARGUMENTS:
        # A variable without a field is only recorded, for launch files
        if not row.env or not (row.field or row.env in environ):
            continue
        # common_arg::get_value_from_env looks at it first, for arguments with a negation only
        no = row.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")
        if row.negated and no in environ:
            state.apply(row, no, "", False)
        elif row.env in environ:
            # Apply the value of an argument's variable
            text = environ[row.env]
            if row.kind is SWITCH:
                try:
                    state.apply(row, row.env, "", boolean(text))
                except Bad as error:
                    raise UsageError(f"{row.env}={text!r}: expected {error}") from None
            elif row.takes_value:
                state.apply(row, row.env, text)
            # a flag without a value and without a negation: anything else leaves it off
            elif text in TRUE:
                state.apply(row, row.env, "")


def _sections(path: str, text: str) -> dict[str, dict[str, str]]:
    """Return the keys and values of each section. Raises UsageError."""
    sections: dict[str, dict[str, str]] = {}
    # Keys before any section belong to it
    current = "default"
    for number, line in enumerate(text.splitlines(), 1):
        # A line up to its comment, without blanks at the end.
        # parse_ini_from_file ends a value at the first of these, in quotes too
        marks = [line.find(mark) for mark in ";#" if mark in line]
        content = line[: min(marks, default=len(line))].rstrip(" \t")
        if not content.strip():
            continue
        key, equals, value = content.partition("=")
        # The name of the section that a line begins; empty for another line.
        if section := (content[1:-1].strip() if content[0] == "[" and content[-1] == "]" else ""):
            current = section
            # A section that begins twice keeps its last keys, as in a std::map
            sections[current] = {}
        # llama.cpp's grammar has no indented keys
        elif equals and key and not key[0].isspace():
            sections.setdefault(current, {})[key.rstrip()] = value.strip(" \t")
        else:
            raise UsageError(
                f"{path}, line {number}: llama.cpp cannot read {line.strip()[:60]!r}, write key = "
                "value"
            )
    return sections


def _apply_section(path: str, section: Mapping[str, str], state: _State) -> None:
    """Apply the known keys of a section, in the order of the arguments' first names."""
    arguments = []
    for key, value in section.items():
        # "ctx-size", "c" and "LLAMA_ARG_CTX_SIZE" are the same key
        argument = lookup("--" + key) or lookup("-" + key)
        if argument is None:
            argument = next(((row, True) for row in ARGUMENTS if row.env and row.env == key), None)
        # Unknown keys are skipped: all of llama.cpp's programs share the file; flags that are
        # gone have no key
        elif argument[0] in LEGACY:
            argument = None
        if argument is not None:
            arguments.append((*argument, key, value))
    # common_preset keeps its options in a std::map by the argument's names
    for row, positive, key, value in sorted(arguments, key=lambda item: item[0].names):
        name = f"{path}: {key}"
        if row.kind is SWITCH:
            state.apply(row, name, "", (value in TRUE) == positive)
        else:
            state.apply(row, name, value if row.takes_value else "")
