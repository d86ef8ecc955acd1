"""ik_llama.cpp's own words (common/common.cpp: gpt_params_parse_ex), and llama.cpp's for the same memory or more.

    words, engine, notes = meant(["-mla", "2", "-amb", "512", "-rtr", "-c", "8192"])    # --no-mmap -c 8192
"""

from __future__ import annotations

import re

from ..errors import UsageError
from ..flags.kinds import CACHE_TYPES
from ..flags.params import EXPERTS_REGEX, HOST_BUFFER
from ..records import replace
from .engine import Engine
from .ik_llama import IK_LLAMA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..flags.params import Params

    Known = Mapping[str, tuple[int, tuple[str, ...] | None]]

CACHES = {"-ctk": "K", "--cache-type-k": "K", "-ctv": "V", "--cache-type-v": "V",
          "-ctkd": "draft's K", "--cache-type-k-draft": "draft's K",
          "-ctvd": "draft's V", "--cache-type-v-draft": "draft's V"}
# of ik_llama.cpp: flag -> number of values, and llama.cpp's words that are no less memory; None: see _of_value
WORDS: Known = {
    **dict.fromkeys(("-mla", "--mla-use", "-sm", "--split-mode", "-fa", "--flash-attn", "-wgt", "--worst-graph-tokens",
                     "-amb", "--attention-max-batch"),
                    (1, None)),
    **dict.fromkeys(("-ser", "--smart-expert-reduction", "-gfm", "--gpu-fit-margin",
                     "-cuda", "--cuda-params", "--max-gpu", "--fit-margin", "-grt", "--graph-reduce-type", "-mea",
                     "--max-extra-alloc"), (1, ())),
    **dict.fromkeys(("-fmoe", "--fused-moe", "-no-fmoe", "--no-fused-moe", "-ger", "--grouped-expert-routing",
                     "-gr", "--graph-reuse", "-no-gr", "--no-graph-reuse", "-fug", "-no-fug", "--no-fused-up-gate",
                     "-no-mmad", "--no-fused-mul-multiadd", "-thp", "--transparent-huge-pages", "-dr", "--dry-run",
                     "-khad", "--k-cache-hadamard", "-vhad", "--v-cache-hadamard", "-rcache", "--rope-cache", "-smgs",
                     "--split-mode-graph-scheduling", "-sas", "--scheduler-async"), (0, ())),
    **dict.fromkeys(("-rtr", "--run-time-repack", "-mqkv", "--merge-qkv", "-muge", "--merge-up-gate-experts"),
                    (0, ("--no-mmap",))),
    **dict.fromkeys(("-no-fa", "--no-flash-attn"), (0, ("-fa", "off"))),
    **dict.fromkeys(("-ctk-first", "-ctk-last", "-ctv-first", "-ctv-last"), (1, None)),
}
SPLITS = ("graph", "attn")
OWN_TYPES = ("q6_0", "q8_kv")
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_exps\.(weight|scale)"      # of its -ncmoe, which leaves biases where they are


def meant(words: Sequence[str], known: Known = WORDS, types: Sequence[str] = OWN_TYPES,
          program: str = IK_LLAMA.name) -> tuple[tuple[str, ...], Engine, list[str]]:
    """(llama.cpp's words that a plan is made of, the program with what its own words say of it, notes). `known`: own
    flags, `types`: own types of a cache. Raises UsageError."""
    engine, left = IK_LLAMA, list(words)
    found: list[str] = []
    notes: list[str] = []
    while left:
        word = left.pop(0)
        if known and word == "--fit":
            raise UsageError(f"--fit: {program} places the layers itself, and refuses -ncmoe and -ot beside it: leave "
                             "it out of a plan")
        count, other = known.get(word, (0, (word,)))
        values, left = left[:count], left[count:]
        value = values[0] if values else ""
        if word in CACHES and left and is_own_type(left[0]) and left[0].lower() in types:
            found += [word, _bound(left[0])]
            notes.append(f"{word} {left[0]} is a type of {program} alone: the {CACHES[word]} "
                         f"cache is planned as {found[-1]}, an upper bound")
            _refuse_values(word, left.pop(0))
        elif other is None:
            found += _of_value(word, value)
            engine = _with(engine, word, value)
        else:
            found += other
    return tuple(found), engine, notes


def is_own_type(value: str) -> bool:
    return value.lower() not in CACHE_TYPES and re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{1,15}", value) is not None


def _bound(value: str) -> str:
    """A type of llama.cpp with no fewer bytes: block formats of up to 6 bits have at most 2 bits of scales."""
    bits = re.search(r"\d+", value)
    return "q8_0" if bits and 0 < int(bits[0]) <= 6 else "f16"


def _refuse_values(flag: str, value: str) -> None:
    if value.lower() == "q8_kv" and CACHES[flag] == "V":
        raise UsageError(f"{flag} {value}: {IK_LLAMA.name} aborts with it and flash attention; as -ctk it works")


def _of_value(flag: str, value: str) -> Sequence[str]:
    """llama.cpp's words for a flag whose meaning depends on its value. Raises UsageError."""
    if flag in ("-fa", "--flash-attn"):
        if value not in ("on", "off", "auto", "0", "1"):
            raise UsageError(f"invalid parameter for argument: {flag} (it takes on, off, auto, 0 or 1)")
        return "-fa", "off" if value in ("off", "0") else "on"
    if flag in ("-sm", "--split-mode"):
        if value not in ("none", "layer"):
            raise UsageError(f"-sm {value} of {IK_LLAMA.name} is not planned: it needs several GPUs, whose shares are "
                             "not known")
        return "-sm", value
    if flag.startswith(("-ctk-", "-ctv-")):
        raise UsageError(f"{flag} {value}: a cache of two types is not planned; give -ctk and -ctv alone")
    return ()


def _with(engine: Engine, flag: str, value: str) -> Engine:
    """The program with what this flag says. Raises UsageError."""
    names = {"-mla": "mla", "--mla-use": "mla", "-amb": "attention_mib", "--attention-max-batch": "attention_mib",
             "-wgt": "logit_rows", "--worst-graph-tokens": "logit_rows"}
    if flag not in names:
        return engine
    if not (value.isascii() and value.isdecimal() and len(value) < 8):
        raise UsageError(f"{flag} {value}: a number is needed")
    number = int(value)
    if names[flag] == "attention_mib" and number:
        number = max(128, number)                    # build_deepseek2: 1 to 127 are 128
    return replace(engine, **{names[flag]: number})  # type: ignore[arg-type]


def placed(params: Params, n_layer: int) -> Params:
    """The launch with its own meaning of -ncmoe N, the experts of the last N layers (create_tensors_helper); without
    layers on a GPU it drops overrides."""
    if params.n_gpu_layers == 0:
        return replace(params, overrides=())
    pairs = params.overrides
    count = sum(pair == (rf"blk\.{i}{EXPERTS_REGEX}", HOST_BUFFER) for i, pair in enumerate(pairs))
    moved = [(rf"blk\.{il}{EXPERTS}", HOST_BUFFER) for il in range(max(0, n_layer - count), n_layer)]
    rest = [(EXPERTS, HOST_BUFFER) if pair == (EXPERTS_REGEX, HOST_BUFFER) else pair for pair in pairs[count:]]
    return replace(params, overrides=(*moved, *rest))
