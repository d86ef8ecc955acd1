"""Files of a fleet: those that start the servers of each machine, and those of a balancer before
them.

    files("compose", found, paths, arguments, say)        # {"rack-1/compose.yaml": text}
    files("haproxy", found, paths, arguments, say)        # {"haproxy.cfg": text}

A machine's servers listen on port 8080 and those after it. A balancer sends a request to the server
that has the fewest for its slots, and to another one where no connection can be made; a request
that a server has is never sent again.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import groupby
from string import Template

from ..errors import UsageError
from ..flags.params import Params
from ..flags.write import to_words
from ..quoting import yaml
from ..records import dataclass, replace
from ..tables import text
from . import cluster
from .command import WrappedCommand
from .formats import compose, document, kubernetes, llama_swap, llmkube
from .formats.launch_file import LaunchFile, plain_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeVar

    from ..flags.parse import Arguments
    from ..planner.compare.fleet.answer import FleetPlan, FleetServer, Place

    Say = Callable[[str], None]
    Key = TypeVar("Key")

PORT = 8080  # of a machine's first server
_WAITING = 16  # times the slots: requests that llama-swap lets a server have
BALANCER = 8000  # where a balancer listens
# Balancers' own limits of a minute would end long answers
_SECONDS = 3600  # that an answer may take
_OPEN = (
    "the servers listen on all addresses: anyone in the network may use them (--api-key, or a "
    "firewall)"
)
_NODES = (
    "hostPath has the files, hostPort is where --format haproxy, nginx and litellm send requests: "
    "Pod Security's baseline refuses both"
)
_RPC = ("compose", "kubernetes")
folder = partial(cluster.folder, bare="machine")


@dataclass(frozen=True)
class _Instance:
    """A server of a machine. `model`: its name for clients."""

    machine: str
    address: str
    port: int
    model: str
    place: Place
    server: FleetServer
    launch: LaunchFile

    @property
    def at(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


def names_of(paths: Sequence[str]) -> list[str]:
    """Return what clients call the models: their files' names, numbered where two are the same."""
    names: list[str] = []
    for path in paths:
        base = path.replace("\\", "/").rpartition("/")[2]
        name = (
            plain_name(re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", base, flags=re.IGNORECASE)).strip(
                "-"
            )
            or "model"
        )
        # e.g. "qwen3-8b", "qwen3-8b-2"
        number = sum(other == name or other.startswith(f"{name}-") for other in names) + 1
        names.append(name if name not in names else f"{name}-{number}")
    return names


def files(
    kind: str, plan: FleetPlan, paths: Sequence[str], arguments: Arguments, say: Say
) -> dict[str, str]:
    """Path -> text. Raises UsageError for a launch that this kind of file cannot express."""
    for flag in ("--port", "--host"):
        if arguments.value(flag) is not None:
            raise UsageError(f"{flag}: the files of a fleet give each server its own")
    # `use` is set for a model over several machines
    across = [server for server in plan.servers if server.use is not None]
    if across and kind not in (*_RPC, *_BALANCERS):
        raise UsageError(
            f"{plan.names[across[0].model]} spans machines by RPC, which --format {kind} cannot "
            f"start: --format {' or '.join(_RPC)}"
        )
    if arguments.own.get("gpumem") and kind != "kubernetes":
        raise UsageError(f"--gpumem is for --format kubernetes, not {kind}")
    name_of = kubernetes.label if kind in ("kubernetes", "llmkube") else folder
    cluster.refuse_same(name_of, "machines", plan.fleet.machines)
    instances = list(_instances(plan, paths, arguments))
    found = KINDS[kind](plan, instances, arguments)
    for warning in dict.fromkeys(warning for each in instances for warning in each.launch.warnings):
        say(warning)
    if kind in ("compose", "kubernetes", "llama-swap"):
        say(_OPEN)
    return found


def _instances(
    fleet_plan: FleetPlan, paths: Sequence[str], arguments: Arguments
) -> Iterator[_Instance]:
    addresses = {box.name: box.address or box.name for box in fleet_plan.fleet.machines}
    for name, places in fleet_plan.on.items():
        first = [place for place in places if place.machines[0] == name]
        for number, place in enumerate(first):
            server = fleet_plan.servers[place.server]
            # One sort of server runs in several places; over
            # RPC each place has its own devices and plan
            plan = server.plan if server.use is None else fleet_plan.use(place).plan
            words = to_words(Params(model=paths[server.model]))
            address = ("--host", "0.0.0.0", "--port", str(PORT + number))
            launch = LaunchFile(
                WrappedCommand(
                    ("llama-server",), (*words, *arguments.rest, *address), "llama-server"
                ),
                plan.flags,
                plan,
            )
            launch.image = str(arguments.own.get("image") or "")
            # Several servers share a machine's GPUs: each must see only its own
            if place.gpus and not launch.reach.backend.visible:
                raise UsageError(
                    f"machine {name}: no variable shows a process some GPUs of "
                    f"{launch.reach.backend.name}: list them as machines of one GPU"
                )
            yield _Instance(
                name,
                addresses[name],
                PORT + number,
                fleet_plan.names[server.model],
                place,
                server,
                launch,
            )


def _by(
    instances: Sequence[_Instance], key: Callable[[_Instance], Key]
) -> dict[Key, list[_Instance]]:
    groups: dict[Key, list[_Instance]] = {}
    for each in instances:
        groups.setdefault(key(each), []).append(each)
    return groups


# --- the machines


def _compose(
    plan: FleetPlan, instances: Sequence[_Instance], arguments: Arguments
) -> dict[str, str]:
    texts: dict[str, str] = {}
    for machine, own in _by(instances, lambda each: each.machine).items():
        if own[0].server.use is not None:
            texts |= _across("compose", plan, own[0], arguments)
            continue
        services = {f"llama-server-{each.port}": (each.launch, each.place.gpus) for each in own}
        texts[f"{folder(machine)}/compose.yaml"] = compose.write_services(services)
    return texts


def _across(kind: str, plan: FleetPlan, each: _Instance, arguments: Arguments) -> dict[str, str]:
    """Return the files of a server that spans machines."""
    from ..devices.cluster_file import Cluster

    use = plan.use(each.place)
    image = str(arguments.own.get("image") or cluster.IMAGE)
    words = replace(
        arguments,
        rest=(*arguments.rest, "--host", "0.0.0.0", "--port", str(each.port)),
        params=replace(arguments.params, model=each.launch.model),
    )
    machines = Cluster(plan.head(each.place), use.boxes, each.port)
    return cluster.files(kind, use, machines, words, image)


def _kubernetes(
    plan: FleetPlan, instances: Sequence[_Instance], arguments: Arguments
) -> dict[str, str]:
    """Return a Deployment for each sort of server and port, with one on each node where it belongs,
    and a Service for each model."""
    shares = str(arguments.own.get("gpumem", ""))
    texts: dict[str, str] = {}
    documents = []
    names: dict[str, None] = {}
    # Instances of a sort of server with the same port are each on another machine
    sorts = _by(instances, lambda each: (each.place.server, each.port))
    for number, group in enumerate(sorts.values()):
        first = group[0]
        if first.server.use is not None:
            for each in group:
                texts |= {
                    f"{kubernetes.label(each.machine)}-rpc/{path}": written
                    for path, written in _across("kubernetes", plan, each, arguments).items()
                }
            continue
        if first.server.share > 1 and not shares:
            raise UsageError(
                f"{first.model} shares a GPU with other models, which Kubernetes alone does not "
                "do: --gpumem hami or kai says what divides it"
            )
        name = kubernetes.name_of(first.model)
        names[name] = None
        pod = kubernetes.pod_of(first.launch, shares, "llama-server")
        # The words with another port: each pod has its own ports.
        moved = [*pod.args]
        moved[moved.index("--port") + 1] = str(PORT)
        pod = replace(
            pod,
            args=moved,
            port=PORT,
            node_port=first.port,
            nodes=tuple([each.machine for each in group]),
        )
        documents.append(
            kubernetes.deployment(f"{name}-{number}", pod, {"llama-model": name}, len(group))
        )
    documents += [
        # Selected by the model's label: several Deployments of a model are behind one Service
        kubernetes.service(name, PORT, name, "llama-model")
        for name in names
    ]
    if not documents:
        return texts
    return {"kubernetes.yaml": document.write(*documents, notes=[f"# {_NODES}"]), **texts}


def _llmkube(
    plan: FleetPlan, instances: Sequence[_Instance], arguments: Arguments
) -> dict[str, str]:
    """Return a Model and an InferenceService for each server, on its node."""
    texts = []
    for each in instances:
        if each.server.share > 1:
            raise UsageError(
                f"{each.model} shares a GPU with other models, which --format llmkube does not "
                "express: --format kubernetes --gpumem hami does"
            )
        launch = each.launch
        # --host is added above, not by the user
        launch.warnings = [line for line in launch.warnings if "--host" not in line]
        number = f"-{each.port - PORT}" if each.port > PORT else ""
        texts.append(
            llmkube.write(
                launch, f"{kubernetes.label(each.machine)}{number}-{each.model}", each.machine
            )
        )
    return {"llmkube.yaml": "---\n".join(texts)}


def _llama_swap(
    plan: FleetPlan, instances: Sequence[_Instance], arguments: Arguments
) -> dict[str, str]:
    """Return a configuration for llama-swap on each machine, all of whose models stay loaded, and
    one with them as peers. A model of several machines has there also the name MODEL@MACHINE; MODEL
    goes to the first."""
    texts = {}
    peers = {}
    first: set[str] = set()
    for machine, own in _by(instances, lambda each: each.machine).items():
        patience = max(each.launch.patience for each in own)
        models: document.Document = {}
        for model, same in _by(own, lambda each: each.model).items():
            for number, each in enumerate(same):
                name = yaml(model if not number else f"{model}-{number + 1}")
                _, file, _ = llama_swap.models_of([each.launch], sized=False)
                ((_, models[name]),) = file["models"].items()
                variables = models[name].pop("env") or []
                if each.place.gpus:
                    # e.g. "CUDA_VISIBLE_DEVICES=1"
                    numbers = ",".join(map(str, each.place.gpus))
                    variables.append(yaml(f"{each.launch.reach.backend.visible}={numbers}"))
                models[name] |= {
                    "aliases": None if number else f"[{yaml(f'{model}@{machine}')}]",
                    # llama-swap refuses further ones with 429; llama-server lets them wait
                    "concurrencyLimit": _WAITING * each.server.slots,
                    "env": variables or None,
                }
        group = {"swap": False, "exclusive": True, "members": [*models]}
        # All fit together, so all are loaded when llama-swap starts
        hooks = {"on_startup": {"preload": [*models]}}
        texts[f"{folder(machine)}/config.yaml"] = document.write(
            {
                "healthCheckTimeout": patience,
                "models": models,
                "groups": {"fleet": group},
                "hooks": hooks,
            }
        )
        served = list(_by(own, lambda each: each.model))
        # MODEL alone is listed once, at the first machine that serves it
        alone = [name for name in served if name not in first]
        listed = [*alone, *(f"{name}@{machine}" for name in served)]
        peers[yaml(machine)] = {
            "proxy": yaml(f"http://{own[0].at}"),
            "models": list(map(yaml, listed)),
        }
        first |= set(served)
    note = "# llama-swap sends a model's requests to one peer: MODEL@MACHINE names another one"
    texts["peers/config.yaml"] = document.write({"models": {}, "peers": peers}, notes=[note])
    return texts


# --- the balancers


def _balanced(
    file: str, plan: FleetPlan, instances: Sequence[_Instance], arguments: Arguments
) -> dict[str, str]:
    """Return a template's lines, filled in. The word before each says for what it is written: each
    server ("each"), each model, each server of that model, a model that is alone; "why": never."""
    rows = [line.partition("|") for line in text(f"launch/balancers/{file}").splitlines()]
    models = _by(instances, lambda each: each.model)
    lines = []
    for many, block in groupby(
        (row for row in rows if row[0] != "why"), lambda row: row[0] in ("model", "server")
    ):
        parts = [(kind, list(group)) for kind, group in groupby(block, lambda row: row[0])]
        for number, own in enumerate(list(models.values())[: None if many else 1]):
            for kind, part in parts:
                servers = {"each": instances, "server": own}.get(kind, own[:1])
                if kind == "alone" and len(models) > 1:
                    continue
                for i, each in enumerate(servers):
                    slots = each.server.slots
                    values = {
                        "number": number,
                        "i": i,
                        "at": each.at,
                        "api": yaml(f"http://{each.at}/v1"),
                        "name": each.model,
                        "path": re.escape(each.model),
                        "model": yaml(each.model),
                        "openai": yaml(f"openai/{each.model}"),
                        "slots": slots,
                        "weight": min(256, slots),
                        "seconds": _SECONDS,
                        "listen": BALANCER,
                    }
                    lines += [Template(line).substitute(values) + "\n" for _, _, line in part]
    return {file: "".join(lines)}


_BALANCERS = {"litellm": "litellm.yaml", "nginx": "nginx.conf", "haproxy": "haproxy.cfg"}
KINDS: dict[str, Callable[[FleetPlan, Sequence[_Instance], Arguments], dict[str, str]]] = {
    "compose": _compose,
    "kubernetes": _kubernetes,
    "llmkube": _llmkube,
    "llama-swap": _llama_swap,
    **{kind: partial(_balanced, file) for kind, file in _BALANCERS.items()},
}
