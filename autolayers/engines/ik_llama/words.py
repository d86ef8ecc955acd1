"""ik_llama.cpp's own words (common/common.cpp: gpt_params_parse_ex): what they say of a launch, and
llama.cpp's words for the rest.

    words, engine, notes = meant(["-mla", "2", "-amb", "512", "-rtr", "-c", "8192"])
    words, engine.said.mla, engine.words      # ("--no-mmap", "-c", "8192"), 2, ("-mla", "2", ...)
"""

from __future__ import annotations

import re

from ...errors import UsageError
from ...flags.kinds import CACHE_TYPES
from ...records import replace
from ..engine import Engine
from . import FIT_MARGIN, IK_LLAMA, Said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any, TypeVar

    Known = Mapping[str, int]
    Value = TypeVar("Value")


def _by_word(rows: Mapping[str, Value]) -> dict[str, Value]:
    """Return each spelling of a flag with what its row says."""
    return {word: value for words, value in rows.items() for word in words.split()}


CACHES = _by_word(
    {
        "-ctk --cache-type-k": "K",
        "-ctv --cache-type-v": "V",
        "-ctkd --cache-type-k-draft": "draft's K",
        "-ctvd --cache-type-v-draft": "draft's V",
    }
)
_ENDS = ("-ctk-first", "-ctk-last", "-ctv-first", "-ctv-last")
_NUMBERS = _by_word(
    {
        "-mla --mla-use": "mla",
        "-wgt --worst-graph-tokens": "logit_rows",
        "-amb --attention-max-batch": "attention_mib",
        "-ncmoe --n-cpu-moe": "moe_layers",
        "--fit-margin": "fit_margin",
    }
)
_SWITCHES: dict[str, tuple[str, Any]] = _by_word(
    {
        "-cmoe --cpu-moe": ("moe_layers", 999),
        "--fit": ("fit", True),
        "-rtr --run-time-repack": ("repacks", True),
        "-mqkv --merge-qkv": ("merges", True),
        "-muge --merge-up-gate-experts": ("merges_experts", True),
        "-no-fmoe --no-fused-moe": ("fused_experts", False),
        "-no-fug --no-fused-up-gate": ("fused_up_gate", False),
        "-no-mmad --no-fused-mul-multiadd": ("multi_add", False),
        "-khad --k-cache-hadamard": ("k_hadamard", True),
        "-vhad --v-cache-hadamard": ("v_hadamard", True),
        "-smgs --split-mode-graph-scheduling": ("graph_with_overrides", True),
        "-rcache --rope-cache": ("rope_cache", True),
    }
)
# words that change no buffer, and how many values they have
_IDLE = _by_word(
    {
        "-ser --smart-expert-reduction -cuda --cuda-params --max-gpu": 1,
        "-mea --max-extra-alloc --webui --context-shift": 1,
        "-ger --grouped-expert-routing -gr --graph-reuse -no-gr --no-graph-reuse -fug": 0,
        "-thp --transparent-huge-pages -dr --dry-run -co --color -sas --scheduler-async": 0,
    }
)
# all of its own, and llama.cpp's that mean another thing there: number of values
WORDS: Known = {
    **_IDLE,
    **dict.fromkeys(_NUMBERS, 1),
    **dict.fromkeys(_SWITCHES, 0),
    **dict.fromkeys(_ENDS, 1),
    **_by_word(
        {
            "-grt --graph-reduce-type -sm --split-mode": 1,
            "-fa --flash-attn -gfm --gpu-fit-margin": 1,
            "-no-fa --no-flash-attn -fmoe --fused-moe": 0,
        }
    ),
}
# switches that take a value in llama.cpp, and the other way round
SWITCHES = ("--fit", "-dr", "-co", "--color")
VALUED = ("--webui", "--context-shift")
_GONE = ("-fmoe", "--fused-moe")  # of older ones, whose experts were not fused without it
FLASH = ("-fa", "--flash-attn")
SPLITS = ("graph", "attn")
LAYERS = ("-ngl", "--gpu-layers", "--n-gpu-layers")
OWN_TYPES = ("q6_0", "q8_kv")
_UNMAPPED = [
    word
    for word, (field, _) in _SWITCHES.items()
    if field in ("repacks", "merges", "merges_experts")
]


def meant(
    words: Sequence[str],
    own_flags: Known = WORDS,
    types: Sequence[str] = OWN_TYPES,
    program: str = IK_LLAMA.name,
    listed: Collection[str] = (),
) -> tuple[tuple[str, ...], Engine, list[str]]:
    """Return (llama.cpp's words that a plan is made of, the program with what its own words say of
    it, notes). `own_flags`: its own, and how many values they have; `types`: own types of a cache;
    `listed`: what its help has, which older ones have more of. Raises UsageError."""
    reader = _Reader(own_flags, types, program, listed)
    left = list(words)
    while left:
        word = left.pop(0)
        following = left[0] if left else ""
        if reader.take(word, following) and left:
            left.pop(0)
    settings = reader.settings
    # Raise UsageError for words that it does not take together.
    if settings.fit and settings.moe_layers:
        raise UsageError("-ncmoe | --n-cpu-moe cannot be used with --fit")
    engine = replace(
        IK_LLAMA,
        said=settings,
        words=tuple(reader.own),
        fields=tuple(reader.fields),
        cuts=settings.split in SPLITS or settings.fit,
    )
    return tuple(reader.plain), engine, reader.notes


class _Reader:
    """Reads words one by one. `plain`: llama.cpp's words; `own`: those that it lacks; `fields`: of
    Params, whose values the latter say."""

    def __init__(
        self, own_flags: Known, types: Sequence[str], program: str, listed: Collection[str]
    ) -> None:
        self._own_flags, self._types = own_flags, types
        self._program, self._listed = program, listed
        self.settings = Said()
        self.plain: list[str] = []
        self.own: list[str] = []
        self.fields: list[str] = []
        self.notes: list[str] = []

    def take(self, word: str, following: str) -> bool:
        """Read a word; return whether it took the one that follows as its value."""
        count = self._own_flags.get(word)
        # whether it is a cache type that only this program has
        if (
            word in CACHES
            and bool(following)
            and is_own_type(following)
            and following.lower() in self._types
        ):
            self._take_cache(word, following)
            return True
        if count is None:
            # Raise UsageError for words that llama.cpp takes and std::stoi does not.
            flag = word
            value = following if self._own_flags is WORDS else ""
            if flag in LAYERS and value in ("all", "auto"):
                raise UsageError(
                    f"{flag} {value}: {IK_LLAMA.name} takes a number, 999 for all layers"
                )
            self.plain.append(word)
            return False
        if word == "--fit" and following in ("on", "off"):
            raise UsageError(
                f"unknown argument: {following} ({self._program}'s --fit takes no value)"
            )
        self._take_flag(word, following if count else "", count)
        return bool(count)

    def _take_cache(self, word: str, type_: str) -> None:
        """Take a cache of a type that llama.cpp has not: planned as such, or as a larger one."""
        self.plain += [word, _bound(type_)]
        if self._own_flags and type_.lower() in OWN_TYPES and "draft" not in CACHES[word]:
            field = f"type_{CACHES[word].lower()}"
            spelt: Any = {field: _spelt(type_)}
            self.settings = replace(self.settings, **spelt)
            self.own += [word, type_]
            self.fields.append(f"cache_{field}")
            return
        self.notes.append(
            f"{word} {type_} is a type of {self._program} alone: the {CACHES[word]} "
            f"cache is planned as {self.plain[-1]}, an upper bound"
        )

    def _take_flag(self, word: str, value: str, count: int) -> None:
        """Take a flag of its own, or one that means another thing there."""
        if count and not value and word not in FLASH:
            raise UsageError(f"{word} needs a value")
        # Of older ones, which list it: their experts are not fused without it
        if word not in _GONE or word not in self._listed:
            self.settings = _with(self.settings, word, value)
        # llama.cpp's words for the same, or for the part of it that they can say
        if word in ("-no-fa", "--no-flash-attn"):
            translated: tuple[str, ...] = "-fa", "off"
        elif word in FLASH:
            if value.lower() not in ("on", "off", "auto", "0", "1"):
                raise UsageError(
                    f"invalid parameter for argument: {word} (it takes on, off, auto, 0 or 1)"
                )
            translated = "-fa", "off" if value.lower() in ("off", "0") else "on"
        elif word in ("-sm", "--split-mode") and value not in SPLITS:
            if value not in ("none", "layer"):
                raise UsageError(f"-sm {value}: {IK_LLAMA.name} has none, layer, graph and attn")
            translated = "-sm", value
        else:
            translated = ("--no-mmap",) if word in _UNMAPPED else ()
        self.plain += translated
        if not translated or word in _UNMAPPED:
            self.own += [word, *[value] * count]


def with_values(words: Sequence[str]) -> tuple[str, ...]:
    """The words of an older one, whose -fa is a switch, with its value."""
    return tuple([part for word in words for part in ((word, "on") if word in FLASH else (word,))])


def apart(
    flags: Sequence[str], given: Sequence[str], listed: Collection[str], bare_flash: bool
) -> tuple[Sequence[str], list[str]]:
    """Return a plan's flags as llama.cpp's words, and those in its own words that are not `given`,
    such as its -ncmoe, which means other layers."""
    valued = with_values(flags) if bare_flash else flags
    plain, engine, _ = meant(valued, listed=listed)
    added = list(engine.words)
    # a command's own words stand in the plan's in one piece, as they were given
    for i in range(len(added) - len(given) + 1 if given else 0):
        if added[i : i + len(given)] == list(given):
            del added[i : i + len(given)]
            break
    return plain, added


def is_own_type(value: str) -> bool:
    return (
        value.lower() not in CACHE_TYPES
        and re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{1,15}", value) is not None
    )


def _spelt(type_: str) -> str:
    return "q8_KV" if type_.lower() == "q8_kv" else type_.lower()


def _bound(value: str) -> str:
    """Return a type of llama.cpp with no fewer bytes: block formats of up to 6 bits have at most 2
    bits of scales."""
    bits = re.search(r"\d+", value)
    return "q8_0" if bits and 0 < int(bits[0]) <= 6 else "f16"


def _with(settings: Said, flag: str, value: str) -> Said:
    """Return the settings with what this flag adds. Raises UsageError."""
    if flag in _GONE:
        raise UsageError(
            f"unknown argument: {flag} (its experts are fused unless -no-fmoe is "
            f"given: leave it out)"
        )
    if flag in _NUMBERS:
        number = _number(flag, value)
        if flag in ("-amb", "--attention-max-batch") and number:
            number = max(128, number)  # build_deepseek2: 1 to 127 are 128
        if flag == "--fit-margin":
            number = number or FIT_MARGIN
        return replace(settings, **{_NUMBERS[flag]: number})  # type: ignore[arg-type]
    if flag in _SWITCHES:
        name, meaning = _SWITCHES[flag]
        return replace(settings, **{name: meaning})
    if flag in ("-sm", "--split-mode"):
        return replace(settings, split=value if value in SPLITS else "")
    if flag in ("-grt", "--graph-reduce-type"):
        if value not in ("f32", "f16", "bf16", "q8_0"):
            raise UsageError(f"{flag} {value}: one of f32, f16, bf16 and q8_0 is needed")
        return replace(settings, reduces_as=value)
    if flag in ("-gfm", "--gpu-fit-margin"):
        numbers = [_number(flag, part) for part in value.split(",")]
        if len(numbers) % 2:
            raise UsageError(f"{flag} {value}: pairs of a device and MiB are needed")
        return replace(settings, margins=tuple(zip(numbers[::2], numbers[1::2], strict=True)))
    if flag in _ENDS:
        type_, _, count = value.partition(",")
        if type_.lower() not in (*CACHE_TYPES, *OWN_TYPES):
            raise UsageError(
                f"{flag} {value}: a type of a cache and a number of layers are needed, TYPE,N"
            )
        end = flag.removeprefix("-ct"), _spelt(type_), _number(flag, count)
        return replace(settings, ends=(*settings.ends, end))
    return settings


def _number(flag: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 8):
        raise UsageError(f"{flag} {value}: a number is needed")
    return int(value)
