"""A problem: a model, and what is requested of it on a machine. What searches, prices and explains takes it whole.

    problem = Problem(model, request)
    problem.given.n_ctx, problem.machine.limits["CUDA0"], problem.evaluator, problem.cost
"""

from __future__ import annotations

from ..builds import TODAY, Build
from ..flags.parse import Arguments
from ..flags.workload import CHAT
from ..records import dataclass, lazy, replace
from ..request import Request
from .evaluate import Evaluator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.params import Params
    from ..flags.policy import Policy
    from ..machine import Machine
    from ..model import Model
    from ..work.speed import CostModel
    from .evaluate import Candidate


@dataclass(frozen=True)
class Problem:
    """A model and a Request; what measures and what predicts launches is made on first use."""

    model: Model
    request: Request

    @classmethod
    def of(cls, evaluator: Evaluator, given: Params, policy: Policy, cost: CostModel) -> Problem:
        """The problem of an evaluator and a cost that are there already."""
        build = policy.build if isinstance(policy.build, Build) else Build(policy.build) if policy.build else TODAY
        request = Request(Arguments(given), policy, build, evaluator.machine, None, evaluator.estimator.companions)
        problem = cls(evaluator.model, request)
        vars(problem)["evaluator"] = evaluator
        vars(problem)["cost"] = cost.at_depths(fills(given, policy))
        return problem

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
        return self.evaluator.machine

    @lazy
    def evaluator(self) -> Evaluator:
        request = self.request
        return Evaluator.of(self.model.overridden(self.given.override_kv), request.machine, self.policy.build,
                            self.policy.margin, request.companions)

    @lazy
    def cost(self) -> CostModel:
        return self.evaluator.cost(self.policy.workload).at_depths(fills(self.given, self.policy))

    def whole(self, candidate: Candidate) -> bool:
        """Whether all layers are on devices, no weight was sent to the host, and no attention runs on the CPU."""
        params, everything = candidate.params, self.evaluator.model.hparams.n_layer_all + 1
        return params.layers_wanted(everything) == everything \
            and len(params.overrides) == len(self.given.overrides) and not self.cost.attends_on_cpu(candidate)

    def asking(self, **changes: object) -> Problem:
        """The same with other given flags, measured by the same evaluator."""
        given = replace(self.given, **changes)  # type: ignore[arg-type]
        return Problem.of(self.evaluator, given, self.policy, self.cost)


def fills(given: Params, policy: Policy) -> bool:
    """Whether a context is given that will be filled: launches are then compared at several depths. A --workload says
    its own depth."""
    return bool(given.n_ctx or isinstance(policy.n_ctx, int)) and policy.workload == CHAT
