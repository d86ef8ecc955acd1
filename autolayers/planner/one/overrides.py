"""Tensor overrides that keep experts or FFN weights in RAM, in the shortest form that llama.cpp
accepts."""

from __future__ import annotations

from ...backends import HOST, backend_of
from ...flags.params import EXPERTS_REGEX, FFN_REGEX
from ...records import replace
from ...units import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...flags.params import Params
    from ...model import Model
    from ..evaluate import Candidate, Evaluator

_BLOCK = "blk\\."


def with_experts_on_host(params: Params, layers: Iterable[int]) -> Params:
    """Return the flags with the experts of these layers in system memory: of llama.cpp's first ones
    as -ncmoe."""
    rules = tuple((rf"blk\.{i}{EXPERTS_REGEX}", HOST) for i in layers)
    return replace(params, overrides=(*params.overrides, *rules))


def own_experts(evaluator: Evaluator, params: Params) -> tuple[Params, list[str]]:
    """Return the flags without the rules that the program's own -ncmoe says where it means other
    layers than llama.cpp's, and these words."""
    others = "-ncmoe" in evaluator.engine.unwritten
    # biases and scales stay where they are, or are held twice
    parts = [name for name in evaluator.model.tensors if "_exps." in name]
    if not others or any(not name.endswith(".weight") for name in parts):
        return params, []
    rules = params.overrides
    if rules[:1] == ((EXPERTS_REGEX, HOST),):
        return replace(params, overrides=rules[1:]), ["-cmoe"]
    # -ncmoe can only say the leading rules; the others stay -ot.
    layers: list[int] = []
    for pattern, buffer in rules:
        # E.g. r"blk\.12\.ffn_(up|down|gate|gate_up)_(ch|)exps": all experts of a layer.
        layer = whole(pattern.removeprefix(_BLOCK).removesuffix(EXPERTS_REGEX))
        if layer is None or buffer != HOST:
            break
        layers.append(layer)
    rest = replace(params, overrides=rules[len(layers) :])
    if not layers or evaluator.experts_in_ram(rest, len(layers)) != tuple(layers):
        return params, []
    return rest, ["-ncmoe", str(len(layers))]


def with_all_experts_on_host(params: Params) -> Params:
    """Return the flags with all experts in system memory, as -cmoe."""
    return replace(params, overrides=(*params.overrides, (EXPERTS_REGEX, HOST)))


def with_ffn_on_host(params: Params, count: int) -> Params:
    """Return the flags with the FFN weights of the first `count` layers in system memory, as -ncffn
    COUNT."""
    rules = tuple((rf"blk\.{i}{FFN_REGEX}", HOST) for i in range(count))
    return replace(params, overrides=(*params.overrides, *rules))


def expert_matrices(model: Model, layer: int) -> dict[str, int]:
    """Return the kinds of expert matrices of a layer with their bytes, in the order in which they
    stay where the layer is."""
    found = {
        kind: model.tensors.get(f"blk.{layer}.ffn_{kind}_exps.weight")
        for kind in ("up", "gate", "gate_up", "down")
    }
    return {kind: info.n_bytes for kind, info in found.items() if info is not None}


def with_matrices_in(
    params: Params, layer: int, kinds: Iterable[str], stay: int, buffer: str
) -> Params:
    """Return the flags with a layer's expert matrices in a buffer, but for as many as `stay`."""
    moved = "|".join([*kinds][stay:])
    rule = rf"blk\.{layer}\.ffn_({moved})_(ch|)exps", buffer
    return replace(params, overrides=(*params.overrides, rule))


def overrides_rpc(candidate: Candidate) -> bool:
    """Return whether tensors are sent to an RPC server, whose buffer names only llama.cpp knows."""
    return any(backend_of(buffer).remote for _, buffer in candidate.params.overrides)


def merged(
    rules: tuple[tuple[str, str], ...], own: tuple[str, ...] = (EXPERTS_REGEX, FFN_REGEX)
) -> tuple[tuple[str, str], ...]:
    """Return the same tensor rules, shorter: neighbours that differ only in the layer are merged.
    Those with a flag of their own (-ncmoe, -ncffn) stay: `own`."""
    groups: list[tuple[list[str], str, str]] = []
    for pattern, buffer in rules:
        layer, dot, rest = pattern.removeprefix(_BLOCK).partition("\\.")
        # Of one layer, and without a flag of its own.
        is_block = pattern.startswith(_BLOCK) and whole(layer) is not None
        if not is_block or not dot or dot + rest in own:
            groups.append(([], pattern, buffer))
        elif groups and groups[-1][0] and groups[-1][1:] == (rest, buffer):
            groups[-1][0].append(layer)
        else:
            groups.append(([layer], rest, buffer))
    return tuple((_pattern(layers, rest), buffer) for layers, rest, buffer in groups)


def _pattern(layers: list[str], rest: str) -> str:
    if not layers:
        return rest
    # E.g. r"blk\.(12|13|14)\.ffn_down.*".
    block = layers[0] if len(layers) == 1 else f"({'|'.join(layers)})"
    return rf"{_BLOCK}{block}\.{rest}"
