"""What a model does on a part of a machine: whether it fits, and what numbers of users get.

    option = option_of(model, request, machine, Users(rate=15))
    option.users                   # that keep the promise

One launch with a slot for one person is searched, and one with more slots where it stays on the
GPUs is the same launch, measured and priced (planner/users.py): some milliseconds for each number
that is tried. So the users of an option are those that its servers will really serve.
"""

from __future__ import annotations

from ....errors import AutolayersError
from ....flags.users import Users
from ....memory.estimate import Known
from ....records import dataclass, replace
from ...answer import plan_request
from ...plan import Plan
from ...prices import TOO_SLOW
from ...users import Requests, UsersRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....devices.fleet_file import MachineKind
    from ....flags.policy import Policy
    from ....machine import Machine
    from ....model import Model
    from ....request import Request


@dataclass(frozen=True)
class MachineOption:
    """A launch of a model on a part of a machine. `users` that keep the promise, 0 for none, or
    without one the number that gets the most in all. `whole`: nothing but the input layer is in
    RAM. Bytes: `device`, taken of the fullest device with its margin, `ram` at most, `resident`
    before saved prompts, and `each`, of one more user on the devices. `missing`: bytes where it
    does not fit. `rows`: (users, tokens per second, seconds to the first token)."""

    users: int
    fits: bool
    whole: bool
    device: int
    ram: int
    resident: int
    each: int
    missing: int
    rows: tuple[tuple[int, float, float], ...]
    refused: str = ""

    @property
    def best(self) -> float:
        """Tokens per second of one user."""
        return self.rows[0][1] if self.rows else 0.0


def part(kind: MachineKind, gpus: int, policy: Policy) -> Machine:
    """Return the first `gpus` of a machine's GPUs, with their share of its RAM and processor."""
    from ....machine import Machine
    from ....memory.ram import within

    host = kind.host
    devices = kind.devices
    # Servers side by side on one machine share its RAM, its memory's rate and its cores.
    if gpus < kind.gpus:
        share = gpus / kind.gpus
        host = replace(
            host,
            total=int(host.total * share),
            available=int(host.available * share),
            bandwidth=host.bandwidth and host.bandwidth * share,
            cores=host.cores and max(1, int(host.cores * share)),
            threads=None,
        )
        devices = devices[:gpus]
    # Budgets name devices of one machine, so none apply to a fleet's kinds.
    machine = Machine.of(devices, host, None, {})
    return machine if policy.ram_limit is None else machine.limited(within(policy.ram_limit))


def sizes(gpus: int) -> list[int]:
    """Return the sizes in GPUs of a server on a machine: each size is a divisor of the next and of
    all, so that any servers whose sizes do not exceed them in all have a place.

    >>> sizes(8), sizes(6), sizes(3)
    ([1, 2, 4, 8], [1, 2, 6], [1, 3])
    """
    steps = [1]
    while steps[-1] < gpus:
        double = 2 * steps[-1]
        # 6 GPUs are not halved twice: 1, 2, 6.
        steps.append(double if gpus % double == 0 else gpus)
    return steps


def planned(
    model: Model,
    request: Request,
    machine: Machine,
    wanted: Users,
    measurements: Known | None = None,
) -> Plan:
    """Return the plan for these users. Raises LaunchRefused."""
    # `grows`: one person's launch with more slots, and no search for each number of users.
    goals = request.with_goals(users=replace(wanted, grows=True))
    return plan_request(model, replace(goals, machine=machine, notes=()), measurements=measurements)


def options_of(
    model: Model,
    request: Request,
    kinds: Sequence[MachineKind],
    wanted: Users,
    shares: bool = False,
    measurements: Known | None = None,
) -> dict[tuple[int, int], MachineOption]:
    """Return the options by kind and GPUs. More GPUs than hold a model and keep the promise are not
    tried: a server for each of them serves more users. `shares`: with rows of one GPU, as other
    models may be on it too."""
    measurements = measurements or Known()
    options: dict[tuple[int, int], MachineOption] = {}
    for number, kind in enumerate(kinds):
        for gpus in sizes(kind.gpus):
            machine = part(kind, gpus, request.policy)
            option = option_of(model, request, machine, wanted, shares and gpus == 1, measurements)
            options[number, gpus] = option
            # More GPUs for one server would serve fewer users than as many servers of this size.
            if option.users and option.whole:
                break
    return options


def option_of(
    model: Model,
    request: Request,
    machine: Machine,
    wanted: Users,
    shares: bool = False,
    measurements: Known | None = None,
) -> MachineOption:
    """Return the option on a part of a machine, which may not fit."""
    try:
        plan = one = planned(model, request, machine, wanted, measurements)
        if shares and wanted.promise:
            # With a promise no table is made (users.for_users), but those that share a GPU choose
            # from its rows.
            one = planned(model, request, machine, Users(context=wanted.context), measurements)
    except AutolayersError as error:
        return MachineOption(0, False, False, 0, 0, 0, 0, 0, (), refused=str(error))
    requests = plan.speed.requests
    table = one.speed.requests
    if not plan.fits or not isinstance(requests, Requests) or not isinstance(table, Requests):
        return MachineOption(0, False, False, 0, 0, 0, 0, missing(plan), ())
    # Each with its slot, unless the first token is promised, for which users may wait.
    rows = [row for row in table.table if row.fits and (row.slots >= row.users or wanted.first)]
    # Where a promise left no table, the plan's own row is known.
    rows = rows or [requests.row]
    # The users that keep the promise, without one those that get the most in all
    # All layers and the output, and no tensor rule.
    # The fullest device: others that share this part must fit beside it.
    return MachineOption(
        (requests.most or 0) if wanted.promise else busiest(rows),
        True,
        not one.devices or (one.n_gpu_layers > one.n_layer and one.params.overrides == ()),
        max([row.used + row.margin for row in one.devices], default=0),
        one.ram.limit or one.ram.request,
        one.ram.request,
        requests.each,
        0,
        tuple([(row.users, row.served.rate, row.served.first) for row in rows]),
    )


def busiest(rows: Sequence[UsersRow]) -> int:
    """Return the users that get the most in all where no one waits too long; 0 where one does."""
    good = [row for row in rows if row.served.rate >= TOO_SLOW]
    return max(good, key=lambda row: row.served.total).users if good else 0


def missing(plan: Plan) -> int:
    """Return the bytes that the plan that comes closest lacks."""
    short = [-row.remaining for row in plan.devices if row.used and row.remaining < 0]
    ram = plan.host.remaining
    return sum(short) + (-ram if ram is not None and ram < 0 else 0)
