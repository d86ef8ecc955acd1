"""A model's hyperparameters under llama.cpp's own names, read from a GGUF header's metadata.

    hp = Hparams(architecture("gemma3"), header.metadata, header.tensors)
    hp.n_layer, hp.n_embd_k_gqa(3), hp.is_swa(3), hp.n_swa
    hp.n_expert_shared                          # any name of FIELDS
    hp.get("attention.layer_norm_rms_epsilon")  # any other key of the architecture

Mirrors src/llama-model.cpp:load_hparams, src/llama-hparams.cpp and each
src/models/*.cpp:load_arch_hparams (as modelled); the differences between architectures are in their
rows (architectures.py).
"""

from __future__ import annotations

from ..errors import ModelError
from ..gguf import ArrayInfo, TensorInfo
from ..tables import rows, typed
from ..units import whole
from .architectures import Architecture, SlidingWindow
from .values import LARGEST, checked, is_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


# LLAMA_MAX_LAYERS
_MAX_LAYERS = 512
# LLAMA_MAX_EXPERTS
_MAX_EXPERTS = 1024
# DSV4_CSA_RATIO, DSV4_HCA_RATIO: tokens of a compressed cell, see compress_ratios
CSA_RATIO, HCA_RATIO = 4, 128

# name in llama.cpp -> (key after "<architecture>.", default, whose type is the type of the key's
# value)
FIELDS: dict[str, tuple[str, Any]] = {
    row["name"]: (row["key"], () if row["default"] == "list" else typed(row["default"]))
    for row in rows("model/hparams.tsv")
}

# How often a graph repeats something, at most: several times any model's value. Fields that are not
# here are sizes, or bounded by the layers.
_REPEATS = {
    "posnet_n_block": _MAX_LAYERS,
    "convnext_n_block": _MAX_LAYERS,
    "indexer_n_head": 512,
    "dsv4_hc_mult": 16,
    "dsv4_hc_sinkhorn_iters": 64,
    "ple_ngram_size": 64,
    "ple_heads_per_ngram": 64,
    "ple_conv_kernel": 64,
    "dflash_block_size": 512,
    "dflash_conv_kernel_size": 64,
}


def _guess(tensors: Mapping[str, TensorInfo], prefix: str) -> dict[str, Any]:
    """Return an unknown architecture's facts by its tensors, if its keys lack them."""
    # "blk.12.attn_q.weight" -> "12"
    numbers = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
    blocks = [block for number in numbers if (block := whole(number)) is not None]
    embedding = tensors.get("token_embd.weight")
    facts = {"context_length": 4096}
    if blocks:
        facts["block_count"] = max(blocks) + 1
    if embedding is not None:
        facts["embedding_length"] = embedding.ne[0]
    return {prefix + key: value for key, value in facts.items()}


NO_VOCABULARY = ("none", "no_vocab")  # values of tokenizer.ggml.model
# for files of GLM-5.2 without attention.indexer.types (load_arch_hparams of glm-dsa)
_GLM_5_2_INDEXERS = (1, 1) + (1, 0, 0, 0) * 19


class Hparams:
    """Everything is read at construction except FIELDS, which are read on demand."""

    def __init__(
        self,
        row: Architecture,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, TensorInfo] | None = None,
    ) -> None:
        """`row` has the rules, `metadata` and `tensors` are the header's.

        Raises ModelError if llama.cpp would not load the file: a missing required key, an array of
        the wrong length.
        """
        # the order below is load_hparams': later values read earlier ones
        tensors = tensors or {}
        self.architecture = row
        self._prefix = row.name + "."
        self._metadata = metadata if row.known else {**_guess(tensors, self._prefix), **metadata}
        # set each field that the header gives, as the table says
        for name, (key, like) in FIELDS.items():
            value = self.get(key)
            # LLAMA_EXPERT_GATING_FUNC_TYPE_NONE: the architecture's default holds
            if name == "expert_gating_func" and not value:  # 0 means not given
                continue
            # one of another type is refused or told of by keys.py
            if value is not None and is_kind(value, like):
                # a graph that repeats something a billion times would never be built
                largest = _REPEATS.get(name, LARGEST)
                self.__dict__[name] = checked(self._prefix + key, value, like, largest)
        self._load_sizes(row)
        self._load_heads(row)
        self._load_extra_blocks(row, tensors)
        if not row.known:
            self._widen(tensors)
        self.causal = bool(self.get("attention.causal", True)) and row.causal
        self._load_state(row)
        self._is_recr = self._recurrent_layers(row)
        self._load_window(row)
        # some conversions have the key whatever the architecture, and few loaders read it
        size = self.get("attention.indexer.key_length")
        self.indexer_head_size = (
            self._size("attention.indexer.key_length") if is_kind(size, 0) else 0
        )
        self.indexer_kpool = (
            self._size("attention.indexer.kpool") if row.indexer == "types-or-all" else 0
        )
        n = self.n_layer
        full = self._default_indexers(row)
        # a list may be shorter or longer than the layers
        if row.indexer == "types" and isinstance(self.get("attention.indexer.types"), tuple):
            full = (self._array("attention.indexer.types") + (0,) * n)[:n]
        elif row.indexer in ("glm", "types", "types-or-all"):
            full = self._per_layer("attention.indexer.types", full, n)
        self._indexer = full
        self.n_layer_kv_from_start = row.shared_kv
        if row.shared_kv == 0:
            self.n_layer_kv_from_start = self.n_layer_all - self._size("attention.shared_kv_layers")
        self.compress_ratios = self._compress_ratios() if row.memory == "dsv4" else ()
        self.ple_layers = frozenset(self._array("ple.layers")) if row.ple else frozenset()
        self.n_embd_v_gqa_max = max(map(self.n_embd_v_gqa, range(self.n_layer_all)))
        sections = self._array("rope.dimension_sections") if "mrope" in row.rope else ()
        self.rope_sections = (*sections, 0, 0, 0, 0)[:4]
        self._n_deepstack: int = self.n_deepstack_layers
        if row.embd_inp == "deepstack_mapping":
            # Count the inputs that the mapping of layers names.
            self._n_deepstack = len({x for x in self._array("deepstack_mapping") if x >= 0})
        self.n_vocab = self._vocabulary()
        # Whether the vocabulary, which a file may lack, names tokens that are never sampled
        # (llama_vocab::get_suppress_tokens).
        named = self._metadata.get("tokenizer.ggml.suppress_tokens")
        absent = self._metadata.get("tokenizer.ggml.model") in NO_VOCABULARY
        self.suppresses_tokens = (
            isinstance(named, (ArrayInfo, tuple)) and len(named) > 0 and not absent
        )

    def _compress_ratios(self) -> tuple[int, ...]:
        """Return the ratio of each layer. Raises ModelError where there are fewer."""
        ratios = self._array("attention.compress_ratios")
        if len(ratios) < self.n_layer_all:
            raise ModelError("attention.compress_ratios is shorter than block_count")
        return ratios

    def _load_sizes(self, row: Architecture) -> None:
        """Read the sizes that every layer shares. Raises ModelError where llama.cpp does not load
        them."""
        self.n_ctx_train = self._size("context_length", required=True)
        self.n_embd = self._size("embedding_length", required=True)
        self.n_layer_all = self._size("block_count", required=True)
        if not 0 < self.n_layer_all <= _MAX_LAYERS:
            raise ModelError(
                f"block_count is {self.n_layer_all}; llama.cpp accepts 1 to {_MAX_LAYERS}"
            )
        # block_count counts the MTP blocks too (n_layer_all)
        self.n_layer_nextn = self._size("nextn_predict_layers")
        if self.n_layer_nextn > self.n_layer_all:
            raise ModelError("nextn_predict_layers exceeds block_count")
        self.n_expert = self._size("expert_count")
        if self.n_expert > _MAX_EXPERTS:
            raise ModelError(
                f"expert_count is {self.n_expert}; llama.cpp accepts up to {_MAX_EXPERTS}"
            )
        self._n_expert_used = self._per_layer("expert_used_count", 0)
        # expert_count 1 is a dense model there
        # only Hunyuan's dense files: others keep one expert
        if not row.one_expert and self.n_expert <= 1:
            self.n_expert, self._n_expert_used = 0, (0,) * self.n_layer_all
        # an unknown architecture may use the keys otherwise
        if row.known:
            # check what llama_model_base::load_hparams asserts about experts and their groups
            used = max(self._n_expert_used)
            groups, chosen = self._size("expert_group_count"), self._size("expert_group_used_count")
            if used > self.n_expert or (self.n_expert and not used):
                counts = f"expert_used_count is {used} of {self.n_expert} experts"
                raise ModelError(f"{counts}; llama.cpp does not load that")
            # GGML_ASSERTs there: llama.cpp aborts
            uneven = bool(self.n_expert % max(1, groups)) or not 0 < chosen < groups
            if groups >= max(1, self.n_expert) or (groups > 1 and uneven):
                raise ModelError(
                    f"{chosen} of {groups} groups of {self.n_expert} experts are used; "
                    "llama.cpp does not load that"
                )
            self._check_value_experts()
        self._n_head = self._per_layer("attention.head_count", 0)
        # without the key every head has its own keys
        self._n_head_kv = self._per_layer("attention.head_count_kv", self._n_head)
        self._n_ff = self._per_layer("feed_forward_length", 0)
        self.n_embd_out_impl = self._size("embedding_length_out")
        # wavtokenizer: what others call embedding_length is the width of its result
        if row.features:
            self.n_embd, self.n_embd_out_impl = (
                self._size("features_length", required=True),
                self.n_embd,
            )

    def _load_heads(self, row: Architecture) -> None:
        """Read the sizes of heads, and the part of each that is rotated."""
        n_head = self._n_head[0]
        self.n_embd_head_k_full = self.n_embd_head_v_full = self.n_rot_full = 0
        # recurrent models have no heads
        if n_head:
            # heads share the hidden state unless the file gives their size
            self.n_embd_head_k_full = self._size("attention.key_length", self.n_embd // n_head)
            self.n_embd_head_v_full = self._size("attention.value_length", self.n_embd // n_head)
            self.n_rot_full = self._size("rope.dimension_count", self.n_embd_head_k_full)
        elif row.head_sizes:
            self.n_embd_head_k_full = self._size("attention.key_length")
            self.n_embd_head_v_full = self._size("attention.value_length")
        # the cache holds the compressed latent, which is V as well
        if row.latent_value:
            self.n_embd_head_v_full = self._size("attention.kv_lora_rank")
        # sliding layers have the same heads unless the file says otherwise
        self.n_embd_head_k_swa = self._size("attention.key_length_swa", self.n_embd_head_k_full)
        self.n_embd_head_v_swa = self._size("attention.value_length_swa", self.n_embd_head_v_full)
        self.n_rot_swa = self._size("rope.dimension_count_swa", self.n_rot_full)
        if row.half_rope:
            self.n_rot_full //= 2
        self.n_embd_head_k_mla = self.n_embd_head_v_mla = 0
        if row.mla:
            self.n_embd_head_k_mla = self._size(
                "attention.key_length_mla", required=row.mla == "required"
            )
            self.n_embd_head_v_mla = self._size(
                "attention.value_length_mla", required=row.mla == "required"
            )
        self.is_mla = bool(self.n_embd_head_k_mla and self.n_embd_head_v_mla)

    def _load_extra_blocks(self, row: Architecture, tensors: Mapping[str, TensorInfo]) -> None:
        """Read the layers that block_count does not count, or counts although the file lacks
        them."""
        self.router_layer = -1
        self.n_layer_phys = self.n_layer_all
        # graniteswitch: a block with one head, whose cache llama.cpp allocates like any other's
        if row.router:
            self.router_layer, self.n_layer_all, self.n_layer_nextn = (
                self.n_layer_all,
                self.n_layer_all + 1,
                1,
            )
            self._n_head, self._n_head_kv = (*self._n_head, 1), (*self._n_head_kv, 1)
            self._n_ff, self._n_expert_used = (*self._n_ff, 0), (*self._n_expert_used, 0)
        # nanbeige: a pass is a set of layers with caches of their own, and the weights of
        # the first pass
        elif row.loops:
            loops = max(1, self._size("num_loops", 1))
            if self.n_layer_all * loops > _MAX_LAYERS:
                raise ModelError("num_loops * block_count exceeds llama.cpp's 512 layers")
            self.n_layer_all *= loops
            self._n_head, self._n_head_kv = self._n_head * loops, self._n_head_kv * loops
            self._n_ff, self._n_expert_used = self._n_ff * loops, self._n_expert_used * loops
        # block_count counts an MTP block that some conversions left out
        elif row.memory == "dsv4" and f"blk.{self.n_layer}.nextn.eh_proj.weight" not in tensors:
            self.n_layer_nextn = 0  # converted without its MTP block

    def _check_value_experts(self) -> None:
        # experts of the values of attention (k2-horizon)
        values, used = self.n_value_expert, self.n_value_expert_used
        if values > _MAX_EXPERTS or used > values or (values and not used):
            raise ModelError(
                f"{used} of {values} value experts are used; llama.cpp does not load that"
            )

    def of(self, metadata: Mapping[str, Any]) -> Hparams:
        """Return the same, with a part of the header's metadata."""
        # without __init__, which would read tensors that the outline has no longer
        partial = object.__new__(Hparams)
        partial.__dict__.update(self.__dict__, _metadata=metadata)
        return partial

    # reading keys

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of "<architecture>.<key>" in the file, or `default`."""
        return self._metadata.get(self._prefix + key, default)

    def has(self, key: str) -> bool:
        """Return whether the file has that key, by its whole name."""
        return key in self._metadata

    def __getattr__(self, name: str) -> Any:
        try:
            # once per field: the value then lies in __dict__, and __getattr__ is not asked again
            _, default = FIELDS[name]
        except KeyError:
            raise AttributeError(name) from None
        self.__dict__[name] = value = self.architecture.defaults.get(name, default)
        return value

    def _size(self, key: str, default: int = 0, required: bool = False) -> int:
        value = self.get(key)
        if value is None:
            if required:
                raise ModelError(f"key not found in model: {self._prefix}{key}")
            return default
        size: int = checked(self._prefix + key, value, 0)
        return size

    def _array(self, key: str) -> tuple[int, ...]:
        value = self.get(key)
        numbers: tuple[int, ...] = (
            checked(self._prefix + key, value, ()) if isinstance(value, tuple) else ()
        )
        return numbers

    def _vocabulary(self) -> int:
        # a header's list is kept as its length (ArrayInfo): texts are read only where
        # they are compared
        tokens = self._metadata.get("tokenizer.ggml.tokens")
        # LLAMA_VOCAB_TYPE_NONE: vocab_size counts instead
        absent = self._metadata.get("tokenizer.ggml.model") in NO_VOCABULARY
        if isinstance(tokens, (ArrayInfo, tuple)) and not absent:
            return len(tokens)
        if not isinstance(tokens, (ArrayInfo, tuple, type(None))):
            raise ModelError("tokenizer.ggml.tokens is not a list")
        return self._size("vocab_size")

    @property
    def n_token_types(self) -> int:
        """Kinds of tokens (of BERT); 0 if the file does not say."""
        value = self._metadata.get("tokenizer.ggml.token_type_count", 0)
        return value if isinstance(value, int) else 0

    def number_at(self, key: str, il: int, like: float, largest: int = LARGEST) -> Any:
        """Return the value for layer `il` of a key that holds one number for all layers, or one for
        each. `like` as for `checked`, and the default of a layer without one."""
        value = self.get(key, like)
        if isinstance(value, tuple):
            value = value[il] if il < len(value) else like
        # as in _load_fields
        if not is_kind(value, like):
            return like
        return checked(self._prefix + key, value, like, largest)

    def _per_layer(self, key: str, default: int | tuple[int, ...], n: int = 0) -> tuple[int, ...]:
        n = n or self.n_layer_all
        value = self.get(key)
        if isinstance(value, tuple):
            # get_key_or_arr insists on one value per layer
            if len(value) != n:
                raise ModelError(f"{self._prefix}{key} has {len(value)} values, expected {n}")
            return tuple(checked(self._prefix + key, x, 0) for x in value)
        if value is None:
            return default if isinstance(default, tuple) else (default,) * n
        return (self._size(key),) * n

    def _widen(self, tensors: Mapping[str, TensorInfo]) -> None:
        """Make the caches of an unknown architecture as wide as its widest attention projection or
        largest head."""
        kinds = (
            "_k.weight",
            "_v.weight",
            "_kv.weight",
            "_qkv.weight",
            "_kv_b.weight",
            "_kv_a_mqa.weight",
        )
        # whatever its heads are, a cache cannot be wider than what fills it
        width = max(
            (
                info.ne[1]
                for name, info in tensors.items()
                if ".attn_" in name and name.endswith(kinds)
            ),
            default=self.n_embd,
        )
        heads = max(self._n_head_kv)
        for head in (
            self.n_embd_head_k_full,
            self.n_embd_head_v_full,
            self.n_embd_head_k_swa,
            self.n_embd_head_v_swa,
        ):
            width = max(width, head * heads)
        # one wide head: nothing else about an unknown model's heads is sure
        self._n_head_kv = (1,) * self.n_layer_all
        self.n_embd_head_k_full = self.n_embd_head_v_full = self.n_embd_head_k_swa = (
            self.n_embd_head_v_swa
        ) = width

    # the rules that rows choose from

    def _load_state(self, row: Architecture) -> None:
        """Read the sizes of a recurrent layer's states."""
        self.ssm_d_conv = self.ssm_d_inner = self.ssm_d_state = self.ssm_n_group = 0
        self.wkv_head_size = self.n_shortconv_l_cache = self.n_embd_head_kda = (
            self.n_embd_head_la
        ) = 0
        # RWKV's default: attention and FFN each keep the last token
        self.token_shift_count = 2
        # Mamba: the convolution's window, and a matrix of states
        if row.state in ("ssm", "ssm-groups"):
            self.ssm_d_conv = self._size("ssm.conv_kernel", required=row.known)
            self.ssm_d_inner = self._size("ssm.inner_size", required=row.known)
            self.ssm_d_state = self._size("ssm.state_size", required=row.known)
        if row.state == "ssm-groups":
            self.ssm_n_group = self._size("ssm.group_count", required=row.known)
        # Kimi delta attention: a head_dim x head_dim state for each head
        elif row.state == "kda":
            self.ssm_d_conv = self._size("ssm.conv_kernel", required=row.known)
            self.n_embd_head_kda = self._size("kda.head_dim", required=True)
        # tokens are shifted by one, so the last one is kept
        elif row.state == "rwkv":
            self.wkv_head_size = self._size("wkv.head_size", required=True)
            self.token_shift_count = self._size("token_shift_count", 2)
        # LFM2: a convolution of a few tokens, and no further state
        elif row.state == "shortconv":
            self.n_shortconv_l_cache = self._size("shortconv.l_cache", required=True)
        # lightning attention of MiniMax-01
        elif row.state == "linear":
            self.n_embd_head_la = self.n_embd_head_k_full

    def _recurrent_layers(self, row: Architecture) -> tuple[bool, ...]:
        if row.recurrent in ("all", "every"):
            return (True,) * self.n_layer_all
        if row.recurrent == "interval":
            # All layers but each n-th; what the header says about layers or n goes first.
            interval = row.interval
            if self.get("attention.recurrent_layers") is not None:
                return tuple(map(bool, self._per_layer("attention.recurrent_layers", 0)))
            interval = self._size("full_attention_interval", interval)
            if interval == 0:
                raise ModelError("full_attention_interval is 0")
            layers = range(self.n_layer_all)
            return tuple(il < self.n_layer and (il + 1) % interval != 0 for il in layers)
        # a hybrid's file says so by a head_count_kv of 0 for the layer
        without_kv = [heads == 0 for heads in self._n_head_kv[: self.n_layer_all]]
        if row.recurrent == "no-kv-all":
            return tuple(without_kv)
        # MTP blocks attend, whatever the layers before them do
        trunk = [il < self.n_layer for il in range(self.n_layer_all)]
        if row.recurrent == "no-kv":
            return tuple(map(all, zip(trunk, without_kv, strict=True)))
        if row.recurrent == "no-kv-no-ff":
            without_ff = [size == 0 for size in self._n_ff[: self.n_layer_all]]
            return tuple(map(all, zip(trunk, without_kv, without_ff, strict=True)))
        return (False,) * self.n_layer_all

    def _load_window(self, row: Architecture) -> None:
        self.n_swa, self.swa_type = 0, "none"
        self._is_swa: tuple[bool, ...] = (False,) * self.n_layer_all
        window = row.window
        if window is None:
            return
        n_swa = self._size(
            "attention.sliding_window", window.size, required=window.when == "required"
        )
        # Whether this model's attention has the window.
        # llama4: a window of 0 means none, a missing key the usual one
        given = self.get("attention.sliding_window") is not None
        slides = {
            "required": True,
            "always": True,
            "window": n_swa > 0,
            "attention": n_swa > 0,
            "not-zero": not given or n_swa > 0,
            "deep": self.n_layer == 64,
        }[window.when]
        if not slides:
            return
        self.swa_type = window.kind
        # llama4 has 8192 for every file
        self.n_swa = window.fixed or n_swa
        self._is_swa = self._sliding_layers(row, window)

    def _sliding_layers(self, row: Architecture, window: SlidingWindow) -> tuple[bool, ...]:
        """Return whether each layer has the window, those of MTP blocks too."""
        streams = window.all_with_streams and self._size("hyper_connection.count")
        if row.memory == "dsv4" or streams:
            return (True,) * self.n_layer_all
        # LFM2: the attention layers, as the others have no cells
        if window.when == "attention":
            return tuple(
                il < self.n_layer and not self._is_recr[il] for il in range(self.n_layer_all)
            )
        # Whether each layer has the window, by the file's list or by a period.
        pattern = self.get("attention.sliding_window_pattern")
        # its length is not checked, and it may cover the MTP blocks
        if isinstance(pattern, tuple):
            # get_key_or_arr without a required length: the rest stays full
            flags = [bool(x) for x in pattern[: self.n_layer_all]]
            return (*flags, *(False,) * (self.n_layer_all - len(flags)))
        if window.array:
            return (False,) * self.n_layer_all
        # a number is a period: the last layer of each is full
        period = self._size("attention.sliding_window_pattern", window.period)
        # whether a layer is not the full one of its period; without a period none is full
        return tuple(
            il < self.n_layer
            and (
                period == 0
                or (il % period != 0 if window.dense_first else il % period < period - 1)
            )
            for il in range(self.n_layer_all)
        )

    def _default_indexers(self, row: Architecture) -> tuple[int, ...]:
        """Return which layers have a full indexer where the header has no types."""
        n = self.n_layer
        # load_arch_hparams tells GLM-5.2 from older ones by its trained context
        if row.indexer == "glm" and self.n_ctx_train >= 1 << 20:
            return (_GLM_5_2_INDEXERS + (0,) * n)[:n]
        if row.indexer in ("glm", "trunk", "types-or-all"):
            return (1,) * n
        if row.indexer == "after-dense":
            dense = self._size("leading_dense_block_count")
            return tuple(int(il >= dense) for il in range(self.n_layer_all))
        if row.indexer == "attention" and self.indexer_head_size:
            return tuple(int(not recurrent) for recurrent in self._is_recr[:n])
        return (0,) * n

    # llama.cpp's own accessors

    @property
    def n_layer(self) -> int:
        """Layers without MTP (nextn) blocks."""
        return self.n_layer_all - self.n_layer_nextn

    def n_head(self, il: int = 0) -> int:
        return self._n_head[il]

    def n_head_kv(self, il: int = 0) -> int:
        return self._n_head_kv[il]

    def n_ff(self, il: int = 0) -> int:
        return self._n_ff[il]

    def n_expert_used(self, il: int = 0) -> int:
        return self._n_expert_used[il]

    @property
    def n_expert_used_max(self) -> int:
        return max(self._n_expert_used)

    def head_k(self, il: int = 0) -> int:
        """Return n_embd_head_k(il)."""
        return self.n_embd_head_k_swa if self._is_swa[il] else self.n_embd_head_k_full

    def head_v(self, il: int = 0) -> int:
        """Return n_embd_head_v(il)."""
        return self.n_embd_head_v_swa if self._is_swa[il] else self.n_embd_head_v_full

    def n_embd_k_gqa(self, il: int = 0) -> int:
        return self.head_k(il) * self._n_head_kv[il]

    def n_embd_v_gqa(self, il: int = 0) -> int:
        return self.head_v(il) * self._n_head_kv[il]

    def n_rot(self, il: int = 0) -> int:
        return self.n_rot_swa if self._is_swa[il] else self.n_rot_full

    def is_swa(self, il: int) -> bool:
        return self._is_swa[il]

    @property
    def is_swa_any(self) -> bool:
        return any(self._is_swa)

    def is_recr(self, il: int) -> bool:
        return self._is_recr[il]

    def has_kv(self, il: int) -> bool:
        """Whether the layer has its own cache; otherwise it reads that of an earlier one."""
        return self.n_layer_kv_from_start < 0 or il < self.n_layer_kv_from_start

    def has_indexer(self, il: int) -> bool:
        """Return whether layer `il` has its own indexer (is_indexer_full and the caches'
        layer filters)."""
        return il < len(self._indexer) and bool(self._indexer[il])

    def has_rope(self, il: int) -> bool:
        if il == self.router_layer:
            return False
        switch = self.architecture.rope_switch
        if switch == "finetuned":
            return bool(self.get("rope.scaling.finetuned", True))
        pattern = self.get("attention.rope_pattern") if switch == "pattern" else None
        return bool(pattern[il]) if isinstance(pattern, tuple) and il < len(pattern) else True

    def n_embd_r(self) -> int:
        """Return the elements of one layer's convolution (or token shift) state for one
        sequence."""
        # RWKV: the last token of attention and FFN
        if self.wkv_head_size:
            return self.token_shift_count * self.n_embd
        if self.n_shortconv_l_cache:
            return self.n_embd * (self.n_shortconv_l_cache - 1)
        if self.n_embd_head_kda:
            return (
                3
                * (self.ssm_d_conv - 1 if self.ssm_d_conv else 3)
                * self._n_head[0]
                * self.n_embd_head_kda
            )
        # x, B and C pass the convolution (Mamba-2)
        return max(self.ssm_d_conv - 1, 0) * (
            self.ssm_d_inner + 2 * self.ssm_n_group * self.ssm_d_state
        )

    def n_embd_s(self) -> int:
        """Return the elements of one layer's recurrent state for one sequence."""
        if self.wkv_head_size:
            return self.n_embd * self.wkv_head_size
        if self.n_embd_head_kda:
            return self.n_embd_head_kda**2 * self._n_head[0]
        if self.n_embd_head_la:
            return self.n_embd_head_la**2 * self._n_head[0]
        return self.ssm_d_state * self.ssm_d_inner

    def ple_conv_state(self) -> int:
        """Return the elements of the n-gram convolution's history on a PLE layer (qwen4exp)."""
        if not self.ple_layers or not self.ple_conv_kernel or self.ple_ngram_size < 2:
            return 0
        # a dilated convolution: taps are ple_ngram_size tokens apart
        return int(
            (self.ple_conv_kernel - 1) * self.ple_ngram_size * self.dsv4_hc_mult * self.n_embd
        )

    @property
    def rope_type(self) -> str:
        """none, norm, neox, mrope or imrope (llama_model_rope_type)."""
        first, *others = self.architecture.rope.split("|")
        # e.g. GLM-4V's files have sections for height and width, GLM-4's have not
        if not others or (self.rope_sections[0] > 0 and self.rope_sections[1] > 0):
            return first
        return "norm" if "hc-norm" in others and self.dsv4_hc_mult else others[-1]

    @property
    def n_pos_per_embd(self) -> int:
        return 4 if self.rope_type in ("mrope", "imrope") else 1

    @property
    def n_embd_out(self) -> int:
        if self.architecture.embd_out == "streams":
            return int(self.dsv4_hc_mult) * self.n_embd
        return self.n_embd_out_impl or self.n_embd

    @property
    def n_embd_inp(self) -> int:
        if self.architecture.embd_inp == "output":
            return self.n_embd_out
        return self.n_embd * (1 + self._n_deepstack)
