"""Several people on one llama-server: its own batching, simulated with the predicted seconds of its
graphs.

    served = simulate(clock, Workload(1024, 256), users=8, slots=8, n_ctx_seq=16384)
    # tokens/s of each and of all, seconds to the first token
    served.rate, served.total, served.first

Mirrors update_slots of tools/server/server-context.cpp: each iteration decodes one batch, of a
token for each slot that answers and then as many prompt tokens as n_batch still has room for, slot
by slot. Everyone asks again as soon as the answer is there, so this is the busiest that these
people can make it.
"""

from __future__ import annotations

from collections import deque
from math import ceil

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.workload import Workload
    from .clock import Clock

# requests of each person; the first is not counted, as they do not begin together
ROUNDS = 4
_WAITED = 0.95  # share of the requests whose first token came within `Served.first`
_DEPTHS = 256  # tokens: depths this close take the same time


@dataclass(frozen=True)
class Served:
    """What each person and all together get: tokens per second of an answer, and of all answers
    with their prompts; seconds to the first token, of 19 in 20 requests."""

    rate: float
    total: float
    first: float


class _Slot:
    """A slot at work: tokens of the prompt and of the answer that are left, and those that are in
    its cache."""

    __slots__ = ("counts", "depth", "first", "left", "prompt", "requested", "user")

    def __init__(
        self, user: int, requested: float, work: Workload, n_ctx_seq: int, counts: bool
    ) -> None:
        self.user = user
        self.requested = requested
        self.counts = counts
        self.prompt = min(work.prompt, n_ctx_seq)
        self.left = work.generate
        self.depth = min(work.depth, max(0, n_ctx_seq - work.prompt - work.generate))
        self.first = 0.0


class _Simulation:
    """People who ask again as soon as they have an answer, on one server."""

    def __init__(
        self, clock: Clock, work: Workload, users: int, slots: int, n_ctx_seq: int
    ) -> None:
        self.clock = clock
        self.work = work
        self.users = users
        self.slots = slots
        self.n_ctx_seq = n_ctx_seq
        # One person's request alone: people begin spread over that time.
        alone = clock.prompt(min(work.prompt, n_ctx_seq), work.depth) + work.generate * clock.token(
            work.depth
        )
        self.waiting = deque((i * alone / users, i) for i in range(users))
        self.requests = [0] * users
        self.busy: list[_Slot] = []
        self.rates: list[float] = []
        self.firsts: list[float] = []
        self.now = 0.0
        self.begun = 0.0
        self.done = 0
        # seconds by what they depend on
        self._tokens: dict[tuple[int, int], float] = {}
        self._batches: dict[tuple[int, int], float] = {}

    def token(self, answering: list[_Slot]) -> float:
        """Return the seconds of a token for each slot that answers."""
        n = len(answering)
        depth = min(sum(slot.depth for slot in answering) / n, self.n_ctx_seq)
        key = n, round(depth / _DEPTHS)
        if key not in self._tokens:
            self._tokens[key] = self.clock.token(key[1] * _DEPTHS, n)
        return self._tokens[key]

    def batch(self, prompts: list[tuple[_Slot, int]], answering: list[_Slot]) -> float:
        """Return the seconds of a batch of parts of prompts, and of a token for each slot that
        answers."""
        size = sum(part for _, part in prompts)
        depth = sum(slot.depth * part for slot, part in prompts) / size
        key = size, round(depth / _DEPTHS)
        if key not in self._batches:
            self._batches[key] = self.clock.prompt(size, key[1] * _DEPTHS)
        # the weights are read for the prompt anyway: of the answers their caches are left
        return self._batches[key] + max(
            0.0, self.token(answering) - self.clock.token(0, len(answering)) if answering else 0.0
        )

    def run(self) -> Served:
        """Run until everyone had ROUNDS answers, and return what they got."""
        while self.done < self.users * ROUNDS:
            # Give free slots to those who wait by now.
            while self.waiting and len(self.busy) < self.slots and self.waiting[0][0] <= self.now:
                at, user = self.waiting.popleft()
                # The first request of each is not counted: not everyone has begun yet.
                counts = self.requests[user] > 0
                self.busy.append(_Slot(user, at, self.work, self.n_ctx_seq, counts))
                self.requests[user] += 1
            if self.busy:
                self._iterate()
            else:
                self.now = max(self.now, self.waiting[0][0])
        firsts = sorted(self.firsts)
        # The mean of seconds per token, not of rates: slow requests count for their time.
        each = len(self.rates) / sum(1 / rate for rate in self.rates)
        total = self.users * (ROUNDS - 1) * self.work.generate / (self.now - self.begun)
        return Served(each, total, firsts[min(len(firsts) - 1, int(_WAITED * len(firsts)))])

    def _iterate(self) -> None:
        """Decode one batch, or tokens of all answers until something changes."""
        answering = [slot for slot in self.busy if not slot.prompt]
        prompts = self._prompts(len(answering))
        steps = 1
        if prompts:
            self.now += self.batch(prompts, answering)
        else:
            seconds = self.token(answering)
            steps = self._steps(answering, seconds)
            self.now += steps * seconds
        for slot in answering:
            slot.left -= steps
            slot.depth += steps
        for slot, part in prompts:
            slot.prompt -= part
            slot.depth += part
            # The prompt's last batch gives the first token.
            if not slot.prompt:
                slot.first = self.now
                slot.left -= 1
        for slot in [slot for slot in self.busy if not slot.prompt and slot.left <= 0]:
            # Count an answer, and let its person ask again at once.
            self.busy.remove(slot)
            self.done += 1
            # From here on everyone is busy.
            if self.done == self.users:
                self.begun = self.now
            if slot.counts and self.requests[slot.user] <= ROUNDS:
                since = slot.first if self.work.generate > 1 else slot.requested
                self.rates.append(max(1, self.work.generate - 1) / (self.now - since))
                self.firsts.append(slot.first - slot.requested)
            self.waiting.append((self.now, slot.user))

    def _prompts(self, n_answering: int) -> list[tuple[_Slot, int]]:
        """Return the parts of prompts in the next batch: it has a token for each answer, and
        prompts fill the rest of n_batch."""
        prompts = []
        room = max(1, self.clock.n_batch - n_answering)
        for slot in self.busy:
            part = min(slot.prompt, room)
            if part:
                prompts.append((slot, part))
                room -= part
        return prompts

    def _steps(self, answering: list[_Slot], seconds: float) -> int:
        """Return how many tokens of each answer come before an answer ends or a slot is taken."""
        steps = min(min(slot.left for slot in answering), _DEPTHS)
        if self.waiting and len(self.busy) < self.slots:
            until = ceil((self.waiting[0][0] - self.now) / seconds)
            return max(1, min(steps, until))
        return steps


def simulate(clock: Clock, work: Workload, users: int, slots: int, n_ctx_seq: int) -> Served:
    """Simulate `users` people with this request each, on a server with this many slots."""
    return _Simulation(clock, work, users, slots, n_ctx_seq).run()
