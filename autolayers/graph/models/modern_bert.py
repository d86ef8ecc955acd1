"""The first layer may have no norm; the activation is in the file (src/models/modern-bert.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ...records import replace
from ..decoder import Decoder, Encoder
from ..llm import Llm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..llm import Activation

# llm_ffn_op_type_from_string: names mean the gated kind
_ACTS: dict[str, Activation] = {
    "silu": "swiglu",
    "swish": "swiglu",
    "swiglu": "swiglu",
    "relu": "relu",
    "reglu": "reglu",
}


class ModernBert(Encoder):
    def for_file(self, llm: Llm) -> Decoder:
        return replace(self, act=_ACTS.get(llm.hparams.hidden_act, "geglu"))

    def normed(
        self, llm: Llm, cur: Tensor, il: int, name: str | None, pinned: bool = True
    ) -> Tensor:
        if name is not None and llm.layer_weight(il, name) is None:
            return cur
        return super().normed(llm, cur, il, name, pinned)


BUILDERS = {
    "modern-bert": ModernBert(
        norm="layer", embed_norm=True, wo_bias=False, gate=None, ffn_bias=False
    ),
}
