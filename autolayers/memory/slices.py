"""Which part of every tensor each device holds with -sm tensor.

    slices = Slices(model, loaded, ("CUDA0", "CUDA1"), (), rules)
    slices.of("blk.0.attn_q.weight", "q4_K", ne)     # [("CUDA0", its ne), ("CUDA1", its ne)]

Mirrors llama_meta_device_get_split_state (src/llama-model.cpp), as modelled. For builds before the
rule `cuts_at_128` a slice is one granule larger than that: an upper bound.
"""

from __future__ import annotations

from functools import cache
from math import lcm

from ..builds import NEWEST_RULES, Rules
from ..errors import LaunchRefused
from ..ggml.tensor import Ne, block_size
from ..gguf import BY_NAME
from ..tables import rows
from .split import float32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ..model import Model

    # the dimension, and the matrices: the first that exists decides where
    Cut = tuple[int, tuple[str, ...]]
    Segment = tuple[int, list[int]]

# blck_size_perf: std::lcm(blck_size, 128)
_PERFORMANCE = 128  # columns that kernels want a slice to be a multiple of
_OUTPUT: dict[str, Cut] = {"output.weight": (1, ()), "output.bias": (0, ())}
_GATED = ("gated", "gated-apart")


@cache
def _cuts(grouped: bool) -> dict[str, Cut]:
    """Return how a layer's tensors and caches are cut; `grouped`: by whole groups of heads
    (DeepSeek-V4)."""
    cuts = {}
    for row in rows("memory/slices.tsv"):
        axis, *by = ((grouped and row["grouped"]) or row["cut"]).split()
        if axis != "-":
            cuts[row["tensor"]] = int(axis), tuple(by)
    return cuts


@cache
def _multiples(layers: str) -> dict[str, str]:
    """Return what slices of tensors are multiples of, in recurrent layers or in attention."""
    return {row["tensor"]: row[layers] for row in rows("memory/slices.tsv") if row[layers]}


def _layer_of(name: str) -> tuple[str, str]:
    """Return the number of a tensor's layer ("" if it has none), and its name without it."""
    if name.startswith("blk."):
        number, _, base = name[4:].partition(".")
        return number, base
    if name.startswith("cache_"):
        # "cache_k_l12" -> "cache_k", "12"
        base, _, number = name.rpartition("_l")
        return number, base
    return "", name


class Slices:
    """The cuts of one model over `devices`, by -ts (none: equal shares, whatever their memory)."""

    def __init__(
        self,
        model: Model,
        loaded: Container[str],
        devices: Sequence[str],
        tensor_split: Sequence[float],
        rules: Rules = NEWEST_RULES,
    ) -> None:
        """`loaded`: the names of the file's tensors that llama.cpp creates."""
        self.model, self.loaded, self.devices, self.rules = model, loaded, tuple(devices), rules
        shares = [*tensor_split, *(0.0,) * len(devices)][: len(devices)]
        # zeros alone count as no -ts
        self.shares = tuple(shares) if any(shares) else ()
        # slices of a model with the same key are the same
        self.key = self.devices, self.shares
        self.exact = rules.cuts_at_128
        hp = self.hp = model.hparams
        self.kind = model.row.slices
        self.grouped = self.kind == "groups" and hp.dsv4_hc_mult > 0
        self._rotations: dict[int, int] = {}

    def of(self, name: str, type_: str, ne: Ne) -> list[tuple[str, Ne]]:
        """Return (device, its dimensions) of the tensor `name` (of caches: cache_k_l3); a device's
        part along the cut may be empty. Raises LaunchRefused if llama.cpp aborts."""
        axis, segments = self.parts(name, type_, ne)
        if axis < 0:
            return [(device, ne) for device in self.devices]
        found = []
        for place, device in enumerate(self.devices):
            dims = list(ne)
            # a device's parts of the segments are adjacent
            dims[axis] = sum([times * widths[place] for times, widths in segments])
            found.append((device, (dims[0], dims[1], dims[2], dims[3])))
        return found

    def parts(self, name: str, type_: str, ne: Ne) -> tuple[int, list[Segment]]:
        """Return the dimension along which `name` is cut, -1 for none, and its segments, which are
        cut one by one: (how often it occurs, its elements on each device)."""
        cut, il, base = self._cut(name, ne)
        if cut is None:
            return -1, []
        axis, by = cut
        block = block_size(self._type(name, il, by, type_))
        segments = self._segments(base, il, axis, ne)
        granules = self._granules(base, il, block, len(segments), ne)
        # a tensor outside of the layers (il = 0 there) is rotated by the number of layers
        rotation = self.hp.n_layer if il < 0 else self._rotation(il)
        found = []
        for (length, times), granule in zip(segments, granules, strict=True):
            if granule < 1:
                raise LaunchRefused(
                    f"-sm tensor cannot cut {name} of a layer without heads; llama.cpp aborts"
                )
            widths = [0] * len(self.devices)
            for place, width in self._places(length, granule, rotation % len(self.devices)):
                widths[place] += width
            found.append((times, widths))
        return axis, found

    def _cut(self, name: str, ne: Ne) -> tuple[Cut | None, int, str]:
        """Return the cut of a tensor (None: uncut, on every device), its layer, and its name
        without the layer (get_tensor_config)."""
        # HRM_TEXT: cache slots with several names cannot be cut, so every device holds all
        if self.kind == "whole":
            return None, -1, name
        number, base = _layer_of(name)
        if not number:
            return None if self.grouped else _OUTPUT.get(name), -1, name
        il = int(number) if number.isdecimal() and len(number) < 5 else self.hp.n_layer_all
        if il >= self.hp.n_layer_all:  # a block that the model lacks
            return None, -1, name
        # a norm that all heads share (ne[1] of 1)
        if base in ("attn_q_norm.weight", "attn_k_norm.weight") and ne[1] == 1:
            return None, il, base
        # LFM2: its short convolution runs whole on each device
        if base in ("cache_r", "cache_s") and self.kind == "states":
            return None, il, base
        return _cuts(self.grouped).get(base), il, base

    def _type(self, name: str, il: int, by: tuple[str, ...], own: str) -> str:
        """Return the type whose blocks no cut may divide."""
        if not by:
            return own if own in BY_NAME else "f32"
        # attn_output.weight of layers with attention, ssm_out.weight of the others
        for matrix in by:
            name_of_matrix = f"blk.{il}.{matrix}"
            if name_of_matrix in self.loaded:
                type_ = self.model.tensors[name_of_matrix].type
                return type_ if type_ in BY_NAME else "f32"
        raise LaunchRefused(
            f"-sm tensor cuts {name} as {' or '.join(by)} of its layer, which is not loaded; "
            "llama.cpp aborts"
        )

    def _rotation(self, il: int) -> int:
        """Return the layer's index among its kind, so that the remainder goes to another device
        each time (get_il_eff)."""
        if il not in self._rotations:
            hp = self.hp
            kind = hp.is_recr(il), hp.is_swa(il)
            self._rotations[il] = sum([(hp.is_recr(i), hp.is_swa(i)) == kind for i in range(il)])
        return self._rotations[il]

    def _segments(self, base: str, il: int, axis: int, ne: Ne) -> list[tuple[int, int]]:
        """Return (elements, count) of the parts that are cut separately, in matrices that combine
        several (get_split_segments)."""
        hp, rules, size = self.hp, self.rules, ne[axis]
        fused_qkv = base in ("attn_qkv.weight", "attn_qkv.bias")
        # Qwen3-Next, Qwen3.5 and 4: Q has a gate, so it is twice as wide
        if self.kind in _GATED:
            if fused_qkv and not hp.is_recr(il):
                self._cut_only_if(rules.cuts_gated_qkv, "a fused QKV with gates")
                return [(2 * hp.n_head(il) * hp.head_k(il), 1), (hp.n_embd_v_gqa(il), 2)]
            segments = self._of_delta_net(base)
            if segments:
                return segments
            return [(size // 2, 2)] if base.startswith("ffn_gate_up") else [(size, 1)]
        if fused_qkv:
            # The segments of a matrix of `size` rows that combines Q, K and V, without gates.
            hp, rules = self.hp, self.rules
            q, k, v = hp.n_head(il) * hp.head_k(il), hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il)
            self._cut_only_if(q + k + v == size, f"a fused QKV of {size} rows, not {q} + {k} + {v}")
            self._cut_only_if(rules.cuts_unlike_heads or k == v, "a fused QKV of unlike heads")
            self._cut_only_if(
                rules.cuts_gated_qkv or q == hp.n_embd, "a fused QKV wider than the hidden state"
            )
            # K and V of one width are two segments of a kind; MiMo's V is narrower
            return [(q, 1), (k, 2)] if k == v else [(q, 1), (k, 1), (v, 1)]
        # e.g. Phi-3: gate and up in one matrix named up
        fused_up = (
            rules.cuts_fused_up
            and base.startswith(("ffn_up.", "ffn_up_exps."))
            and size == 2 * hp.n_ff(il)
        )
        if fused_up or base.startswith("ffn_gate_up"):
            return [(size // 2, 2)]
        return [(size, 1)]

    @staticmethod
    def _cut_only_if(holds: bool, what: str) -> None:
        if not holds:
            raise LaunchRefused(f"-sm tensor cannot cut {what}; llama.cpp aborts")

    def _of_delta_net(self, base: str) -> list[tuple[int, int]]:
        """Return the segments of gated delta nets' matrices and states, where keys and values are
        adjacent."""
        hp = self.hp
        n_k, n_v, head, conv = hp.ssm_n_group, hp.ssm_dt_rank, hp.ssm_d_state, hp.ssm_d_conv - 1
        # Qwen3-Next keeps the values of a key's heads together; the others repeat the keys' order
        if self.kind == "gated-apart":
            in_parts = conv if self.rules.cuts_gates_by_head else 0
            times = {"attn_qkv.weight": 1, "ssm_conv1d.weight": 1, "cache_r": in_parts}.get(base, 0)
            return [(head * n_k * times, 2), (head * n_v * times, 1)] if times else []
        # heads of values for each head of keys: V is cut in pieces as long as K
        ratio = n_v // n_k if n_k else 0
        if base in ("attn_qkv.weight", "ssm_conv1d.weight"):
            return [(head * n_k, 2 + ratio)]
        if base in ("attn_gate.weight", "ssm_out.weight"):
            return [(head * n_k, ratio)]
        if base in ("ssm_dt.bias", "ssm_a", "ssm_alpha.weight", "ssm_beta.weight"):
            return [(n_k, ratio)]
        if base == "cache_r":
            return [(head * n_k * conv, 2 + ratio)]
        return [(n_k * head * head, ratio)] if base == "cache_s" else []

    def _granules(self, base: str, il: int, block: int, count: int, ne: Ne) -> list[int]:
        """Return the granule of each of the `count` segments' slices (get_split_granularity)."""
        hp = self.hp
        # a layer without keys has granules of 0, which `of` refuses
        if not hp.is_recr(max(il, 0)) and not hp.n_embd_k_gqa(max(il, 0)):
            return [0] * count
        if base.startswith("ffn_"):
            return [lcm(block, _PERFORMANCE)] * count
        if il < 0:
            return [1] * count
        if hp.is_recr(il):
            return [self._of_states(base, block)] * count
        return self._of_heads(base, il, block, count, ne)

    def _of_states(self, base: str, block: int) -> int:
        """Return the granule of a recurrent layer: whole heads of its state."""
        head = self.hp.ssm_d_state
        # granularity_qkv
        whole = lcm(lcm(block, _PERFORMANCE), head) if head else 0
        heads = whole // head if head else 0
        sizes = {
            "": 1,
            "head": heads,  # a column of each head
            "pair": 2 * heads,  # two columns of each
            "whole": whole,
            "convolution": whole * (self.hp.ssm_d_conv - 1),
            "state": whole * head,
        }
        return sizes[_multiples("recurrent").get(base, "")]

    def _of_heads(self, base: str, il: int, block: int, count: int, ne: Ne) -> list[int]:
        """Return the granule of attention: whole groups of heads that share a key."""
        hp = self.hp
        head_k, head_v, n_kv = hp.head_k(il), hp.head_v(il), hp.n_head_kv(il)
        n_gqa = hp.n_head(il) // n_kv
        group = n_gqa * head_k
        # rounded up for faster kernels, as long as every device still gets a part (heads of 80)
        while block < _PERFORMANCE and block * len(self.devices) < group:
            block *= 2
        q = lcm(group, block)
        if not q:
            return [0] * count
        # granularity_head: tensors with a value for each head
        heads = q // head_k
        # each device holds whole groups of DeepSeek-V4's grouped output projection
        if self.grouped:
            of_group = hp.n_head(il) // max(1, hp.dsv4_o_group_count)
            size = {
                "attn_sinks.weight": of_group,
                "attn_q_b.weight": of_group * head_k,
                "attn_output_a.weight": 1,
                "attn_output_b.weight": hp.dsv4_o_lora_rank,
            }
            if base in size:
                return [size[base]] * count
        k = q // n_gqa
        # in step with Q and K, counted in heads of V
        v = k // head_k * head_v
        # [TAG_SPLIT_QGATE_QWEN]
        with_gate = lcm(2 * group, block) if self.kind in _GATED else q
        if base in ("attn_qkv.weight", "attn_qkv.bias"):
            return [with_gate, k, v][:count]
        if base in ("attn_q.weight", "attn_q.bias"):
            return [with_gate]
        if base == "attn_gate.weight":
            return [
                1 if not self.rules.cuts_gates_by_head else heads if ne[1] == hp.n_head(il) else q
            ]
        if not self.rules.cuts_unlike_heads:
            head_v, v = head_k, k
        sizes = {"": 1, "heads": heads, "values": heads * head_v, "k": k, "v": v}
        return [sizes[_multiples("attention").get(base, "")]]

    def _places(self, length: int, granule: int, rotation: int) -> list[tuple[int, int]]:
        """Return (index of the device, elements): cut at multiples of `granule` below the devices'
        shares, in float32."""
        n = len(self.devices)
        # another device gets the remainder in each layer
        order = [(j + rotation) % n for j in range(n)]
        cumulated, total = [], 0.0
        for place in order if self.shares else ():
            total = float32(total + float32(self.shares[place]))
            cumulated.append(total)
        cuts, low = [], 0
        for j, place in enumerate(order):
            # the last device gets all that is left
            high = length
            if j < n - 1:
                if total:
                    high = int(float32(float32(float32(length) * cumulated[j]) / total))
                else:
                    high = int(float32(length * (j + 1) // n))
                high -= high % granule
            spare = 0 if self.exact else granule
            cuts.append((place, min(length, high - low + spare)))
            low = high
        return cuts
