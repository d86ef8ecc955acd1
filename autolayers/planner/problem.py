"""A problem: a model, and what is requested of it on a machine. What searches, prices and explains
takes it whole.

    problem = Problem(model, request)
    problem.given.n_ctx, problem.machine.limits["CUDA0"], problem.evaluator, problem.cost
"""

from __future__ import annotations

from ..builds import TODAY, Build
from ..flags.workload import CHAT
from ..records import dataclass, lazy, replace
from .evaluate import Candidate, Evaluator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..flags.params import Params
    from ..flags.policy import Policy
    from ..machine import Machine
    from ..memory.companions import Companions
    from ..memory.estimate import Known
    from ..memory.meter import Meter
    from ..model import Model
    from ..request import Request
    from ..work.drafts import Drafting
    from ..work.speed import Answers, CostModel


Q8_0: dict[str, object] = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}  # of the cache


@dataclass(frozen=True)
class Problem:
    """A model's file and a Request; what measures and what predicts launches is made on first use.
    `drafting`: how they draft; `decided`: inputs, people and drafts are; `beside_a_launch`: the
    order of the devices and context checkpoints stay as given. Problems of one model share
    `measurements`, those of one question a `meter`."""

    file: Model
    request: Request
    drafting: Drafting | None = None
    decided: bool = False
    beside_a_launch: bool = False
    measurements: Known | None = None
    meter: Meter | None = None

    @property
    def model(self) -> Model:
        """The model with --override-kv."""
        return self.evaluator.model

    @property
    def given(self) -> Params:
        """The flags that are constraints."""
        return self.request.params

    @property
    def policy(self) -> Policy:
        """The goals."""
        return self.request.policy

    @property
    def machine(self) -> Machine:
        return self.request.machine

    @property
    def build(self) -> Build:
        """The llama.cpp that launches are planned for."""
        build = self.policy.build
        if isinstance(build, Build):
            return build
        return Build(build) if build else TODAY

    @property
    def everything(self) -> int:
        """Layers and the output."""
        return self.model.hparams.n_layer_all + 1

    @property
    def may_quantise(self) -> bool:
        """Whether a q8_0 cache may be tried: no flag says its types, or forbids the flash attention
        that one of V needs."""
        given = self.given
        typed = given.cache_type_k or given.cache_type_v or self.policy.kv_types
        return not typed and given.flash_attn != "off"

    @property
    def fills(self) -> bool:
        """Whether a context is given that will be filled: launches are then compared at several
        depths. A --workload says its own depth."""
        # An `n_ctx` of the goals may also be "max", which nobody fills.
        context = self.given.n_ctx or isinstance(self.policy.n_ctx, int)
        return bool(context) and self.policy.workload == CHAT

    @lazy
    def evaluator(self) -> Evaluator:
        request = self.request
        return Evaluator.of(
            # --override-kv changes what the file says, e.g. the number of experts that are used.
            self.file.overridden(self.given.override_kv),
            request.machine,
            self.policy.build,
            self.policy.margin,
            request.companions,
            self.measurements,
            self.meter,
        )

    @lazy
    def cost(self) -> CostModel:
        return self.evaluator.cost(self.policy.workload, self.drafting).at_depths(self.fills)

    @lazy
    def reference(self) -> CostModel:
        """As `cost`, but launches are compared at the reference depth alone."""
        return self.cost.at_depths(False)

    def whole(self, candidate: Candidate) -> bool:
        """Return whether all layers and weights are on devices, and no attention runs on the
        CPU."""
        return self.offloads_all(candidate.params) and not self.cost.attends_on_cpu(candidate)

    def offloads_all(self, params: Params) -> bool:
        """Return whether all layers are on devices, and no weights in RAM but those that were given
        there."""
        own = len(self.given.overrides)
        everything = self.everything
        return params.layers_wanted(everything) == everything and len(params.overrides) == own

    # --- the same with a change

    def with_flags(self, **changes: Any) -> Problem:
        """Return the same with other given flags: fields of Params."""
        return self.with_given(replace(self.given, **changes))

    def with_given(self, given: Params) -> Problem:
        """Return the same with these given flags."""
        return (
            self
            if given == self.given
            else self._priced_alike(request=self.request.with_params(given))
        )

    def with_goals(self, **changes: Any) -> Problem:
        """Return the same with other goals: fields of Policy."""
        request = self.request.with_goals(**changes)
        if request.policy.workload == self.policy.workload:
            return self._priced_alike(request=request)
        return self._measured_alike(request=request)

    def drafting_with(self, drafting: Drafting | None) -> Problem:
        """Return the same with launches that draft in another way."""
        return self._measured_alike(drafting=drafting)

    def settled(self, decided: bool = True) -> Problem:
        """Return the same with the launch alone left open, or with all that no flag says."""
        return self._priced_alike(decided=decided)

    def beside(self, launch: Params, devices: bool = True) -> Problem:
        """Return the same with the order of a launch's `devices` and its use of checkpoints: what
        differs from it is then another change alone."""
        given = replace(self.given, device=launch.device) if devices else self.given
        if launch.ctx_checkpoints == 0:
            given = replace(given, ctx_checkpoints=0)
        request = self.request.with_params(given)
        return self._priced_alike(request=request, beside_a_launch=devices)

    def on(self, machine: Machine) -> Problem:
        """Return the same on another machine with devices of the same kinds."""
        other = replace(self, request=replace(self.request, machine=machine))
        # The model's Estimator stays, and with it sizes of weights; launches are measured again
        # there.
        vars(other)["evaluator"] = self.evaluator.on(machine)
        vars(other)["cost"] = self.cost.on(machine)
        return other

    def of(self, model: Model, companions: Companions | None = None) -> Problem:
        """Return the same of another file, or with other companions."""
        request = (
            self.request if companions is None else replace(self.request, companions=companions)
        )
        return self.anew(file=model, request=request)

    def anew(self, **changes: Any) -> Problem:
        """Return another problem of the same question: nothing that was measured holds."""
        meter = self.evaluator.estimator.meter
        return replace(self, **changes, measurements=None, meter=meter)

    def _measured_alike(self, **changes: Any) -> Problem:
        """Return another problem of the same model and machine: what was measured stays."""
        other = replace(self, **changes)
        # vars(): a frozen record with a `lazy` field, which is set before it is first read.
        vars(other)["evaluator"] = self.evaluator
        return other

    def _priced_alike(self, **changes: Any) -> Problem:
        """Return the same where the workload is the same too: what was predicted stays."""
        other = self._measured_alike(**changes)
        vars(other)["cost"] = self.cost.at_depths(other.fills)
        return other


@dataclass(frozen=True)
class Promise:
    """A variant that the search did not measure. `seconds`: no launch of it counts fewer, by what
    was known; `params`: the launch that it would be, None if that was not even found out."""

    what: str
    seconds: float
    params: Params | None


@dataclass(frozen=True)
class Solution:
    """A launch, None if llama.cpp would refuse all, and the problem that it solves, in which more
    may be given than was. `reasons`: for what was decided besides; `paid`: a smaller context, and
    the factor of the request's seconds that the larger one costs; `requests`: what each of several
    people gets; `decided`: slots and caches for them that fit, and the seconds in which all have an
    answer, with the prices, the best first; `others`: what was promised and not measured, the best
    first; `notes`: warnings about what was given."""

    problem: Problem
    candidate: Candidate | None
    reasons: tuple[str, ...] = ()
    paid: tuple[int, float] = (0, 1.0)
    requests: Answers | None = None
    decided: tuple[tuple[str, float], ...] = ()
    others: tuple[Promise, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def fitting(self) -> Candidate | None:
        """The launch, if it fits."""
        return self.candidate if self.candidate is not None and self.candidate.fits else None
