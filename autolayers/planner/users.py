"""Slots and context for people: -np, -c, the cache's kind and types for --users, and what each of
them gets.

    solved = for_users(problem, Users(8, context=16384, rate=20, first=5))

Each number of people is planned as a launch with a slot for each, priced as that many requests at
once, and simulated (work/queue.py). The caches are of f16 unless that takes weights off the GPUs;
then q8_0 is tried.
"""

from __future__ import annotations

from ..errors import LaunchRefused, UsageError
from ..flags.users import Users
from ..keys import written
from ..memory.context import CELL_BLOCK, pad, resolve
from ..records import dataclass, replace
from ..units import human
from ..work.queue import Served, simulate
from .best_launch import best_launch
from .evaluate import FULL, Candidate
from .one.bisection import last
from .prices import PEOPLE, TOO_SLOW
from .problem import Problem, Solution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..flags.params import Params

TABLE = (1, 2, 4, 8, 16, 32)
MOST = 256  # slots of a llama-server
HOPE = 1.25  # times the promise: what a launch with parts in RAM must have to spare
LEAST = 4096  # tokens of a person's context, if that is open


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
class _Launch:
    """The launch for a number of people."""

    problem: Problem
    candidate: Candidate
    row: UsersRow

    @property
    def in_ram(self) -> bool:
        """Whether a significant part of the weights is in RAM."""
        return self.problem.cost.in_ram(self.candidate)


class _People:
    """Plans launches for numbers of people, each once."""

    def __init__(self, problem: Problem, wanted: Users) -> None:
        self.problem = problem
        self.given = problem.given
        self.wanted = wanted
        work = problem.policy.workload
        # A whole request of a person must fit into its slot.
        needed = max(LEAST, work.context, work.depth + work.prompt + work.generate)
        self.context = wanted.context or pad(
            min(needed, problem.model.n_ctx_train or needed), CELL_BLOCK
        )
        self._known: dict[int, _Launch | None] = {}

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

    def launch(self, users: int) -> _Launch | None:
        if users not in self._known:
            self._known[users] = self._planned(users)
        return self._known[users]

    def _planned(self, users: int) -> _Launch | None:
        """Return the launch with a slot for each, or with fewer if that serves clearly more: the
        others wait."""
        slots = self.slots(users)
        each = self._with_slots(users, slots)
        # Who grows a launch searches no other one; a given -np leaves no slots to choose.
        grows = self.wanted.grows and not self.waits
        if grows or self.given.n_parallel not in (None, -1) or self._whole(each):
            return each
        tried = [each]
        # Halves until all weights are on the GPUs; then as many slots as still keep them there.
        while slots > 1 and not self._whole(tried[-1]):
            slots //= 2
            tried.append(self._with_slots(users, slots))
        if self._whole(tried[-1]):
            tried[-1] = self._most_slots(users, slots, tried[-1])
        # Fewer slots only for clearly more tokens in all: with a slot each nobody waits.
        good = max(map(_total, tried)) / PEOPLE.factor
        if _total(each) >= good and each is not None and each.row.served.rate >= TOO_SLOW:
            return each
        return next(launch for launch in tried[::-1] if _total(launch) >= good)

    def _most_slots(self, users: int, slots: int, best: _Launch | None) -> _Launch | None:
        """Return the launch with the most slots, from `slots` to twice as many, that has all
        weights on the GPUs."""
        found = {slots: best}

        def is_whole(count: int) -> bool:
            found[count] = self._with_slots(users, count)
            return self._whole(found[count])

        return found[last(slots, 2 * slots, is_whole)]

    def _whole(self, launch: _Launch | None) -> bool:
        return launch is not None and launch.row.fits and not launch.in_ram

    def _serves_more(self, fewer: _Launch | None, launch: _Launch | None) -> bool:
        if fewer is None or not fewer.row.fits:
            return False
        return _total(fewer) > _total(launch) * PEOPLE.factor

    def _with_slots(self, users: int, slots: int) -> _Launch | None:
        # A given context is that of all slots.
        n_ctx = self.given.n_ctx or slots * self.context
        problem = self.asking(users).with_flags(n_parallel=slots, n_ctx=n_ctx)
        half = self._quantised(problem)
        # One person's launch with more slots is measured at once; a search for each number takes
        # long.
        if self.wanted.grows and users > 1:
            grown = self._grown(problem, users)
            if grown is None and half is not None:
                grown = self._grown(half, users)
            if grown is not None or not self._hopes(half or problem, users):
                return grown
            if half is not None and self._whole(self.launch(1)):
                return self._solved(half, users)
        return self._searched(problem, half, users)

    def _quantised(self, problem: Problem) -> Problem | None:
        """Return the problem with a q8_0 cache; None if flags leave no type open."""
        given = self.given
        typed = given.cache_type_k or given.cache_type_v or self.problem.policy.kv_types
        # A quantised cache of V needs flash attention.
        if typed or given.flash_attn == "off":
            return None
        return problem.with_flags(cache_type_k="q8_0", cache_type_v="q8_0")

    def _searched(self, problem: Problem, half: Problem | None, users: int) -> _Launch | None:
        """Return the launch that a search finds, with a q8_0 cache if that serves clearly more."""
        launch = self._solved(problem, users)
        whole = self._whole(launch)
        one = launch if users == 1 else self.launch(1)
        partly = one is not None and one.row.fits and one.in_ram  # so it is for more
        if whole or partly or half is None:
            return launch
        smaller = self._solved(half, users)
        return smaller if self._serves_more(smaller, launch) else launch

    def asking(self, users: int) -> Problem:
        """Return the problem with this many requests at once."""
        return self.problem.with_goals(
            workload=replace(self.problem.policy.workload, requests=users)
        )

    def _grown(self, problem: Problem, users: int) -> _Launch | None:
        """Return one person's launch with more slots, where it stays on the GPUs and fits."""
        params = self._with_more(problem)
        if params is None or not self.problem.evaluator.may_fit(params):
            return None
        candidate = self.problem.evaluator.candidate(params, FULL, last=True)
        if candidate is None or not candidate.fits:
            return None
        return self._served(problem, candidate, users)

    def _with_more(self, problem: Problem) -> Params | None:
        """Return one person's launch with the slots of this problem, None where it is not on the
        GPUs."""
        one = self.launch(1)
        given = problem.given
        if one is None or not self._whole(one):
            return None
        return replace(
            one.candidate.params,
            n_parallel=given.n_parallel,
            n_ctx=given.n_ctx,
            cache_type_k=given.cache_type_k,
            cache_type_v=given.cache_type_v,
        )

    def _hopes(self, problem: Problem, users: int) -> bool:
        """Return whether a launch that does not stay on the GPUs is worth a search: if GPUs with
        more memory would give well more than is promised."""
        params = self._with_more(problem)
        use = None if params is None else self.problem.evaluator.static(params)
        # Without a promised rate any launch may do.
        if params is None or use is None or not self.wanted.rate:
            return True
        clock = problem.cost.clock(params, use)
        served = simulate(clock, problem.policy.workload, users, use.n_seq_max, use.n_ctx_seq)
        return served.rate >= HOPE * self.wanted.rate

    def _solved(self, problem: Problem, users: int) -> _Launch | None:
        candidate = best_launch(problem).candidate
        return None if candidate is None else self._served(problem, candidate, users)

    def _served(self, problem: Problem, candidate: Candidate, users: int) -> _Launch:
        """Return the launch, with what these people get of it."""
        use = candidate.breakdown
        clock = problem.cost.clock(candidate.params, candidate.breakdown)
        served = simulate(clock, problem.policy.workload, users, use.n_seq_max, use.n_ctx_seq)
        row = UsersRow(users, use.n_seq_max, served, use.caches, candidate.fits)
        return _Launch(problem, candidate, row)

    def keeps(self, users: int) -> bool:
        """Return whether the promise is kept. Who waits for a slot gets nothing until then, which a
        promised first token alone counts."""
        launch = self.launch(users)
        if launch is None or not launch.row.fits:
            return False
        return (launch.row.slots >= users or self.waits) and self.wanted.is_kept_by(
            launch.row.served
        )

    def most_users(self) -> int:
        """Return the largest number of people that keeps the promise, 0 for none."""
        # from one on in doubling steps: most machines serve few
        return last(0, MOST, self.keeps, near=1)

    def each(self, users: int) -> int:
        """Return the bytes of one more person's cache."""
        launch = self.launch(users)
        slots = self.slots(users + 1)
        if (
            launch is None
            or self.given.n_ctx is not None
            or slots == self.slots(users)
            or launch.row.slots < users
        ):
            return 0
        more = replace(launch.candidate.params, n_parallel=slots, n_ctx=slots * self.context)
        use = self.problem.evaluator.static(more)
        return 0 if use is None else use.caches - launch.row.context


def _total(launch: _Launch | None) -> float:
    """Return the tokens per second of all together, 0 of a launch that does not fit."""
    return launch.row.served.total if launch is not None and launch.row.fits else 0.0


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
    if chosen is None:
        return Solution(people.asking(users), None)
    table: list[UsersRow] = []
    # Without a promise people see the table, and the number with the most tokens in all.
    if not wanted.promise and not wanted.alone:
        table = _table(people)
        fitting = [row for row in (*table, chosen.row) if row.fits]
        most_users = max(fitting, key=lambda row: row.served.total).users if fitting else 0
    if wanted.alone:
        most_users = users if chosen.row.fits else None
    short = not chosen.row.fits or (wanted.promise and not people.keeps(users))
    machines = _machines(users, most_users) if short else None
    requests = Requests(chosen.row, most_users or None, people.each(users), machines, tuple(table))
    return Solution(
        chosen.problem,
        chosen.candidate,
        _reasons(requests, wanted, chosen.in_ram, people.slots(users)),
        requests=requests,
    )


def _machines(users: int, most_users: int | None) -> int | None:
    """Return how many machines serve the users, each as many as this one; None if it serves nobody
    or all of them."""
    if not most_users or most_users >= users:
        return None
    return -(-users // most_users)


def _table(people: _People) -> list[UsersRow]:
    """Return what the numbers of TABLE get, as far as they fit and more people get more in all."""
    table: list[UsersRow] = []
    for count in TABLE:
        launch = people.launch(count)
        if launch is None or not launch.row.fits:
            break
        table.append(launch.row)
        if len(table) > 1 and launch.row.served.total < table[-2].served.total:
            break
    return table


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
