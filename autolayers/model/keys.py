"""The type of each key that llama.cpp reads: it loads no file that has another.

    # "key llama.block_count has wrong type i32 but expected type u32"
    wrong_type("llama", header.metadata)

Mirrors GGUFMeta::GKV::get_kv and llama_model_loader's get_key, get_key_or_arr and get_arr, as
llama_model_base::load_hparams, each load_arch_hparams and llama_vocab::impl::load call them. The
same in the sources of builds 10435, 11311, 11434 and 11549. The types of FIELDS are those of its
defaults. Which keys an architecture reads that it does not demand is not known here: those of a
wrong type are possible().
"""

from __future__ import annotations

from functools import cache

from ..gguf.header import gguf_type
from ..quoting import printable
from .demanded import demanded
from .hparams import FIELDS, NO_VOCABULARY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# What llama.cpp reads of every file, beside what the architecture demands (demanded.py). A dot
# comes before a key that does not begin with the architecture's name. u32+ is one number or a list;
# [u32] is a list, and what is none is not read.
_EVERY = """
u32: context_length embedding_length embedding_length_out pooling_type classifier.pooling_type
  block_count nextn_predict_layers expert_count expert_group_count expert_group_used_count
  rope.scaling.original_context_length attention.key_length attention.value_length
  rope.dimension_count attention.key_length_swa attention.value_length_swa
  rope.dimension_count_swa .general.file_type .tokenizer.ggml.token_type_count
f32: rope.freq_base rope.scaling.factor rope.scaling.attn_factor rope.scaling.alpha
bool: attention.causal rope.scaling.finetuned
str: classifier.activation rope.scaling.type .general.architecture .general.name
  .tokenizer.ggml.model .tokenizer.ggml.pre
u16: .split.count
u32+: expert_used_count feed_forward_length attention.head_count attention.head_count_kv
[str]: classifier.output_labels
"""
# what some architectures read, and FIELDS does not have
_SOME = """
u32: adapters.count adapters.lora_rank attention.indexer.key_length attention.indexer.kpool
  attention.key_length_mla attention.sliding_window attention.value_length_mla
  decision.block_count decision.head_count decision.routing_block_count kda.head_dim
  shortconv.l_cache ssm.conv_kernel ssm.group_count ssm.inner_size ssm.state_size
  target_hidden_size wkv.head_size
u32: vocab_size
f32: rope.freq_base_swa
u32+: attention.recurrent_layers attention.sliding_window_pattern expert_feed_forward_length
  attention.compress_ratios attention.indexer.types
i32+: rope.dimension_sections
f32+: swiglu_clamp_exp swiglu_clamp_shexp .xielu.alpha_n .xielu.alpha_p .xielu.beta .xielu.eps
[u32]: adapters.token_ids_activate adapters.token_ids_substitute
"""
# what a vocabulary has, where there is one
_OF_TOKENS = """
u32: bos_token_id eos_token_id eot_token_id eom_token_id unknown_token_id seperator_token_id
  padding_token_id mask_token_id fim_pre_token_id fim_suf_token_id fim_mid_token_id
  fim_pad_token_id fim_rep_token_id fim_sep_token_id prefix_token_id suffix_token_id
  middle_token_id
bool: add_bos_token add_eos_token add_sep_token add_space_prefix remove_extra_whitespaces
  normalizer.lowercase normalizer.strip_accents
"""
_INTS = frozenset(("arr[u32]", "arr[i32]", "arr[bool]"))
_LISTS = {
    "u32+": _INTS | {"u32"},
    "i32+": _INTS | {"i32"},
    "f32+": frozenset(("f32", "arr[f32]")),
    "[u32]": _INTS,
    "[str]": frozenset(("arr[str]",)),
}
_LIKE = {bool: "bool", int: "u32", float: "f32", str: "str", tuple: "[u32]"}

_TOKENIZER = "tokenizer.ggml."
# the elements that each list of a vocabulary may have, and whether each token has one
_VOCABULARY = {
    "tokens": (("str",), True),
    "merges": (("str",), False),
    "scores": (("f32", "i32"), True),
    "token_type": (("i32",), True),
    "suppress_tokens": (("i32",), False),
}
# llama_vocab's type by tokenizer.ggml.model; those of headers without a vocabulary say nothing
TYPES = {
    "llama": "SPM",
    "bert": "WPM",
    "gpt2": "BPE",
    "hybriddna": "BPE",
    "whitespace": "BPE",
    "gemma4": "BPE",
    "t5": "UGM",
    "rwkv": "RWKV",
    "plamo2": "PLaMo-2",
    "plamo3": "PLaMo-3",
}
_MERGED = [name for name, kind in TYPES.items() if kind == "BPE"]
# a word that is not among these ends the load, or the program
_WORDS = {
    "rope.scaling.type": ("none", "linear", "yarn", "longrope"),
    "classifier.activation": ("gelu", "silu", "tanh"),
    # llama.cpp's own tests have a vocabulary called test
    ".tokenizer.ggml.model": (*NO_VOCABULARY, *TYPES, "test"),
}


def _table(text: str) -> dict[str, str]:
    """Return the type of each key."""
    found: dict[str, str] = {}
    # a line that begins with blanks goes on with the one before
    for line in text.strip().replace("\n  ", " ").splitlines():
        kind, _, keys = line.partition(": ")
        found.update(dict.fromkeys(keys.split(), kind))
    return found


@cache
def _types(architecture: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the type of each key that llama.cpp reads of all of an architecture's files, and of
    those that it may read."""
    likes = {key: _LIKE[type(like)] for key, like in FIELDS.values()}
    tables = _table(_EVERY), {**likes, **_table(_SOME)}
    every, some = (
        {key[1:] if key[0] == "." else f"{architecture}.{key}": kind for key, kind in each.items()}
        for each in tables
    )
    every = {**{key: some[key] for key in demanded(architecture) if key in some}, **every}
    return every, {key: kind for key, kind in some.items() if key not in every}


def wrong_type(architecture: str, metadata: Mapping[str, Any]) -> str:
    """Return what llama.cpp says of the first key of a wrong type, "" if there is none."""
    types = _types(architecture)[0]
    absent = metadata.get(_TOKENIZER + "model") in NO_VOCABULARY
    if absent:
        types = {**types, f"{architecture}.vocab_size": "u32"}
    else:
        types = {**types, **{_TOKENIZER + key: kind for key, kind in _table(_OF_TOKENS).items()}}
    wrong = _wrong(types, metadata)
    return wrong or ("" if absent else _vocabulary(metadata))


def possible(architecture: str, metadata: Mapping[str, Any]) -> str:
    """Return what llama.cpp says of a key of a wrong type if it reads that key, "" for none."""
    return _wrong(_types(architecture)[1], metadata)


def _wrong(types: Mapping[str, str], metadata: Mapping[str, Any]) -> str:
    for key, value in metadata.items():
        if key in types and (wrong := _unlike(key, gguf_type(value), types[key])):
            return wrong
    return ""


def _unlike(key: str, found: str, expected: str) -> str:
    """Say what is wrong with a key of one type where another is expected."""
    if found in _LISTS.get(expected, (expected,)):
        return ""
    is_list = found.startswith("arr")
    if expected in _LISTS and is_list:
        return f"{key} has wrong array element type {found[4:-1]}"
    if expected.startswith("["):
        return ""
    name = "arr" if is_list else found
    return f"key {key} has wrong type {name} but expected type {expected.rstrip('+')}"


def _vocabulary(metadata: Mapping[str, Any]) -> str:
    """Say what is wrong with the lists of a vocabulary (llama_vocab::impl::load)."""
    tokenizer = metadata.get(_TOKENIZER + "model")
    if tokenizer is None:
        # a header made by hand has no vocabulary at all
        given = _TOKENIZER + "tokens" in metadata
        return f"key not found in model: {_TOKENIZER}model" if given else ""
    merged = tokenizer in _MERGED and metadata.get(_TOKENIZER + "pre") != "kimi-k2"
    for name, needed in (("merges", merged), ("tokens", True)):
        if needed and _TOKENIZER + name not in metadata:
            return f"cannot find tokenizer {'vocab' if name == 'tokens' else name} in model file"
    n_tokens = len(metadata[_TOKENIZER + "tokens"])
    # llama.cpp divides by it
    if not n_tokens:
        return f"{_TOKENIZER}tokens is empty"
    for name, (kinds, each) in _VOCABULARY.items():
        value = metadata.get(_TOKENIZER + name)
        if value is None or (name == "merges" and tokenizer not in _MERGED):
            continue
        if gguf_type(value) not in [f"arr[{kind}]" for kind in kinds]:
            return f"invalid gguf type for {_TOKENIZER}{name}"
        if each and len(value) < n_tokens:
            return f"Index out of array bounds for {name} ({len(value)} < {n_tokens})"
    return ""


def unknown_words(architecture: str, metadata: Mapping[str, Any]) -> list[str]:
    """Return a line for each word that no build compared here knows; a newer one may."""
    lines = []
    for name, known in _WORDS.items():
        key = name[1:] if name.startswith(".") else f"{architecture}.{name}"
        value = metadata.get(key)
        if isinstance(value, str) and value not in known:
            lines.append(
                f"{key} is {printable(value)[:40]!r}, which llama.cpp b11549 does not load"
            )
    return lines
