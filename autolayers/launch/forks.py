"""Forks of llama.cpp: what their own words mean to a plan. The program gets its words unchanged.

    command, notes = understood(command, environ)      # -ctk q8_KV is planned as f16, -rtr as --no-mmap

ik_llama.cpp's words are those of its common/common.cpp (2026-08-15).
"""

from __future__ import annotations

import re

from ..errors import UsageError
from ..flags.kinds import CACHE_TYPES
from ..records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..builds import Build
    from ..model import Model
    from .command import WrappedCommand

_TYPES = {"-ctk": "K", "--cache-type-k": "K", "-ctv": "V", "--cache-type-v": "V",
          "-ctkd": "draft's K", "--cache-type-k-draft": "draft's K",
          "-ctvd": "draft's V", "--cache-type-v-draft": "draft's V"}
_FLAGS = ("-fit", "--fit")      # a switch there

# of ik_llama.cpp: flag -> number of values, and llama.cpp's words that are no less memory; None: see _of_value
IK: dict[str, tuple[int, tuple[str, ...] | None]] = {
    **dict.fromkeys(("-mla", "--mla-use", "-sm", "--split-mode"), (1, None)),
    **dict.fromkeys(("-amb", "--attention-max-batch", "-ser", "--smart-expert-reduction", "-gfm", "--gpu-fit-margin",
                     "-wgt", "--worst-graph-tokens", "-cuda", "--cuda-params", "--max-gpu"), (1, ())),
    **dict.fromkeys(("-fmoe", "--fused-moe", "-no-fmoe", "--no-fused-moe", "-ger", "--grouped-expert-routing",
                     "-gr", "--graph-reuse", "-no-gr", "--no-graph-reuse", "-fug", "-no-fug", "--no-fused-up-gate",
                     "-no-mmad", "--no-fused-mul-multiadd", "-thp", "--transparent-huge-pages", "-dr", "--dry-run",
                     "-khad", "--k-cache-hadamard", "-vhad", "--v-cache-hadamard", *_FLAGS), (0, ())),
    **dict.fromkeys(("-rtr", "--run-time-repack"), (0, ("--no-mmap",))),
    "--fit-margin": (1, None),
}
IK_LLAMA = "ik_llama.cpp"
_SPLITS = {"graph": "tensor", "attn": "layer"}
_IK_TYPES = ("q6_0", "q8_kv")


def understood(command: WrappedCommand, environ: Mapping[str, str]) -> tuple[WrappedCommand, list[str]]:
    """The command with the words that a plan is made for, and notes; unchanged where its program is llama.cpp or
    cannot be asked. Raises UsageError for words whose memory is not known."""
    words = list(command.words)
    following = list(zip(words, [*words[1:], ""], strict=False))
    if command.container or not any(_foreign(*pair) for pair in following):
        return command, []
    from ..detect import detect, help_words

    build = detect(command.launcher, environ)
    listed = help_words(command.launcher, environ)
    if not build.fork and not any(after.lower() in listed and word in _TYPES for word, after in following):
        return command, []
    known = IK if build.fork == IK_LLAMA else {}
    types = (*listed, *(_IK_TYPES if known else ()))
    meant: list[str] = []
    notes: list[str] = []
    while words:
        word = words.pop(0)
        count, other = known.get(word, (0, (word,)))
        values, words = words[:count], words[count:]
        if word in _TYPES and words and _is_foreign_type(words[0]) and words[0].lower() in types:
            meant += [word, _bound(words[0])]
            notes.append(f"{word} {words[0]} is a type of {build.fork or 'this program'} alone: the {_TYPES[word]} "
                         f"cache is planned as {meant[-1]}, an upper bound")
            words.pop(0)
        else:
            meant += _of_value(word, values[0] if values else "") if other is None else other
    return replace(command, meant=tuple(meant)), notes


def _foreign(word: str, after: str) -> bool:
    return (word in IK and word not in ("-sm", "--split-mode", *_FLAGS)) or after in _SPLITS or (
        word in _FLAGS and (not after or after.startswith("-"))) or (word in _TYPES and _is_foreign_type(after))


def _is_foreign_type(value: str) -> bool:
    return value.lower() not in CACHE_TYPES and re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{1,15}", value) is not None


def _bound(value: str) -> str:
    """A type of llama.cpp with no fewer bytes: block formats of up to 6 bits have at most 2 bits of scales."""
    bits = re.search(r"\d+", value)
    return "q8_0" if bits and 0 < int(bits[0]) <= 6 else "f16"


def _of_value(flag: str, value: str) -> Sequence[str]:
    """llama.cpp's words for a flag whose meaning depends on its value."""
    if flag == "--fit-margin":
        return "-fitt", value
    if flag in ("-sm", "--split-mode"):
        return "-sm", _SPLITS.get(value, value)
    return ()


def refuse_unplanned(command: WrappedCommand, build: Build, model: Model) -> None:
    """Raises UsageError for caches larger than any that a plan has: latent attention with K and V of every
    head, or with its values a second time (llama_kv_cache_init)."""
    if build.fork != IK_LLAMA or not model.hparams.is_mla:
        return
    pairs = dict(zip(command.words, [*command.words[1:], ""], strict=False))
    form = pairs.get("-mla", pairs.get("--mla-use", ""))
    if form == "0" or (form == "1" and pairs.get("-fa", pairs.get("--flash-attn")) in ("off", "0")):
        raise UsageError(f"-mla {form} without flash attention has a larger cache than any plan: leave it out (3)"
                         if form == "1" else "-mla 0 keeps K and V of every head, which no plan has: leave it out (3)")
