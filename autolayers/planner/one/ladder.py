"""The ladders of a model: launches of one kind, by how much of it is on the GPUs.

    layers     whole layers
    experts    all layers, with the experts of so many
    ffn        all layers, with the FFN weights of so many
    bare       whole layers, none of their experts

What is left is in RAM, of the first layers. The search, several models, comparisons and explanations climb
these.
"""

from __future__ import annotations

from ...backends import backend
from ...flags.params import EXPERTS_REGEX, FFN_REGEX
from ...records import dataclass, replace
from . import overrides

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ...flags.params import Params
    from ...flags.policy import Policy
    from ...model import Model
    from ..evaluate import Evaluator

    Kind = Literal["layers", "experts", "ffn", "bare"]

ONE_MORE = {EXPERTS_REGEX: "the experts of one layer more", FFN_REGEX: "the FFN weights of one layer more"}


@dataclass(frozen=True)
class Ladder:
    """Launches of one kind: with 0 to `top` layers' weights of that kind on the GPUs, and the flags of
    `base`."""

    kind: Kind
    base: Params
    top: int

    def __call__(self, count: int) -> Params:
        """The launch with so many of them there."""
        if self.kind == "experts":
            return overrides.with_experts_on_host(self.base, self.top - count)
        if self.kind == "ffn":
            return overrides.with_ffn_on_host(self.base, self.top - count)
        return replace(self.base, n_gpu_layers=count)

    def with_in_ram(self, count: int) -> Params:
        """The launch with so many of them in RAM."""
        return self(self.top - count)


class Ladders:
    """The ladders that a model and the flags given for it leave open. `everything`: its layers, the output
    too; `top`: the most that may be on the GPUs; `literal`: their number was given."""

    def __init__(self, model: Model, given: Params, policy: Policy) -> None:
        self.given, self.n_layer = given, model.hparams.n_layer_all
        self.everything = self.n_layer + 1
        n = given.n_gpu_layers
        self.literal = n is not None and n != -1
        self.top = n if n is not None and n >= 0 else self.everything
        self.whole_layers = policy.strategy == "layers"      # nothing finer is wanted
        self._experts = bool(model.hparams.n_expert)
        self._ffn = f"blk.{self.n_layer - 1}.ffn_down.weight" in model.tensors

    def layers(self, params: Params) -> Ladder | None:
        return None if self.literal else Ladder("layers", params, self.everything)

    def in_ram(self, params: Params) -> Ladder | None:
        """What of every layer may lie in RAM: experts, or the FFN weights of a dense model; None where
        tensors are placed by the flags, or there is nothing finer than layers."""
        if self.whole_layers or params.overrides:
            return None
        return self._finer(params)

    def _finer(self, params: Params) -> Ladder | None:
        kind: Kind = "experts" if self._experts else "ffn"
        return Ladder(kind, self.all_layers(params), self.n_layer) if self._experts or self._ffn else None

    def bare(self, params: Params) -> Ladder | None:
        """Layers of a mixture, all experts being in RAM."""
        if self.literal or self.whole_layers or params.overrides or not self._experts:
            return None
        return self._bare(params)

    def _bare(self, params: Params) -> Ladder:
        return Ladder("bare", overrides.with_all_experts_on_host(params), self.everything)

    def all_layers(self, params: Params) -> Params:
        """As many layers on the GPUs as may be: all, or the given number."""
        return replace(params, n_gpu_layers=self.top)

    def of(self, found: Params, params: Params) -> tuple[Ladder, int] | None:
        """The ladder that a launch stands on, for these flags, and its count; None where no number is solved:
        that of layers may be given, or 0."""
        solved = found.overrides[len(self.given.overrides):]
        count = found.n_gpu_layers or 0
        bare = any(pattern == EXPERTS_REGEX for pattern, _ in solved)
        if bare or not solved:
            if self.literal or not count:
                return None
            return (self._bare(params) if bare else Ladder("layers", params, self.everything)), count
        finer = self._finer(params)
        return None if finer is None else (finer, self.n_layer - len(solved))

    def next_step(self, params: Params) -> tuple[str, Params] | None:
        """The launch with one rung more on the GPUs, and what to call that; None where everything is there
        already."""
        solved = params.overrides[len(self.given.overrides):]
        if solved:
            pattern = solved[-1][0]
            layer = "".join(filter(str.isdigit, pattern.partition(".ffn_")[0]))   # blk\\.38\\.ffn_(down)_(ch|)exps
            names = [text for regex, text in ONE_MORE.items() if pattern.endswith(regex)]
            return next(iter(names), f"the rest of layer {layer}"), replace(params, overrides=params.overrides[:-1])
        n = params.n_gpu_layers
        if n is None or n < 0 or n >= self.everything:
            return None
        # A split in exact layer counts would not describe one layer more; shares do
        kept = self.given.tensor_split is not None or params.split_mode == "tensor"
        split = params.tensor_split if kept else None
        return f"layer {n + 1} of {self.everything}", replace(params, n_gpu_layers=n + 1, tensor_split=split)


def may_split_tensors(evaluator: Evaluator, given: Params) -> bool:
    """Whether -sm tensor may be added: to several local devices of one backend, a build and an architecture
    with it, and nothing given that says otherwise."""
    devices = evaluator.machine.devices
    return (len(devices) > 1 and len({device.backend for device in devices}) == 1
            and not any(backend(device.backend).remote for device in devices)
            and given.split_mode is None and given.tensor_split is None and given.device is None
            and given.n_gpu_layers is None and not given.overrides and given.flash_attn != "off"
            and evaluator.estimator.model.row.split_tensor and evaluator.estimator.rules.splits_tensors)
