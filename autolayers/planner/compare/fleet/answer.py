"""The answer for a fleet: servers, their places, the users that are served, and what if."""

from __future__ import annotations

from ....devices.cluster_file import PORT, Box
from ....flags.users import Users
from ....records import dataclass, lazy, replace
from ....work.figures import DISK, START
from ...users import Requests
from ..cluster import Use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ....devices.fleet_file import Fleet, MachineKind
    from ...plan import Plan


@dataclass(frozen=True)
class Wanted:
    """`users`: at once, None for as many as the fleet serves; `each`: their context and the
    promise."""

    users: int | None = None
    each: Users = Users()


@dataclass(frozen=True)
class FleetServer:
    """One llama-server. `models`: its own and those that share its GPU; `slots`: users that it
    serves at once. `takes`: (kind of machine, GPUs). `rate` and `first` are what each user gets
    with all slots busy, and with all models busy that share the GPU. `use`: its machines, if they
    work together by RPC."""

    model: int
    takes: tuple[tuple[int, int], ...]
    slots: int
    plan: Plan
    share: int = 1
    use: Use | None = None

    @property
    def rate(self) -> float:
        requests = self.plan.speed.requests
        # `rate` of a plan is with the GPU for itself; sharers that are busy at once get equal parts
        # of its time.
        return (
            requests.row.served.rate
            if isinstance(requests, Requests)
            else self.plan.speed.generation
        ) / self.share

    @property
    def first(self) -> float:
        requests = self.plan.speed.requests
        return (requests.row.served.first if isinstance(requests, Requests) else 0.0) * self.share


@dataclass(frozen=True)
class Place:
    """A server on a machine: the numbers of its GPUs there, all for None."""

    server: int
    gpus: tuple[int, ...] | None
    machines: tuple[str, ...]  # with the first as head


@dataclass(frozen=True)
class Unserved:
    """A model that is not served, and why."""

    model: int
    why: str


@dataclass(frozen=True)
class Failing:
    """A machine of a kind that fails: users that have no slot until it is back, and how many are
    served where the fleet is planned again without it, None if not computed."""

    kind: int
    machine: str
    waiting: int
    again: int | None


@dataclass(frozen=True)
class Next:
    """A machine to buy, and the users that the fleet serves with it. `kind`: one more of these,
    None: a new one."""

    name: str
    kind: int | None
    users: int
    memory: int


@dataclass(frozen=True)
class FleetPlan:
    """The answer. `asked`: users, None for as many as may be; `most`: users in the ratio of the
    weights that the fleet serves; `bound`: users that no choice serves by these predictions, None
    if unknown; `users` of each model."""

    fleet: Fleet
    names: tuple[str, ...]
    weights: tuple[float, ...]
    wanted: Wanted
    servers: tuple[FleetServer, ...]
    places: tuple[Place, ...]
    users: tuple[int, ...]
    most: int
    bound: int | None
    unserved: tuple[Unserved, ...]
    failing: tuple[Failing, ...]
    next: tuple[Next, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def fits(self) -> bool:
        """Whether all that was asked is served."""
        # Asked for nobody, at least one user must be served.
        return not self.unserved and self.most >= max(1, self.wanted.users or 1)

    @lazy
    def on(self) -> dict[str, list[Place]]:
        """The servers of each machine, by its name."""
        places: dict[str, list[Place]] = {box.name: [] for box in self.fleet.machines}
        for place in self.places:
            for name in place.machines:
                places[name].append(place)
        return places

    @lazy
    def kind_of(self) -> dict[str, MachineKind]:
        """The kind of each machine, by its name."""
        return {box.name: kind for kind in self.fleet.kinds for box in kind.machines}

    def use(self, place: Place) -> Use:
        """Return the machines of a server that spans several, with their own addresses."""
        server = self.servers[place.server]
        assert server.use is not None
        # The server was planned with the first machines of its kinds; here it gets those where it
        # stands.
        others = [served_at(self.kind_of[name], name) for name in place.machines[1:]]
        flags = [*server.plan.flags]
        flags[flags.index("--rpc") + 1] = ",".join(
            endpoint for box in others for endpoint in box.endpoints
        )
        sent = dict(zip([box.name for box in others], server.use.sent.values(), strict=True))
        plan = replace(server.plan, flags=tuple(flags))
        return Use(tuple(replace(box, link=self.fleet.link) for box in others), plan, sent)

    def head(self, place: Place) -> Box:
        return served_at(
            self.fleet.kinds[self.servers[place.server].takes[0][0]], place.machines[0]
        )

    def load(self, number: int) -> float:
        """Return the seconds from a start until it serves: the model read from the disk, sent to
        other machines, and START."""
        server = self.servers[number]
        host = self.fleet.kinds[server.takes[0][0]].host
        sent = server.use.load if server.use is not None else 0.0
        # DISK where the fleet file names no rate.
        return START + server.plan.model.size / (host.disk or DISK) + sent

    def replicas(self, server: int) -> int:
        return sum(place.server == server for place in self.places)


def served_at(kind: MachineKind, name: str) -> Box:
    """Return a machine of a kind, with what all of the kind have free, and a port for the server of
    each GPU."""
    box = next(box for box in kind.machines if box.name == name)
    ports = tuple(PORT + i for i in range(len(kind.devices)))
    return Box(name, kind.devices, kind.host, box.address, ports, box.address)
