"""Whether llama.cpp's loader takes a file's tensors: their shapes by the keys and the tokens, those
that must be there, and those that nothing reads.

    loader = Loader(hparams, tensors)
    # "tensor 'output.weight' has wrong shape; expected 4096, 32000, got 4096, 32001, 1, 1"
    loader.refusal()
    loader.unread()     # names of tensors that the architecture's loader does not create

Mirrors llama_model_loader::check_tensor_dims, create_tensor and done_getting_tensors, and
llama_model_base's load_hparams and load_tensors (b11549). What the table (created.py) does not say
is not refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from math import prod

from ..records import dataclass
from .created import CREATED, GROUPS, SHAPES
from .demanded import missing
from .tensors import STACKS, of_whole_model, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..gguf import TensorInfo
    from .hparams import Hparams

    Tensors = Mapping[str, TensorInfo]
    # the sizes that each dimension may have; (): any size
    Shape = tuple[tuple[int, ...], ...]

_SCALES = ("scale", "input_scale")  # of any matrix: load_tensors' generic pass
_UNKNOWN = -1  # the size of a vocabulary that the file lacks


@dataclass(frozen=True)
class CreatedShape:
    """A tensor that a loader creates: its `dims` as expressions of sizes, whether every file (or
    block) `needs` it or `some` blocks lack it, and whether any shape of that many elements will
    do."""

    dims: tuple[str, ...]
    needed: bool
    some: bool
    reshaped: bool


class Loader:
    """What llama.cpp's loader of an architecture finds in a file."""

    def __init__(self, hparams: Hparams, tensors: Tensors) -> None:
        self.hparams, self.tensors = hparams, tensors
        self.created = _created(hparams.architecture.name)
        # name -> (stack, block, its name in the table)
        # split once: every check below asks by layer
        self._places = {name: _place(name) for name in tensors}
        # layer -> (what its sizes depend on, the sizes)
        self._by_layer: dict[int, tuple[object, dict[str, int]]] = {}
        self._values: dict[object, dict[str, int]] = {}
        self._shapes: dict[tuple[str, object], Shape] = {}

    def refusal(self) -> str:
        """Return why llama.cpp does not load the file, with its own words; "" if nothing is known
        against it."""
        if not self.created or not self.tensors:
            return ""
        # in the order in which llama.cpp would fail
        key = missing(self.hparams)
        if key:
            return f"key not found in model: {key}: llama.cpp does not load it"
        # Say what is wrong with heads that are rotated in part, where the architecture rotates them
        # as a whole.
        n_rot, head = self.hparams.n_rot_full, self.hparams.n_embd_head_k_full
        if not self.hparams.architecture.whole_rope or n_rot == head:
            turned = ""
        else:
            turned = f"invalid n_rot: {n_rot}, expected {head}: llama.cpp does not load it"
        return turned or self._missing() or self._too_deep() or self._wrong_shape()

    def unread(self) -> list[str]:
        """Return the tensors of the file that the loader does not create; it then says "wrong
        number of tensors"."""
        created = self.created
        if not created:
            # an architecture that the table does not have: nothing is known to be unread
            return []
        # blocks after the trunk, where the architecture's loader makes no others
        last = self.hparams.n_layer_all
        if not any("nextn." in key for key in created):
            last -= self.hparams.number_at("nextn_predict_layers", 0, 0)
        # scales are read for any matrix, though no architecture lists them
        return [
            name
            for name, (stack, block, key) in self._places.items()
            if (key not in created and not self._scales(key))
            or (stack == "blk." and last <= block < self.hparams.n_layer_all)
        ]

    def incomplete(self) -> list[str]:
        """Return the tensors that one block lacks of those that a block like it has; the loader
        asks for most of them."""
        blocks: dict[tuple[str, int], set[str]] = {}
        for stack, block, key in self._places.values():
            if block >= 0:
                blocks.setdefault((stack, block), set()).add(key)
        # a few kinds of blocks, whatever their number
        kinds = {frozenset(keys): place for place, keys in blocks.items()}
        # two blocks of a kind that differ by one tensor: the shorter one is damaged
        # what the file lacks if it counts MTP blocks and has none
        name = f"blk.{self.hparams.n_layer}.nextn.eh_proj.weight"
        key = "nextn.eh_proj.weight"
        lacks = self.hparams.n_layer_nextn and key in self.created
        has = any(each[2].startswith("nextn.") for each in self._places.values())
        names = [name] if lacks and not has else []
        for keys, (stack, block) in kinds.items():
            # blocks of an encoder are not missing what a decoder's have
            alike = [others for others, (like, _) in kinds.items() if like == stack]
            for key in _one_more(keys, alike):
                entry = self.created.get(key)
                if entry is not None and not entry.some:
                    names.append(_full_name(stack, block, key))
        return names

    def wrong_number(self, unread: int) -> str:
        """Return what llama.cpp says of a file with this many tensors that it does not create."""
        return (
            f"wrong number of tensors; expected {len(self.tensors)}, got "
            f"{len(self.tensors) - unread}"
        )

    def _missing(self) -> str:
        """Say which tensor the file lacks of those that every file has, or that every block of the
        file has."""
        n_layer = self.hparams.n_layer
        # in file order, each once; MTP blocks have other tensors
        blocks = dict.fromkeys(
            [(stack, block) for stack, block, _ in self._places.values() if 0 <= block < n_layer]
        )
        for key, entry in self.created.items():
            if not entry.needed:
                continue
            # the stack of the table's name, "" outside of blocks
            if of_whole_model(key):
                own = ""
            else:
                own = next(
                    (
                        stack
                        for stack in STACKS
                        if stack != "blk." and key.startswith(_start(stack))
                    ),
                    "blk.",
                )
            for stack, block in [each for each in blocks if each[0] == own] if own else [("", -1)]:
                name = _full_name(stack, block, key)
                if name not in self.tensors:
                    return (
                        f"a {self.hparams.architecture.name} model without {name}: llama.cpp does "
                        "not load it"
                    )
        return ""

    def _too_deep(self) -> str:
        """Say that the file has blocks that block_count does not count."""
        last = self.hparams.n_layer_all - 1
        deep = [
            name
            for name, (stack, block, _) in self._places.items()
            if block > last and stack in ("blk.", "enc.blk.")
        ]
        if not deep:
            return ""
        count = self.hparams.get("block_count")
        return f"{self.wrong_number(len(deep))}: block_count is {count}, and there is {deep[0]}"

    def _wrong_shape(self) -> str:
        """Return what is wrong with the first tensor in llama.cpp's order: those outside of
        blocks, then block by block. "" if nothing is."""
        wrong = [info for info in self.tensors.values() if not self._fits(info)]
        if not wrong:
            return ""
        # tensors outside of blocks have block -1
        info = min(wrong, key=lambda info: self._places[info.name][1])
        shape = self.shape(info.name)
        expected = ", ".join([str(extents[0]) if extents else "any" for extents in shape])
        actual = ", ".join(map(str, info.ne))
        tokens = self.hparams.n_vocab
        why = (
            f" (the tokenizer has {tokens} tokens)"
            if (tokens,) in shape and tokens not in info.ne
            else ""
        )
        return (
            f"tensor '{info.name}' has wrong shape; expected {expected}, got {actual}{why}: "
            "llama.cpp does not load it"
        )

    def _fits(self, info: TensorInfo) -> bool:
        """Return whether check_tensor_dims accepts it."""
        shape = self.shape(info.name)
        if not shape:
            return True
        entry = self.created.get(self._places[info.name][2])
        # TENSOR_ALLOW_RESHAPE: only the number of elements counts
        if entry is not None and entry.reshaped:
            return not all(shape) or info.n_elements == prod([extents[0] for extents in shape])
        ne = info.ne
        for i in range(4):
            # dimensions that the table leaves out are 1
            extents = shape[i] if i < len(shape) else (1,)
            if extents and ne[i] not in extents:
                return False
        return True

    def shape(self, name: str) -> Shape:
        """Return what each dimension of a tensor may be; () if the table does not say."""
        _, block, key = self._places.get(name) or _place(name)
        kind, values = self._of(max(block, 0))
        shape = self._shapes.get((key, kind))
        if shape is None:
            shape = self._shapes[key, kind] = self._shape(key, values)
        return shape

    def _shape(self, key: str, values: Mapping[str, int]) -> Shape:
        entry = self.created.get(key)
        if entry is None and self._scales(key):
            return (_extents("n_expert" if "_exps." in key else "1", values),)
        if entry is None or entry.dims == ("?",):
            return ()
        return tuple([_extents(dimension, values) for dimension in entry.dims])

    def _scales(self, key: str) -> bool:
        """Return whether it is the scale of a matrix."""
        stem, _, suffix = key.rpartition(".")
        return suffix in _SCALES and f"{stem}.weight" in self.created

    def _of(self, block: int) -> tuple[object, dict[str, int]]:
        """Return what the sizes of a layer depend on, and the sizes."""
        # layers of one kind share their sizes: models have up to 512 layers and a few kinds
        if block not in self._by_layer:
            hp = self.hparams
            # a block beyond the last: the shape is asked before the depth is refused
            il = min(block, hp.n_layer_all - 1)
            ratio = hp.compress_ratios[il] if il < len(hp.compress_ratios) else 0
            n_ff_exp = hp.number_at("expert_feed_forward_length", il, 0)
            # all that _sizes reads of a layer
            kind = (
                hp.n_head(il),
                hp.n_head_kv(il),
                hp.n_ff(il),
                hp.is_swa(il),
                n_ff_exp,
                hp.n_expert_used(il),
                ratio,
            )
            if kind not in self._values:
                self._values[kind] = {
                    **_sizes(hp, il, self.tensors),
                    "n_ff_exp": n_ff_exp,
                    "ratio": ratio,
                }
            self._by_layer[block] = kind, self._values[kind]
        return self._by_layer[block]


def key_of(name: str) -> str:
    """Return a tensor's name in the table."""
    return _place(name)[2]


def _place(name: str) -> tuple[str, int, str]:
    """Return (stack, block, its name in the table) of a tensor."""
    stack, block, rest = split(name)
    return stack, block, _start(stack) + rest


def _full_name(stack: str, block: int, key: str) -> str:
    """Return the other way round."""
    return f"{stack}{block}.{key.removeprefix(_start(stack))}" if stack else key


def _start(stack: str) -> str:
    """Return how the table's names begin of a stack."""
    return stack.removesuffix("blk.")


def _extents(text: str, values: Mapping[str, int]) -> tuple[int, ...]:
    """Return the sizes that the expression stands for; () if one is not known."""
    if text == "?":
        return ()
    extents = []
    # several shapes are right: the layer decides, and the file is not refused for either
    for either in text.split("|"):
        # "a?b": b where a is 0
        sizes = [_value(each, values) for each in either.split("?")]
        extents.append(next(filter(None, sizes), 0))
    return tuple(extents) if min(extents) >= 0 else ()


def _value(text: str, values: Mapping[str, int]) -> int:
    """Return the value of a sum of products and quotients: "2*n_embd+n_rot/2"."""
    total = 0
    for term in text.replace("-", "+-").split("+"):
        sign = -1 if term.startswith("-") else 1
        product = 1
        for factor in term.removeprefix("-").split("*"):
            size, *divisors = [
                int(each) if each.isdigit() else values[each] for each in factor.split("/")
            ]
            for divisor in divisors:
                # a header with 0 heads must not end in a division by zero
                size = size // divisor if divisor else 0
            product *= size
        total += sign * product
    return total


def _one_more(keys: frozenset[str], others: Iterable[frozenset[str]]) -> Iterator[str]:
    """Yield the key that each of `others` has besides all of `keys`, where it has just one."""
    for other in others:
        more = other - keys
        # more than one: another kind of block, not a damaged one
        if keys <= other and len(more) == 1:
            yield from more


def _latent_sizes(hp: Hparams, slides: bool) -> dict[str, int]:
    """Return the sizes of latent attention, of a layer that slides or not."""
    return {
        "q_lora": hp.n_lora_q,
        "kv_lora": hp.n_lora_kv,
        "kv_lora_il": hp.n_lora_kv_swa if slides else hp.n_lora_kv,
        "head_k_mla": hp.n_embd_head_k_mla if hp.is_mla else hp.n_embd_head_k_full,
        "head_v_mla": hp.n_embd_head_v_mla if hp.is_mla else hp.n_embd_head_v_full,
        "head_k_mla_il": hp.n_embd_head_k_mla_swa if slides else hp.n_embd_head_k_mla,
        "head_v_mla_il": hp.n_embd_head_v_mla_swa if slides else hp.n_embd_head_v_mla,
    }


def _sizes(hp: Hparams, il: int, tensors: Tensors) -> dict[str, int]:
    """Return the sizes that the table names, of layer `il`. A name that ends with _0 or 0 is of the
    first layer, whatever the layer; with _il of the layer where others are the model's."""
    n_head, n_head_kv, head_k, head_v, n_rot = (
        hp.n_head(il),
        hp.n_head_kv(il),
        hp.head_k(il),
        hp.head_v(il),
        hp.n_rot(il),
    )
    first_k, first_v = hp.head_k(0), hp.head_v(0)
    d2t, markov = tensors.get("d2t"), tensors.get("markov_w1.weight")
    # without a vocabulary the embedding may have any number of rows
    tokens = hp.n_vocab if hp.n_vocab or hp.get("vocab_size") == 0 else _UNKNOWN

    def key(name: str) -> int:
        value = hp.get(name)
        return value if isinstance(value, int) else 0

    return {
        "n_embd": hp.n_embd,
        "n_embd_out": hp.n_embd_out,
        "n_vocab": tokens,
        "n_token_types": hp.n_token_types or _UNKNOWN,
        "n_ctx": hp.n_ctx_train,
        "n_layer": hp.n_layer,
        "n_ff": hp.n_ff(il),
        "n_rot": n_rot,
        "n_rot_full": hp.n_rot_full,
        # heads
        "n_head": n_head,
        "n_head_kv": n_head_kv,
        "n_head_0": hp.n_head(0),
        "head_k": head_k,
        "head_k_0": first_k,
        "head_v_0": first_v,
        "head_k_full": hp.n_embd_head_k_full,
        "q": n_head * head_k,
        "k": n_head_kv * head_k,
        "v": n_head_kv * head_v,
        "o": n_head * head_v,
        "q0": hp.n_head(0) * first_k,
        "k0": hp.n_head_kv(0) * first_k,
        "v0": hp.n_head_kv(0) * first_v,
        "o0": hp.n_head(0) * first_v,
        "qr": n_head * n_rot,
        "kr": n_head_kv * n_rot,
        "qr0": hp.n_head(0) * hp.n_rot(0),
        "kr0": hp.n_head_kv(0) * hp.n_rot(0),
        "n_rel": hp.n_rel_attn_bkts,
        **_latent_sizes(hp, hp.is_swa(il)),
        "o_lora": key("attention.output_lora_rank"),
        "o_groups": hp.dsv4_o_group_count,
        "indexer_heads": hp.indexer_n_head,
        "indexer_head": hp.indexer_head_size,
        # experts
        "n_expert": hp.n_expert,
        "n_expert_used": hp.n_expert_used(il),
        "n_expert_shared": hp.n_expert_shared,
        "n_ff_shexp": hp.n_ff_shexp,
        "n_latent": hp.n_expert_latent,
        "moe_latent": hp.moe_latent_size,
        "n_value_expert": hp.n_value_expert,
        # recurrent layers
        "d_conv": hp.ssm_d_conv,
        "d_inner": hp.ssm_d_inner,
        "d_state": hp.ssm_d_state,
        "n_group": hp.ssm_n_group,
        "dt_rank": hp.ssm_dt_rank,
        # plamo2, see graph/models/plamo2.py
        "dt_dim": max(64, hp.n_embd // 16),
        "key_dim": hp.ssm_d_state * hp.ssm_n_group,
        "value_dim": hp.ssm_d_state * hp.ssm_dt_rank,
        "kda_head": hp.n_embd_head_kda,
        "kda": hp.n_head(0) * hp.n_embd_head_kda,
        "l_cache": hp.n_shortconv_l_cache,
        "wkv_head": hp.wkv_head_size,
        "decay_lora": hp.n_lora_decay,
        "iclr_lora": hp.n_lora_iclr,
        "value_lora": hp.n_lora_value_res_mix,
        "gate_lora": hp.n_lora_gate,
        "time_mix": hp.time_mix_extra_dim,
        "time_decay": hp.time_decay_extra_dim,
        # residual streams, embeddings by layer, convolutions
        "n_hc": hp.dsv4_hc_mult,
        "hc_rank": hp.hc_low_rank,
        "n_embd_per_layer": hp.n_embd_per_layer,
        "ple_kernel": hp.ple_conv_kernel,
        "n_posnet": key("posnet.embedding_length"),
        # drafts and adapters
        "n_draft": d2t.ne[0] if d2t else tokens,
        "rank": markov.ne[0] if markov else 0,
        "n_target": len(hp.target_layers),
        "n_embd_target": key("target_hidden_size") or hp.n_embd,
        "n_selector": hp.dflash_selector_rank,
        "conv_kernel": hp.dflash_conv_kernel_size,
        "conv_group": hp.dflash_conv_group_size,
        "n_adapters": key("adapters.count"),
        "adapter_rank": key("adapters.lora_rank"),
    }


@cache
def _created(architecture: str) -> dict[str, CreatedShape]:
    """Return the architecture's row of the table, by the names of its tensors; {} if it has
    none."""
    usual = dict([text.split(":") for text in SHAPES.split()])
    rows = {}
    for text in CREATED.get(architecture, "").split():
        for word in _members(text):
            name, _, shape = word.partition(":")
            # "attn_norm!" -> "!", "attn_norm"
            mark, name = name[len(name.rstrip("!*")) :], name.rstrip("!*")
            shape = shape or usual[name]
            dims = tuple(shape.removesuffix("~").split(","))
            suffixed = name.endswith(".") or name.rpartition(".")[2] in (
                "bias",
                "scale",
                "lora_a",
                "lora_b",
            )
            rows[name.removesuffix(".") if suffixed else f"{name}.weight"] = CreatedShape(
                dims, mark == "!", mark == "*", shape.endswith("~")
            )
    return rows


def _members(text: str) -> list[str]:
    """Return the words that a word of the table stands for."""
    name, _, sizes = text.removesuffix(")").partition("(")
    if name not in GROUPS:
        return [text]
    usual, members = GROUPS[name]
    return members.format(*(sizes or usual).split(",")).split()
