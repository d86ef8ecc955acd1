"""Several models that run at the same time on one machine: where each goes, what it may take, and
whether they all fit. First they are placed at their smallest contexts for the fewest weighted
seconds of all requests (sharing.py). The leftover memory then improves the placement of models that
are partly in RAM, and the contexts of the others."""

from __future__ import annotations

from functools import partial

from ...errors import LaunchRefused
from ...flags.params import FIT_PARAMS_MIN_CTX
from ...memory.estimate import Known
from ...memory.margin import least
from ...memory.meter import BUDGET, Meter
from ...model.models import KEPT
from ...records import dataclass, replace
from ..answer import plan_request
from ..assignment import Left
from ..prices import WIDER
from .assign import MOST_EXACT, RAM, Assignment, Option, Room, part
from .options import Launches
from .servers import dealt, with_own_servers
from .sharing import Sharing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...machine import Machine
    from ...model import Model
    from ...request import Request
    from ..plan import Plan


@dataclass(frozen=True)
class Together:
    """One plan per model of several that are loaded at once, in the given order. Each plan's `free`
    is what the others leave.

    `weights` say how much a model's seconds count, `alone` are the seconds of its request with the
    machine to itself, and `costs[i][j]` those that model i adds to model j's. `proven`: no other
    choice of devices has a lower sum, by these predictions."""

    plans: tuple[Plan, ...]
    machine: Machine
    weights: tuple[float, ...] = ()
    alone: tuple[float, ...] = ()
    costs: tuple[tuple[float, ...], ...] = ()
    proven: bool = False

    @property
    def fits(self) -> bool:
        return all(plan.fits for plan in self.plans)

    @property
    def seconds(self) -> float:
        """The weighted sum of the requests' seconds."""
        weights = self.weights or (1.0,) * len(self.plans)
        return sum(
            weight * plan.speed.request for weight, plan in zip(weights, self.plans, strict=True)
        )

    def left(self) -> dict[str, int]:
        """Return the bytes per device that no model takes and no margin needs."""
        left = dict(self.machine.limits)
        for plan in self.plans:
            for name, size in takes_of(plan).items():
                left[name] -= size
        return left

    def ram_left(self) -> int | None:
        """Return the bytes of system memory that are left; None if unlimited."""
        ram = self.machine.ram
        return None if ram is None else ram - sum(plan.host.taken for plan in self.plans)

    def users(self) -> dict[str, list[int]]:
        """Return the models on each device, by their indices."""
        return {
            device.name: [i for i, plan in enumerate(self.plans) if device.name in takes_of(plan)]
            for device in self.machine.devices
        }

    def to_dict(self) -> dict[str, object]:
        return {
            "schema": 1,
            "fits": self.fits,
            "left": self.left(),
            "ram_left": self.ram_left(),
            "seconds": round(self.seconds, 3),
            "weights": list(self.weights),
            "alone_seconds": [round(seconds, 3) for seconds in self.alone],
            "costs_seconds": [[round(seconds, 3) for seconds in row] for row in self.costs],
            "users": self.users(),
            "proven": self.proven,
            "models": [plan.to_dict() for plan in self.plans],
        }


def plan_together(
    models: Sequence[Model],
    request: Request,
    weights: Sequence[float] = (),
    or_in_turns: bool = False,
) -> Together:
    """Plan models to be loaded at once, with the same given flags for each.

    If they do not all fit, each gets a share of the memory in proportion to its size. `models` may
    read each on demand (model.models): only outlines of planned models are kept. With `or_in_turns`
    shares end at the first model that has no room in its own. Raises LaunchRefused.
    """
    measurements = MeasuredFile()
    machine = request.machine
    factors = tuple(weights) or (1.0,) * len(models)
    # Both tests are cheap, and spare a search that finds nothing.
    cannot = _too_large(models, machine) or _too_many(len(models), request)
    shared = None if cannot else _shared(models, request, factors, measurements)
    if shared is None:
        plans = _by_size(models, request, measurements, or_in_turns)
        return Together(tuple(plans), machine, factors)
    sharing, assignment = shared
    # With a search that was cut short, two plans may cost what one costs alone
    budget = BUDGET if sharing.spent else 2 * BUDGET
    plans = shared_out(models, request, assignment.chosen, measurements, budget)
    alone = tuple(sharing.alone(i) for i in range(len(models)))
    # The seconds that each model adds to every other's request under `plans`
    n = len(assignment.chosen)
    rows = []
    less: Assignment | None = None
    for i in range(n):
        row = [0.0] * n
        # Where no model is slower than alone, none costs another anything.
        # Without one of two neighbours that are alike the others are the same.
        same = i and sharing.weights[i - 1] == sharing.weights[i]
        if not (same and sharing.launches[i - 1] is sharing.launches[i]):
            searched = 1 < n <= MOST_EXACT and sharing.slower(assignment)
            less = sharing.without(i) if searched else None
        if less is not None:
            others = [j for j in range(n) if j != i]
            for j, option in zip(others, less.chosen, strict=True):
                row[j] = max(0.0, plans[j].speed.request - option.seconds)
        rows.append(tuple(row))
    return Together(
        tuple(with_others(plans, machine)),
        machine,
        factors,
        alone,
        tuple(rows),
        assignment.exact,
    )


def _too_large(models: Sequence[Model], machine: Machine) -> bool:
    """Return whether the weights alone exceed all memory."""
    if machine.ram is None:
        return False
    # At least this part of a file's tensors is loaded.
    return sum(model.size for model in models) * 0.8 > machine.ram + sum(machine.limits.values())


def _too_many(count: int, request: Request) -> bool:
    """Return whether the CUDA contexts of this many processes alone exceed the devices; not checked
    if flags may leave a device unused."""
    params = request.params
    machine = request.machine
    unused = not machine.devices or params.n_gpu_layers == 0 or params.device == ()
    # A given margin replaces the parts whose sum is counted here.
    if unused or request.policy.margin or params.fit_target:
        return False
    # What stays free for any process that uses the device, mainly its context.
    sizes = {device.name: least(device) for device in machine.devices}
    return (
        all(sizes.values())
        and sum(machine.limits[name] // size for name, size in sizes.items()) < count
    )


def _shared(
    models: Sequence[Model], request: Request, weights: Sequence[float], measurements: MeasuredFile
) -> tuple[Sharing, Assignment] | None:
    """Return the best launches at the smallest contexts; of several cache types, the first with
    which all are fully offloaded. None if they do not fit together."""
    best: tuple[Sharing, Assignment] | None = None
    # In the order of --kv-types: the first type with which all layers fit is the answer, even if
    # another one is faster.
    given, types = request.params, request.policy.kv_types
    requests = [request]
    if types and not (given.cache_type_k or given.cache_type_v):
        requests = [request.with_flags(cache_type_k=name, cache_type_v=name) for name in types]
    for typed in requests:
        # The launches of each model; of many models only their options are kept
        launches: list[Launches] = []
        # Of one question; sharing.Sharing looks at less once a single plan's budget is spent
        meter = Meter(BUDGET * len(models))
        # the same file twice is measured once
        seen: dict[str, Launches] = {}
        for i, model in enumerate(models):
            if model.path in seen:
                launches.append(seen[model.path])
                continue
            own = measurements.of(model)
            launches.append(Launches(partial(models.__getitem__, i), typed, own, meter))
            # Before the next model is read, so that only one is in memory.
            if len(models) > MOST_EXACT:
                launches[-1].settle()
            seen[model.path] = launches[-1]
        sharing = Sharing(launches, weights, Room.of(request.machine))
        assignment = sharing.best()
        if assignment is None or not _is_whole(assignment):
            assignment = _finer(sharing, assignment)
        if assignment is None:
            continue
        if best is None or assignment.price < best[1].price:
            best = sharing, assignment
        if _is_whole(assignment):
            break
    return best


def _is_whole(assignment: Assignment) -> bool:
    """Return whether all models are fully offloaded."""
    return all(option.whole for option in assignment.chosen)


def _finer(sharing: Sharing, assignment: Assignment | None) -> Assignment | None:
    """Return what was found, or, if better, the models planned one after another with what each
    leaves: a separate plan can also use parts of layers."""
    if len(sharing.launches) > MOST_EXACT:
        return assignment
    # In the given order, as people start them by hand.
    left = Left(sharing.room.sizes)
    chosen: list[Option] = []
    # What the search left of one plan's budget for all the separate plans, but for a third, with
    # which each gets a share if they do not fit; when it is spent, what was found is the answer.
    meter = Meter(BUDGET * 2 // 3 - max(each.meter.spent for each in sharing.launches))
    for launches in sharing.launches:
        if meter.exhausted:
            return assignment
        # The fastest launch on one device that fits, otherwise that of a separate plan
        option = min(
            (option for option in launches.whole if option.fits(left.left)),
            key=lambda option: option.price,
            default=None,
        ) or _planned_alone(launches, left, meter)
        if option is None or not option.fits(left.left):
            return assignment
        chosen.append(option)
        left.take(sharing.room.column(option).takes)
    price = sum(
        weight * option.price for weight, option in zip(sharing.weights, chosen, strict=True)
    )
    if assignment is not None and assignment.price <= price:
        return assignment
    return Assignment(tuple(chosen), price, exact=False)


def _planned_alone(launches: Launches, left: Left, meter: Meter) -> Option | None:
    """Return the launch that a separate plan chooses with this much left; None if nothing fits."""
    machine = part(launches.machine, left.left)
    request = replace(launches.request.with_params(launches.params), machine=machine, notes=())
    try:
        plan = plan_request(
            launches.read(), request, measurements=launches.measurements, meter=meter
        )
    except LaunchRefused:
        return None
    given = launches.given
    # The separate plan may have limited saved prompts for want of RAM. Options are compared with
    # what was given, and the final plan limits them again.
    return launches.option(
        replace(plan.params, cache_ram=given.cache_ram, ctx_checkpoints=given.ctx_checkpoints)
    )


def shared_out(
    models: Sequence[Model],
    request: Request,
    chosen: Sequence[Option],
    measurements: MeasuredFile,
    budget: int,
) -> list[Plan]:
    """Return each model's plan with what the chosen launches leave: first to make those in RAM
    faster, then in equal parts per device to the others' contexts."""
    machine = request.machine
    left = Left(Room.of(machine).sizes)
    for option in chosen:
        left.take(option.needs.items())

    def last(i: int) -> tuple[bool, int]:
        # First what is partly in RAM: more memory takes weights off the CPU, which gains more than
        # context. Then what has the fewest tokens to add, as it leaves most of its part.
        return chosen[i].whole, models[i].n_ctx_train - (chosen[i].params.n_ctx or 0)

    order = sorted(range(len(chosen)), key=last)
    plans: dict[int, Plan] = {}
    for position, i in enumerate(order):
        option = chosen[i]
        # The models that still have no plan share the spare memory.
        rest = [chosen[j] for j in order[position:]]
        mine = {RAM: option.ram + left.left[RAM] // len(rest)}
        for name, size in option.takes.items():
            # A launch partly in RAM may use all that is spare on its devices.
            parts = sum(name in other.takes for other in rest) if option.whole else 1
            mine[name] = size + left.left[name] // parts
        # Two plans may cost what they cost alone; more of them share that.
        meter = Meter(min(BUDGET, budget // len(order)))
        here = replace(request, machine=part(machine, mine))
        plan = measurements.plan(models[i], option, here, meter)
        plans[i] = with_own_servers(plan, machine.devices)
        # What the plan really takes replaces what the option would have taken.
        left.give_back(option.needs.items())
        left.take(needs_of(plan).items())
    return [plans[i] for i in range(len(order))]


def measured_plan(
    model: Model,
    option: Option,
    request: Request,
    measurements: Known,
    meter: Meter | None = None,
) -> Plan:
    """Return the best plan on the option's devices, or the option itself if that is better."""
    chosen = option.params
    n_ctx = request.params.n_ctx
    # Only devices and cache types stay: there the planner may place layers better than the option.
    on_devices = request.with_flags(
        device=chosen.device, cache_type_k=chosen.cache_type_k, cache_type_v=chosen.cache_type_v
    )
    plan = plan_request(model, on_devices, measurements=measurements, meter=meter)
    larger = n_ctx is None and plan.breakdown.n_ctx > (chosen.n_ctx or 0)
    # More context may take WIDER longer; without it the plan has to be as fast as the option.
    if plan.fits and plan.speed.request <= option.seconds * (WIDER.factor if larger else 1 + 1e-9):
        return plan
    # The option's own flags, used literally; its context is solved if none is given.
    literal = request.with_params(replace(chosen, n_ctx=n_ctx)).with_goals(
        strategy=None, kv_types=()
    )
    try:
        other = plan_request(model, literal, measurements=measurements, meter=meter)
    except LaunchRefused:
        return plan
    fitting = [either for either in (plan, other) if either.fits]
    return min(fitting, key=lambda either: either.speed.request, default=plan)


class MeasuredFile:
    """Measurements of the most recent models, and their plans; a model may occur several times."""

    def __init__(self) -> None:
        self.last: dict[str, Known] = {}
        self.plans: dict[object, Plan] = {}

    def of(self, model: Model) -> Known:
        # Puts it last: the first is the one that was not used for the longest time.
        measurements = self.last[model.path] = self.last.pop(model.path, Known())
        if len(self.last) > KEPT:
            del self.last[next(iter(self.last))]
        return measurements

    def plan(
        self, model: Model, option: Option, request: Request, meter: Meter | None = None
    ) -> Plan:
        """Return measured_plan, settled: once for the same file, flags and memory."""
        machine = request.machine
        memory = tuple(machine.limits.items()), machine.ram, meter and meter.budget
        key = model.path, option.params, option.seconds, request.params, memory
        if key not in self.plans:
            found = measured_plan(model, option, request, self.of(model), meter)
            self.plans[key] = settled(found)
        return self.plans[key]


def with_others(plans: Sequence[Plan], machine: Machine) -> list[Plan]:
    """Return the plans, each with what the others leave as its free memory."""
    all_of_them = Together(tuple(plans), machine)
    left, ram = all_of_them.left(), all_of_them.ram_left()
    with_free = []
    for plan in plans:
        # What all leave, and what it takes itself: as if the others were other programs.
        taken = takes_of(plan)
        devices = tuple(
            replace(row, free=left[row.name] + taken.get(row.name, 0)) for row in plan.devices
        )
        free = None if ram is None else ram + plan.host.taken
        with_free.append(replace(plan, devices=devices, host=replace(plan.host, free=free)))
    return with_free


# --- where they do not fit


def _by_size(
    models: Sequence[Model], request: Request, measurements: MeasuredFile, all_or_none: bool
) -> list[Plan]:
    """Return a plan for each, with a share of the leftover memory in proportion to its size, and
    whole RPC servers; with `all_or_none`, up to the first that does not fit."""
    machine = request.machine
    sizes = [model.size for model in models]
    owners = dealt(sizes, machine)
    left = Room.of(machine).sizes
    plans: list[Plan] = []
    for i, model in enumerate(models):
        # Models that are still to be planned share by size what the earlier ones left.
        rest = sum(sizes[i:])
        mine = {
            name: size if owners.get(name) == i else max(0, size) * sizes[i] // rest
            for name, size in left.items()
        }
        own_request = with_least_context(request, model)
        if owners:
            # without the devices of servers that another model has
            given = request.params.device
            names = [
                name
                for name in (machine.limits if given is None else given)
                if owners.get(name, i) == i
            ]
            own_request = own_request.with_flags(device=tuple(names))
        own_request = replace(own_request, machine=part(machine, mine))
        plan = settled(plan_request(model, own_request, measurements=measurements.of(model)))
        plans.append(with_own_servers(plan, machine.devices))
        left = {name: size - needs_of(plan).get(name, 0) for name, size in left.items()}
        if all_or_none and not plan.fits:
            break
    return plans


def beside(machine: Machine, plan: Plan) -> Machine:
    """Return the machine with what a plan leaves of its devices and RAM."""
    taken = needs_of(plan)
    left = Room.of(machine).sizes
    return part(machine, {name: max(0, size - taken.get(name, 0)) for name, size in left.items()})


def with_least_context(request: Request, model: Model) -> Request:
    """Return the request with a least context, if none is given."""
    if request.params.n_ctx is not None:
        return request
    # llama.cpp's own minimum for --fit (4096), or less for a model that was trained on less.
    usual = min(FIT_PARAMS_MIN_CTX, max(1, model.n_ctx_train))
    return request.with_goals(n_ctx=request.policy.n_ctx_min or usual)


def settled(plan: Plan) -> Plan:
    """Return the plan without the objects that it was made of."""
    # `predict` and `place` hold the graphs, which would stay in memory with every plan.
    speed = plan.speed
    return replace(
        plan,
        model=plan.model.outline(),
        breakdown=replace(plan.breakdown, steps=None),
        predict=lambda: speed,
        place=tuple,
    )


def takes_of(plan: Plan) -> dict[str, int]:
    """Return the bytes that a plan takes of each device that it uses, including the margin."""
    return {device.name: device.used + device.margin for device in plan.devices if device.used}


def needs_of(plan: Plan) -> dict[str, int]:
    """Return what a plan takes of devices and of RAM."""
    return {**takes_of(plan), RAM: plan.host.taken}
