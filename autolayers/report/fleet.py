"""A fleet's plan as text and as JSON."""

from __future__ import annotations

from .. import __version__
from ..quoting import shell
from ..units import GiB
from .multi import model_words
from .table import PLAIN, Style, labelled, stacked, warned, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.compare.fleet.answer import FleetPlan

# (found.next has the best first)
_SHOWN = 4  # machines to buy


def fleet_text(plan: FleetPlan, style: Style = PLAIN) -> str:
    """Return the whole answer."""
    # "20 tokens/s each and a first token within 2 s"
    promise = " and ".join(plan.wanted.each.words())
    at_least = f" with {promise}" if promise else ""
    served, wanted = sum(plan.users), plan.wanted.users
    what, are = (f"{served} users", "are") if served != 1 else ("one user", "is")
    decision = f"{what} {are} served{at_least}"
    if wanted is not None and served < wanted:
        decision = f"{wanted} users cannot be served{at_least}: {what} can"
    elif wanted is not None and plan.most > served:
        decision += f"; up to {plan.most} can be"
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
    rows = []
    for number, server in enumerate(plan.servers):
        # One place a replica: the machine, or the machines of a server over RPC
        places = [" + ".join(place.machines) for place in plan.places if place.server == number]
        used, free = (
            sum(getattr(row, name) for row in server.plan.devices) for name in ("used", "free")
        )
        # What the pod or the service may use, growth included
        ram = server.plan.ram.limit
        rows.append(
            [
                _some(list(dict.fromkeys(places))),
                plan.names[server.model],
                str(len(places)),
                str(server.slots),
                str(server.plan.breakdown.n_ctx_seq),
                f"{server.rate:.1f}",
                f"{server.first:.1f} s" if server.first else "-",
                f"{used / GiB:.1f} of {free / GiB:.1f} GiB" if server.plan.devices else "-",
                "no limit" if ram is None else f"{ram / GiB:.1f} GiB",
            ]
        )
    lines += [*stacked(head, rows, style, (0, 1), first=2), ""]
    lines += wrap(
        "* predicted, not measured: what each user gets at least, with all slots busy; users and "
        "context are those of one server",
        style.width,
    )
    fails = []
    for each in [each for each in plan.failing if plan.on[each.machine]]:
        # They start at once: the slowest decides
        load = max(plan.load(place.server) for place in plan.on[each.machine])
        text = "the others have slots for all its users"
        if each.waiting:
            waits = f"{each.waiting} users wait" if each.waiting != 1 else "one user waits"
            text = f"{waits} until it is back, {load:.0f} s after its start"
        # Where it was computed what a new plan would serve
        if each.again is not None:
            again = f"up to {each.again} are served" if each.again else "a model is not served"
            text += f"; planned again without it, {again}"
        fails.append(f"{each.machine}: {text}")
    # The machines of each kind that have no server
    idle = [
        (kind.title, [box.name for box in kind.machines if not plan.on[box.name]])
        for kind in plan.fleet.kinds
    ]
    lines.append("")
    for label, texts in (
        ("unserved", [each.why for each in plan.unserved]),
        ("fails", fails),
        ("free", [f"{_some(names)}: {title}" for title, names in idle if names]),
        ("buy", [f"{each.name}: {each.users} users" for each in plan.next[:_SHOWN]]),
    ):
        lines += labelled(label, texts, style)
    # The warnings of the plans, each once
    warnings = [
        f"{plan.names[server.model]}: {warning}"
        for server in plan.servers
        for warning in server.plan.warnings
    ]
    for note in [*plan.notes, *dict.fromkeys(warnings)]:
        lines += warned(note, style.width)
    return "\n".join(lines) + "\n"


def _some(names: Sequence[str]) -> str:
    """Return the first of the machines, and how many more there are."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


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
        "servers": [
            {
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
            for number, server in enumerate(plan.servers)
        ],
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
