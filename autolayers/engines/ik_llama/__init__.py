"""ik_llama.cpp (github.com/ikawrakow/ik_llama.cpp, 8337e4cd of 2026-08-15): what it does unlike
llama.cpp."""

from __future__ import annotations

from ...records import dataclass, replace
from ..engine import Engine

FIT_MARGIN = 1024  # MiB that it leaves free on each device (k_default_mem_margin)


@dataclass(frozen=True)
class Said:
    """What words of its own say of a launch; its defaults where none does."""

    mla: int = 3  # the form of latent attention (-mla)
    # what latent attention may make of its cache at once (-amb), 0: all
    attention_mib: int = 256
    logit_rows: int = 0  # rows of logits (-wgt), 0: those of a micro-batch
    moe_layers: int = 0  # layers with experts in RAM (-ncmoe), -cmoe: 999
    fit: bool = False  # it places the layers itself
    fit_margin: int = FIT_MARGIN  # MiB
    margins: tuple[tuple[int, int], ...] = ()  # (device, MiB) of -gfm
    split: str = ""  # graph, attn; "": as -sm says
    type_k: str = ""  # cache types that llama.cpp has not
    type_v: str = ""
    # ("k-first", type, layers) of -ctk-first and the like
    ends: tuple[tuple[str, str, int], ...] = ()
    reduces_as: str = "f16"  # parts of layers that are cut are added as this (-grt)
    repacks: bool = False  # -rtr
    merges: bool = False  # -mqkv
    merges_experts: bool = False  # -muge
    fused_experts: bool = True  # -no-fmoe
    fused_up_gate: bool = True  # -no-fug
    multi_add: bool = True  # -no-mmad
    k_hadamard: bool = False  # -khad
    v_hadamard: bool = False  # -vhad
    graph_with_overrides: bool = False  # -smgs
    rope_cache: bool = False  # -rcache


# llm_load_tensors counts the repeating layers first, the output layer last; llama_kv_cache_init
# makes one cache of n_ctx cells, a multiple of 32 without flash attention
# (llama_kv_cache::get_padding)
_RULES = (
    ("output_first", False),
    ("streams", False),
    ("cells_by_256", False),
    ("skips_undrafted", False),
    ("mla_one_type", False),
)
# gpt_params_parse_ex of its common/common.cpp knows none of these
_LACKS = (
    "--swa-full",
    "-lm",
    "--load-mode",
    "-kvu",
    "-no-kvu",
    "-ncffn",
    "-fitt",
    "-hf",
    "--no-mmproj",
    "--list-devices",
    "-fit",
    "--no-op-offload",
    "--moe-cache-mib",
    "-ctxcp",
    "-lzm",
)
IK_LLAMA = Engine(
    "ik_llama.cpp",
    whole_batches=True,
    one_sequence=True,
    one_cache=True,
    shares_bytes=True,
    pipelines=False,
    seen="8337e4cd of 2026-08-15",
    said=Said(),
    lacks=_LACKS,
    unwritten=("-ncmoe", "-cmoe"),
    rules=_RULES,
)


def leaner(engine: Engine) -> Engine | None:
    """Return the program with words of its own that make the graphs of one sequence smaller; None
    if it has none, or they are said.

    llm_build_context makes a worst-case graph with logits of each token of a micro-batch, or of as
    many tokens as -wgt says; a server of one sequence asks for those of the last token."""
    settings = engine.said
    if not isinstance(settings, Said) or settings.logit_rows or "-wgt" in engine.words:
        return None
    return replace(engine, said=replace(settings, logit_rows=1), words=(*engine.words, "-wgt", "1"))


# keys that its llm_load_hparams wants, and that files for llama.cpp do not all have; one of several
KEYS = {
    "bailingmoe3": ("expert_group_count", "expert_shared_feed_forward_length"),
    "dflash": ("expert_feed_forward_length",),
    "step35": ("swiglu_clamp_exp|swiglu_limits",),
}
# ids 34, 35, 40 and 42 of ggml_type
ABSENT_TYPES = frozenset(("tq1_0", "tq2_0", "nvfp4", "q2_0"))
