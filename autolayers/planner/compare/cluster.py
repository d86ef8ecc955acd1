"""Several machines: which of them one llama-server should use over RPC, given what the network
costs per token and while loading.

    together = plan_cluster(model, request, cluster)
    together.best.boxes, together.best.plan.speed, together.best.load
    together.others                 # what fewer boxes would do

Every set of machines is planned; with many machines, only the sets left after dropping one after
the other.
"""

from __future__ import annotations

from itertools import combinations, compress

from ...errors import LaunchRefused
from ...machine import Machine
from ...memory.ram import within
from ...records import dataclass, replace
from ..answer import plan_request
from ..prices import MACHINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...devices.cluster_file import Box, Cluster
    from ...model import Model
    from ...request import Request
    from ..plan import Plan


@dataclass(frozen=True)
class Use:
    """A plan with some of the machines. `sent` is what each receives when the model loads, bytes;
    `load` the seconds this takes, all machines at once."""

    boxes: tuple[Box, ...]
    plan: Plan
    sent: dict[str, int]

    @property
    def load(self) -> float:
        # All receive at once, so the slowest link decides.
        return max(
            [self.sent[box.name] / box.link[0] for box in self.boxes if box.link], default=0.0
        )

    @property
    def rank(self) -> tuple[bool, float]:
        """Smaller is better; on a tie, fewer machines."""
        return not self.plan.fits, self.plan.speed.request * MACHINE.factor ** len(self.boxes)

    def to_dict(self) -> dict[str, object]:
        return {
            "boxes": [box.name for box in self.boxes],
            "fits": self.plan.fits,
            "placement": self.plan.placement,
            "n_ctx": self.plan.breakdown.n_ctx,
            "sent": self.sent,
            "load_seconds": round(self.load, 1),
            "speed": self.plan.speed.to_dict(),
        }


@dataclass(frozen=True)
class ClusterPlan:
    """The best set of machines, and the others by speed."""

    best: Use
    others: tuple[Use, ...]

    def to_dict(self) -> dict[str, object]:
        return {
            **self.best.plan.to_dict(),
            "cluster": {**self.best.to_dict(), "others": [use.to_dict() for use in self.others]},
        }


def plan_cluster(model: Model, request: Request, cluster: Cluster) -> ClusterPlan:
    """Return the plan with the fastest request; one that does not fit if none does. Raises
    LaunchRefused if all sets are refused, with the reason of the full one."""
    uses: list[Use] = []
    refusal: LaunchRefused | None = None
    for boxes in _sets(cluster.boxes):
        try:
            uses.append(use_of(model, request, cluster, boxes))
        except LaunchRefused as error:
            # The full set comes first, so the reason that is kept is that of all machines together.
            refusal = refusal or error
    if not uses:
        raise refusal or LaunchRefused("no box")
    ranked = sorted(uses, key=lambda use: use.rank)
    return ClusterPlan(ranked[0], tuple(ranked[1:]))


def use_of(model: Model, request: Request, cluster: Cluster, boxes: Sequence[Box]) -> Use:
    """Return the plan with these machines. Raises LaunchRefused; UsageError for sizes of devices
    that do not exist."""
    policy = request.policy
    # llama.cpp lists the devices of RPC servers first, in the order of --rpc, and the head's own
    # last.
    used = [box in boxes for box in cluster.boxes for _ in box.devices] + [True] * len(
        cluster.head.devices
    )
    # `given`, with device names of the full cluster renamed to their names when only these machines
    # are used.
    given = dict(policy.budget)
    names = [device.name for device in cluster.devices()]
    # RPC devices are numbered through all boxes: without the first box, RPC2 may be RPC0.
    now = {
        before: device.name
        for before, device in zip(compress(names, used), cluster.devices(boxes), strict=True)
    }
    budget = {
        now.get(name, name): size
        for name, size in given.items()
        if name in now or name not in names
    }
    machine = Machine.of(
        cluster.devices(boxes),
        cluster.head.host,
        policy.ram,
        budget,
    )
    if policy.ram_limit is not None:
        machine = machine.limited(within(policy.ram_limit))
    if policy.margin is not None:
        # --fit-target has a value for each device of the whole cluster; here only for those that
        # are used.
        request = request.with_goals(margin=tuple(compress(policy.margins(len(used)), used)))
    endpoints = tuple(endpoint for box in boxes for endpoint in box.endpoints)
    plan = plan_request(
        model, replace(request.with_flags(rpc=endpoints), machine=machine, notes=())
    )
    # The plan's first rows are the boxes', in their order (see `used`).
    sent = {}
    at = 0
    for box in boxes:
        rows = plan.devices[at : at + len(box.devices)]
        sent[box.name], at = sum(row.model for row in rows), at + len(rows)
    return Use(tuple(boxes), plan, sent)


def _sets(boxes: Sequence[Box]) -> Iterator[tuple[Box, ...]]:
    """Yield the sets of machines to plan, the full one first."""
    # Up to four machines, every set is planned.
    if len(boxes) <= 4:
        # Down to none: the head alone may be fastest.
        for count in range(len(boxes), -1, -1):
            yield from combinations(boxes, count)
        return
    # The box with the least memory is left out first.
    rest = sorted(boxes, key=lambda box: -sum(device.free for device in box.devices))
    while True:
        yield tuple(box for box in boxes if box in rest)
        if not rest:
            return
        rest.pop()
