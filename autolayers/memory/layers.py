"""The parts of a model, layer by layer: for `autolayers inspect`."""

from __future__ import annotations

from ..backends import DEFAULT
from ..builds import Build
from ..engines.ik_llama import IK_LLAMA
from ..ggml.types import IK_NAMES
from ..machine import Device
from ..records import as_json, dataclass
from .estimate import Estimator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.params import Params
    from ..model import Model
    from ..model.model import Weight


@dataclass(frozen=True)
class _LayerSizes:
    """One layer in bytes: its weights by part as in the file, and its cache or state with `n_ctx`
    cells on a device."""

    name: str  # its number, or input, output
    attention: int
    ffn: int
    experts: int
    other: int
    cache: int

    @property
    def weights(self) -> int:
        return self.attention + self.ffn + self.experts + self.other


@dataclass(frozen=True)
class ModelLayers:
    """A model's facts under llama.cpp's names, its layers, and its tensor types as (type, tensors,
    bytes)."""

    facts: tuple[tuple[str, int | str], ...]
    layers: tuple[_LayerSizes, ...]
    types: tuple[tuple[str, int, int], ...]
    n_ctx: int
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        return {
            "schema": 1,
            "facts": {
                # formatted by _facts for the text; a number in JSON
                name: float(value) if name == "bits_per_weight" else value
                for name, value in self.facts
            },
            "n_ctx": self.n_ctx,
            "layers": [
                {"name": layer.name, "weights": layer.weights, **as_json(layer)}
                for layer in self.layers
            ],
            "types": {name: {"tensors": count, "bytes": size} for name, count, size in self.types},
            "warnings": list(self.warnings),
        }


_ATTENTION = ("attn", "wkv", "ssm", "time_mix", "shortconv", "indexer", "post_attention")


def model_layers(model: Model, params: Params) -> ModelLayers:
    """Return the sizes of a model's layers, with caches by the flags in `params`. Raises
    LaunchRefused if llama.cpp would not create a context with these flags."""
    # --override-kv first: it may change the number of layers or heads
    model = model.overridden(params.override_kv)
    hp = model.hparams
    # an endless device: where a layer's cache is changes its padding, and no layer is left out
    device = Device(f"{DEFAULT.name}0", 1 << 60, 1 << 60)
    # some files are read by ik_llama.cpp alone
    read_by_all = IK_NAMES.isdisjoint(info.type for info in model.tensors.values())
    estimator = Estimator(model, Build() if read_by_all else Build(engine=IK_LLAMA))
    caches = estimator.layers(params, device)
    static = estimator.static(params, [device])
    names = [str(i) for i in range(hp.n_layer_all)]
    parts: dict[str, list[int]] = {name: [0, 0, 0, 0] for name in ("input", *names, "output")}
    # type -> [tensors, bytes]
    types: dict[str, list[int]] = {}
    # sizes in the file, without a buffer's padding; a tied output counts where the file has it
    for weight in model.weights:
        info = weight.info
        # the name of the layer that a weight belongs to
        # a block beyond block_count is loaded by nothing: it goes to the output, so that sums hold
        if weight.layer == "repeating" and 0 <= weight.block < hp.n_layer_all:
            layer_of = str(weight.block)
        else:
            layer_of = "input" if weight.layer == "input" else "output"
        parts[layer_of][_part_of(weight)] += info.n_bytes
        kind = types.setdefault(info.type, [0, 0])
        kind[0] += 1
        kind[1] += info.n_bytes
    layers = [
        _LayerSizes(
            name, row[0], row[1], row[2], row[3], caches[int(name)].context if name.isdigit() else 0
        )
        for name, row in parts.items()
    ]
    facts: list[tuple[str, int | str]] = [
        ("architecture", model.architecture),
        ("name", model.name),
        ("size", model.size),
        ("parameters", model.n_elements),
        ("bits_per_weight", f"{model.bits_per_weight:.2f}"),
        ("n_layer", hp.n_layer_all),
        ("n_embd", hp.n_embd),
        ("n_head", hp.n_head(0)),
        ("n_head_kv", hp.n_head_kv(0)),
        ("n_vocab", hp.n_vocab),
        ("n_ctx_train", hp.n_ctx_train),
    ]
    if hp.n_expert:
        facts += [("n_expert", hp.n_expert), ("n_expert_used", hp.n_expert_used_max)]
    if hp.is_swa_any:
        facts += [("n_swa", hp.n_swa)]
    return ModelLayers(
        tuple(facts),
        tuple(layers),
        tuple(sorted(((name, n, size) for name, (n, size) in types.items()), key=lambda t: -t[2])),
        static.n_ctx,
        (*model.header.warnings, *model.inexact),
    )


def _part_of(weight: Weight) -> int:
    """Return the column of a weight: attention, feed-forward, experts, other."""
    if weight.op == "MUL_MAT_ID":
        return 2
    name = weight.info.name
    # "blk.3.attn_q.weight" -> "attn_q.weight"
    stem = name.split(".", 2)[-1] if name.startswith("blk.") else name
    if stem.startswith(_ATTENTION):
        return 0
    return 1 if stem.startswith("ffn") else 3
