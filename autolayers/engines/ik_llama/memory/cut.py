"""ik_llama.cpp's graph of layers that -sm graph cuts: each GPU computes a part of a layer, and a
REDUCE node adds the parts up (the split branches of src/llama-build-context.cpp, 8337e4cd); dense
models and mixtures with flash attention.
"""

from __future__ import annotations

from ....ggml.tensor import Buffer, Tensor
from .cache import Heads, types
from .graph import Builder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


SPLITS = "0xff"  # the name of a node that begins a split
_FEW = 32  # tokens up to which parts are added as f32


class CutBuilder(Builder):
    """A Builder whose layers are cut as `heads` says. `device`: whose part is built, -1: of what is
    not cut."""

    def __init__(
        self, *terms: Any, heads: Heads, buffers: Sequence[Buffer], output: int, main: int
    ) -> None:
        """`buffers`: each device's, `output`: the device of the output matrix, `main`: of what is
        not cut."""
        super().__init__(*terms)
        self.buffers, self.output, self.main = buffers, output, main
        self.device = -1
        self.split_of = {name: (dim, split) for name, dim, split in heads.parts}
        # wk_b and wv_b are made per head where a file has wkv_b alone, so they follow wo's heads
        value = self.latent[1] if self.latent is not None and self.mla else 0
        for name in list(self.split_of):
            block, _, part = name.rpartition(".")[0].rpartition(".")
            if value and part == "attn_output":
                split = tuple([rows // value for rows in self.split_of[name][1]])
                for made in ("attn_k_b.weight", "attn_v_b.weight"):
                    self.split_of.setdefault(f"{block}.{made}", (2, split))
        self.made: dict[tuple[str, int], Tensor] = {}
        self.reduced = self.settings.reduces_as
        if self.reduced == "f16":  # llama_init_from_model: too narrow for these
            self.reduced = {"gpt-oss": "f32", "mellum": "bf16", "laguna": "bf16"}.get(
                self.architecture, "f16"
            )
        self.biased = False

    def of(self, il: int, name: str, kind: str = "weight") -> Tensor | None:
        if self.device < 0 or not self.is_cut(il, name, kind):
            return super().of(il, name, kind)
        # the bias of the sum is added on the first device alone (down_bias_added)
        if (name, kind) == ("ffn_down_exps", "bias") and self.biased:
            return None
        whole = f"blk.{il}.{name}.{kind}"
        dim, split = self.split_of[whole]
        if split[self.device] <= 0:
            return None
        return self._part(whole, dim, split[self.device])

    def _part(self, name: str, dim: int = -1, rows: int = 0) -> Tensor:
        """Return this device's part of a weight; with `dim` -1 all of it."""
        key = name, self.device
        if key not in self.made:
            whole = self.w(name)
            assert whole is not None
            ne = list(whole.ne)
            if dim >= 0:
                ne[dim] = rows
            part = Tensor("NONE", whole.type, tuple(ne))  # type: ignore[arg-type]
            self.made[key] = self.on(part, weight=True)
        return self.made[key]

    def on(self, tensor: Tensor, weight: bool = False) -> Tensor:
        """Return it as a tensor in this device's buffer."""
        tensor.buffer, tensor.weight = self.buffers[self.device], weight
        return tensor

    def is_cut(self, il: int, name: str, kind: str = "weight") -> bool:
        return f"blk.{il}.{name}.{kind}" in self.split_of

    def factors(self, il: int) -> Tensor | None:
        factors = super().factors(il)
        return factors if factors is None or self.device < 0 else self._part(factors.name)

    def cache(self, il: int, k: Tensor | None, v: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.device < 0 or k is None or v is None:
            return super().cache(il, k, v)
        # its own part of the cache, a tensor of its own (split_k_l)
        type_k, type_v = types(self.context, self.settings, il, self.hp.n_layer)
        cells, (head, heads) = self.context.n_ctx, k.ne[:2]
        k_l = Tensor("NONE", type_k, (head, heads * cells, 1, 1))
        return self.on(k_l), self.on(Tensor("NONE", type_v, (v.ne[0] * cells, 1, 1, 1)))

    def latent_cache(self, il: int) -> Tensor:
        if self.device < 0:
            return super().latent_cache(il)
        # every GPU has the whole latent cache (replicated_k_l)
        type_ = self.settings.type_k or self.context.type_k
        width = self.hp.n_lora_kv + self.hp.n_rot(il)
        return self.on(Tensor("NONE", type_, (width, self.context.n_ctx, 1, 1)))

    def _devices(self, il: int, name: str) -> list[int]:
        return [i for i, rows in enumerate(self.split_of[f"blk.{il}.{name}.weight"][1]) if rows > 0]

    def _input(self, start: Tensor) -> Tensor:
        """Mirror get_input_tensor_sm_graph."""
        # a sum is on one device; on the others the REDUCE node gives each a copy
        if start.op != "REDUCE":
            return start
        copies: dict[int, Tensor] = start.param  # type: ignore[assignment]
        if self.device not in copies:
            copies[self.device] = Tensor("NONE", start.type, start.ne)
            start.src = tuple([copies[i] for i in sorted(copies)])
        return start if copies[self.device] is start.view_src else copies[self.device]

    def _normed(self, il: int, cur: Tensor, name: str) -> Tensor:
        cur = self.normed(il, cur, name) if name else cur
        # sums of many tokens are f16 or bf16 (reduce_type), norms and matmuls read f32
        return cur if cur.type == "f32" else self.graph.cast(cur, "f32")

    def sum(self, parts: dict[int, Tensor]) -> Tensor:
        """Mirror ggml_reduce: a view of the last part."""
        last, summands = parts[max(parts)], tuple([parts[i] for i in sorted(parts)])
        made = Tensor("REDUCE", last.type, last.ne, summands, last.nb, last, param=parts)
        self.graph.expand(made)
        return made

    def _each(self, il: int, name: str, build: Callable[[], Tensor]) -> dict[int, Tensor]:
        """Return the part of each device that has some of a matrix."""
        parts = {}
        for device in self._devices(il, name):
            self.device = device
            cur = build()
            # half the bytes between GPUs
            if cur.ne[1] > _FEW and self.reduced != "f32":
                cur = self.graph.cast(cur, self.reduced)
            parts[device] = cur
            self.graph.expand(cur)
        self.device = -1
        return parts

    def _sum_with(self, parts: dict[int, Tensor], start: Tensor) -> Tensor:
        """Return the sum, with the input on the last device."""
        last = max(parts)
        parts[last] = self.graph.add(parts[last], start)
        return self.sum(parts)

    def latent_sum(self, il: int, start: Tensor, build: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the sum of each device's part of a layer's attention, the first one with what came
        in."""
        first = self._devices(il, "attn_output")[0]

        def part() -> Tensor:
            came = self._input(start)
            cur = build(came)
            # the residual once, on the first device that has heads
            return self.graph.add(cur, came) if self.device == first else cur

        return self.sum(self._each(il, "attn_output", part))

    def std_attention(self, il: int, start: Tensor) -> Tensor:
        """Build each device's heads, and the sum of their results and the input."""
        if not self.is_cut(il, "attn_output"):
            return super().std_attention(il, start)
        g, first = self.graph, self._devices(il, "attn_output")[0]

        def part() -> Tensor:
            q, k, v = self.qkv(il, self._normed(il, self._input(start), "attn_norm"))
            g.expand(q)
            g.expand(k)
            factors = self.factors(il)
            q, k = g.rope(q, self.pos, factors), g.rope(k, self.pos, factors)
            g.expand(q)
            g.expand(k)
            (cur,) = self.picked(il, self.kv(il, q, k, v))
            # the bias of the sum on the first device alone
            return (self.linear if self.device == first else self.mul_mat)(il, "attn_output", cur)

        parts = self._each(il, "attn_output", part)
        return self._sum_with(parts, *self.picked(il, start))

    def ffn(
        self, il: int, cur: Tensor, norm: str = "", suffix: str = "", add_input: bool = False
    ) -> Tensor:
        """Build each device's rows of the inner dimension, and the sum of their results."""
        down = f"ffn_down{suffix}"
        if self.device >= 0 or not self.is_cut(il, down):
            return super().ffn(il, cur, norm, suffix, add_input)
        for name in ("up", "gate", "down"):
            if self.of(il, f"ffn_{name}{suffix}", "bias") is not None:
                raise LookupError("biases, which are not cut")

        def part() -> Tensor:
            made = self._normed(il, self._input(cur), norm)
            # marked for the scheduler: each device's part begins a split
            if cur.op != "REDUCE":
                made.name = SPLITS
            return self.mul_mat(il, down, self.up_gate(il, suffix, made))

        parts = self._each(il, down, part)
        return self._sum_with(parts, cur) if add_input else self.sum(parts)

    def std_moe(self, il: int, start: Tensor) -> Tensor:
        """Build each device's rows of all experts, and the sum of their results and the input."""
        g, norm, shared = self.graph, self.row.ffn_norm, self.is_cut(il, "ffn_down_shexp")
        if self.is_cut(il, "ffn_down_exps"):
            self.biased = False

            def part() -> Tensor:
                made = self._normed(il, self._input(start), norm)
                made.name = SPLITS
                cur = self.moe(il, made)
                if shared:
                    cur = g.add(cur, self.ffn(il, made, suffix="_shexp"))
                self.biased = True
                return cur

            return self._sum_with(self._each(il, "ffn_down_exps", part), start)
        # an override moved the experts, so the layer is only cut in its attention
        if not self.is_cut(il, "attn_output"):
            return super().std_moe(il, start)
        # Build experts that are not cut, in RAM, beside a layer that is: for all GPUs on one.
        self.device = self.main
        routed = g.add(self.moe(il, self._normed(il, start, norm)), start)
        self.device = -1
        g.expand(routed)
        if self.of(il, "ffn_down_shexp") is None:
            return routed
        if not shared:
            raise LookupError("shared experts in RAM beside layers that are cut")
        devices = self._devices(il, "ffn_down_shexp")
        first = self.main if self.main in devices else devices[0]

        def beside() -> Tensor:
            cur = self.ffn(il, self._normed(il, start, norm), suffix="_shexp")
            return g.add(cur, routed) if self.device == first else cur

        return self.sum(self._each(il, "ffn_down_shexp", beside))

    def head(self, cur: Tensor) -> Tensor:
        # the sum takes the memory of the part on the output's device: no copy
        if cur.op == "REDUCE" and self.output in cur.param:  # type: ignore[operator]
            cur.view_src = cur.param[self.output]  # type: ignore[index]
        return super().head(cur)
