"""Slots and context for people: -np, -c, the cache's kind and types for --users, and what each of
them gets.

    solved = for_users(problem, Users(8, context=16384, rate=20, first=5))

Each number of people is planned as a launch with a slot for each, priced as that many requests at
once, and simulated (work/queue.py). The caches are of f16 unless that takes weights off the GPUs;
then q8_0 is tried.
"""

from __future__ import annotations

from ..errors import LaunchRefused, UsageError
from ..flags.params import ALL_LAYERS, FIT_PARAMS_MIN_CTX
from ..flags.users import Users
from ..keys import written
from ..memory.context import CELL_BLOCK, resolve
from ..records import dataclass, replace
from ..units import human, pad
from ..work.queue import Served, simulate
from .best_launch import best_launch
from .evaluate import FULL
from .one.bisection import last
from .prices import READABLE, TOO_SLOW, worth_to_people
from .problem import Q8_0, Solution
from .variants import DOES_NOT_FIT, FITS, NO_BOUND, REFUSED, Variant, best_first, like

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..flags.params import Params
    from ..memory.breakdown import Static
    from .evaluate import Candidate
    from .problem import Problem
    from .variants import Rank, Tried


@dataclass(frozen=True)
class UsersRow:
    """What a number of people get; `context`: bytes of all their caches."""

    users: int
    slots: int
    served: Served
    context: int
    fits: bool

    def to_dict(self) -> dict[str, object]:
        return written("speed.requests.table", self)


@dataclass(frozen=True)
class Requests:
    """The answer for `users`. `most`: the largest number that keeps the promise, without one that
    with the most tokens in all, None for none; `each`: bytes of a further person's cache;
    `machines`: how many of this machine serve them, if one is not enough."""

    row: UsersRow
    most: int | None
    each: int
    machines: int | None
    table: tuple[UsersRow, ...]

    def to_dict(self) -> dict[str, object]:
        return written("speed.requests", self)


@dataclass(frozen=True)
class _Slots(Variant):
    """A number of slots for people. Of fewer than `above` nothing is known yet but that with
    `below` all weights are on the GPUs."""

    slots: int = 1
    below: int = 0
    above: int = 1


class _People:
    """Plans launches for numbers of people, each once."""

    def __init__(self, problem: Problem, wanted: Users) -> None:
        self.problem = problem
        self.given = problem.given
        self.wanted = wanted
        work = problem.policy.workload
        # A whole request of a person must fit into its slot.
        needed = max(FIT_PARAMS_MIN_CTX, work.context, work.depth + work.prompt + work.generate)
        self.context = wanted.context or pad(
            min(needed, problem.model.n_ctx_train or needed), CELL_BLOCK
        )
        self._known: dict[int, Solution] = {}

    @property
    def waits(self) -> bool:
        """Whether who waits for a slot may be served as promised."""
        # With a promised first token waiting is counted in it; without any promise waiting is
        # allowed.
        return self.wanted.first > 0 or not self.wanted.promise

    def slots(self, users: int) -> int:
        """Return a slot for each, or the next number that llama.cpp accepts: fewer where people may
        wait for one, otherwise more."""
        given = self.given.n_parallel
        if given is not None and given >= 1:
            return given
        numbers = range(users, 0, -1) if self.waits else range(users, 2 * users)
        return next((number for number in numbers if self._accepts(number)), users)

    def _accepts(self, slots: int) -> bool:
        """Return whether llama.cpp accepts this number: some models need one that divides the
        micro-batch."""
        n_ctx = self.given.n_ctx or slots * self.context
        params = replace(self.given, n_parallel=slots, n_ctx=n_ctx)
        try:
            resolve(self.problem.model, params, self.problem.build.rules)
        except LaunchRefused:
            return False
        return True

    def launch(self, users: int) -> Solution:
        """Return the launch that serves these people best, with what they get of it."""
        if users in self._known:
            return self._known[users]
        slots = self.slots(users)
        # Who grows a launch searches no other one; a given -np leaves no slots to choose.
        only = (self.wanted.grows and not self.waits) or self.given.n_parallel not in (None, -1)

        def opened(tried: Tried) -> Iterator[Variant]:
            here = tried.variant
            assert isinstance(here, _Slots)
            whole = self._whole(tried.solution)
            # Smaller caches once: they find their own number of slots.
            smaller = not whole and here.slots == slots
            others = [self._quantised(here, tried.solution)] if smaller else []
            # Fewer slots, as many as keep all weights on the GPUs: the others wait.
            below, above = (here.slots, here.above) if whole else (here.below, here.slots)
            fewer = (below + above) // 2
            if fewer > below and not only:
                others.append(self._with_slots(here.problem, users, fewer, below, above))
            yield from filter(None, others)

        first = self._with_slots(self.asking(users), users, slots, 0, slots)
        tried, left = best_first([first], self._solved, self._ranked, opened)
        self._known[users] = replace(
            tried[0].solution,
            decided=tuple(
                [(_words(each.variant.problem), each.rank[1]) for each in tried if each.fits]
            ),
            others=tuple([each.promise for each in left]),
        )
        return self._known[users]

    def _with_slots(
        self, problem: Problem, users: int, slots: int, below: int, above: int
    ) -> _Slots:
        """Return the variant with these slots, and what no launch of fewer than `above` is better
        than: the first one needs no bound."""
        given = self.given

        def at(n: int) -> Problem:
            # A given context is that of all slots.
            return problem.with_flags(n_parallel=n, n_ctx=given.n_ctx or n * self.context)

        variant = _Slots(at(slots), what=_words(at(slots)), slots=slots, below=below, above=above)
        if slots == above:
            return variant
        most = at(above - 1)
        return replace(variant, bound=self._bound(most), what=f"up to {_words(most)}")

    def _bound(self, problem: Problem) -> Rank:
        """Return what no launch of fewer or smaller caches is better than: as if it had all weights
        on the GPUs, all of them or the one that is fastest alone, were READABLE and nobody waited
        for a slot. What waits costs is room for larger micro-batches, and for fewer slots that
        serve more."""
        given = problem.given
        devices = [device.name for device in problem.machine.devices]
        alone = [(name,) for name in devices] if given.device is None and len(devices) > 1 else []
        totals = []
        for device in (given.device, *alone, ()):
            params = replace(given, n_gpu_layers=ALL_LAYERS, device=device)
            use = problem.evaluator.static(params)
            if use is not None:
                totals.append(served_by(problem, params, use).served.total)
        if not totals:
            return NO_BOUND
        work = problem.policy.workload
        seconds = work.requests * work.generate / max(totals)
        smaller = self._is_smaller(problem)
        return FITS, worth_to_people(seconds, READABLE, False, smaller, False)

    def _is_smaller(self, problem: Problem) -> bool:
        """Return whether its caches are of another type than those that were asked for."""
        return problem.given.cache_type_k != self.given.cache_type_k

    def _ranked(self, variant: Variant, solution: Solution) -> Rank:
        if solution.candidate is None:
            return (REFUSED,)
        row, smaller = _row(solution), self._is_smaller(solution.problem)
        if not row.fits:  # of these the one with the fewest slots
            return DOES_NOT_FIT, float(row.slots), float(smaller)
        seconds = row.users * self.problem.policy.workload.generate / row.served.total
        waits, partly = row.slots < self.slots(row.users), _in_ram(solution)
        return FITS, worth_to_people(seconds, row.served.rate, waits, smaller, partly)

    def _whole(self, solution: Solution) -> bool:
        return solution.fitting is not None and not _in_ram(solution)

    def _quantised(self, here: _Slots, solution: Solution) -> _Slots | None:
        """Return the variant with a q8_0 cache; None where flags leave no type open, or one
        person's weights are in RAM: so they are for more."""
        one = solution if here.problem.policy.workload.requests == 1 else self.launch(1)
        if one.fitting is not None and _in_ram(one):
            return None
        half = self._half(solution.problem)
        if half is None:
            return None
        return replace(here, problem=half, bound=self._bound(half), what=_words(half))

    def _half(self, problem: Problem) -> Problem | None:
        """Return the problem with a q8_0 cache; None if flags leave no type open."""
        return problem.with_flags(**Q8_0) if problem.may_quantise else None

    def asking(self, users: int) -> Problem:
        """Return the problem with this many requests at once."""
        return self.problem.with_goals(
            workload=replace(self.problem.policy.workload, requests=users)
        )

    def _solved(self, variant: Variant) -> Solution:
        """Return the launch for these slots, with what people get of it."""
        found = self._launched(variant.problem)
        if found.candidate is None:
            return found
        return replace(found, requests=answers(found.problem, found.candidate))

    def _launched(self, problem: Problem) -> Solution:
        """Return a search's launch for these slots, or one person's with more slots where that may
        do: a search for each number takes long."""
        several = self.wanted.grows and problem.policy.workload.requests > 1
        one = self.launch(1) if several else None
        if one is None or not self._whole(one):
            return best_launch(problem)
        for at in filter(None, (problem, self._half(problem))):
            params = like(one, at)
            may_fit = at.evaluator.may_fit(params)
            grown = at.evaluator.candidate(params, FULL, last=True) if may_fit else None
            if grown is not None and grown.fits:
                return Solution(at, grown)
        # A launch that does not stay on the GPUs is worth a search if GPUs with more memory would
        # give well more than is promised; without a promised rate any launch may do.
        use = at.evaluator.static(params) if self.wanted.rate else None
        if use is not None and served_by(at, params, use).served.rate < 1.25 * self.wanted.rate:
            return Solution(problem, None)
        return best_launch(at)

    def keeps(self, users: int) -> bool:
        """Return whether the promise is kept. Who waits for a slot gets nothing until then, which a
        promised first token alone counts."""
        launch = self.launch(users)
        if launch.fitting is None:
            return False
        row = _row(launch)
        return (row.slots >= users or self.waits) and self.wanted.is_kept_by(row.served)

    def most_users(self) -> int:
        """Return the largest number of people that keeps the promise, 0 for none."""
        # from one on in doubling steps: most machines serve few; a llama-server has 256 slots
        return last(0, 256, self.keeps, near=1)

    def each(self, users: int) -> int:
        """Return the bytes of one more person's cache."""
        launch = self.launch(users)
        slots = self.slots(users + 1)
        if (
            launch.candidate is None
            or self.given.n_ctx is not None
            or slots == self.slots(users)
            or _row(launch).slots < users
        ):
            return 0
        more = replace(launch.candidate.params, n_parallel=slots, n_ctx=slots * self.context)
        use = self.problem.evaluator.static(more)
        return 0 if use is None else use.caches - _row(launch).context


def served_by(problem: Problem, params: Params, use: Static, fits: bool = True) -> UsersRow:
    """Return what as many people as the problem's requests get of a launch."""
    users = problem.policy.workload.requests
    clock = problem.cost.clock(params, use)
    served = simulate(clock, problem.policy.workload, users, use.n_seq_max, use.n_ctx_seq)
    return UsersRow(users, use.n_seq_max, served, use.caches, fits)


def answers(problem: Problem, candidate: Candidate) -> Requests:
    """Return the same of a launch that was measured."""
    row = served_by(problem, candidate.params, candidate.breakdown, candidate.fits)
    return Requests(row, None, 0, None, ())


def _row(solution: Solution) -> UsersRow:
    assert isinstance(solution.requests, Requests)
    return solution.requests.row


def _words(problem: Problem) -> str:
    given = problem.given
    cache = f" with a {given.cache_type_k} cache" if given.cache_type_k else ""
    return f"{given.n_parallel} slot{'s' * (given.n_parallel != 1)}{cache}"


def _in_ram(solution: Solution) -> bool:
    """Return whether a significant part of the weights is in RAM."""
    assert solution.candidate is not None
    return solution.problem.cost.in_ram(solution.candidate)


def too_many(requests: object) -> Iterator[str]:
    """Yield how many can be served where all do not fit or each gets too little: those that get the
    most in all at a rate that serves."""
    if not isinstance(requests, Requests) or not requests.table:
        return
    row = requests.row
    if row.fits and row.served.rate >= TOO_SLOW:
        return
    trouble = f"{row.users} users at once do not fit"
    if row.fits:
        trouble = (
            f"{row.users} users at once get {row.served.rate:.1f} tokens/s each, which nobody "
            f"waits for"
        )
    served = [
        each
        for each in requests.table
        if each.fits and each.served.rate >= TOO_SLOW and each.users < row.users
    ]
    if not served:
        yield f"{trouble}: a smaller model or more GPUs"
        return
    best = max(served, key=lambda each: each.served.total)
    yield (
        f"{trouble}: --users {best.users} gives each {best.served.rate:.1f}, "
        "and the others wait in llama-server's queue"
    )


def for_users(problem: Problem, wanted: Users) -> Solution:
    """Return the launch, and what each person gets."""
    if wanted.context and problem.given.n_ctx:
        raise UsageError(
            "--ctx-per-user and -c both say how large the caches are: give one of them"
        )
    people = _People(problem, wanted)
    most_users = people.most_users() if wanted.promise and not wanted.alone else None
    users = wanted.count or most_users or 1
    chosen = people.launch(users)
    if chosen.candidate is None:
        return Solution(people.asking(users), None)
    row = _row(chosen)
    table: list[UsersRow] = []
    # Without a promise people see the table, and the number with the most tokens in all.
    if not wanted.promise and not wanted.alone:
        # What these numbers get, as far as they fit and more people get more in all
        for count in (1, 2, 4, 8, 16, 32):
            launch = people.launch(count)
            if launch.fitting is None:
                break
            table.append(_row(launch))
            if len(table) > 1 and table[-1].served.total < table[-2].served.total:
                break
        fitting = [row for row in (*table, row) if row.fits]
        most_users = max(fitting, key=lambda row: row.served.total).users if fitting else 0
    if wanted.alone:
        most_users = users if row.fits else None
    short = not row.fits or (wanted.promise and not people.keeps(users))
    # How many machines like this one serve the users, where it does not serve all of them.
    more = short and most_users and most_users < users
    machines = -(-users // most_users) if more and most_users else None
    requests = Requests(row, most_users or None, people.each(users), machines, tuple(table))
    reasons = _reasons(requests, wanted, _in_ram(chosen), people.slots(users))
    return replace(chosen, reasons=(*reasons, *chosen.reasons), requests=requests)


def _reasons(requests: Requests, wanted: Users, in_ram: bool, possible: int) -> tuple[str, ...]:
    """Return what each person gets, what one more takes, and what the promise allows. `possible`:
    the slots nearest to a slot for each that llama.cpp accepts."""
    row = requests.row
    served = requests.row.served
    lines = [
        f"{row.users} user{'s' * (row.users != 1)}, all busy: {served.rate:.1f} tokens/s each, "
        f"{served.total:.0f} in all, the first token within {served.first:.1f} s (19 of 20)"
        + (f"; each further one takes {human(requests.each)}" if requests.each else "")
    ]
    if row.slots < row.users:
        why = "all of them together would get less" if in_ram else "weights would leave the GPUs"
        if row.slots == possible:
            why = "llama.cpp would abort, as the micro-batch must be a multiple of them"
        lines.append(
            f"{row.slots} slots: with more, {why}; other users wait in llama-server's queue"
        )
    if wanted.promise and not wanted.alone:
        promise = " and ".join(wanted.words())
        if requests.most is None:
            lines.append(f"no number of users gets {promise} here")
        elif requests.machines:
            lines.append(
                f"{promise}: at most {requests.most} user{'s' * (requests.most != 1)}; "
                f"{row.users} need {requests.machines} such machines, each with its llama-server"
            )
        else:
            lines.append(f"{promise}: up to {requests.most} user{'s' * (requests.most != 1)}")
    elif requests.machines:
        lines.append(
            f"{row.users} do not fit: {requests.machines} such machines for {requests.most} each"
        )
    return tuple(lines)
