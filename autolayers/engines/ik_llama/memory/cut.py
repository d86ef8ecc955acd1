"""ik_llama.cpp's graph of layers that -sm graph cuts: each GPU computes a part of a layer, and a
REDUCE node adds the parts up (the split branches of src/llama-build-context.cpp, 8337e4cd); dense
models and mixtures with flash attention.
"""

from __future__ import annotations

from ....ggml.tensor import Buffer, Tensor, row_size
from ....records import replace
from .cache import types
from .graph import Builder, Experts, hadamard, turned
from .heads import Heads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


SPLITS = "0xff"  # the name of a node that begins a split
_FEW = 32  # tokens up to which parts are added as f32


class CutBuilder(Builder):
    """A Builder whose layers are cut as `heads` says; `parts` makes the part of a weight on a
    device."""

    def __init__(
        self, *terms: Any, heads: Heads, buffers: Sequence[Buffer], output: int, main: int
    ) -> None:
        """`buffers`: each device's, `output`: the device of the output matrix, `main`: of what is
        not cut."""
        super().__init__(*terms)
        self.cut_heads, self.buffers, self.output = heads, buffers, output
        self.main = main
        self.device = -1
        self.split_of = {name: (dim, split) for name, dim, split in heads.parts}
        # wk_b and wv_b are made per head where a file has wkv_b alone, so they follow wo's heads
        for name, (_, split) in list(self.split_of.items()):
            if self.mla and name.endswith("attn_kv_a_mqa.weight"):  # derived, by heads
                block = name.removesuffix("attn_kv_a_mqa.weight")
                wo = self.split_of[f"{block}attn_output.weight"][1]
                value = self.heads(int(block.split(".")[1]))[1]
                split = tuple([rows // value for rows in wo])
                for part in ("attn_k_b.weight", "attn_v_b.weight"):
                    self.split_of.setdefault(f"{block}{part}", (2, split))
        self.made: dict[tuple[str, int], Tensor] = {}
        self.reduced = self.settings.reduces_as
        if self.reduced == "f16":  # llama_init_from_model: too narrow for these
            self.reduced = {"gpt-oss": "f32", "mellum": "bf16", "laguna": "bf16"}.get(
                self.architecture, "f16"
            )
        self.biased = False

    def of(self, il: int, name: str) -> Tensor | None:
        whole = f"blk.{il}.{name}"
        if self.device < 0 or whole not in self.split_of:
            return super().of(il, name)
        # the bias of the sum is added on the first device alone (down_bias_added)
        if name == "ffn_down_exps.bias" and self.biased:
            return None
        return self._part(whole, self.device)

    def _part(self, name: str, device: int) -> Tensor | None:
        dim, split = self.split_of[name]
        if split[device] <= 0:
            return None
        key = name, device
        if key not in self.made:
            whole = self.weights(name)
            assert whole is not None
            ne = list(whole.ne)
            if dim >= 0:
                ne[dim] = split[device]
            part = Tensor("NONE", whole.type, tuple(ne))  # type: ignore[arg-type]
            self.made[key] = self.on(part, device, weight=True)
        return self.made[key]

    def on(self, tensor: Tensor, device: int, weight: bool = False) -> Tensor:
        tensor.buffer, tensor.weight = self.buffers[device], weight
        return tensor

    def is_cut(self, il: int, name: str) -> bool:
        return f"blk.{il}.{name}" in self.split_of

    def _devices(self, il: int, name: str) -> list[int]:
        return [i for i, rows in enumerate(self.split_of[f"blk.{il}.{name}"][1]) if rows > 0]

    def _input(self, start: Tensor, device: int) -> Tensor:
        """Mirror get_input_tensor_sm_graph."""
        # a sum is on one device; on the others the REDUCE node gives each a copy
        if start.op != "REDUCE":
            return start
        copies: dict[int, Tensor] = start.param  # type: ignore[assignment]
        if device not in copies:
            copies[device] = Tensor("NONE", start.type, start.ne)
            start.src = tuple([copies[i] for i in sorted(copies)])
        return start if copies[device] is start.view_src else copies[device]

    def _normed(self, cur: Tensor, norm: Tensor | None, kind: str) -> Tensor:
        if norm is not None:
            op = "FUSED_NORM" if kind == "ln" else "FUSED_RMS_NORM"
            cur = Tensor(op, "f32", cur.ne, (cur, norm))
        # sums of many tokens are f16 or bf16 (reduce_type), norms and matmuls read f32
        return cur if cur.type == "f32" else self.graph.cast(cur, "f32")

    def sum(self, parts: dict[int, Tensor]) -> Tensor:
        """Mirror ggml_reduce: a view of the last part."""
        last, summands = parts[max(parts)], tuple([parts[i] for i in sorted(parts)])
        made = Tensor("REDUCE", last.type, last.ne, summands, last.nb, last, param=parts)
        self.graph.expand(made)
        return made

    def _each(self, devices: Sequence[int], build: Callable[[int], Tensor]) -> dict[int, Tensor]:
        parts = {}
        for device in devices:
            self.device = device
            cur = build(device)
            # half the bytes between GPUs
            if cur.ne[1] > _FEW and self.reduced != "f32":
                cur = self.graph.cast(cur, self.reduced)
            parts[device] = cur
            self.graph.expand(parts[device])
        self.device = -1
        return parts

    def each(
        self,
        il: int,
        start: Tensor,
        build: Callable[[int, Tensor], Tensor],
    ) -> dict[int, Tensor]:
        """Return each device's part of a layer's attention, the first one with what came in."""
        devices = self._devices(il, "attn_output.weight")

        def part(device: int) -> Tensor:
            came = self._input(start, device)
            cur = build(device, came)
            # the residual once, on the first device that has heads
            return self.graph.add(cur, came) if device == devices[0] else cur

        return self._each(devices, part)

    def std_attention(
        self,
        il: int,
        start: Tensor,
        pos: Tensor,
        ids: Tensor | None,
        mask: Tensor,
        factors: Tensor | None = None,
        rope: bool = True,
        sinks: Tensor | None = None,
        q_scaled: bool = False,
        kind: str = "rms",
        post: Tensor | None = None,
    ) -> Tensor:
        """Build each device's heads, and the sum of their results and the input."""
        if not self.is_cut(il, "attn_output.weight"):
            return super().std_attention(
                il, start, pos, ids, mask, factors, rope, sinks, q_scaled, kind, post
            )
        g = self.graph
        added = False

        def part(device: int) -> Tensor:
            nonlocal added
            cur = self._normed(self._input(start, device), self.of(il, "attn_norm.weight"), kind)
            q, k, v = self._qkv(il, cur, q_scaled, kind)
            g.expand(q)
            g.expand(k)
            if rope:
                table = None if factors is None else self._factor(factors, device)
                q, k = g.rope(q, pos, table), g.rope(k, pos, table)
                g.expand(q)
                g.expand(k)
            cur = self._attend_part(il, device, q, k, v, mask)
            if ids is not None:
                cur = g.get_rows(cur, ids)
            cur = g.mul_mat(self.need(il, "attn_output.weight"), cur)
            bo = self.of(il, "attn_output.bias")
            if bo is not None and not added:
                cur, added = g.add(cur, bo), True
            return cur

        parts = self._each(self._devices(il, "attn_output.weight"), part)
        if ids is not None:
            start = g.get_rows(start, ids)
        last = max(parts)
        # here the residual is added on the last device
        parts[last] = g.add(parts[last], start)
        return self.sum(parts)

    def _qkv(self, il: int, cur: Tensor, scaled: bool, kind: str) -> tuple[Tensor, Tensor, Tensor]:
        g, head = self.graph, self.hp.head_k(il)
        q, k, v = self.qkv(il, cur, scaled=scaled)
        normed = []
        for tensor, part in ((q, "q"), (k, "k")):
            made = g.reshape(tensor, head, tensor.ne[0] // head, self.tokens)
            norm = self.of(il, f"attn_{part}_norm.weight")
            normed.append(made if norm is None else self.norm(made, norm))
        return normed[0], normed[1], v

    def _factor(self, factors: Tensor, device: int) -> Tensor:
        key = "rope_freqs", device
        if key not in self.made:
            self.made[key] = self.on(Tensor("NONE", factors.type, factors.ne), device, weight=True)
        return self.made[key]

    def _attend_part(
        self, il: int, device: int, q: Tensor, k: Tensor, v: Tensor, mask: Tensor
    ) -> Tensor:
        """Store one device's keys and values, and attend with its heads."""
        g, n, cells = self.graph, self.tokens, self.context.n_ctx
        head, value = self.hp.head_k(il), self.hp.head_v(il)
        if self.turns_k and (side := hadamard(head)):
            q, k = turned(q, side), turned(k, side)
        if self.turns_v and (side := hadamard(value)):
            v = turned(v, side)
        for tensor in (q, k, v):
            g.expand(tensor)
        # this device's heads of K, and its elements of V
        heads, width = k.ne[1], v.ne[0]
        type_k, type_v = types(self.context, self.settings, il, self.hp.n_layer)
        # its own part of the cache, a tensor of its own (split_k_l)
        k_l = self.on(Tensor("NONE", type_k, (head, heads * cells, 1, 1)), device)
        v_l = self.on(Tensor("NONE", type_v, (width * cells, 1, 1, 1)), device)
        row = row_size(k_l.type, head)
        g.expand(g.cpy(k, g.view(k_l, (head, n * heads), (row,), row * heads * (cells - n))))
        g.expand(g.cpy(v, g.view(v_l, (n * width,), (), (cells - n) * row_size(v_l.type, width))))
        q = g.permute(q, 0, 2, 1, 3)
        keys = g.view(k_l, (head, cells, heads), (row * heads, row))
        values = g.view(
            v_l, (value, cells, heads), (row_size(v_l.type, width), row_size(v_l.type, value))
        )
        sinks = self.of(il, "attn_sinks.weight")
        sources = (q, keys, values, mask) if sinks is None else (q, keys, values, mask, sinks)
        cur = Tensor(
            "FLASH_ATTN_EXT", "f32", (value, q.ne[2], q.ne[1], q.ne[3]), sources, param=True
        )
        if self.turns_v and (side := hadamard(value)):
            cur = turned(cur, side)
        return g.reshape(cur, value * q.ne[2], n)

    def ffn(
        self,
        il: int,
        cur: Tensor,
        norm: Tensor | None = None,
        kind: str = "SILU",
        parallel: bool = True,
        suffix: str = "",
        add_input: bool = False,
        extra: Tensor | None = None,
        norm_kind: str = "rms",
    ) -> Tensor:
        """Build each device's rows of the inner dimension, and the sum of their results."""
        if self.device >= 0 or not self.is_cut(il, f"ffn_down{suffix}.weight"):
            return super().ffn(il, cur, norm, kind, parallel, suffix, add_input, extra, norm_kind)
        if any(
            self.of(il, f"ffn_{part}{suffix}.bias") is not None for part in ("up", "gate", "down")
        ):
            raise LookupError("biases, which are not cut")
        g, start = self.graph, cur
        name = "" if norm is None else norm.name.split(".", 2)[2]

        def part(device: int) -> Tensor:
            made = self._normed(
                self._input(start, device), self.of(il, name) if name else None, norm_kind
            )
            # marked for the scheduler: each device's part begins a split
            if start.op != "REDUCE":
                made.name = SPLITS
            inner = self.up_gate(
                self.need(il, f"ffn_up{suffix}.weight"),
                self.need(il, f"ffn_gate{suffix}.weight"),
                made,
                kind,
            )
            return g.mul_mat(self.need(il, f"ffn_down{suffix}.weight"), inner)

        parts = self._each(self._devices(il, f"ffn_down{suffix}.weight"), part)
        last = max(parts)
        if add_input:
            parts[last] = g.add(parts[last], start)
        return self.sum(parts)

    def std_moe(self, il: int, start: Tensor, norm: Tensor | None, how: Experts) -> Tensor:
        """Build each device's rows of all experts, and the sum of their results and the input."""
        if not self.is_cut(il, "ffn_down_exps.weight"):
            # an override moved the experts, so the layer is only cut in its attention
            if self.is_cut(il, "attn_output.weight"):
                return self._moe_in_one(il, start, norm, replace(how, bias=True))
            return super().std_moe(il, start, norm, how)
        g = self.graph
        name = "" if norm is None else norm.name.split(".", 2)[2]
        self.biased = False

        def part(device: int) -> Tensor:
            made = self._normed(
                self._input(start, device), self.of(il, name) if name else None, "rms"
            )
            made.name = SPLITS
            cur = self.moe(il, made, how)
            if how.shared and self.is_cut(il, "ffn_down_shexp.weight"):
                cur = g.add(cur, self.ffn(il, made, suffix="_shexp"))
            self.biased = True
            return cur

        parts = self._each(self._devices(il, "ffn_down_exps.weight"), part)
        last = max(parts)
        parts[last] = g.add(parts[last], start)
        return self.sum(parts)

    def _moe_in_one(self, il: int, start: Tensor, norm: Tensor | None, how: Experts) -> Tensor:
        """Build experts that are not cut, in RAM, beside a layer that is: for all GPUs on one."""
        g, name = self.graph, "" if norm is None else norm.name.split(".", 2)[2]
        self.device = self.main
        cur = self._normed(start, self.of(il, name) if name else None, "rms")
        routed = g.add(self.moe(il, cur, how), start)
        self.device = -1
        g.expand(routed)
        if not how.shared or self.weights(f"blk.{il}.ffn_down_shexp.weight") is None:
            return routed
        if not self.is_cut(il, "ffn_down_shexp.weight"):
            raise LookupError("shared experts in RAM beside layers that are cut")
        devices = self._devices(il, "ffn_down_shexp.weight")
        first = self.main if self.main in devices else devices[0]

        def part(device: int) -> Tensor:
            made = self._normed(start, self.of(il, name) if name else None, "rms")
            cur = self.ffn(il, made, suffix="_shexp")
            return g.add(cur, routed) if device == first else cur

        return self.sum(self._each(devices, part))

    def head(self, cur: Tensor, kind: str = "rms", scaled: bool = False) -> Tensor:
        # the sum takes the memory of the part on the output's device: no copy
        if cur.op == "REDUCE" and self.output in cur.param:  # type: ignore[operator]
            cur.view_src = cur.param[self.output]  # type: ignore[index]
        return super().head(cur, kind, scaled)
