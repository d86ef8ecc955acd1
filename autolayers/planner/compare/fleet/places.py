"""On which machines of a fleet its servers stand: those of a model apart, so that a machine that
fails takes few of them."""

from __future__ import annotations

from collections import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ....devices.fleet_file import Fleet
    from .assign import Servers, Sort


class Places:
    """The machines that have GPUs left. `used` of each kind: the fewest that have those of all
    servers, but two where a model has several servers there: so they do not all fail with one."""

    def __init__(self, fleet: Fleet, servers: Servers) -> None:
        self.fleet = fleet
        self.free = {
            box.name: list(range(kind.gpus)) for kind in fleet.kinds for box in kind.machines
        }
        # Of each kind where to go on, so that the servers of a model are on different machines.
        self.at = [0] * len(fleet.kinds)
        self.used = []
        for number, kind in enumerate(fleet.kinds):
            taken = 0
            of_model = Counter[int]()
            for sort, count in servers.used:
                gpus = dict(sort.takes).get(number, 0)
                taken += count * gpus
                if gpus:
                    of_model.update(dict.fromkeys(sort.models, count))
            several = max(of_model.values(), default=0) > 1
            # Rounded up to whole machines.
            self.used.append(min(len(kind.machines), max(-(-taken // kind.gpus), 2 * several)))

    def take(self, sort: Sort) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
        """Return the machines of one server, and its GPUs if it has only a part of one."""
        names: list[str] = []
        gpus: tuple[int, ...] | None = None
        for number, size in sort.takes:
            kind = self.fleet.kinds[number]
            machines = kind.machines[: self.used[number]]
            for _ in range(max(1, size // kind.gpus)):
                # The next machine in turns that has this many GPUs left
                turns = ((self.at[number] + turn) % len(machines) for turn in range(len(machines)))
                at = next(
                    at for at in turns if len(self.free[machines[at].name]) >= min(size, kind.gpus)
                )
                self.at[number] = (at + 1) % len(machines)
                name = machines[at].name
                # The numbers of its GPUs, e.g. (2, 3); all of a machine that it takes whole.
                taken, self.free[name] = self.free[name][:size], self.free[name][size:]
                gpus = tuple(taken) if size < kind.gpus else None
                names.append(name)
        return tuple(names), gpus
