"""The ladders of a model: launches of one kind, ordered by how much of the model is on the GPUs.

    layers     whole layers
    experts    all layers, with this many layers' experts
    ffn        all layers, with this many layers' FFN weights
    bare       whole layers, without their experts or FFN weights

The rest is in RAM, starting with the first layers, or with those that the program's own -ncmoe
means. The search, several models, comparisons and
explanations climb these ladders.
"""

from __future__ import annotations

from ...backends import backend
from ...flags.params import EXPERTS_REGEX, FFN_REGEX
from ...records import dataclass, replace
from . import overrides

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from ...flags.params import Params
    from ..evaluate import Evaluator
    from ..problem import Problem

    Kind = Literal["layers", "experts", "ffn", "bare"]

ONE_MORE = {
    EXPERTS_REGEX: "the experts of one layer more",
    FFN_REGEX: "the FFN weights of one layer more",
}


@dataclass(frozen=True)
class Ladder:
    """Launches of one kind: 0 to `top` layers have their weights of that kind on the GPUs; `base`
    are the other flags."""

    kind: Kind
    base: Params
    top: int
    experts_in_ram: Callable[[Params, int], tuple[int, ...]] = lambda _, count: tuple(range(count))

    def __call__(self, count: int) -> Params:
        """Return the launch with this many of them on the GPUs."""
        if self.kind == "experts":
            layers = self.experts_in_ram(self.base, self.top - count)
            return overrides.with_experts_on_host(self.base, layers)
        if self.kind == "ffn":
            return overrides.with_ffn_on_host(self.base, self.top - count)
        return replace(self.base, n_gpu_layers=count)

    def with_in_ram(self, count: int) -> Params:
        """Return the launch with this many of them in RAM."""
        return self(self.top - count)

    def next_layer(self, count: int) -> int | None:
        """Return the layer that has its experts in RAM with `count`, and on the GPUs with one
        more; None if it has no experts (the first ones of DeepSeek)."""
        more = set(self.experts_in_ram(self.base, self.top - count - 1))
        layers = self.experts_in_ram(self.base, self.top - count)
        return next((il for il in reversed(layers) if il not in more), None)


class Ladders:
    """The ladders of a model that the given flags leave open. `everything`: its layers and the
    output; `top`: the most that may be on the GPUs; `literal`: their number is given."""

    def __init__(self, problem: Problem, given: Params) -> None:
        model = problem.model
        self.given = given
        self.n_layer = model.hparams.n_layer_all
        self.everything = self.n_layer + 1
        n = given.n_gpu_layers
        self.literal = given.gives_layers
        self.top = n if n is not None and n >= 0 else self.everything
        self.whole_layers = problem.policy.strategy == "layers"  # nothing finer is wanted
        self._experts = bool(model.hparams.n_expert)
        self._experts_in_ram = problem.evaluator.experts_in_ram
        self._ffn = f"blk.{self.n_layer - 1}.ffn_down.weight" in model.tensors

    def layers(self, params: Params) -> Ladder | None:
        return None if self.literal else self.whole(params)

    def whole(self, params: Params) -> Ladder:
        return Ladder("layers", params, self.everything)

    def in_ram(self, params: Params) -> Ladder | None:
        """Return the part of each layer that may be in RAM: experts, or a dense model's FFN
        weights. None if flags place tensors, or if layers cannot be divided."""
        return self.finer(params) if self._divides(params) else None

    def _divides(self, params: Params) -> bool:
        # Rules that are given place tensors already.
        barred = self.whole_layers or params.overrides
        return not barred and (self._experts or self._ffn)

    def finer(self, params: Params) -> Ladder:
        kind: Kind = "experts" if self._experts else "ffn"
        return Ladder(kind, self.all_layers(params), self.n_layer, self._experts_in_ram)

    def bare(self, params: Params) -> Ladder | None:
        """Return the layers with all experts or FFN weights in RAM."""
        barred = self.literal or not self._divides(params)
        return None if barred else self.without_finer(params)

    def without_finer(self, params: Params) -> Ladder:
        base = (
            overrides.with_all_experts_on_host(params)
            if self._experts
            else overrides.with_ffn_on_host(params, self.n_layer)
        )
        return Ladder("bare", base, self.everything)

    def all_layers(self, params: Params) -> Params:
        """Return the flags with as many layers on the GPUs as allowed: all, or the given number."""
        return replace(params, n_gpu_layers=self.top)

    def of(self, launch: Params, params: Params) -> tuple[Ladder, int] | None:
        """Return the ladder that a launch is on, for these flags, and its count; None if no count
        is solved: that of layers may be given, or 0."""
        solved = launch.overrides[len(self.given.overrides) :]
        count = launch.n_gpu_layers or 0
        every = len(solved) == self.n_layer and count < self.top  # layer's FFN weights
        bare = every or any(pattern == EXPERTS_REGEX for pattern, _ in solved)
        # Whole layers, with all experts or FFN weights in RAM or with no rule that was added.
        if bare or not solved:
            if self.literal or not count:
                return None
            return (self.without_finer(params) if bare else self.whole(params)), count
        return self.finer(params), self.n_layer - len(solved)

    def next_step(self, params: Params) -> tuple[str, Params] | None:
        """Return the launch one rung up, and the name of that rung; None if everything is on the
        GPUs."""
        solved = params.overrides[len(self.given.overrides) :]
        pattern = solved[-1][0] if solved else EXPERTS_REGEX
        if pattern != EXPERTS_REGEX:  # which has the experts of all layers in RAM
            # blk\\.38\\.ffn_(down)_(ch|)exps
            layer = "".join(filter(str.isdigit, pattern.partition(".ffn_")[0]))
            names = [text for regex, text in ONE_MORE.items() if pattern.endswith(regex)]
            return next(iter(names), f"the rest of layer {layer}"), replace(
                params, overrides=params.overrides[:-1]
            )
        n = params.n_gpu_layers
        if n is None or n < 0 or n >= self.everything:
            return None
        # exact layer counts would not cover one more layer; shares do
        keeps_split = self.given.tensor_split is not None or params.split_mode == "tensor"
        split = params.tensor_split if keeps_split else None
        return f"layer {n + 1} of {self.everything}", replace(
            params, n_gpu_layers=n + 1, tensor_split=split
        )


def may_split_tensors(evaluator: Evaluator, given: Params) -> bool:
    """Return whether -sm tensor may be added: it needs several local devices of one backend, a
    build and an architecture that support it, and no contrary flag."""
    devices = evaluator.machine.devices
    estimator = evaluator.estimator
    if not estimator.model.row.split_tensor or not estimator.rules.splits_tensors:
        return False
    places = (given.split_mode, given.tensor_split, given.device, given.n_gpu_layers)
    if given.overrides or any(value is not None for value in places):
        return False
    if given.flash_attn == "off" or len(devices) < 2:
        return False
    is_local = not any(backend(device.backend).remote for device in devices)
    return is_local and len({device.backend for device in devices}) == 1
