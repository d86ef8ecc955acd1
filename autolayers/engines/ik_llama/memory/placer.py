"""Where ik_llama.cpp puts each weight, and what its buffers then take (create_tensors,
8337e4cd)."""

from __future__ import annotations

from ....backends import HOST, on
from ....memory.split import model_devices
from ....memory.weights import PlacedTensor, Placement, WeightGroup, WeightPlacer
from ....records import replace
from ..architectures import has
from .matrices import ALIGNED, factors_to, matrices, shared_out
from .split import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ....flags.params import Params
    from ....machine import Device
    from ....model import Model
    from .. import Said


# (tensors that are elsewhere than in llama.cpp, whether with the output layer or in RAM)
_NORM = "token_embd_norm."
_ELSEWHERE = {
    "bert": ((_NORM,), True),
    "nomic-bert": ((_NORM,), True),
    "jina-bert-v2": ((_NORM,), True),
    "gemma4": (("per_layer_model_proj.", "per_layer_proj_norm."), True),
    "t5": (("attn_rel_b.",), False),
}


def elsewhere(architecture: str, name: str) -> str:
    """Return where a tensor is that llama.cpp has elsewhere: "output", "ram"; "" for all others."""
    parts, with_output = _ELSEWHERE.get(architecture, ((), True))
    if not any(part in name for part in parts):
        return ""
    return "output" if with_output else "ram"


def settings_of(rules: object) -> Said:
    from .. import Said

    settings = rules.engine.said  # type: ignore[attr-defined]
    assert isinstance(settings, Said)
    return settings


class IkPlacer(WeightPlacer):
    """As WeightPlacer; the context and the cache's types decide too."""

    by_context = True

    def place(self, params: Params, devices: Sequence[Device], load_mtp: bool = False) -> Placement:
        """Place the weights. Raises LaunchRefused where it does not load the model, or has no
        device of a given name."""
        settings, n = settings_of(self.rules), self.model.hparams.n_layer_all
        used, exact, warnings = model_devices(replace(params, split_mode=None), devices, self.rules)
        # `params` without layers on GPUs where there is no GPU; --fit and the default are 999
        # layers (llama_model_load_from_file)
        params = params if used else replace(params, n_gpu_layers=0)
        layout = split(self.model, params, used, settings)
        on_gpu = bool(used) and any(layer != HOST for layer in layout.layers[:n])
        # `params` with the overrides of -ncmoe and --fit, and the load mode that they leave
        # without a layer on a GPU -ot and -ncmoe are dropped (llama_model_load_from_file)
        overrides = (*params.overrides, *layout.overrides) if on_gpu else ()
        # an override to the CPU switches mapping off for the whole model
        in_ram = any(target == HOST for _, target in overrides)
        load_mode = "none" if in_ram else params.load_mode
        params = replace(params, overrides=overrides, repack=False, load_mode=load_mode)
        groups = self._groups(params, load_mtp, devices, used, layout.layers)
        heads, modelled, layers = None, True, layout.layers
        several = len(used) > 1 and any(layer != HOST for layer in layers)
        if several and layout.mode == "none":
            main = params.main_gpu or 0
            groups, modelled = matrices(self.model, used, layout, groups, main)
            if factors_to(self.model, layout, used[main].name):
                layers = tuple([layer if layer == HOST else used[main].name for layer in layers])
        mapped = (params.load_mode or "auto") in ("auto", "mmap", "mmap+mlock")
        # tensors that are created more often, or elsewhere, than llama.cpp does
        more = [
            *_more(self.model, groups, layers),
            *_tied(self.model, used, groups, layers[-1], mapped),
        ]
        more += _merged(self.model, groups) if settings.merges_experts else []
        buffers: dict[str, int] = {}
        rows = [row for group in groups for row in group.buffers.items()]
        for where, size in (*rows, *more):
            buffers[where] = buffers.get(where, 0) + size
        if several and layout.mode in ("graph", "attn"):
            buffers, modelled, heads = shared_out(
                self.model, used, layout, groups, buffers, params.kv_offload is not False
            )
            modelled = modelled and layout.mode == "graph"
        name = self.rules.engine.name
        if settings.split and layout.mode == "layer" and used:
            warnings += (
                f"-sm {settings.split}: {name} does not cut the layers of "
                f"{self.model.architecture}, and takes -sm layer",
            )
        if not modelled:
            exact = False
            warnings += (f"-sm {layout.mode} of {name}: what each GPU holds is an upper bound",)
        wanted = sum(layer != HOST for layer in layout.layers)
        return Placement(
            used,
            wanted,
            layout.layers[:-1],
            layout.layers[-1],
            tuple(groups),
            buffers,
            sum(group.resident for group in groups),
            exact,
            warnings,
            {},
            None,
            {device.name: device for device in devices},
            heads=heads,
        )


def _tied(
    model: Model,
    used: Sequence[Device],
    groups: Sequence[WeightGroup],
    output: str,
    mapped: bool,
) -> Iterator[tuple[str, int]]:
    """Return (buffer, bytes) of the embedding as the output, which it always creates once more,
    under the embedding's name (create_tensor_for): in RAM the same pages where the file is mapped,
    and of bitnet, whose graph reads the first one in llama.cpp."""
    embedding = model.tensors.get("token_embd.weight")
    without = model.row.tied == "never" and model.architecture != "bitnet"
    if embedding is None or "output.weight" in model.tensors or without:
        return
    if model.row.tied == "first":  # counted
        return
    # in llama.cpp one serves for both where they are in the same buffer, e.g. by -ot token_embd=...
    places = {
        group.tensors["token_embd.weight"].buffer
        for group in groups
        if "token_embd.weight" in group.tensors
    }
    where = output if model.architecture == "bitnet" else places.pop() if len(places) == 1 else ""
    device = next((device for device in used if device.name == where), None)
    if device is not None:
        yield where, on(device).padded(embedding.type, embedding.ne, embedding.n_bytes)
    # in RAM: mapped, both are the same pages of the file
    elif where and not mapped:
        yield HOST, embedding.n_bytes


def _more(
    model: Model, groups: Sequence[WeightGroup], layers: Sequence[str]
) -> Iterator[tuple[str, int]]:
    """Return (buffer, bytes) of tensors that are created more often than llama.cpp does."""
    factors = [info for name, info in model.tensors.items() if name.startswith("rope_f")]
    if factors and (has(model.architecture, "factors") or model.architecture == "gemma4"):
        counted: dict[str, int] = {}
        for group in groups:
            for name, placed in group.tensors.items():
                if name.startswith("rope_f"):
                    counted[placed.buffer] = counted.get(placed.buffer, 0) + placed.size
        # the copies that llama.cpp counts go, one per layer comes
        for where, size in counted.items():
            yield where, -size
        for il, layer in enumerate(layers[: model.hparams.n_layer]):
            if model.architecture == "gemma4" and model.hparams.is_swa(il):
                continue
            for info in factors:
                yield layer, _aligned(info.n_bytes, layer)
    if model.architecture == "gpt-oss":
        yield from _biases(model, groups)
    for name, tensor in [item for group in groups for item in group.tensors.items()]:
        place = elsewhere(model.architecture, name)
        where = layers[-1] if place == "output" else HOST
        if place and tensor.buffer != where:
            yield tensor.buffer, -tensor.size
            yield where, _aligned(tensor.info.n_bytes, where)
    if model.architecture == "glm-dsa":  # of blocks that it skips otherwise
        for il in range(model.hparams.n_layer, model.hparams.n_layer_all):
            for part in ("k", "v"):
                weight = model.tensors.get(f"blk.{il}.attn_{part}_b.weight")
                if weight is not None:
                    yield layers[il], weight.n_bytes


def _aligned(size: int, where: str) -> int:
    return size if where == HOST else -(-size // ALIGNED) * ALIGNED


def _biased(
    model: Model, groups: Sequence[WeightGroup], parts: Sequence[str]
) -> Iterator[tuple[PlacedTensor, PlacedTensor]]:
    """Yield experts' weights and their biases."""
    placed = {name: tensor for group in groups for name, tensor in group.tensors.items()}
    for il in range(model.hparams.n_layer):
        for part in parts:
            weight, bias = (
                placed.get(f"blk.{il}.ffn_{part}_exps.{kind}") for kind in ("weight", "bias")
            )
            if weight is not None and bias is not None:
                yield weight, bias


def _merged(model: Model, groups: Sequence[WeightGroup]) -> Iterator[tuple[str, int]]:
    """Return what merge_up_gate_exps adds: it gives merged biases a row for each of the inner
    dimension, not of the experts, where their weights are on the layer's device."""
    for weight, bias in _biased(model, groups, ("up", "gate")):
        if weight.buffer == bias.buffer:
            rows = weight.info.ne[1] - bias.info.ne[1]
            yield bias.buffer, rows * bias.info.ne[0] * 4


def _biases(model: Model, groups: Sequence[WeightGroup]) -> Iterator[tuple[str, int]]:
    """Return a second copy of an expert bias, beside a weight that an override moved away from
    it."""
    for weight, bias in _biased(model, groups, ("gate", "up", "down")):
        if weight.buffer != bias.buffer:
            yield weight.buffer, bias.info.n_bytes
