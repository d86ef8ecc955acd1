"""Several servers, each on its own GPUs of a kind, where they serve people faster than one that has
all of them: the GPUs of one server compute one after the other, and a smaller model leaves most of
them idle."""

from __future__ import annotations

from ..records import replace
from .complete import flags
from .plan import Alternative
from .prices import SERVERS
from .solve import solve
from .users import Requests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..work.speed import Answers
    from .problem import Problem, Solution


def may_part(asked: Problem) -> bool:
    """Return whether the GPUs are of one kind, and no flag says which of them is for what."""
    given, devices = asked.given, asked.machine.devices
    placed = (given.device, given.split_mode, given.tensor_split, given.main_gpu, given.rpc or None)
    kinds = {(device.kind, device.description, device.total) for device in devices}
    several = len(devices) > 1 and len(kinds) == 1 and devices[0].kind == "gpu"
    users = asked.policy.users
    return several and users is not None and not any(each is not None for each in placed)


def replicas(asked: Problem, requests: Answers | None) -> Alternative | None:
    """Return the launch of each of several servers that together give clearly more tokens than the
    chosen one, whose people get `requests`; of all such the one with the most. None without any."""
    if not may_part(asked) or not isinstance(requests, Requests):
        return None
    one = requests.row
    found = [
        (total, servers, names, solution)
        for servers, names, solution in _parted(asked, one.users)
        if (total := _total(servers, solution)) > SERVERS.factor * one.served.total * one.fits
    ]
    if not found or asked.evaluator.exhausted:
        return None
    total, servers, names, solution = max(found, key=lambda each: each[0])
    candidate = solution.candidate
    assert candidate is not None and isinstance(solution.requests, Requests)
    row = solution.requests.row
    speed = solution.problem.cost.price(candidate)
    params = replace(candidate.params, model=None, device=names, main_gpu=None, split_mode=None)
    together = replace(
        row,
        users=servers * row.users,
        slots=servers * row.slots,
        served=replace(row.served, total=total),
    )
    last = asked.machine.devices[-len(names) :]
    note = (
        f"{servers} servers for {row.users} users each, the first on -dev {','.join(names)}, the "
        f"last on -dev {','.join(device.name for device in last)}: each user gets "
        f"{row.served.rate:.1f} tokens/s instead of {one.served.rate:.1f}, {total:.0f} in all "
        f"instead of {one.served.total:.0f}; divide the users over their ports"
    )
    return Alternative(
        flags(solution.problem, params),
        solution.problem.evaluator.described(candidate.params),
        candidate.params.layers_wanted(asked.everything),
        candidate.breakdown.n_ctx,
        # of all servers together, as that of one server is of all its requests
        replace(
            speed,
            prompt=servers * speed.prompt,
            generation=servers * speed.generation,
            generation_full=servers * speed.generation_full,
            requests=Requests(together, None, 0, None, ()),
        ),
        note,
        servers,
        ("-dev", ",".join(names), "-np", str(row.slots)),
    )


def _parted(asked: Problem, users: int) -> Iterator[tuple[int, tuple[str, ...], Solution]]:
    """Yield the numbers of servers that divide the GPUs, the GPUs of the first, and its launch for
    its part of the users."""
    devices = asked.machine.devices
    wanted = asked.policy.users
    assert wanted is not None
    for each in range(1, len(devices)):
        servers, rest = divmod(len(devices), each)
        if rest or servers > users:
            continue
        part = replace(wanted, count=-(-users // servers), grows=True)
        # An equal part of the system memory: as if no server shared its mapped file with another.
        machine = asked.machine
        own = replace(
            machine,
            devices=devices[:each],
            limits={device.name: machine.limits[device.name] for device in devices[:each]},
            ram=None if machine.ram is None else machine.ram // servers,
        )
        solution = solve(asked.on(own).with_goals(users=part))
        yield servers, tuple([device.name for device in devices[:each]]), solution
        # What fits on fewer GPUs is faster there.
        if solution.fitting is not None:
            return


def _total(servers: int, solution: Solution) -> float:
    """Return the tokens per second of all servers together."""
    requests = solution.requests
    if solution.fitting is None or not isinstance(requests, Requests):
        return 0.0
    return servers * requests.row.served.total
