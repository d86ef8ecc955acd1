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


class _Server:
    def __init__(self, clock: Clock, n_ctx_seq: int) -> None:
        self.clock = clock
        self.n_ctx_seq = n_ctx_seq
        self._tokens: dict[tuple[int, int], float] = {}
        self._prompts: dict[tuple[int, int], float] = {}

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
        if key not in self._prompts:
            self._prompts[key] = self.clock.prompt(size, key[1] * _DEPTHS)
        # the weights are read for the prompt anyway: of the answers their caches are left
        return self._prompts[key] + max(
            0.0, self.token(answering) - self.clock.token(0, len(answering)) if answering else 0.0
        )


def simulate(clock: Clock, work: Workload, users: int, slots: int, n_ctx_seq: int) -> Served:
    """Simulate `users` people with this request each, on a server with this many slots."""
    server = _Server(clock, n_ctx_seq)
    # One person's request alone: people begin spread over that time.
    alone = clock.prompt(min(work.prompt, n_ctx_seq), work.depth) + work.generate * clock.token(
        work.depth
    )
    waiting = deque((i * alone / users, i) for i in range(users))
    requests = [0] * users
    busy: list[_Slot] = []
    rates: list[float] = []
    firsts: list[float] = []
    now = 0.0
    begun = 0.0
    done = 0
    while done < users * ROUNDS:
        while waiting and len(busy) < slots and waiting[0][0] <= now:
            at, user = waiting.popleft()
            # The first request of each is not counted: not everyone has begun yet.
            busy.append(_Slot(user, at, work, n_ctx_seq, requests[user] > 0))
            requests[user] += 1
        if not busy:
            now = max(now, waiting[0][0])
            continue
        answering = [slot for slot in busy if not slot.prompt]
        prompts: list[tuple[_Slot, int]] = []
        # A batch has a token for each answer, and prompts fill the rest of n_batch.
        room = max(1, clock.n_batch - len(answering))
        for slot in busy:
            part = min(slot.prompt, room)
            if part:
                prompts.append((slot, part))
                room -= part
        steps = 1
        if prompts:
            now += server.batch(prompts, answering)
        else:
            # No prompt waits: all tokens until something changes are one step.
            seconds = server.token(answering)
            steps = min(min(slot.left for slot in answering), _DEPTHS)
            if waiting and len(busy) < slots:
                steps = max(1, min(steps, ceil((waiting[0][0] - now) / seconds)))
            now += steps * seconds
        for slot in answering:
            slot.left -= steps
            slot.depth += steps
        for slot, part in prompts:
            slot.prompt -= part
            slot.depth += part
            if not slot.prompt:
                # The prompt's last batch gives the first token.
                slot.first = now
                slot.left = slot.left - 1
        for slot in [slot for slot in busy if not slot.prompt and slot.left <= 0]:
            busy.remove(slot)
            done += 1
            # From here on everyone is busy.
            begun = now if done == users else begun
            if slot.counts and requests[slot.user] <= ROUNDS:
                since = slot.first if work.generate > 1 else slot.requested
                rates.append(max(1, work.generate - 1) / (now - since))
                firsts.append(slot.first - slot.requested)
            # Asks again at once: as busy as these people can make it.
            waiting.append((now, slot.user))
    firsts.sort()
    # The mean of seconds per token, not of rates: slow requests count for their time.
    each = len(rates) / sum(1 / rate for rate in rates)
    total = users * (ROUNDS - 1) * work.generate / (now - begun)
    return Served(each, total, firsts[min(len(firsts) - 1, int(_WAITED * len(firsts)))])
