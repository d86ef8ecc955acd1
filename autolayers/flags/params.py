"""What a launch fixes: llama-server's memory-relevant parameters under llama.cpp's own names.

`None` (or an empty tuple) means *not given*: the planner may choose it, otherwise llama-server's
default holds. `autolayers.flags.parse` makes a Params from words, environment and config files;
`memory.context` resolves one against a model into the numbers that llama.cpp's context really uses.
"""

from __future__ import annotations

from ..records import dataclass

# common/common.h: LLM_FFN_EXPS_REGEX, LLM_FFN_DENSE_REGEX; with "blk\\.<i>" before them for one
# layer
EXPERTS_REGEX = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
FFN_REGEX = r"\.ffn_(up|down|gate)\."
HOST_BUFFER = "CPU"  # ggml_backend_cpu_buffer_type: the destination of -cmoe, -ncmoe and -ncffn

# llama-server's defaults (common/common.h: common_params), and the slots that
# tools/server/server.cpp makes of -np auto
N_BATCH, N_UBATCH = 2048, 512
ALL_LAYERS = -2  # n_gpu_layers of "-ngl all"
N_PARALLEL = 4  # and one cache for all of them (kv_unified)
FIT_PARAMS_TARGET = 1024  # MiB that --fit leaves free on each device
FIT_PARAMS_MIN_CTX = 4096  # the least context of --fit
POOLING_TYPES = ("none", "mean", "cls", "last", "rank")  # llama_pooling_type, in its order


class Scaled(str):
    """The path of an adapter or control vector that is added with a scale (--lora-scaled)."""

    __slots__ = ("scale",)
    scale: float

    def __new__(cls, path: str, scale: float) -> Scaled:
        made = super().__new__(cls, path)
        made.scale = scale
        return made

    def __getnewargs__(self) -> tuple[str, float]:  # type: ignore[override]
        return str(self), self.scale

    def __eq__(self, other: object) -> bool:
        # with another scale it is another launch
        return isinstance(other, Scaled) and (str(self), self.scale) == (str(other), other.scale)

    def __hash__(self) -> int:
        return hash((str(self), self.scale))


@dataclass(frozen=True)
class Params:
    """Memory-relevant parameters of a launch; None or an empty tuple: not given."""

    n_gpu_layers: int | None = None  # -ngl; -1 auto, -2 all
    n_ctx: int | None = None  # -c; 0 = the trained context, given explicitly
    n_batch: int | None = None  # -b, 2048
    n_ubatch: int | None = None  # -ub, 512
    n_parallel: int | None = None  # -np; -1 (or None) = auto: 4 slots, unified
    kv_unified: bool | None = None  # -kvu / -no-kvu
    kv_unified_per_slot: int | None = None
    flash_attn: str | None = None  # -fa on|off|auto
    cache_type_k: str | None = None  # -ctk, lower case ggml name
    cache_type_v: str | None = None
    kv_offload: bool | None = None  # -kvo / -nkvo
    op_offload: bool | None = None  # --op-offload / --no-op-offload
    swa_full: bool | None = None
    split_mode: str | None = None  # -sm none|layer|row|tensor
    tensor_split: tuple[float, ...] | None = None
    main_gpu: int | None = None  # -mg; below 0 with -sm none: no GPU
    device: tuple[str, ...] | None = None  # -dev; () is "--device none"
    rpc: tuple[str, ...] = ()  # --rpc host:port,...
    # (regex, buffer type) in order; -cmoe, -ncmoe, -ncffn too
    overrides: tuple[tuple[str, str], ...] = ()
    moe_cache_mib: int | None = None  # experts kept in VRAM that are in RAM
    fit: bool | None = None
    fit_target: tuple[int, ...] | None = None  # MiB per device
    fit_ctx: int | None = None
    load_mode: str | None = None  # auto none mmap mlock mmap+mlock dio
    lazy_mode: str | None = None
    repack: bool | None = None
    no_host: bool | None = None
    embedding: bool | None = None  # --embedding(s)
    reranking: bool | None = None
    pooling: str | None = None
    backend_sampling: bool | None = None
    lora: tuple[str, ...] = ()  # Scaled where --lora-scaled names it; so is the next
    control_vector: tuple[str, ...] = ()
    mmproj: str | None = None
    mmproj_offload: bool | None = None
    mmproj_device: str | None = None
    image_max_tokens: int | None = None
    warmup: bool | None = None
    model: str | None = None  # -m
    model_draft: str | None = None  # -md
    n_gpu_layers_draft: int | None = None
    device_draft: tuple[str, ...] | None = None
    overrides_draft: tuple[tuple[str, str], ...] = ()
    cache_type_k_draft: str | None = None
    cache_type_v_draft: str | None = None
    spec_type: tuple[str, ...] = ()
    draft_n_max: int | None = None
    ctx_checkpoints: int | None = None
    cache_ram: int | None = None  # MiB; -1 no limit, 0 off
    # least tokens of a chunk that is moved in the cache; 0 off
    cache_reuse: int | None = None
    override_kv: tuple[tuple[str, str], ...] = ()  # ("key", "type:value")
    rope_scaling: str | None = None
    rope_scale: float | None = None
    yarn_orig_ctx: int | None = None
    numa: str | None = None
    n_threads: int | None = None  # -t; below 1: llama.cpp's default
    n_threads_batch: int | None = None  # -tb, of prompts; below 1: as n_threads

    @property
    def gives_layers(self) -> bool:
        """Whether n_gpu_layers is given; -1 is llama.cpp's auto."""
        return self.n_gpu_layers not in (None, -1)

    def layers_wanted(self, everything: int, limit: bool = True) -> int:
        """n_gpu_layers as a count: auto and all mean `everything`; larger numbers are capped at it
        unless `limit` is false."""
        # Numbers below 0 are -1 auto and -2 all
        n = self.n_gpu_layers
        return everything if n is None or n < 0 else min(n, everything) if limit else n
