"""Which model: those of today on one machine, each in the quantisation that `choose` takes, at the
same context, ordered by quality.

    job = JOBS["code"]
    request = job.of(request)  # its context and workload, where none is given
    rows = [take(model, request, job) for model in candidates(job)]
    ordered(rows)  # what runs well or tight first, the best model first

A row's state:

    well   it runs, as fast as the job needs
    tight  the same, with less than LEFT or SHARE of the memory left that it would outgrow
    slow   it runs, slower than that
    no     it does not fit

The terminal (`autolayers best`), the page's list and what a build of the page precomputes are these
functions.
"""

from __future__ import annotations

import re

from ... import bundled
from ...bundled import projectors, published
from ...flags.params import ALL_LAYERS
from ...flags.workload import WORKLOADS
from ...records import dataclass, replace
from ..prices import READABLE
from ..problem import Problem
from ..quantisations import main_type
from .choose import (
    GOOD,
    NO,
    WHOLLY,
    Choice,
    advise,
    assessed_briefly,
    completed,
    few_left,
    wanted_ctx,
)
from .quality import level, usual

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...bundled.published import Published
    from ...model import Model
    from ...request import Request
    from ..plan import Plan

# Q3 of UD-Q3_K_M or IQ3_XXS
_POOR = re.compile(r"Q([123])")
# Points of the index that each bit below Q4 counts as, which nobody published: twice what models of
# one size and age differ by
POOR_COSTS = 7.0
WELL, TIGHT, SLOW = "well", "tight", "slow"  # and choose.NO


@dataclass(frozen=True)
class Job:
    """What somebody wants a model for: the context that every row has, the workload that its speed
    is of, the tokens per second below which it is slow, and whether it has to see."""

    name: str
    n_ctx: int
    workload: str
    least: float
    pictures: bool = False

    def words(self) -> list[str]:
        """Return the job as flags of `choose`."""
        return ["-c", str(self.n_ctx), "--workload", self.workload]

    def asked(self, request: Request, worked: bool = False) -> Request:
        """Return the request with the job's context, and its workload unless one is given
        (`worked`)."""
        params, policy = request.params, request.policy
        if not (params.n_ctx or policy.n_ctx or policy.n_ctx_min):
            request = request.with_flags(n_ctx=self.n_ctx)
        return request if worked else request.with_goals(workload=WORKLOADS[self.workload])


WORKING = 15.0  # tokens per second, of code and agents: a file of 3,000 tokens in three minutes
JOBS = {
    "chat": Job("chat", 16384, "chat", READABLE),
    "code": Job("code", 32768, "chat", WORKING),
    "documents": Job("documents", 65536, "batch", READABLE),
    "pictures": Job("pictures", 8192, "chat", READABLE, pictures=True),
    "agents": Job("agents", 65536, "agent", WORKING),
}


@dataclass(frozen=True)
class BestRow:
    """One model on the machine: the file to take of it (a bundled name), and how that runs.
    `least`: the bytes that are missing at least."""

    model: Published
    name: str
    state: str
    choice: Choice
    rule: str = ""
    least: int = 0
    sees: bool = False  # its projector is counted

    @property
    def kind(self) -> str:
        return published.quantisation(self.name)

    @property
    def quality(self) -> float:
        """Of the model; its index is of the whole one."""
        return published.quality(self.model)

    @property
    def poor(self) -> int:
        """How many bits the file is below Q4, by its weights or its name: half of a Q3_K_M may be
        Q4_K."""
        named = _POOR.search(self.kind)
        return max(0, GOOD - self.choice.level, GOOD - int(named[1]) if named else 0)

    @property
    def worth(self) -> float:
        """The quality, less what bits below Q4 lose."""
        return self.quality - POOR_COSTS * self.poor

    def words(self) -> list[str]:
        """Return llama-server's flags that download it."""
        # The last one leaves the projector out
        return list(published.download(self.name))[: 2 if self.sees else None]

    def to_dict(self) -> dict[str, object]:
        model, choice, speed = self.model, self.choice, self.choice.speed
        spread = speed.generation_spread if speed else 1.0
        return {
            "model": self.name,
            "title": model.name,
            "quantisation": self.kind,
            "state": self.state,
            "released": model.released,
            "index": model.index or None,
            "dated": model.dated or None,
            "source": model.source or None,
            # Where no index is published: by size and age
            "placed": None if model.index else round(self.quality, 1),
            "jobs": list(model.jobs),
            "size": choice.size,
            "bits": round(choice.bits_per_weight, 2),
            "verdict": choice.verdict,
            "placement": choice.placement,
            "n_ctx": choice.n_ctx,
            # tokens per second: generated, with its range, with the job's context full; of prompts
            "rate": round(choice.rate, 2),
            "rate_low": round(choice.rate / spread, 2),
            "rate_high": round(choice.rate * spread, 2),
            "rate_full": round(choice.full, 2),
            "prompt_rate": round(speed.prompt, 1) if speed else 0.0,
            "left": choice.few,
            "left_in_ram": choice.few_ram,
            "missing": self.least or None,
            "words": self.words(),
            "flags": list(choice.flags),
            "order": list(self.order),
        }

    @property
    def order(self) -> tuple[float, float, float]:
        """What the list is ordered by: what nearly fills the RAM comes after what runs well, as it
        would swap; slow and no after that; then what the file is worth, then speed."""
        late = int(self.choice.few_ram)
        place = {WELL: late, TIGHT: late, SLOW: 2, NO: 3}[self.state]
        # Of what does not fit the smallest first: it needs the least
        if self.state == NO:
            return place, self.choice.size, 0.0
        return place, -self.worth, -self.choice.rate


def ordered(rows: Iterable[BestRow]) -> list[BestRow]:
    """Return the rows as a list shows them; the first is the answer."""
    return sorted(rows, key=lambda row: row.order)


def candidates(job: Job | None = None) -> list[Published]:
    """Return today's models, those that are for this job, the best first."""
    rows = published.MODELS.values()
    wanted = [row for row in rows if row.current and (job is None or job.name in row.jobs)]
    return sorted(wanted, key=published.quality, reverse=True)


def take(
    model: Published, request: Request, job: Job, read: Callable[[str], Model] = bundled.read
) -> BestRow:
    """Return the row of a model: the file that `choose` takes of those that are published, with the
    request's context. Fewer are planned than there are, and the answer is that of all."""
    n_ctx = wanted_ctx(request)
    projector = projectors.header(next(iter(model.files))) if job.pictures else None
    if projector:
        request = replace(request, companions=replace(request.companions, mmproj=projector))
    files = sorted((read(name) for name in model.files), key=lambda file: -file.size)
    tried = _Tried(model, request, job.least)
    # What was trained for less would be compared at another context
    if files[0].n_ctx_train >= n_ctx:
        tried.all([file for file in files if not missing(file.size, request)])
    advice = advise(list(tried.done.values()), n_ctx, job.least)
    if advice is None:
        least = files[-1]
        choice = Choice(NO, "", least.size, least.bits_per_weight, least.n_ctx_train)
        return BestRow(model, _name(least), NO, choice, least=missing(least.size, request))
    name = list(tried.done)[advice.take]
    choice = tried.completed(name)
    state = SLOW if choice.rate < job.least else WELL if choice.few is None else TIGHT
    return BestRow(model, name, state, choice, advice.rule, sees=projector is not None)


def _name(file: Model) -> str:
    """Return the bundled name of a model."""
    return file.path.removesuffix(".gguf")


class _Tried:
    """The files of a model that were planned (`done`, by their names): as few as decide which one
    `choose` takes of all. Of one model a larger file is no faster, but i-quants are slower."""

    def __init__(self, model: Published, request: Request, least: float) -> None:
        self.model, self.request, self.least = model, request, least
        self.done: dict[str, Choice] = {}
        self._plans: dict[str, Plan | None] = {}
        self._complete: set[str] = set()

    def all(self, files: Sequence[Model]) -> None:
        """Plan what has to be planned of these files, the largest first."""
        good = [file for file in files if _level(file) >= GOOD]
        # WHOLE comes before all else, and its largest is taken
        for file in filter(self._may_be_whole, good):
            if self._taken(file) and self.done[_name(file)].verdict == WHOLLY:
                return
        # READS takes the closest to the original, of mixtures often the largest
        if good and good[0].is_moe and self._taken(good[0]):
            return
        # None if not even the smallest can be read
        smallest = {
            (min(_level(file), GOOD), main_type(file).startswith("iq")): file for file in files
        }
        least = [file for (at, _), file in smallest.items() if at == GOOD]
        if any(map(self._fluent, least)):
            reads = self._taken if any(map(self._taken, least)) else self._fluent
            low, high = 0, len(good) - 1
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if reads(good[middle]) else (middle + 1, high)
            return
        # SLOW: the fastest of each level
        for file in smallest.values():
            self._planned(file)

    def completed(self, name: str) -> Choice:
        """Return the choice with what is said of the wanted context."""
        plan = self._plans[name]
        if plan is not None and name not in self._complete:
            self._complete.add(name)
            self.done[name] = completed(self.done[name], plan, self.request)
        return self.done[name]

    def _planned(self, file: Model) -> Choice:
        name = _name(file)
        if name not in self.done:
            choice, self._plans[name] = assessed_briefly(file, self.request)
            # One model, though headers of two sources may differ by a tensor
            self.done[name] = replace(choice, family=self.model.stem)
        return self.done[name]

    def _fluent(self, file: Model) -> bool:
        choice = self._planned(file)
        return choice.fits and choice.is_fluent(self.least)

    def _taken(self, file: Model) -> bool:
        """Return whether it is fluent and leaves RAM to others."""
        if not self._fluent(file):
            return False
        plan = self._plans[_name(file)]
        # With the wanted context, which may be less than the plan's, there is no less
        enough = plan is not None and not few_left(plan)[1]
        return enough or not self.completed(_name(file)).few_ram

    def _may_be_whole(self, file: Model) -> bool:
        """Return whether the devices hold all weights and a cache of one slot."""
        params, devices = self.request.params, self.request.machine.devices
        layers = ALL_LAYERS if params.n_gpu_layers is None else params.n_gpu_layers
        wanted = wanted_ctx(self.request)
        given = replace(params, n_ctx=wanted, n_parallel=1, n_gpu_layers=layers)
        use = Problem(file, self.request).evaluator.static(given)
        if use is None:
            return True
        # Of several types of the cache it may be the smallest
        caches = 0 if self.request.policy.kv_types else use.caches - use.host.context
        weights = sum(usage.model for usage in use.devices.values())
        return weights + caches <= sum(device.free for device in devices)


def _level(file: Model) -> int:
    return level(usual(file), None, file.bits_per_weight)


def missing(size: int, request: Request) -> int:
    """Return the bytes that are missing at least on all devices together, for tensors of this size;
    0 if they may fit. What need not be loaded, as MTP blocks, is a tenth at most."""
    machine = request.machine
    # Unknown RAM may hold anything
    if machine.ram is None:
        return 0
    return max(0, size * 9 // 10 - sum(device.free for device in machine.devices) - machine.ram)
