"""A fleet's plan as text and as JSON."""

from __future__ import annotations

from .. import __version__
from ..quoting import shell
from ..units import GiB
from .multi import model_words
from .table import Style, labelled, stacked, warned, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.compare.fleet.answer import FleetPlan, FleetServer

# (found.next has the best first)
_SHOWN = 4  # machines to buy


def fleet_text(plan: FleetPlan, style: Style | None = None) -> str:
    """Return the whole answer."""
    style = style or Style()
    # "20 tokens/s each and a first token within 2 s"
    promise = " and ".join(plan.wanted.each.words())
    at_least = f" with {promise}" if promise else ""
    served, wanted = sum(plan.users), plan.wanted.users
    what, are = (f"{served} users", "are") if served != 1 else ("one user", "is")
    if wanted is not None and served < wanted:
        decision = f"{wanted} users cannot be served{at_least}: {what} can"
    else:
        text = f"{what} {are} served{at_least}"
        if wanted is not None and plan.most > served:
            text += f"; up to {plan.most} can be"
        decision = text
    lines = [*wrap(style(decision, "bold"), style.width), ""]
    head = (
        "machines",
        "model",
        "servers",
        "users",
        "context",
        "t/s each*",
        "first*",
        "of its GPUs",
        "RAM at most",
    )
    rows = [_row(plan, number, server) for number, server in enumerate(plan.servers)]
    lines += [*stacked(head, rows, style, (0, 1), first=2), ""]
    lines += wrap(
        "* predicted, not measured: what each user gets at least, with all slots busy; users and "
        "context are those of one server",
        style.width,
    )
    lines += [""]
    lines += labelled("unserved", [each.why for each in plan.unserved], style)
    used = [number for number, each in enumerate(plan.failing) if plan.on[each.machine]]
    lines += labelled("fails", [_failing(plan, number) for number in used], style)
    lines += labelled("free", _free(plan), style)
    lines += labelled(
        "buy", [f"{each.name}: {each.users} users" for each in plan.next[:_SHOWN]], style
    )
    for note in [*plan.notes, *_warnings(plan)]:
        lines += warned(note, style.width)
    return "\n".join(lines) + "\n"


def fleet_flags(plan: FleetPlan) -> str:
    """Return a line for each server: its machine, and llama-server's words."""
    lines = []
    for place in plan.places:
        server = plan.servers[place.server]
        # A server over RPC has the addresses of its own machines in its flags
        flags = server.plan.flags if server.use is None else plan.use(place).plan.flags
        lines.append(shell([place.machines[0], *model_words(server.plan), *flags]))
    return "\n".join(lines) + "\n"


def to_dict(plan: FleetPlan) -> dict[str, object]:
    """Return the --json document, schema 1, of docs/fleet.md; sizes in bytes."""
    kinds = plan.fleet.kinds
    return {
        "schema": 1,
        "autolayers": __version__,
        "fits": plan.fits,
        "interrupted": plan.interrupted,
        "users": {
            "asked": plan.wanted.users,
            "most": plan.most,
            "bound": plan.bound,
            "min_rate": plan.wanted.each.rate or None,
            "ttft": plan.wanted.each.first or None,
        },
        "kinds": [
            {
                "title": kind.title,
                "machines": [box.name for box in kind.machines],
                "gpus": kind.gpus,
            }
            for kind in kinds
        ],
        "models": [
            {"name": name, "weight": weight, "users": users}
            for name, weight, users in zip(plan.names, plan.weights, plan.users, strict=True)
        ],
        "servers": [_server(plan, number, server) for number, server in enumerate(plan.servers)],
        "machines": {
            name: [
                {
                    "server": place.server,
                    # None: all of the machine's
                    "gpus": place.gpus and list(place.gpus),
                    "machines": list(place.machines),
                }
                for place in places
            ]
            for name, places in plan.on.items()
        },
        "unserved": [{"model": plan.names[each.model], "why": each.why} for each in plan.unserved],
        "failing": [
            {
                "kind": each.kind,
                "machine": each.machine,
                "waiting": each.waiting,
                "replanned": each.again,
            }
            for each in plan.failing
        ],
        "next": [
            {"name": each.name, "kind": each.kind, "users": each.users, "memory": each.memory}
            for each in plan.next
        ],
        "notes": list(plan.notes),
    }


def _server(plan: FleetPlan, number: int, server: FleetServer) -> dict[str, object]:
    return {
        "model": plan.names[server.model],
        "kinds": [kind for kind, _ in server.takes],
        "gpus": sum(gpus for _, gpus in server.takes),
        "replicas": plan.replicas(number),
        "slots": server.slots,
        "context": server.plan.breakdown.n_ctx_seq,
        # share counts the server itself
        "shares_gpu_with": server.share - 1,
        "rpc": server.use is not None,
        "per_user_tokens_per_second": round(server.rate, 3),
        "seconds_to_first_token": round(server.first, 3),
        "load_seconds": round(plan.load(number), 1),
        "plan": server.plan.to_dict(),
    }


def _row(plan: FleetPlan, number: int, server: FleetServer) -> list[str]:
    # One place a replica: the machine, or the machines of a server over RPC
    names = [" + ".join(place.machines) for place in plan.places if place.server == number]
    machines = list(dict.fromkeys(names))
    shown = machines[0] if len(machines) == 1 else f"{machines[0]} and {len(machines) - 1} more"
    used, free = (
        sum(getattr(row, name) for row in server.plan.devices) for name in ("used", "free")
    )
    # What the pod or the service may use, growth included
    ram = server.plan.ram.limit
    return [
        shown,
        plan.names[server.model],
        str(len(names)),
        str(server.slots),
        str(server.plan.breakdown.n_ctx_seq),
        f"{server.rate:.1f}",
        f"{server.first:.1f} s" if server.first else "-",
        f"{used / GiB:.1f} of {free / GiB:.1f} GiB" if server.plan.devices else "-",
        "no limit" if ram is None else f"{ram / GiB:.1f} GiB",
    ]


def _failing(plan: FleetPlan, number: int) -> str:
    each = plan.failing[number]
    # They start at once: the slowest decides
    load = max(plan.load(place.server) for place in plan.on[each.machine])
    text = (
        f"{each.machine}: {_count(each.waiting)} until it is back, {load:.0f} s after its start"
        if each.waiting
        else f"{each.machine}: the others have slots for all its users"
    )
    # It was not computed what a new plan would serve
    if each.again is None:
        return text
    again = f"up to {each.again} are served" if each.again else "a model is not served"
    return f"{text}; planned again without it, {again}"


def _count(users: int) -> str:
    return f"{users} users wait" if users != 1 else "one user waits"


def _free(plan: FleetPlan) -> list[str]:
    """Return the machines of each kind that have no server."""
    lines = []
    for kind in plan.fleet.kinds:
        names = [box.name for box in kind.machines if not plan.on[box.name]]
        if names:
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            lines.append(f"{names[0]}{others}: {kind.title}")
    return lines


def _warnings(plan: FleetPlan) -> Sequence[str]:
    """Return the warnings of the plans, each once."""
    return [
        *dict.fromkeys(
            f"{plan.names[server.model]}: {warning}"
            for server in plan.servers
            for warning in server.plan.warnings
        )
    ]
