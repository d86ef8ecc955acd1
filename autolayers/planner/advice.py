"""What would make a launch fit that does not: every piece of advice was planned with, and fits.

flags     other words for those given, or words to add
ram       system memory to add
vram      device memory to add
memory    both, where neither alone is enough
file      the largest quantisation of the same model
"""

from __future__ import annotations

from ..devices.assumed import ALONE
from ..errors import AutolayersError
from ..flags.params import EXPERTS_REGEX, N_UBATCH, Params
from ..flags.write import to_words
from ..keys import written
from ..records import dataclass, replace
from ..units import MiB
from .complete import typed
from .evaluate import FULL, Candidate
from .one import overrides
from .one.bisection import last
from .problem import Q8_0
from .quantisations import below
from .serving import checkpoints
from .solve import solve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from ..machine import Machine
    from ..model import Model
    from .problem import Problem

    Change = dict[str, object]  # of given flags

_ELSEWHERE = frozenset({"device", "kv_offload"})  # changes that move memory instead of saving it
CTX_STEP = 1024  # of the advised context
SMALLEST = 2048  # the advised context, if less than the minimum is needed


@dataclass(frozen=True)
class Remedy:
    """One change with which the launch fits: all `flags` of the launch that does and the `change`
    that they make of the given ones, `ram` or `devices` bytes to add, or a quantisation of the same
    model: a `file` of that many bytes, all of it of one `type`. `held`: the machine has this RAM,
    and other programs hold it."""

    kind: Literal["flags", "ram", "vram", "memory", "file"]
    flags: tuple[str, ...] = ()
    ram: int = 0
    devices: tuple[tuple[str, int], ...] = ()
    file: int = 0
    type: str = ""
    bits_per_weight: float = 0.0
    speed: float = 0.0  # predicted tokens per second, of flags
    held: bool = False
    n_ctx: int = 0  # the context of that launch, of flags
    change: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return written("remedies", self)


def remedies(problem: Problem, short: Candidate) -> Iterator[Remedy]:
    """Yield advice for a launch that does not fit (`short`), one after the other: each is
    planned."""
    advice = _Advice(problem.with_goals(alone=False), short)
    yield from advice.flags()
    yield from advice.memory()
    yield from advice.file()


class _Advice:
    def __init__(self, problem: Problem, short: Candidate) -> None:
        self.problem = problem
        self.model = problem.model
        self.machine = problem.machine
        self.given = problem.given
        self.policy = problem.policy
        self.short = short

    def launch(self, change: Change, **goals: object) -> Candidate | None:
        """Return the plan's launch with changed flags and goals; None if llama.cpp would refuse it,
        or if the model has not what the change needs."""
        return _solution(self.problem.with_flags(**change).with_goals(**goals).on(self.machine))

    def launch_on(self, machine: Machine) -> Candidate | None:
        """Return the plan's launch if it fits on a larger machine, or the one that is planned
        there."""
        # On the larger machine the same launch often fits: no search is needed.
        other = self.problem.on(machine)
        same = other.evaluator.candidate(self.short.params, FULL)
        return same if same is not None and same.fits else _solution(other)

    def fits(self, change: Change, model: Model | None = None) -> Candidate | None:
        """Return a launch that fits with changed flags or of another `model`, if there is one. The
        full search runs only if weights and caches do not already exceed all memory."""
        # Everything else as the launch that does not fit.
        params = replace(self.short.params, **change)  # type: ignore[arg-type]
        # Bytes alone: what exceeds all memory is not searched.
        use = self.problem.evaluator.static(params)
        if use is not None and self.machine.ram is not None:
            need = use.resident + use.on_devices
            need += max(0, params.cache_ram or 0) * MiB
            if model is not None:
                need -= self.model.size - model.size
            # What is on a GPU that shares the RAM is in RAM.
            own = [device.name for device in self.machine.devices if not device.in_ram]
            if need > self.machine.ram + sum(self.machine.limits[name] for name in own):
                return None
        candidate = self.launch(change) if model is None else _solution(self.problem.of(model))
        return candidate if candidate is not None and candidate.fits else None

    # --- flags

    def flags(self) -> Iterator[Remedy]:
        """Yield up to three changes of one flag that each suffice; else the fewest leading changes
        that suffice together."""
        enough = 0
        single = list(self._changes())
        smaller = [change for change in single if change.keys().isdisjoint(_ELSEWHERE)]
        chain = single
        # All that saves memory at once: if even that does not fit, no single change will.
        merged = {name: value for change in smaller for name, value in change.items()}
        if not self.fits(merged):
            # none of them suffices alone
            single = [change for change in single if change not in smaller]
            chain = [merged, *single]
        for change in single:
            candidate = self.fits(change)
            if candidate is not None:
                enough += 1
                yield self._words(change, candidate)
                # Three changes that suffice are enough to choose from.
                if enough == 3:
                    return
        together: Change = {}
        # Then the first few together, in the order in which they hurt least.
        for change in chain if not enough else ():
            together |= change
            if len(together) == len(change):
                continue
            candidate = self.fits(together)
            if candidate is not None:
                yield self._words(together, candidate)
                return

    def _words(self, change: Change, candidate: Candidate) -> Remedy:
        params = Params(**change)  # type: ignore[arg-type]
        own = list[str]()
        if params.overrides and params.overrides == candidate.params.overrides:
            left, own = overrides.own_experts(self.problem.evaluator, candidate.params)
            params = replace(params, overrides=left.overrides)
        words = [*to_words(params, self.problem.build.knows), *own]
        # The user's own word for the context.
        ctx_word = "--ctx" if self.policy.n_ctx is not None else "-c"
        words = [ctx_word if word == "-c" else word for word in words]
        remedy = Remedy("flags", change=tuple(words))
        return self._said(remedy, self.problem.with_flags(**change), candidate)

    def _said(self, remedy: Remedy, problem: Problem, candidate: Candidate) -> Remedy:
        """Return the remedy with the flags and the figures of its launch."""
        candidate, flags = typed(problem, candidate)
        return replace(
            remedy,
            flags=flags,
            speed=self.problem.cost.price(candidate).generation,
            n_ctx=candidate.breakdown.n_ctx,
        )

    def _changes(self) -> Iterator[Change]:
        """Yield the changes of flags to try, those that hurt least first."""
        given = self.given
        use = self.short.breakdown
        if given.gives_layers:
            # What a given -ngl could be instead: the same with experts in RAM, or fewer
            if self.model.is_moe and not given.overrides:
                spared = self.launch({}, strategy="auto")
                if spared is not None and spared.fits and spared.params.overrides:
                    # The whole layers of its rules alone, one more for one that is there in part:
                    # what -ncmoe can say.
                    rules = spared.params.overrides
                    if any(pattern == EXPERTS_REGEX for pattern, _ in rules):
                        as_flag = rules
                    else:
                        # A layer that is there in part counts whole: -ncmoe has only whole layers.
                        count = len({pattern.partition(".ffn_")[0] for pattern, _ in rules})
                        bare = replace(spared.params, overrides=())
                        layers = self.problem.evaluator.experts_in_ram(bare, count)
                        as_flag = overrides.with_experts_on_host(bare, layers).overrides
                    yield {"overrides": as_flag}
            fewer = self.launch({"n_gpu_layers": None}, strategy="layers")
            if fewer is not None and fewer.fits:
                yield {"n_gpu_layers": fewer.params.n_gpu_layers}
        if given.cache_ram is not None or given.ctx_checkpoints is not None:
            yield {
                "cache_ram": 0,
                **({} if given.ctx_checkpoints is None else {"ctx_checkpoints": 1}),
            }
        if given.n_ctx is not None or isinstance(self.policy.n_ctx, int):
            less = self._largest_context()
            if less and less < use.n_ctx:
                yield {"n_ctx": less}
        if given.kv_offload is False:
            yield {"kv_offload": True}
        # Whether the cache is one of f16 that may be another: V needs flash attention
        types = given.cache_type_k or "f16", given.cache_type_v or "f16"
        typed = types != ("f16", "f16") or bool(self.policy.kv_types)
        if not typed and given.flash_attn != "off":
            yield Q8_0
        if use.n_seq_max > 1:
            yield {"n_parallel": 1}
        if given.ctx_checkpoints is None and checkpoints(self.short.params, use):
            yield {"ctx_checkpoints": 0}
        if self._may_shorten():
            yield {"n_ctx": SMALLEST}
        if (given.n_ubatch or N_UBATCH) > 64:
            yield {"n_ubatch": 64}
        if given.device is None and self.machine.devices:
            yield {"device": ()}

    def _may_shorten(self) -> bool:
        """Return whether nothing that was given asks for more than the smallest context."""
        work = self.policy.workload
        wishes = (
            self.given.n_ctx,
            self.policy.n_ctx,
            self.policy.n_ctx_min,
            work.depth,
            work.context,
        )
        return not any(wishes) and self.short.breakdown.n_ctx > SMALLEST

    def _largest_context(self) -> int:
        """Return the largest that fits with the other flags, 0 for none: what --ctx max finds, or
        with more in RAM, to an eighth of it."""
        launches = [self.launch({"n_ctx": None}, n_ctx=goal) for goal in (None, "max")]
        fits = max(
            (launch.breakdown.n_ctx for launch in launches if launch is not None and launch.fits),
            default=0,
        )
        too_large = self.short.breakdown.n_ctx
        if not fits or fits >= too_large:
            return fits
        # Contexts that grow by an eighth, in steps of CTX_STEP.
        grid = [fits]
        while (larger := (grid[-1] * 9 // 8 // CTX_STEP + 1) * CTX_STEP) < too_large:
            grid.append(larger)

        def holds(i: int) -> bool:
            launch = self.launch({"n_ctx": grid[i]}, n_ctx=None)
            return launch is not None and launch.fits

        return grid[last(0, len(grid) - 1, holds)]

    # --- memory

    def memory(self) -> Iterator[Remedy]:
        """Yield system memory to add, device memory to add, or both if neither alone suffices; RAM
        that a GPU shares, which cannot be added, with the smallest context too."""
        alone = [remedy for remedy in (self._more("ram"), self._more("vram")) if remedy is not None]
        both = None if alone else self._more("memory")
        yield from alone if both is None else (both,)
        if self._of_ram() and self._may_shorten():
            shorter: Change = {"n_ctx": SMALLEST}
            short = self.launch(shorter)
            more = (
                None
                if short is None
                else _Advice(self.problem.with_flags(**shorter), short)._more("ram", said=True)
            )
            if more is not None and more.held:
                yield replace(more, change=("-c", str(SMALLEST)))

    def _of_ram(self) -> frozenset[str]:
        """Return the GPUs that may use all of the RAM that is available."""
        machine = self.machine
        return frozenset(
            device.name
            for device in machine.devices
            if device.in_ram
            and machine.ram is not None
            # Its limit is what is available, not what the GPU may take: then RAM is what is
            # missing.
            and machine.limits[device.name] == min(device.free, machine.ram) < device.total
        )

    def _more(self, kind: Literal["ram", "vram", "memory"], said: bool = False) -> Remedy | None:
        """Return the missing bytes, added until the launch fits: device memory where it is short,
        or on the largest device instead of system memory. `said`: with the launch's flags."""
        limits = self.machine.limits
        ram = 0
        devices: dict[str, int] = {}
        candidate: Candidate | None = self.short
        for i in range(6):
            if candidate is None or not (limits or kind == "ram"):
                return None
            missing = {name: -left for name, left in candidate.spare.items() if left < 0}
            of_ram = [missing.pop(name) for name in self._of_ram() if name in missing]
            # RAM helps no device that lacks memory of its own, nor the other way round.
            if (kind == "ram" and missing) or (kind == "vram" and of_ram):
                return None
            if kind == "vram" and not missing:
                # On the largest device with memory of its own, doubled in each try until enough
                # layers move there; without one nothing that a GPU may use more of leaves RAM.
                own = [device.name for device in self.machine.devices if not device.in_ram]
                if not own:
                    return None
                largest = max(own, key=lambda name: limits[name])
                missing = {largest: candidate.ram_missing << i}
            if kind != "vram":
                # A GPU that shares the RAM is helped by RAM.
                ram += _step(max(candidate.ram_missing, *of_ram, 0))
            devices = {
                name: devices.get(name, 0) + _step(missing.get(name, 0))
                for name in limits
                if name in devices or name in missing
            }
            machine = self._with(devices, ram)
            candidate = self.launch_on(machine)
            if candidate is not None and candidate.fits:
                # Whether other programs hold the missing `ram`: the machine has that much more
                # than is available, apart from what the system itself takes
                available = self.machine.ram
                total = self.machine.ram_total
                more = Remedy(
                    kind,
                    ram=ram,
                    devices=tuple(devices.items()),
                    held=bool(
                        ram
                        and available is not None
                        and total is not None
                        and available + ram + ALONE <= total
                    ),
                )
                return self._said(more, self.problem.on(machine), candidate) if said else more
        return None

    def _with(self, more: dict[str, int], ram: int) -> Machine:
        devices = tuple(
            replace(
                device,
                total=device.total + more.get(device.name, 0),
                free=device.free + more.get(device.name, 0),
            )
            for device in self.machine.devices
        )
        limits = {name: limit + more.get(name, 0) for name, limit in self.machine.limits.items()}
        available = self.machine.ram
        for device in devices:
            if device.name in self._of_ram():
                limits[device.name] = min(device.total, limits[device.name] + ram)
            elif device.in_ram and available is not None:
                limits[device.name] = min(limits[device.name], available + ram)
        return replace(
            self.machine,
            devices=devices,
            limits=limits,
            ram=None if available is None else available + ram,
        )

    # --- file

    def file(self) -> Iterator[Remedy]:
        """Yield the largest quantisation of the model that fits, where one fits no worse than a
        larger one."""
        smaller = list(below(self.model))
        # Sizes fall with the types, so the first that fits is found by halving.
        first = 1 + last(-1, len(smaller) - 1, lambda i: not self.fits({}, smaller[i][1]))
        if first == len(smaller):
            return
        kind, model = smaller[first]
        bits = round(8 * model.size / self.model.n_elements, 2)
        yield Remedy("file", file=model.size, type=kind, bits_per_weight=bits)


def _solution(problem: Problem) -> Candidate | None:
    """Return the best launch of a changed problem, None where there is none."""
    if problem.evaluator.exhausted:
        return None
    try:
        return solve(problem).candidate
    except AutolayersError:  # of the change alone
        return None


def _step(size: int) -> int:
    """Return memory to add, rounded up to 64 MiB."""
    return -(-size // (64 * MiB)) * 64 * MiB
