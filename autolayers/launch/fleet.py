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

from ..errors import UsageError
from ..flags.params import Params
from ..flags.write import to_words
from ..quoting import yaml
from ..records import dataclass, replace
from . import cluster
from .command import WrappedCommand
from .formats import compose, document, kubernetes, llama_swap, llmkube
from .formats.launch_file import LaunchFile, plain_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..flags.parse import Arguments
    from ..planner.compare.fleet.answer import FleetPlan, FleetServer, Place

    Say = Callable[[str], None]

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


def _refuse_same_names(kind: str, machines: Iterable[str]) -> None:
    """Raise UsageError for machines whose files would have the same names."""
    name_of = kubernetes.label if kind in ("kubernetes", "llmkube") else folder
    machine_of: dict[str, str] = {}
    for machine in machines:
        other = machine_of.setdefault(name_of(machine), machine)
        if other != machine:
            raise UsageError(
                f"the files of the machines {other!r} and {machine!r} would have the "
                "same names: rename one"
            )


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
    _refuse_same_names(kind, (box.name for box in plan.fleet.machines))
    instances = list(_instances(plan, paths, arguments))
    text = KINDS[kind](plan, instances, arguments)
    for warning in dict.fromkeys(warning for each in instances for warning in each.launch.warnings):
        say(warning)
    if kind in ("compose", "kubernetes", "llama-swap"):
        say(_OPEN)
    return text


def folder(name: str) -> str:
    """Return the directory of a machine's files, never a parent directory."""
    return plain_name(name).lstrip(".") or "machine"


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


def _by_machine(instances: Sequence[_Instance]) -> dict[str, list[_Instance]]:
    groups: dict[str, list[_Instance]] = {}
    for each in instances:
        groups.setdefault(each.machine, []).append(each)
    return groups


def _by_model(instances: Sequence[_Instance]) -> dict[str, list[_Instance]]:
    groups: dict[str, list[_Instance]] = {}
    for each in instances:
        groups.setdefault(each.model, []).append(each)
    return groups


# --- the machines


def _compose(
    plan: FleetPlan, instances: Sequence[_Instance], arguments: Arguments
) -> dict[str, str]:
    texts: dict[str, str] = {}
    for machine, own in _by_machine(instances).items():
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


def _by_server(instances: Sequence[_Instance]) -> dict[tuple[int, int], list[_Instance]]:
    """Return the instances of each sort of server that have the same port, each on another
    machine."""
    groups: dict[tuple[int, int], list[_Instance]] = {}
    for each in instances:
        groups.setdefault((each.place.server, each.port), []).append(each)
    return groups


def _kubernetes(
    plan: FleetPlan, instances: Sequence[_Instance], arguments: Arguments
) -> dict[str, str]:
    """Return a Deployment for each sort of server and port, with one on each node where it belongs,
    and a Service for each model."""
    shares = str(arguments.own.get("gpumem", ""))
    texts: dict[str, str] = {}
    documents = []
    names: dict[str, None] = {}
    for number, group in enumerate(_by_server(instances).values()):
        first = group[0]
        if first.server.use is not None:
            for each in group:
                texts |= {
                    f"{kubernetes.label(each.machine)}-rpc/{path}": text
                    for path, text in _across("kubernetes", plan, each, arguments).items()
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
    text = document.write(*documents, notes=[f"# {_NODES}"])
    return {**({"kubernetes.yaml": text} if documents else {}), **texts}


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
    peers = [
        "# llama-swap sends a model's requests to one peer: MODEL@MACHINE names another one",
        "models: {}",
        "peers:",
    ]
    first: set[str] = set()
    for machine, own in _by_machine(instances).items():
        texts[f"{folder(machine)}/config.yaml"] = _swap(machine, own)
        served = list(_by_model(own))
        peers += [
            f"  {yaml(machine)}:",
            f"    proxy: {yaml(f'http://{own[0].at}')}",
            "    models:",
            # MODEL alone is listed once, at the first machine that serves it
            *(f"      - {yaml(name)}" for name in served if name not in first),
            *(f"      - {yaml(f'{name}@{machine}')}" for name in served),
        ]
        first |= set(served)
    return {**texts, "peers/config.yaml": "\n".join(peers) + "\n"}


def _swap(machine: str, own: Sequence[_Instance]) -> str:
    patience = max(each.launch.patience for each in own)
    lines = [f"healthCheckTimeout: {patience}", "models:"]
    names = []
    for model, same in _by_model(own).items():
        for number, each in enumerate(same):
            name = model if not number else f"{model}-{number + 1}"
            names.append(name)
            text = llama_swap.models_of([each.launch], sized=False)[0]
            variables: list[str] = []
            if "    env:" in text:
                at = text.index("    env:")
                text, variables = text[:at], text[at + 1 :]
            lines += [
                f"  {yaml(name)}:",
                *text[text.index("models:") + 2 :],
                *(f"    aliases: [{yaml(f'{name}@{machine}')}]",) * (not number),
                # llama-swap refuses further ones with 429; llama-server lets them wait for a slot
                f"    concurrencyLimit: {_WAITING * each.server.slots}",
            ]
            if each.place.gpus:
                shown = ",".join(map(str, each.place.gpus))
                # e.g. "CUDA_VISIBLE_DEVICES=1"
                variable = f"{each.launch.reach.backend.visible}={shown}"
                variables.append(f"      - {yaml(variable)}")
            lines += ["    env:", *variables] if variables else []
    lines += [
        "groups:",
        "  fleet:",
        "    swap: false",
        "    exclusive: true",
        "    members:",
        *(f"      - {yaml(name)}" for name in names),
        # All fit together, so all are loaded when llama-swap starts
        "hooks:",
        "  on_startup:",
        "    preload:",
        *(f"      - {yaml(name)}" for name in names),
    ]
    return "\n".join(lines) + "\n"


# --- the balancers


def _litellm(
    plan: FleetPlan, instances: Sequence[_Instance], arguments: Arguments
) -> dict[str, str]:
    """config.yaml of LiteLLM's proxy: a deployment for each server."""
    lines = ["# LITELLM_MASTER_KEY=sk-... litellm --config litellm.yaml", "model_list:"]
    for each in instances:
        lines += [
            f"  - model_name: {yaml(each.model)}",
            "    litellm_params:",
            # LiteLLM's provider for any server with OpenAI's API
            f"      model: {yaml(f'openai/{each.model}')}",
            f"      api_base: {yaml(f'http://{each.at}/v1')}",
            '      api_key: "none"',
            f"      weight: {each.server.slots}",
            # No more at once than it has slots: it would queue them while another one is idle
            f"      max_parallel_requests: {each.server.slots}",
            f"      timeout: {_SECONDS}",
        ]
    lines += [
        "router_settings:",
        "  routing_strategy: least-busy",
        # It cannot tell a request that reached a server from one that did not
        "  num_retries: 0",
        "  allowed_fails: 1",
        "  cooldown_time: 30",
    ]
    return {"litellm.yaml": "\n".join(lines) + "\n"}


def _nginx(plan: FleetPlan, instances: Sequence[_Instance], arguments: Arguments) -> dict[str, str]:
    """Return a configuration of nginx: http://BALANCER:8000/MODEL/v1/..., of a single model without
    its name too."""
    models = _by_model(instances)
    lines = ["# nginx -c $PWD/nginx.conf", "events {}", "http {"]
    for number, own in enumerate(models.values()):
        lines += [
            f"  upstream model{number} {{",
            # The fewest connections by weight, and a weight is the number of slots
            "    least_conn;",
            *(
                f"    server {each.at} weight={each.server.slots} max_fails=1 fail_timeout=10s;"
                for each in own
            ),
            "  }",
        ]
    lines += [
        "  server {",
        f"    listen {BALANCER};",
        "    client_max_body_size 256m;",
        # Tokens reach the client as they come
        "    proxy_buffering off;",
        "    proxy_http_version 1.1;",
        "    proxy_connect_timeout 5s;",
        f"    proxy_read_timeout {_SECONDS}s;",
        "    # a server that takes no connection is passed over; a request that one has is "
        "not sent again",
        "    proxy_next_upstream error timeout;",
    ]
    for number, name in enumerate(models):
        # With a path behind the name nginx removes /MODEL/ from the request
        lines += [f"    location /{name}/ {{ proxy_pass http://model{number}/; }}"]
    lines += ["    location / { proxy_pass http://model0; }"] if len(models) == 1 else []
    return {"nginx.conf": "\n".join([*lines, "  }", "}"]) + "\n"}


def _haproxy(
    plan: FleetPlan, instances: Sequence[_Instance], arguments: Arguments
) -> dict[str, str]:
    """Return a configuration of HAProxy: as nginx's, and requests beyond the slots of all servers
    wait in its queue. A server that takes no connection is down at once: it has the fewest
    requests, so all attempts of one would go there while the others are full."""
    models = _by_model(instances)
    lines = [
        "# haproxy -f haproxy.cfg",
        "defaults",
        "  mode http",
        "  timeout connect 5s",
        f"  timeout client {_SECONDS}s",
        f"  timeout server {_SECONDS}s",
        f"  timeout queue {_SECONDS}s",
        # redispatch 1: each retry goes to another server; retry-on
        # conn-failure: never a request that a server has begun
        "  retries 3",
        "  option redispatch 1",
        "  retry-on conn-failure",
        "frontend fleet",
        f"  bind :{BALANCER}",
    ]
    lines += [
        f"  use_backend model{number} if {{ path_beg /{name}/ }}"
        for number, name in enumerate(models)
    ]
    lines += ["  default_backend model0"] if len(models) == 1 else []
    for number, (name, own) in enumerate(models.items()):
        lines += [
            f"backend model{number}",
            "  balance leastconn",
            "  option httpchk GET /health",
            f"  http-request replace-path /{re.escape(name)}(/.*) \\1",
        ]
        lines += [
            f"  server s{i} {each.at} check inter 2s fall 1 observe layer4 error-limit 1 "
            # maxconn keeps requests in HAProxy's queue while
            # all slots are taken; 256 is the largest weight
            f"on-error mark-down maxconn {each.server.slots} weight {min(256, each.server.slots)}"
            for i, each in enumerate(own)
        ]
    return {"haproxy.cfg": "\n".join(lines) + "\n"}


_BALANCERS = ("litellm", "nginx", "haproxy")
KINDS: dict[str, Callable[[FleetPlan, Sequence[_Instance], Arguments], dict[str, str]]] = {
    "compose": _compose,
    "kubernetes": _kubernetes,
    "llmkube": _llmkube,
    "llama-swap": _llama_swap,
    "litellm": _litellm,
    "nginx": _nginx,
    "haproxy": _haproxy,
}
