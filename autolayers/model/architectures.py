"""One row per architecture: how llama.cpp's loader, caches and graphs differ from the generic rule.

A row is the difference to a plain transformer whose layers all keep keys and values (llama). Rows
and the builders of autolayers.graph are the only places that know an architecture by name. A row
mirrors src/models/<name>.cpp (load_arch_hparams, load_arch_tensors), create_memory of
src/llama-model.cpp, and what src/llama-graph.cpp and src/llama-context.cpp ask by name (as
modelled, see autolayers.builds).
"""

from __future__ import annotations

from ..builds import Rule, Rules
from ..records import dataclass, field
from ..tables import rows, typed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from typing import Any, Literal

    State = Literal["", "ssm", "ssm-groups", "kda", "rwkv", "shortconv", "linear"]


@dataclass(frozen=True)
class SlidingWindow:
    """Sliding-window attention: the last of every `period` layers is full (the first, if
    `dense_first`); 0: all slide."""

    period: int = 0
    # which models slide: window: with a sliding_window above 0; attention: the same, in layers that
    # are not recurrent; always; required: always, and not without the key; deep: those of 64
    # layers; not-zero: unless the key is 0
    when: Literal["window", "attention", "always", "required", "deep", "not-zero"] = "window"
    kind: Literal["standard", "symmetric", "chunked"] = "standard"
    size: int = 0  # used if the file has no sliding_window
    fixed: int = 0  # used whatever the file has
    dense_first: bool = False
    # builds before Rules.window_lists read an array too, and want the key; of others only a period
    list_before: bool = False
    array: bool = False  # the pattern is always an array; without one no layer slides
    # every layer slides in a model with residual streams (hyper_connection.count)
    all_with_streams: bool = False


@dataclass(frozen=True)
class Architecture:
    """Fields with their meaning; the defaults make llama."""

    name: str

    # hyperparameters
    # llama_model_rope_type; mrope|x: mrope if the file has sections, otherwise x; hc-norm: norm
    # with residual streams
    rope: Literal[
        "none", "norm", "neox", "mrope", "imrope", "mrope|norm", "mrope|neox", "mrope|hc-norm|neox"
    ] = "norm"
    # what turns rope off: the key rope.scaling.finetuned, or by layer attention.rope_pattern
    rope_switch: Literal["", "finetuned", "pattern"] = ""
    half_rope: bool = False  # full attention rotates half of rope.dimension_count
    whole_rope: bool = False  # a head is rotated as a whole, or llama.cpp does not load the file
    defaults: Mapping[str, float] = field(default_factory=dict)  # unusual defaults of missing keys
    # key_length and value_length are read even if the first layer has no heads
    head_sizes: bool = False
    latent_value: bool = False  # a value head is kv_lora_rank wide
    mla: Literal["", "required", "optional"] = ""  # key_length_mla and value_length_mla are read
    features: bool = False  # the layers are features_length wide, the output embedding_length
    one_expert: bool = True  # False: expert_count 1 means no experts
    loops: bool = False  # num_loops passes over the blocks, each with its own cache
    router: bool = False  # one more block with a single head routes between adapters
    ple: bool = False  # ple.layers: layers that add embeddings of n-grams
    embd_out: Literal["", "streams"] = ""  # n_embd_out is of all residual streams
    # n_embd_inp: n_embd_out, or with its parts
    embd_inp: Literal["", "output", "deepstack_mapping"] = ""
    # a batch may mix tokens and embeddings (llm_arch_supports_mixed_batch)
    mixed_batch: bool = True

    # caches
    memory: Literal[
        "none", "kv", "recurrent", "hybrid", "hybrid-idx", "dsa", "dsa-iswa", "msa", "dsv4"
    ] = "kv"
    window: SlidingWindow | None = None
    causal: bool = True
    # layers with their own cache; 0: n_layer_all - attention.shared_kv_layers; -1: all
    shared_kv: int = -1
    trunk_only: bool = False  # the attention cache leaves the MTP blocks out
    # the same in builds in which not all architectures' do (Rules.nextn_apart)
    trunk_before: bool = False
    # recurrent layers: all; no-kv: with head_count_kv 0 (-all: MTP blocks too, -no-ff: and without
    # FFN); interval: all but every n-th; every: all, and attention too
    recurrent: Literal["", "all", "no-kv", "no-kv-all", "no-kv-no-ff", "interval", "every"] = ""
    interval: int = 4  # n without full_attention_interval
    state: State = ""  # what a recurrent layer keeps; ssm-groups: ssm.group_count is read
    rollback: bool = False  # keeps n_rs_seq more recurrent rows for speculative decoding
    # layers with an indexer: trunk: all but MTP blocks; glm: GLM's table; types:
    # attention.indexer.types, otherwise none (or all); after-dense: after
    # leading_dense_block_count; attention: those that are not recurrent
    indexer: Literal["", "trunk", "glm", "types", "types-or-all", "after-dense", "attention"] = ""
    indexer_optional: bool = False  # no indexer without attention.indexer.top_k
    rotated_indexer: bool = False  # its keys are rotated for any cache type

    # tensors
    # output = token_embd: when output is absent; always; first: as absent, and created before
    # token_embd; never
    tied: Literal["absent", "always", "first", "never"] = "absent"
    output_twice: bool = False  # without token_embd the output matrix is stored twice
    # tensors outside of blocks that lie with another layer than usual
    places: Mapping[str, Literal["input", "output"]] = field(default_factory=dict)
    # tensors of blocks that an unusual op reads
    ops: Mapping[str, str] = field(default_factory=dict)
    # layers that use rope_freqs and rope_factors: below n_layer; all; full: those that do not slide
    # (-all: MTP blocks too); physical: one pass over the blocks
    rope_users: Literal["", "all", "full", "full-all", "physical"] = ""
    lazy_embd: bool = False  # --lazy-mode reads per_layer_token_embd row by row from the file
    mtp_tensors: bool = True  # False: tensors of MTP blocks are never loaded
    mtp_leaks: str = ""  # regex of tensors of skipped MTP blocks that are loaded anyway
    # builds without it load MTP blocks fully, whether they draft or not
    mtp_whole: Rule | None = None
    # builds without the graph of MTP blocks leave these out; others refuse such a file
    mtp_skipped: bool = False

    # graphs
    graph: str = ""  # the file of graph/models that builds it; "": its row is in graph/rows.py
    # the graph of its MTP block picks the output rows after the head's norm, before it (layer), or
    # after attention (Decoder.mtp); own: in its model's file; "": llama.cpp has none
    mtp: Literal["", "norm", "layer", "attention", "own"] = ""
    mtp_after: int = 0  # the newest build seen without it
    # swiglu_clamp_exp and _shexp are read: experts: only of the experts; fused: of all FFNs of a
    # model with residual streams, as one op; ops: of all, as several ops
    swiglu_clamp: Literal["", "experts", "fused", "ops"] = ""
    cls_act: Literal["TANH", "GELU"] = "TANH"  # of the classification head
    cls_softmax: bool = False  # rank pooling ends in a softmax
    flash_attn: bool = True  # False: flash attention is forced off
    split_tensor: bool = True  # -sm tensor is allowed
    # exceptions to its cuts: whole: nothing is cut; states: no recurrent states; groups: heads by
    # output groups, if there are residual streams; gated: Q with a gate of each head, and delta
    # nets whose keys and values alternate (-apart: whose values follow all keys)
    slices: Literal["", "whole", "states", "groups", "gated", "gated-apart"] = ""
    # graphs in use may be larger than reserved: with the tokens of a sequence; cache: also with
    # what the cache holds
    graph_grows: Literal["", "sequence", "cache"] = ""
    all_outputs: bool = False  # every token of a batch may be an output (encoders)
    # builds with it abort unless every slot has the same share of n_ubatch
    even_slots: Rule | None = None
    one_stream: bool = False  # llama.cpp aborts on several slots with a cache each
    cross_attends: bool = False  # its decoder reads what llama_encode made
    needs_window: bool = False  # llama.cpp aborts on a file without a sliding window

    # drafts and projectors
    # the target's tensors that it uses if its file has none; "cache": the target's
    borrows: tuple[str, ...] = ()
    reads_target: bool = False  # its target keeps the inputs of target_layers
    draft_type: str = ""  # the default --spec-type
    projector: bool = False  # not a model; --mmproj takes it

    ollama_single: bool = False  # Ollama serves it with one slot
    # (rule, what a build without it does otherwise)
    before: tuple[tuple[Rule, Mapping[str, Any]], ...] = ()
    # the newest build whose source was seen without it; llama.cpp refuses it up to there
    after: int = 0
    # (end of a tensor's name, the newest build that refuses a file with such a tensor)
    newer: tuple[tuple[str, int], ...] = ()
    # the oldest build that it was compared with and equal; 0: the oldest of all compared ones
    exact_from: int = 0
    # its graph was rewritten more than once between these builds: their sizes bound none of those
    # in between, for which it is an unknown one
    rewritten: tuple[int, int] | None = None
    # (from this build on, at most this factor more): its graph is another, known by its sizes alone
    changed: tuple[tuple[int, float], ...] = ()
    reads_gating: Rule | None = None  # from which on a gating function of 0 aborts
    proven: bool = True  # its numbers have been compared with llama.cpp's own
    known: bool = True  # False: generated for a name without a row
    note: str = ""  # for docs/architectures.md

    def grown(self, build: int) -> float:
        """Return how many times its graph's size a build takes at most, 0 where that is known."""
        return next((factor for first, factor in reversed(self.changed) if first <= build), 0)

    @property
    def delta_net(self) -> bool:
        """Whether its recurrent layers are delta nets."""
        return self.state == "kda" or "ssm_a" in self.ops


_WINDOWS = ("window", "attention", "always", "required", "deep", "not-zero")


def _value(field_: str, text: str) -> Any:
    """Return what a word of architectures.tsv gives for a field."""
    if field_ in ("mtp_whole", "even_slots", "reads_gating"):
        return getattr(Rules, text)
    if field_ == "window":
        return _window(text) if text else None
    if field_ in ("defaults", "ops", "places"):
        return dict(_pairs(text))
    if field_ in ("newer", "changed"):
        return tuple(_pairs(text))
    if field_ in ("rewritten", "borrows"):
        return tuple(map(typed, text.split(",")))
    return typed(text)


def _pairs(text: str) -> list[tuple[Any, Any]]:
    pairs = [pair.rpartition(":") for pair in text.split(",") if pair]
    return [(typed(key), typed(value)) for key, _, value in pairs]


def _window(text: str) -> SlidingWindow:
    period, *words = text.split(",")
    facts: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition(":")
        if name in _WINDOWS:
            facts["when"] = name
        elif name in ("symmetric", "chunked"):
            facts["kind"] = name
        else:
            facts[name] = int(value) if value else True
    return SlidingWindow(int(period), **facts)


def _facts(words: Sequence[str]) -> dict[str, Any]:
    """Return the fields that the words of a line give: `field` (yes), `field=value`, several
    values with commas, their keys before a colon, and `before=rule:word;word`."""
    facts: dict[str, Any] = {}
    for word in words:
        name, given, value = word.partition("=")
        if name == "before":
            rule, _, other = value.partition(":")
            known = facts.get(name, ())
            facts[name] = (*known, (getattr(Rules, rule), _facts(other.split(";"))))
        else:
            facts[name] = _value(name, value) if given else True
    return facts


# a line is read when a model needs it: all of them would add milliseconds to each start
_ROWS = {row["name"]: row for row in rows("model/architectures.tsv")}
NAMES = tuple(_ROWS)

# an unknown architecture's keys for its recurrent state
_STATE_KEYS: dict[str, State] = {
    "wkv.head_size": "rwkv",
    "kda.head_dim": "kda",
    "shortconv.l_cache": "shortconv",
    "ssm.state_size": "ssm-groups",
}


def architecture(name: str, keys: Container[str] = ()) -> Architecture:
    """Return the row of `general.architecture`.

    A name without a row gets one that takes more than any known model with such `keys` would: full
    attention caches in every layer, and a recurrent state too if the file mentions one.
    """
    row = _ROWS.get(name)
    if row is not None:
        facts = {"rope": row["rope"], "note": row["note"], **_facts(row["facts"].split())}
        return Architecture(name, **facts)
    state: State = next(
        (state for key, state in _STATE_KEYS.items() if f"{name}.{key}" in keys), ""
    )
    return Architecture(
        name,
        memory="hybrid" if state else "kv",
        recurrent="every" if state else "",
        state=state,
        split_tensor=False,
        ollama_single=name == "mllama" or name.startswith("nemotron_h"),
        proven=False,
        known=False,
        note="unknown to autolayers",
    )
