"""The bundled header of the model that a log is of, by the names and the figures in it.

    found = bundled_header(facts, ("-m", "Qwen3-30B-A3B-Instruct-2507-Q8_0.gguf"))
    found.name, found.model.size                    # "qwen3-30b-a3b-q8_0"

A header of another quantisation is taken where it is larger, or with its matrices in a larger type,
and never one that a printed figure contradicts. What is planned with it is not exact: fine-tunes
share a name's shapes and not always its context.
"""

from __future__ import annotations

import re
from itertools import pairwise

from .. import bundled
from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model import Model
    from .facts import Facts

# e.g. "q4_k_m", "ud-q4_k_xl", "iq4_xs", "mxfp4", between what separates words
_QUANT = re.compile(
    r"(?:^|[-_.: ])((?:ud-)?(?:i?q\d(?:_[a-z0-9]{1,3})*|mxfp4|bf16|f16))(?=$|[-_.: ])",
    re.IGNORECASE,
)
# e.g. "qwen3-30b-a3b" -> "qwen", "3", "30b", "a", "3b"
_TOKEN = re.compile(r"[a-z]+|\d+(?:\.\d+)?[bm]?(?![a-z0-9])|\d+(?:\.\d+)?")
# Of models that share a family's name and not its shapes
_OTHERS = frozenset(
    (
        "vl",
        "omni",
        "next",
        "embedding",
        "embed",
        "reranker",
        "vision",
        "audio",
        "asr",
        "tts",
        "mmproj",
        "draft",
        "distill",
        "moe",
    )
)
# Sizes within one number of bits, e.g. q4_0 < q4_1, q4_k_s < q4_k_m
_SUFFIX = {"xxs": 0, "xs": 1, "nl": 2, "s": 2, "0": 2, "1": 3, "m": 3, "l": 4, "xl": 5}
# llama.cpp's names of file types -> the usual suffix
_TYPES = {
    "Q4_K - Medium": "q4_k_m",
    "Q4_K - Small": "q4_k_s",
    "Q5_K - Medium": "q5_k_m",
    "Q5_K - Small": "q5_k_s",
    "Q3_K - Medium": "q3_k_m",
    "Q3_K - Small": "q3_k_s",
    "Q3_K - Large": "q3_k_l",
    "Q2_K - Medium": "q2_k",
    "MXFP4 MoE": "mxfp4",
    "IQ4_XS - 4.25 bpw": "iq4_xs",
}
_FIGURES = {
    "n_layer": "block_count",
    "n_embd": "embedding_length",
    "n_ff": "feed_forward_length",
    "n_expert": "expert_count",
}
# Types of whole files, whose matrices are all of them
# (bits, suffix) as `_bits` orders them
_PURE = (((6, 2), "q6_K"), ((8, 2), "q8_0"), ((16, 2), "bf16"))
_SLACK = 1.1  # weights of one quantisation differ by less among files


@dataclass(frozen=True)
class BundledHeader:
    name: str  # of the bundled header
    model: Model


def bundled_header(facts: Facts, words: Sequence[str]) -> BundledHeader | None:
    """Return the bundled header with the name and the figures of the log's model; None without
    one."""
    printed = facts.printed
    # What the command and the log call the model, the most certain first: the file's name is the
    # surest, general.name is often the base model's
    files = ("-m", "--model", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file")
    names = [value.rpartition("/")[2] for flag, value in pairwise(words) if flag in files]
    names.append(facts.model.replace("\\", "/").rpartition("/")[2])
    for name in (*names, printed.get("name", "")):
        quant = _quant(name) or _quant_of(printed.get("ftype", ""))
        for bundled_name in _alike(name, quant):
            header = _agreeing(bundled_name, facts, quant)
            if header is not None:
                return header
    # no name that tells: the figures alone, if there are two
    quant = _quant_of(printed.get("ftype", ""))
    # Two figures and the architecture: few models share them
    if quant and "arch" in printed and sum(key in printed for key in _FIGURES) > 1:
        for name in bundled.models():
            if name.endswith(f"-{quant}") and (header := _agreeing(name, facts, quant)):
                return header
    return None


def _quant(name: str) -> str:
    """Return the quantisation in a file's name, in lower case."""
    return next((match[1].lower() for match in _QUANT.finditer(name)), "")


def _quant_of(ftype: str) -> str:
    return _TYPES.get(ftype) or (
        ftype.lower() if re.fullmatch(r"[QF]\d+(?:_\d)?|BF16", ftype) else ""
    )


def _bits(quant: str) -> tuple[int, int]:
    """Return a key that orders quantisations by their size."""
    digits = re.search(r"\d+", quant)
    suffix = quant.rpartition("_")[2]
    return int(digits[0]) if digits else 0, _SUFFIX.get(suffix, 2)


def _alike(given: str, quant: str) -> list[str]:
    """Return the bundled models of that name: of that quantisation, the next larger ones, the
    others."""
    if not quant or not given:
        return []
    tokens = _TOKEN.findall(_QUANT.sub("", given.lower()))
    entries = []
    for name in bundled.models():
        bundled_quant = _quant(name)
        base = _TOKEN.findall(name.removesuffix(bundled_quant).rstrip("-"))
        # `token in rest` takes from the iterator: the header's words must come in this order
        rest = iter(tokens)
        if (
            bundled_quant
            and all(token in rest for token in base)
            and not (set(tokens) - set(base)) & _OTHERS
        ):
            entries.append(
                # Sorted: the longest name that matches, then the same
                # quantisation, then larger ones, the smallest first
                (
                    -len(base),
                    bundled_quant != quant,
                    _bits(bundled_quant) < _bits(quant),
                    _bits(bundled_quant),
                    name,
                )
            )
    longest = min(entries, default=(0,))[0]
    return [entry[4] for entry in sorted(entries) if entry[0] == longest]


def _agreeing(name: str, facts: Facts, quant: str) -> BundledHeader | None:
    """Return the bundled model of that name, at least as large as of that quantisation, unless a
    figure of the log is another."""
    model, printed = bundled.read(name), facts.printed
    if _bits(_quant(name)) < _bits(quant):
        kind = next((type_ for bits, type_ in _PURE if bits >= _bits(quant)), "")
        if not kind:
            return None
        # Never smaller than the file that the log is of: a plan must not be too hopeful
        model = model.quantised(kind, larger=True)
    arch = model.architecture
    if printed.get("arch", arch) != arch:
        return None
    for key, row in _FIGURES.items():
        value = model.header.metadata.get(f"{arch}.{row}", 0 if key == "n_expert" else None)
        if key in printed and isinstance(value, int) and printed[key] != str(value):
            return None
    # The log's weights are larger: another model, or another quantisation
    if facts.weights > _SLACK * model.size:
        return None
    context = printed.get("n_ctx_train", "")
    if context.isdecimal() and 0 < int(context) < 1 << 31:
        # Fine-tunes stretch the context; everything else of the header stays
        model = model.overridden(((f"{arch}.context_length", f"int:{context}"),))
    return BundledHeader(name, model)
