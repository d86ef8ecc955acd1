"""How the value of an argument is read and written: one object per kind.

    LAYERS.read(values, "n_gpu_layers", "all")     # values["n_gpu_layers"] = -2
    LAYERS.write(-2)                               # "all"

Mirrors the handlers of llama.cpp's common/arg.cpp, stricter where those take nonsense for a number.
"""

from __future__ import annotations

from ..tables import listed
from .params import EXPERTS_REGEX, FFN_REGEX, HOST_BUFFER, POOLING_TYPES, Scaled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Values = dict[str, Any]

# kv_cache_types of common/arg.cpp, and the newest build that was seen without each; 0: none was
CACHE_TYPES = {
    "f32": 0,
    "f16": 0,
    "bf16": 0,
    "q8_0": 0,
    "q4_0": 0,
    "q4_1": 0,
    "iq4_nl": 0,
    "q5_0": 0,
    "q5_1": 0,
    "f8_e4m3": 12211,
}
TRUE, FALSE, AUTO = (
    ("on", "enabled", "true", "1"),
    ("off", "disabled", "false", "0"),
    ("auto", "-1"),
)


class Bad(Exception):
    """A value that is not allowed; the message says what is."""


class Kind:
    """`words`: how many words follow the flag. `read(values, field, text)` sets the field; the text
    of a negated switch is "off". `write` gives the text of a field's value, None where another
    argument of the field writes it. `adds`: repeats add up. `bare`: the value where the word is
    left out. `plain` turns a spelling that llama.cpp does not know into the one it does.
    `prefixes`: how the values begin that only an argument of this kind writes. `paths` gives the
    text with each path of this machine in it replaced; `written`: llama.cpp writes there."""

    __slots__ = (
        "adds",
        "bare",
        "choices",
        "paths",
        "plain",
        "prefixes",
        "read",
        "words",
        "write",
        "written",
    )

    def __init__(
        self,
        read: Callable[[Values, str, str], None],
        write: Callable[[Any], str] | None = None,
        words: int = 1,
        *,
        adds: bool = False,
        choices: tuple[str, ...] = (),
        bare: str | None = None,
        plain: Callable[[str], str] | None = None,
        prefixes: tuple[str, ...] = (),
        paths: Callable[[str, Callable[[str], str]], str] | None = None,
        written: bool = False,
    ) -> None:
        self.read = read
        self.write = write
        self.words = words
        self.adds = adds
        self.choices = choices
        self.bare = bare
        self.plain = plain
        self.prefixes = prefixes
        self.paths = paths
        self.written = written


# --- texts to values


def as_c(text: str) -> str:
    """Return the text of a number. Raises ValueError for what only Python reads as one: llama.cpp
    takes 8 of 8_192."""
    # int("8_192") and int("\u0668") are numbers in Python, std::stoi stops at the first such letter
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def number(text: str, low: int, high: int = 2**31 - 1, what: str = "") -> int:
    """Return the whole number, low to high. Raises Bad, which says `what` was expected."""
    try:
        value = int(as_c(text))
    except ValueError:
        # Below the range, so that it is refused with the same message
        value = low - 1
    if low <= value <= high:
        return value
    # The limit that it does not break is left out; one whose least is below 0 takes nearly all
    limits = f", {low} to {high}" if value > high else "" if low < 0 else f", {low} or more"
    raise Bad(what or f"a whole number{limits}")


# a context of 16k is 16384 tokens, as people write it
_FACTORS = {"k": 1 << 10, "m": 1 << 20}


def tokens(text: str, low: int = 1, what: str = "a number of tokens such as 8192 or 16k") -> int:
    """Return 16384 for "16384" and for "16k", 1048576 for "1M"."""
    # Whole numbers alone: 4.5k is refused
    factor = _FACTORS.get(text[-1:].lower(), 1)
    digits = text if factor == 1 else text[:-1]
    if not (digits.isascii() and digits.isdecimal()):
        raise Bad(what)
    # int() of a million digits would take seconds
    if len(digits) > 12 or not low <= int(digits) * factor < 2**31:
        raise Bad(f"{what}, {low} to {2**31 - 1}")
    return int(digits) * factor


def one_of(text: str, allowed: Iterable[str]) -> str:
    """Return the text, if it is one of these. Raises Bad."""
    if text not in allowed:
        raise Bad("one of " + ", ".join(allowed))
    return text


def boolean(text: str) -> bool:
    """on, enabled, true, 1, and their opposites, as llama.cpp reads them. Raises Bad."""
    return one_of(text, TRUE + FALSE) in TRUE


def _float(text: str) -> float:
    try:
        value = float(as_c(text))
    except ValueError:
        value = float("nan")
    # NaN compares false too
    if not abs(value) < 1e30:
        raise Bad("a number")
    return value


def _scale(text: str) -> float:
    value = _float(text)
    if value <= 0:
        raise Bad("a number above 0")
    return value


def _layers(text: str) -> int:
    """-1 auto, -2 all; llama.cpp takes every other negative number as all."""
    # As common_params has them: llama.cpp's defaults -1 and -2
    if text in ("auto", "all"):
        return -1 if text == "auto" else -2
    # -5 is all, as -2 is
    return max(-2, number(text, -(2**31), what="a number of layers, auto or all"))


def _flash(text: str) -> str:
    word = one_of(text, TRUE + FALSE + AUTO)
    return "on" if word in TRUE else "off" if word in FALSE else "auto"


def _slots(text: str) -> int:
    # 0 is an error in llama.cpp, too
    value = max(-1, number(text, -(2**31), what="a number of slots, or -1 for auto"))
    if value == 0:
        raise Bad("a number of slots, or -1 for auto")
    return value


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    # "CUDA0,,CUDA1" has a device without a name
    if not all(names):
        raise Bad("names separated by commas")
    return names


MOST_SHARES = 15  # of -ts: common/arg.cpp refuses llama_max_devices() of them, which is 16


def _ratios(text: str) -> tuple[float, ...]:
    """Mirrors the handler of -ts: commas and slashes, any number of them, separate."""
    # The regex of llama.cpp is [,/]+, so "3,,1" has two parts
    parts = text.replace("/", ",").split(",")
    # an empty first part stays, and is no number
    ratios = tuple(_float(part) for i, part in enumerate(parts) if part or i == 0)
    if len(ratios) > MOST_SHARES:
        raise Bad(
            f"at most {MOST_SHARES} proportions, as llama.cpp refuses more: -dev names fewer "
            "devices, and zeros at the end can be left out"
        )
    # llama.cpp takes them, and splits by a sum that they make smaller
    if any(ratio < 0 for ratio in ratios):
        raise Bad("proportions such as 3,1")
    return ratios


def _csv(text: str) -> list[str]:
    """Return the fields of one comma-separated row, quotes and doubled quotes as in parse_csv_row
    (common/arg.cpp)."""
    fields, current, quoted, i = [], "", False, 0
    while i < len(text):
        char = text[i]
        # two quotes within quotes are one
        if char == '"' and quoted and text[i + 1 : i + 2] == '"':
            current, i = current + '"', i + 1
        elif char == '"' and (quoted or not current):
            quoted = not quoted
        elif char == "," and not quoted:
            fields.append(current)
            current = ""
        else:
            current += char
        i += 1
    return [*fields, current]


def _scaled(text: str) -> list[Scaled]:
    """Return the files of FNAME:SCALE,..."""
    files = []
    for item in _csv(text):
        # From the end, since C:\adapter.gguf:0.5 has two
        path, colon, scale = item.rpartition(":")
        if not colon or not path:
            raise Bad("FILE:SCALE,...")
        files.append(Scaled(path, _float(scale)))
    return files


def _overrides(text: str) -> list[tuple[str, str]]:
    # No quotes here: a pattern with a comma cannot be written
    pairs = [item.partition("=") for item in text.split(",")]
    if not all(equals and buffer_type for _, equals, buffer_type in pairs):
        raise Bad("<tensor name pattern>=<buffer type>,...")
    return [(pattern, buffer_type) for pattern, _, buffer_type in pairs]


def _kv_overrides(text: str) -> list[tuple[str, str]]:
    """Mirrors string_parse_kv_override (common/common.cpp)."""
    pairs = []
    for item in _csv(text):
        key, equals, value = item.partition("=")
        if (
            not equals
            or not key
            or value.partition(":")[0] not in ("int", "float", "bool", "str")
            or ":" not in value
        ):
            raise Bad("KEY=TYPE:VALUE,... with a TYPE of int, float, bool, str")
        pairs.append((key, value))
    return pairs


def _on_cpu(regex: str, text: str) -> list[tuple[str, str]]:
    # One pattern a layer, from layer 0 on; 2**16 keeps a typing error from filling the memory
    return [(rf"blk\.{i}{regex}", HOST_BUFFER) for i in range(number(text, 0, 2**16))]


# --- values to texts


def _comma(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def _quoted(text: str) -> str:
    # The reverse of parse_csv_row
    return '"' + text.replace('"', '""') + '"' if "," in text or text.startswith('"') else text


def _ratio(ratio: float) -> str:
    # short where that is the same number
    return f"{ratio:g}" if float(f"{ratio:g}") == ratio else repr(ratio)


# --- kinds that set their field


def _set(read: Callable[[str], Any]) -> Callable[[Values, str, str], None]:
    def to(values: Values, field: str, text: str) -> None:
        values[field] = read(text)

    return to


def choice(*allowed: str) -> Kind:
    """Return one word of these."""
    return Kind(_set(lambda text: one_of(text, allowed)), str, choices=allowed)


# handler_void of llama.cpp: no value, and no word that switches it off
FLAG = Kind(_set(lambda text: text != "off"), str, words=0)
SWITCH = Kind(_set(lambda text: text != "off"), str, words=0)  # has a negation
TEXT = Kind(_set(str), str)
# Paths are replaced where a container sees the file under another one
PATH = Kind(_set(str), str, paths=lambda text, move: move(text))
OUTPUT = Kind(_set(str), str, paths=lambda text, move: move(text), written=True)
NUMBER = Kind(_set(str), str)  # of an argument that does not touch memory: not checked
PAIR = Kind(_set(str), str, words=2)
# handler_int: std::stoi, so 32 bits
INT = Kind(_set(lambda text: number(text, -(2**31))), str)
COUNT = Kind(_set(lambda text: number(text, 0, 2**32 - 1)), str)
TOKENS = Kind(  # of "16k" llama.cpp would read 16
    COUNT.read,
    str,
    plain=lambda text: str(tokens(text, 0)) if text[-1:].lower() in _FACTORS else text,
)
POSITIVE = Kind(_set(lambda text: number(text, 1)), str)
SCALE = Kind(_set(_scale), str)
# --rope-freq-scale 0.25 is --rope-scale 4; written as the latter
INVERSE = Kind(_set(lambda text: 1 / _scale(text)))
ON_OFF = Kind(_set(boolean), lambda value: "on" if value else "off", choices=TRUE + FALSE)
FLASH = Kind(_set(_flash), str, choices=TRUE + FALSE + AUTO, bare="on")
SLOTS = Kind(_set(_slots), str)
LAYERS = Kind(_set(_layers), lambda value: {-1: "auto", -2: "all"}.get(value) or str(value))
DEVICES = Kind(
    _set(lambda text: () if text == "none" else _names(text)),
    lambda value: ",".join(value) or "none",
)
# () is "none": no device at all, and not "all of them"
RATIOS = Kind(_set(_ratios), lambda value: ",".join(map(_ratio, value)))
COUNTS = Kind(
    _set(lambda text: tuple(number(part, 0) for part in text.replace("/", ",").split(","))), _comma
)
OLD_DRAFT = Kind(_set(lambda text: number(text, 0)))
CACHE_TYPE = choice(*CACHE_TYPES)
POOLING = choice(*POOLING_TYPES)
ROPE_SCALING = choice("none", "linear", "yarn")
LOAD_MODE = choice("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")
DRAFT_SAMPLING = choice("greedy", "probabilistic")
LAZY_MODE = choice("on", "auto", "off")
SPLIT_MODE = choice("none", "layer", "row", "tensor")
_NUMA = ("distribute", "isolate", "numactl")
# LLAMA_ARG_NUMA= without a value is distribute
NUMA = Kind(_set(lambda text: one_of(text, _NUMA) if text else "distribute"), str, choices=_NUMA)


# As the handler of -mmdev: the device, and whether there is one
MMPROJ_DEVICE = Kind(
    lambda values, _, text: values.update(
        mmproj_offload=text != "none", mmproj_device=None if text == "none" else text
    ),
    str,
)


# --- kinds that say where a file comes from


def _file_of_repository(values: Values, field: str, text: str) -> None:
    """-hff after -hf names the file; before it there is nothing to join it to yet."""
    # -hff replaces the quantisation: "hf:user/name:Q8_0" becomes "hf:user/name/file.gguf"
    repository = values.get(field) or ""
    if repository.startswith("hf:"):
        values[field] = (
            repository.partition(":")[0] + ":" + repository[3:].partition(":")[0] + "/" + text
        )


URL = Kind(_set(str), str, prefixes=("http://", "https://"))
REPOSITORY = Kind(
    _set(lambda text: "hf:" + text), lambda value: value.removeprefix("hf:"), prefixes=("hf:",)
)
DOCKER = Kind(
    _set(lambda text: "docker:" + text),
    lambda value: value.removeprefix("docker:"),
    prefixes=("docker:",),
)
FILE_OF = Kind(_file_of_repository)


# --- kinds that add to their field


def _add(read: Callable[[str], Iterable[Any]]) -> Callable[[Values, str, str], None]:
    def to(values: Values, field: str, text: str) -> None:
        # push_back in llama.cpp: config file, variable and words add up
        values[field] = (*values.get(field, ()), *read(text))

    return to


_SPECULATION = listed(
    "none draft-simple draft-eagle3 draft-mtp draft-dflash draft-dspark ngram-simple ngram-map-k "
    "ngram-map-k4v ngram-mod ngram-cache"
)


def _speculation(text: str) -> list[str]:
    """ "none" cancels the other names of the same list, as common_speculative_types_from_names
    does."""
    names = [one_of(name, _SPECULATION) for name in text.split(",")]
    # Only within one list: an earlier --spec-type stays
    return ["none"] if "none" in names else names


def _with_scales(files: Iterable[Scaled]) -> str:
    return ",".join(_quoted(f"{file}:{_ratio(file.scale)}") for file in files)


NAMES = Kind(_add(_names), _comma, adds=True)
FILES = Kind(
    _add(_csv),
    lambda value: ",".join(map(_quoted, value)),
    adds=True,
    paths=lambda text, move: ",".join(_quoted(move(path)) for path in _csv(text)),
)
SCALED = Kind(
    _add(_scaled),
    _with_scales,
    adds=True,
    paths=lambda text, move: _with_scales(Scaled(move(file), file.scale) for file in _scaled(text)),
)
KV_OVERRIDES = Kind(
    _add(_kv_overrides),
    lambda value: ",".join(_quoted(f"{key}={text}") for key, text in value),
    adds=True,
)
SPECULATION = Kind(_add(_speculation), _comma, adds=True, choices=_SPECULATION)
DEFAULT_SPECULATION = Kind(_add(lambda _: ["ngram-mod"]), words=0, adds=True)
OVERRIDES = Kind(_add(_overrides), lambda pairs: _comma(map("=".join, pairs)), adds=True)
EXPERTS = Kind(_add(lambda _: [(EXPERTS_REGEX, HOST_BUFFER)]), words=0, adds=True)
EXPERTS_OF = Kind(_add(lambda text: _on_cpu(EXPERTS_REGEX, text)), adds=True)
FFN_OF = Kind(_add(lambda text: _on_cpu(FFN_REGEX, text)), adds=True)


# --- kinds that set more, or less, than a field


def preset(**values: str | int) -> Kind:
    """Return one flag that expands to several: the memory-relevant values that it sets at its
    position."""
    return Kind(lambda all_values, _field, _text: all_values.update(values), words=0)


def _load_mode(values: Values, mapped: bool | None = None, locked: bool | None = None) -> str:
    """Return today's one mode for two former switches: each leaves the other's choice."""
    # --no-mmap --mlock and --mlock --no-mmap are the same
    mode = values.get("load_mode") or "auto"
    if mapped is None:
        mapped = mode in ("auto", "mmap", "mmap+mlock")
    if locked is None:
        locked = "mlock" in mode
    names = []
    if mapped:
        names.append("mmap")
    if locked:
        names.append("mlock")
    return "+".join(names) or "none"


OLD_MMAP = Kind(
    lambda values, field, text: values.update({field: _load_mode(values, mapped=text != "off")}),
    words=0,
)
OLD_MLOCK = Kind(
    lambda values, field, _: values.update({field: _load_mode(values, locked=True)}), words=0
)
OLD_DIO = Kind(
    lambda values, field, text: values.update({field: "auto" if text == "off" else "dio"}), words=0
)
