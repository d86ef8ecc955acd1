"""Whether llama.cpp's loader takes a file's tensors: their shapes by the keys and the tokens, those that must be there,
and those that nothing reads.

    refusal(hparams, tensors)   # "tensor 'output.weight' has wrong shape; expected 4096, 32000, got 4096, 32001, 1, 1"
    unread(hparams, tensors)    # names of tensors that the architecture's loader does not create

Mirrors llama_model_loader::check_tensor_dims, create_tensor and done_getting_tensors, and llama_model_base's
load_hparams and load_tensors (b11549). What the table (created.py) does not say is not refused.
"""

from __future__ import annotations

from functools import cache
from math import prod

from ..records import dataclass
from .created import CREATED, GROUPS, SHAPES
from .tensors import of_whole_model, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..gguf import TensorInfo
    from .hparams import Hparams

    Tensors = Mapping[str, TensorInfo]
    # the sizes that each dimension may have; (): any size
    Shape = tuple[tuple[int, ...], ...]

_SCALES = ("scale", "input_scale")       # of any matrix: load_tensors' generic pass
_UNKNOWN = -1                            # the size of a vocabulary that the file lacks


@dataclass(frozen=True)
class Created:
    """A tensor that a loader creates: its `dims` as expressions of sizes, whether every file (or block) `needs` it or
    `some` blocks lack it, and whether any shape of that many elements will do."""

    dims: tuple[str, ...]
    needed: bool
    some: bool
    reshaped: bool


def refusal(hparams: Hparams, tensors: Tensors) -> str:
    """Why llama.cpp does not load the file, with its own words; "" if nothing is known against it."""
    created = _created(hparams.architecture.name)
    if not created or not tensors:
        return ""
    return (_turned(hparams) or _missing(hparams, tensors, created) or _too_deep(hparams, tensors)
            or _wrong_shape(hparams, tensors, created))


def unread(hparams: Hparams, tensors: Tensors) -> list[str]:
    """Tensors of the file that its architecture's loader does not create; it then says "wrong number of tensors"."""
    created = _created(hparams.architecture.name)
    if not created:
        return []
    keys = {name: _key(name) for name in tensors}
    return [name for name, key in keys.items() if key not in created and not _scales(key, created)]


def incomplete(hparams: Hparams, tensors: Tensors) -> list[str]:
    """Tensors that one block lacks of those that a block like it has; a loader asks for most of them."""
    created = _created(hparams.architecture.name)
    blocks: dict[tuple[str, int], set[str]] = {}
    for name in tensors:
        stack, block, rest = split(name)
        if block >= 0:
            blocks.setdefault((stack, block), set()).add(rest)
    kinds = {frozenset(names): place for place, names in blocks.items()}
    found = []
    for names, (stack, block) in kinds.items():
        for others, (like, _) in kinds.items():
            more = others - names
            if like == stack and len(more) == 1 and not names - others:
                key = _key(f"{stack}0.{next(iter(more))}")
                if key in created and not created[key].some:
                    found.append(f"{stack}{block}.{next(iter(more))}")
    return found


def wrong_number(tensors: Tensors, unread: int) -> str:
    """What llama.cpp says of a file with so many tensors that it does not create."""
    return f"wrong number of tensors; expected {len(tensors)}, got {len(tensors) - unread}"


def _turned(hparams: Hparams) -> str:
    """Of heads that are rotated in part, where the architecture rotates them as a whole."""
    n_rot, head = hparams.n_rot_full, hparams.n_embd_head_k_full
    if not hparams.architecture.whole_rope or n_rot == head:
        return ""
    return f"invalid n_rot: {n_rot}, expected {head}: llama.cpp does not load it"


def _missing(hparams: Hparams, tensors: Tensors, created: Mapping[str, Created]) -> str:
    """Of the tensors that every file has, and of those that every block has of which the file has a part."""
    blocks: dict[tuple[str, int], None] = {}
    for name in tensors:
        stack, block, _ = split(name)
        if 0 <= block < hparams.n_layer:
            blocks[stack, block] = None
    for key, entry in created.items():
        if not entry.needed:
            continue
        for name in [key] if of_whole_model(key) else _in_blocks(key, blocks):
            if name not in tensors:
                return f"a {hparams.architecture.name} model without {name}: llama.cpp does not load it"
    return ""


def _in_blocks(key: str, blocks: Mapping[tuple[str, int], None]) -> Iterator[str]:
    """The tensor's name in each of the blocks of its stack."""
    for stack, block in blocks:
        if stack == "blk.":
            if not key.startswith(("dec.", "enc.")):
                yield f"blk.{block}.{key}"
        elif key.startswith(stack[:4]):
            yield f"{stack}{block}.{key[4:]}"


def _too_deep(hparams: Hparams, tensors: Tensors) -> str:
    """Of blocks that block_count does not count."""
    places = {name: split(name) for name in tensors}
    deep = [name for name, (stack, block, _) in places.items()
            if stack in ("blk.", "enc.blk.") and block >= hparams.n_layer_all]
    if not deep:
        return ""
    return f"{wrong_number(tensors, len(deep))}: block_count is {hparams.get('block_count')}, and there is {deep[0]}"


def _wrong_shape(hparams: Hparams, tensors: Tensors, created: Mapping[str, Created]) -> str:
    """Of the tensor that llama.cpp comes to first: those outside of blocks, then block by block."""
    sizes = _Sizes(hparams, tensors)
    wrong = [(split(name)[1], info) for name, info in tensors.items() if not sizes.fit(info, created)]
    if not wrong:
        return ""
    info = min(wrong, key=lambda pair: pair[0])[1]
    shape = sizes.shape(info.name, created)
    due = ", ".join([str(extents[0]) if extents else "any" for extents in shape])
    there = ", ".join(map(str, info.ne))
    tokens = hparams.n_vocab
    why = f" (the tokenizer has {tokens} tokens)" if (tokens,) in shape and tokens not in info.ne else ""
    return f"tensor '{info.name}' has wrong shape; expected {due}, got {there}{why}: llama.cpp does not load it"


def _key(name: str) -> str:
    """The tensor's name in the table."""
    stack, _, rest = split(name)
    return rest if stack in ("", "blk.") else f"{stack.removesuffix('blk.')}{rest}"


def _scales(key: str, created: Mapping[str, Created]) -> bool:
    """Whether it is the scale of a matrix."""
    stem, _, suffix = key.rpartition(".")
    return suffix in _SCALES and f"{stem}.weight" in created


class _Sizes:
    """The shapes that llama.cpp expects of a model's tensors."""

    def __init__(self, hparams: Hparams, tensors: Tensors) -> None:
        self.hparams, self.tensors = hparams, tensors
        self._by_layer: dict[int, tuple[object, dict[str, int]]] = {}
        self._values: dict[object, dict[str, int]] = {}
        self._shapes: dict[tuple[str, object], Shape] = {}

    def fit(self, info: TensorInfo, created: Mapping[str, Created]) -> bool:
        """Whether check_tensor_dims accepts it."""
        shape = self.shape(info.name, created)
        if not shape:
            return True
        entry = created.get(_key(info.name))
        if entry is not None and entry.reshaped:
            return not all(shape) or info.n_elements == prod([extents[0] for extents in shape])
        ne = info.ne
        for i in range(4):
            extents = shape[i] if i < len(shape) else (1,)
            if extents and ne[i] not in extents:
                return False
        return True

    def shape(self, name: str, created: Mapping[str, Created]) -> Shape:
        """What each of its dimensions may be; () if the table does not say."""
        block, key = split(name)[1], _key(name)
        kind, values = self._of(max(block, 0))
        found = self._shapes.get((key, kind))
        if found is None:
            found = self._shapes[key, kind] = self._found(key, created, values)
        return found

    def _found(self, key: str, created: Mapping[str, Created], values: Mapping[str, int]) -> Shape:
        entry = created.get(key)
        if entry is None and _scales(key, created):
            return (_extents("n_expert" if "_exps." in key else "1", values),)
        if entry is None or entry.dims == ("?",):
            return ()
        return tuple([_extents(dimension, values) for dimension in entry.dims])

    def _of(self, block: int) -> tuple[object, dict[str, int]]:
        """What the sizes of a layer depend on, and the sizes."""
        if block not in self._by_layer:
            hp = self.hparams
            il = min(block, hp.n_layer_all - 1)
            ratio = hp.compress_ratios[il] if il < len(hp.compress_ratios) else 0
            n_ff_exp = hp.number_at("expert_feed_forward_length", il, 0)
            kind = (hp.n_head(il), hp.n_head_kv(il), hp.n_ff(il), hp.is_swa(il), n_ff_exp, hp.n_expert_used(il), ratio)
            if kind not in self._values:
                self._values[kind] = {**_sizes(hp, il, self.tensors), "n_ff_exp": n_ff_exp, "ratio": ratio}
            self._by_layer[block] = kind, self._values[kind]
        return self._by_layer[block]


def _extents(text: str, values: Mapping[str, int]) -> tuple[int, ...]:
    """The sizes that the expression stands for; () if one is not known."""
    if text == "?":
        return ()
    found = []
    for either in text.split("|"):
        sizes = [_value(each, values) for each in either.split("?")]
        found.append(next(filter(None, sizes), 0))
    return tuple(found) if min(found) >= 0 else ()


def _value(text: str, values: Mapping[str, int]) -> int:
    """Of a sum of products and quotients: "2*n_embd+n_rot/2"."""
    total = 0
    for term in text.replace("-", "+-").split("+"):
        sign = -1 if term.startswith("-") else 1
        product = 1
        for factor in term.removeprefix("-").split("*"):
            size, *divisors = [int(each) if each.isdigit() else values[each] for each in factor.split("/")]
            for divisor in divisors:
                size = size // divisor if divisor else 0
            product *= size
        total += sign * product
    return total


def _sizes(hp: Hparams, il: int, tensors: Tensors) -> dict[str, int]:
    """The sizes that the table names, of layer `il`. A name that ends with _0 or 0 is of the first layer,
    whatever the layer; with _il of the layer where others are the model's."""
    n_head, n_head_kv, head_k, head_v, n_rot = (
        hp.n_head(il), hp.n_head_kv(il), hp.head_k(il), hp.head_v(il), hp.n_rot(il))
    first_k, first_v = hp.head_k(0), hp.head_v(0)
    slides = hp.is_swa(il)
    d2t, markov = tensors.get("d2t"), tensors.get("markov_w1.weight")
    tokens = hp.n_vocab if hp.n_vocab or hp.get("vocab_size") == 0 else _UNKNOWN

    def key(name: str) -> int:
        value = hp.get(name)
        return value if isinstance(value, int) else 0

    return {
        "n_embd": hp.n_embd, "n_embd_out": hp.n_embd_out, "n_vocab": tokens,
        "n_token_types": hp.n_token_types or _UNKNOWN, "n_ctx": hp.n_ctx_train,
        "n_layer": hp.n_layer, "n_ff": hp.n_ff(il), "n_rot": n_rot,
        # heads
        "n_head": n_head, "n_head_kv": n_head_kv, "n_head_0": hp.n_head(0),
        "head_k": head_k, "head_k_0": first_k, "head_v_0": first_v, "head_k_full": hp.n_embd_head_k_full,
        "q": n_head * head_k, "k": n_head_kv * head_k, "v": n_head_kv * head_v, "o": n_head * head_v,
        "q0": hp.n_head(0) * first_k, "k0": hp.n_head_kv(0) * first_k, "v0": hp.n_head_kv(0) * first_v,
        "o0": hp.n_head(0) * first_v, "qr": n_head * n_rot, "kr": n_head_kv * n_rot,
        "qr0": hp.n_head(0) * hp.n_rot(0), "kr0": hp.n_head_kv(0) * hp.n_rot(0), "n_rel": hp.n_rel_attn_bkts,
        # latent attention
        "q_lora": hp.n_lora_q, "kv_lora": hp.n_lora_kv, "kv_lora_il": hp.n_lora_kv_swa if slides else hp.n_lora_kv,
        "head_k_mla": hp.n_embd_head_k_mla if hp.is_mla else hp.n_embd_head_k_full,
        "head_v_mla": hp.n_embd_head_v_mla if hp.is_mla else hp.n_embd_head_v_full,
        "head_k_mla_il": hp.n_embd_head_k_mla_swa if slides else hp.n_embd_head_k_mla,
        "head_v_mla_il": hp.n_embd_head_v_mla_swa if slides else hp.n_embd_head_v_mla,
        "o_lora": key("attention.output_lora_rank"), "o_groups": hp.dsv4_o_group_count,
        "indexer_heads": hp.indexer_n_head, "indexer_head": hp.indexer_head_size, "kpool": hp.indexer_kpool,
        # experts
        "n_expert": hp.n_expert, "n_expert_used": hp.n_expert_used(il), "n_expert_shared": hp.n_expert_shared,
        "n_ff_shexp": hp.n_ff_shexp, "n_latent": hp.n_expert_latent, "moe_latent": hp.moe_latent_size,
        "n_value_expert": hp.n_value_expert,
        # recurrent layers
        "d_conv": hp.ssm_d_conv, "d_inner": hp.ssm_d_inner, "d_state": hp.ssm_d_state, "n_group": hp.ssm_n_group,
        "dt_rank": hp.ssm_dt_rank, "dt_dim": max(64, hp.n_embd // 16), "key_dim": hp.ssm_d_state * hp.ssm_n_group,
        "value_dim": hp.ssm_d_state * hp.ssm_dt_rank, "kda_head": hp.n_embd_head_kda,
        "kda": hp.n_head(0) * hp.n_embd_head_kda, "l_cache": hp.n_shortconv_l_cache, "wkv_head": hp.wkv_head_size,
        "decay_lora": hp.n_lora_decay, "iclr_lora": hp.n_lora_iclr, "value_lora": hp.n_lora_value_res_mix,
        "gate_lora": hp.n_lora_gate, "time_mix": hp.time_mix_extra_dim, "time_decay": hp.time_decay_extra_dim,
        # residual streams, embeddings by layer, convolutions
        "n_hc": hp.dsv4_hc_mult, "hc_rank": hp.hc_low_rank, "n_embd_per_layer": hp.n_embd_per_layer,
        "ple_kernel": hp.ple_conv_kernel, "n_posnet": key("posnet.embedding_length"),
        # drafts and adapters
        "n_draft": d2t.ne[0] if d2t else tokens, "rank": markov.ne[0] if markov else 0,
        "n_target": len(hp.target_layers), "n_embd_target": key("target_hidden_size") or hp.n_embd,
        "n_selector": hp.dflash_selector_rank, "conv_kernel": hp.dflash_conv_kernel_size,
        "conv_group": hp.dflash_conv_group_size, "n_adapters": key("adapters.count"),
        "adapter_rank": key("adapters.lora_rank"),
    }


@cache
def _created(architecture: str) -> dict[str, Created]:
    """The architecture's row of the table, by the names of its tensors; {} if it has none."""
    usual = dict([text.split(":") for text in SHAPES.split()])
    found = {}
    for text in CREATED.get(architecture, "").split():
        for word in _members(text):
            name, _, shape = word.partition(":")
            mark, name = name[len(name.rstrip("!*")):], name.rstrip("!*")
            shape = shape or usual[name]
            dims = tuple(shape.removesuffix("~").split(","))
            found[_whole_name(name)] = Created(dims, mark == "!", mark == "*", shape.endswith("~"))
    return found


def _members(text: str) -> list[str]:
    """The words that a word of the table stands for."""
    name, _, sizes = text.removesuffix(")").partition("(")
    if name not in GROUPS:
        return [text]
    usual, members = GROUPS[name]
    return members.format(*(sizes or usual).split(",")).split()


def _whole_name(name: str) -> str:
    suffixed = name.endswith(".") or name.rpartition(".")[2] in ("bias", "scale", "lora_a", "lora_b")
    return name.removesuffix(".") if suffixed else f"{name}.weight"
