"""autolayers' commands and its own flags: one row each. Help, completion, man page and README are
made from them.

    own_flags("run")["--retry"].read("2")      # 2
    takers("--retry")                          # ["run"]
"""

from __future__ import annotations

from ..errors import UsageError
from ..machine import OF_PEAK
from ..tables import rows
from ..units import MiB, parse_memory, parse_size, with_unit
from .formats import FORMATS
from .kinds import CACHE_TYPES, Bad, number, one_of, tokens
from .params import FIT_PARAMS_MIN_CTX
from .releases import RELEASES, build_of
from .workload import WORKLOADS, workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


class Command:
    """`usage`: what follows the word autolayers. `llama`: it reads llama-server's flags too."""

    __slots__ = ("about", "llama", "name", "summary", "usage")

    def __init__(
        self, name: str, usage: str, summary: str, about: str = "", llama: bool = False
    ) -> None:
        self.name = name
        self.usage = usage
        self.summary = summary
        self.about = about
        self.llama = llama


class OwnFlag:
    """One of autolayers' own flags, and the commands that have it (a + in a command's name is a
    space). Without a metavar it is a switch whose value is `value`, or one of `choices` after a
    "="; else `read` converts its text, or raises Bad. `adds`: what joins repeated values. `key`:
    its name in Arguments.own."""

    __slots__ = ("adds", "choices", "commands", "help", "key", "metavar", "names", "read", "value")

    def __init__(
        self,
        names: str,
        commands: str,
        metavar: str,
        help: str,
        read: Callable[[str], Any] = str,
        *,
        choices: tuple[str, ...] = (),
        adds: str = "",
        key: str = "",
        value: object = True,
    ) -> None:
        self.names = tuple(names.split())
        self.commands = tuple(commands.replace("+", " ") for commands in commands.split())
        self.metavar = metavar
        self.help = help
        self.read = (lambda text: one_of(text, choices)) if choices and read is str else read
        self.choices = choices
        self.adds = adds
        self.key = key or self.names[0].lstrip("-")
        self.value = value

    @property
    def takes_value(self) -> bool:
        return bool(self.metavar)

    def __repr__(self) -> str:
        return f"OwnFlag({' '.join(self.names)!r}, {' '.join(self.commands)!r})"


# --- readers

# e.g. `--ctx 16`, meant as 16k
LEAST_CTX = 512  # less most likely lacks its k
_TOKENS = "a number of tokens such as 8192 or 16k"


def _ctx(text: str, what: str = _TOKENS) -> int:
    """Return the tokens of a context."""
    n_ctx = tokens(text, 1, what)
    if n_ctx < LEAST_CTX:
        raise Bad(f"{LEAST_CTX} tokens or more: {text}k?")
    return n_ctx


def _list(read: Callable[[str], Any], separator: str = ",") -> Callable[[str], tuple[Any, ...]]:
    def read_all(text: str) -> tuple[Any, ...]:
        parts = [part.strip() for part in text.split(separator) if part.strip()]
        if not parts:
            raise Bad("a value")
        return tuple(map(read, parts))

    return read_all


def _cache_type(text: str) -> str:
    if text not in CACHE_TYPES:
        raise Bad(f"cache types, which {text!r} is not: choose from {', '.join(CACHE_TYPES)}")
    return text


def _size(text: str) -> int:
    """Return the bytes of memory. A small number without a unit means GiB or MiB, never bytes."""
    try:
        # "24GB" of memory is 24 GiB: chips are sold in powers of two
        size = parse_memory(text)
    except UsageError:
        raise Bad("a size such as 24GiB or 512MiB") from None
    bare = text.strip()
    # `--margin 512` is meant in MiB, `--ram 64` in GiB: nobody has 64 bytes
    if 0 < size < MiB and not bare[-1].isalpha():
        raise Bad(f"a size with its unit: {with_unit(bare)}?")
    return size


def _ram(text: str) -> tuple[int, float | None]:
    # (bytes, bytes per second or None)
    size, at, rate = text.partition("@")
    if not at:
        return _size(text), None
    # The bytes per second that reading RAM reaches, of "ddr5-6000x2": its kind, 10**6
    # transfers a second and channels of 64 bits (two if none are given). None if it is no
    # such text.
    import re  # few calls

    match = re.fullmatch(r"(?:lp)?ddr[2-6]x?-(\d{3,5})(?:x([1-9]\d?))?", rate.strip().lower())
    # 8 bytes a transfer and channel; reading reaches OF_PEAK of it
    if modules := (
        None if match is None else int(match[1]) * 1e6 * 8 * int(match[2] or 2) * OF_PEAK
    ):
        return _size(size), modules
    try:
        bandwidth = parse_size(rate.strip().removesuffix("/s"), 10**9)  # "300" means GB/s
    except UsageError:
        bandwidth = 0
    # Outside of this no RAM is: a typing error of a factor of 1000
    if not 1e9 <= bandwidth <= 1e13:
        raise Bad(
            "a size and the bandwidth of reading it, or its modules: 768GiB@300GB/s, "
            "64GiB@ddr5-6000x2"
        )
    return _size(size), float(bandwidth)


def _budget(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not (name and size):
        raise Bad("a device and a size, such as CUDA0=10GiB")
    return name, _size(size)


def _build(text: str) -> int:
    if known := build_of(text):
        return known
    what = f"a build number such as b10488, or a release: {', '.join(RELEASES)}"
    return number(text.removeprefix("b"), 1, what=what)


def _time(text: str) -> float:
    """Return seconds."""
    # "90s", "10m"; a bare number counts seconds
    units = {"s": 1, "m": 60, "h": 3600}
    digits, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    return float(
        number(digits, 1, 86400 // unit, "a time such as 300, 90s or 10m, a day at most") * unit
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise Bad("a share from 0 to 1, such as 0.72")
    return share


def _rate(text: str, what: str = "tokens per second, such as 20") -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise Bad(what)
    return rate


# --- rows

_OLLAMA_ABOUT = """\
Other flags are llama-server's, such as -fitt 512, for the plan. OLLAMA_HOST, OLLAMA_MODELS, \
OLLAMA_NUM_PARALLEL, OLLAMA_CONTEXT_LENGTH, OLLAMA_KV_CACHE_TYPE, OLLAMA_FLASH_ATTENTION and \
OLLAMA_SCHED_SPREAD are read as Ollama's server reads them: set them here as they are set there."""
# what own.tsv calls them
_READERS: dict[str, Callable[[str], Any]] = {
    "": str,
    "ctx": _ctx,
    "ctx or max": lambda text: text if text == "max" else _ctx(text, f"{_TOKENS}, or max"),
    # Of Ollama, where 0 is the trained one
    "num_ctx": lambda text: 0 if text == "0" else _READERS["ctx or max"](text),
    "contexts": _list(_ctx),
    "cache types": _list(_cache_type),
    "size": _size,
    "sizes": _list(_size),
    "budgets": _list(_budget),
    "ram": _ram,
    "ram alone": lambda text: (_size(text), None),
    "build": _build,
    "time": _time,
    "share": _share,
    "rate": _rate,
    "seconds": lambda text: _rate(text, "seconds, more than 0, such as 2"),
    "workload": workload,
    "words": _list(str, " "),
    "names": _list(str),
    "positive": lambda text: number(text, 1, what="a whole number, 1 or more"),
    "agents": lambda text: number(text, 1, 4096),
    "attempts": lambda text: number(text, 0, 100, "a number of attempts, 0 to 100"),
    "port": lambda text: number(text, 0, 65535, "a port, 0 to 65535"),
    # llama.cpp's LLAMA_MAX_SEQ: each user is a slot
    "users": lambda text: number(text, 1, 256, "a number of users, 1 to 256"),
    "fleet users": lambda text: number(text, 1, 1_000_000, "a number of users, 1 to 1000000"),
}

COMMANDS = {
    row["name"]: Command(
        row["name"],
        row["usage"],
        row["summary"],
        row["about"].replace("\\n", "\n").replace("{ollama}", _OLLAMA_ABOUT),
        bool(row["llama"]),
    )
    for row in rows("flags/commands.tsv")
}
# What stands for others in the table; + for the space in a command's name
_NAMES = [name.replace(" ", "+") for name in COMMANDS]
_COMMANDS = {"every": " ".join(_NAMES), "ollama": " ".join([n for n in _NAMES if "ollama+" in n])}


def _flag(row: Mapping[str, str]) -> OwnFlag:
    """Return a row of own.tsv."""
    least = FIT_PARAMS_MIN_CTX
    formats, workloads = ", ".join(FORMATS), ", ".join(WORKLOADS)
    choices = row["choices"].format(formats=" ".join(FORMATS), workloads=" ".join(WORKLOADS))
    return OwnFlag(
        row["names"],
        row["commands"].format(**_COMMANDS),
        row["metavar"],
        row["help"].format(formats=formats, workloads=workloads, least=least),
        _READERS[row["read"]],
        choices=tuple(choices.split()),
        adds=row["adds"].replace("_", " "),
        key=row["key"],
        value={"": True, "off": False}.get(row["value"], row["value"]),
    )


FLAGS = tuple(map(_flag, rows("flags/own.tsv")))


def own_flags(command: str) -> dict[str, OwnFlag]:
    """Return the flags of a command, by each of their names."""
    # e.g. {"-q": ..., "--quiet": ...}: both names of one flag
    return {name: flag for flag in FLAGS if command in flag.commands for name in flag.names}


def takers(name: str) -> list[str]:
    """Return the commands that have an own flag of this name."""
    # For messages: which command has the flag that this one refuses
    return [
        command
        for command in COMMANDS
        for flag in FLAGS
        if name in flag.names and command in flag.commands
    ]
