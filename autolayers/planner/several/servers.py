"""Several models and RPC servers. A ggml-rpc-server serves one llama-server at a time (the accept
loop in ggml_backend_rpc_start_server); another one that merely names it in --rpc waits for ever. So
a model that uses one device of a server gets all of them, and the other models' commands do not
name that server."""

from __future__ import annotations

from ...flags.write import rewritten
from ...records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...flags.params import Params
    from ...machine import Device, Machine
    from ..plan import Plan

    Servers = Mapping[str, tuple[str, ...]]  # the devices of each device's server


def servers_of(devices: Sequence[Device]) -> dict[str, tuple[str, ...]]:
    """Return all devices of its server for each device of one; devices are described by their
    server."""
    return {
        device.name: tuple(
            other.name
            for other in devices
            if other.kind == "rpc" and other.description == device.description
        )
        for device in devices
        if device.kind == "rpc"
    }


def held(
    takes: Mapping[str, int], limits: Mapping[str, int], servers: Servers
) -> Mapping[str, int]:
    """Return what is unavailable to others of each device if a model takes this much: for a server,
    everything."""
    if not servers or not any(name in servers for name in takes):
        return takes
    # Counts all that may be used of a server's devices, so that nothing is left to others.
    whole = {other: limits[other] for name in takes for other in servers.get(name, ())}
    return {**takes, **{name: max(takes.get(name, 0), size) for name, size in whole.items()}}


def dealt(sizes: Sequence[int], machine: Machine) -> dict[str, int]:
    """Return the model that has each server's device, where models of these sizes do not fit
    together: the largest server goes to the largest model, and so on in turns."""
    servers = {
        devices: sum(machine.limits[name] for name in devices)
        for devices in servers_of(machine.devices).values()
    }
    models = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    order = sorted(servers, key=lambda devices: -servers[devices])
    # Of three servers and two models, the larger model gets the first and the third.
    return {
        name: models[turn % len(models)] for turn, devices in enumerate(order) for name in devices
    }


def with_own_servers(plan: Plan, devices: Sequence[Device]) -> Plan:
    """Return the plan with flags that name only the servers whose devices it uses, numbered as in
    llama.cpp."""
    params = plan.params
    remote = [device for device in devices if device.kind == "rpc"]
    if not params.rpc:
        return plan
    # The server of each device, {} if unknown
    # llama.cpp describes an RPC device by its endpoint, e.g. "10.0.0.2:50052".
    if all(device.description in params.rpc for device in remote):
        endpoints = {device.name: device.description for device in remote}
    else:
        # Described otherwise: only with one device for each server is the order of --rpc theirs.
        endpoints = (
            {device.name: endpoint for device, endpoint in zip(remote, params.rpc, strict=True)}
            if len(remote) == len(params.rpc)
            else {}
        )
    # The servers whose devices a plan uses, in the order of --rpc
    used = {endpoints.get(row.name) for row in plan.devices if row.used}
    endpoints_used = tuple([endpoint for endpoint in plan.params.rpc if endpoint in used])
    if not endpoints or len(endpoints_used) == len(params.rpc):
        return plan
    # llama.cpp numbers RPC devices over all servers of --rpc: without the first, RPC1 becomes RPC0.
    stays = [name for name, endpoint in endpoints.items() if endpoint in endpoints_used]
    # The new names of devices where only these servers' stay
    # "RPC3" becomes "RPC1" if one device before it stays.
    names = {name: f"{name.rstrip('0123456789')}{number}" for number, name in enumerate(stays)}
    names = names | {device.name: device.name for device in devices if device.kind != "rpc"}
    fewer = _renamed(
        replace(params, rpc=endpoints_used), names, [device.name for device in devices]
    )
    return replace(plan, params=fewer, flags=rewritten(plan.flags, params, fewer))


def _renamed(params: Params, names: Mapping[str, str], order: Sequence[str]) -> Params:
    """Return the flags with the new `names` of the devices that stay; `order`: that of
    --list-devices."""
    given = params.device
    split = params.tensor_split
    # -ts has one part for each device of -dev, or of the list where no -dev is given.
    if split:
        pairs = zip(given or order, split, strict=False)
        split = tuple([part for name, part in pairs if name in names])
    if given:
        given = tuple([names[name] for name in given if name in names])
    return replace(params, device=given, tensor_split=split)
