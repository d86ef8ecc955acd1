"""What several people get of a launch that was not chosen for them, and a promise to them that is
not kept."""

from __future__ import annotations

from ..records import replace
from .users import Requests, answers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.users import Users
    from ..work.speed import Speed
    from .evaluate import Candidate
    from .problem import Problem


def price(problem: Problem, candidate: Candidate, served: bool = False) -> Speed:
    """Return the speed of a launch, with --users (or `served`) by the same figures as the plan's
    own."""
    speed = problem.cost.price(candidate)
    if problem.policy.users is None and not served:
        return speed
    return replace(speed, requests=answers(problem, candidate))


def broken(wanted: Users, requests: object) -> str:
    """Return which part of a promise is not kept, what each gets, and how many it could be kept
    for; "" if it is kept."""
    if not wanted.promise or not isinstance(requests, Requests) or not requests.row.fits:
        return ""
    row = requests.row
    parts = []
    if row.served.rate < wanted.rate:
        parts.append(f"--min-rate {wanted.rate:g} is not kept: {row.served.rate:.1f} tokens/s each")
    if wanted.first and row.served.first > wanted.first:
        parts.append(
            f"--ttft {wanted.first:g} is not kept: the first token within {row.served.first:.1f} s"
        )
    # Who waits for a slot gets nothing until then
    if not parts and not wanted.first and row.slots < row.users:
        parts.append(f"--min-rate {wanted.rate:g} is not kept: {row.users - row.slots} users wait")
    if not parts or wanted.alone:
        return "; ".join(parts)
    most = requests.most
    if most is None:
        return "; ".join([*parts, "no number of users gets it here"])
    more = f", and {row.users} need {requests.machines} such machines" if requests.machines else ""
    users = f"{most} user{'s' * (most != 1)}"
    return "; ".join([*parts, f"at most {users} get{'s' * (most == 1)} it here{more}"])
