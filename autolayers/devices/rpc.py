"""The devices of `--rpc host:port,...`, queried from their servers (rpc_protocol.py), numbered as
in llama.cpp."""

from __future__ import annotations

from ..backends import CPU
from ..backends.rpc import Rpc, RpcCpu
from ..errors import AutolayersError, UsageError
from ..machine import Device
from ..parallel import in_threads
from ..records import replace
from .rpc_protocol import ServedDevice, Unavailable, address, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# bytes per second and seconds of a round trip to a server on this machine, as measured
_LOOPBACK = 2e9, 3e-5


def query(endpoints: Sequence[str]) -> tuple[list[Device], list[str]]:
    """Return the devices of these servers, and a note for each server that does not answer, which
    counts as one device of unknown memory (0). Raises UsageError for anything but host:port."""
    answers = _answers(endpoints)
    devices = []
    for number, (served, endpoint) in enumerate(_served(endpoints, answers)):
        device = Device(
            f"{Rpc.name}{number}",
            0,
            0,
            endpoint,
            Rpc.name,
            "rpc",
            includes_context=True,
            source="rpc",
            warning="" if served else "it does not answer: its memory is unknown",
        )
        devices.append(_with(device, served, endpoint) if served else device)
    answered = zip(endpoints, answers, strict=True)
    alive = ",".join(endpoint for endpoint, answer in answered if isinstance(answer, list))
    instead = f"; to use only the others: --rpc {alive}" if alive else ""
    notes = [answer for answer in answers if not isinstance(answer, list)]
    return devices, [f"{note}: the plan does not use it{instead}" for note in notes]


def refine(devices: Iterable[Device], endpoints: Sequence[str]) -> list[Device]:
    """Return listed RPC devices completed by their servers; a device whose server does not answer
    stays as it is. Raises UsageError for anything but host:port."""
    remaining = iter(_served(endpoints, _answers(endpoints)))
    refined = []
    for device in devices:
        answer, endpoint = next(remaining, (None, "")) if device.kind == "rpc" else (None, "")
        refined.append(_with(device, answer, endpoint) if answer else device)
    return refined


def unavailable(endpoints: Sequence[str]) -> list[str]:
    """Return a line for each server that is busy or dead, after 3 s at most. Raises UsageError for
    anything but host:port."""
    answers = _answers(endpoints)
    return [str(answer) for answer in answers if isinstance(answer, Unavailable)]


def _with(device: Device, served: ServedDevice, endpoint: str) -> Device:
    """Return the device with its server's backend (CPU or GPU, by its alignment), its memory if
    unknown so far, and the link's rates if the server is on this machine."""
    host = address(endpoint)[0]
    if host in ("localhost", "::1") or host.startswith("127."):
        device = replace(device, link=device.link or _LOOPBACK[0], latency=_LOOPBACK[1])
    device = replace(
        device, backend=RpcCpu.name if served.alignment == CPU.alignment else device.backend
    )
    return device if device.total else replace(device, free=served.free, total=served.total)


def _served(
    endpoints: Sequence[str], answers: Sequence[list[ServedDevice] | AutolayersError]
) -> list[tuple[ServedDevice | None, str]]:
    """Return each device with its server. llama.cpp gives a server without an answer one device,
    None here, so the numbers after it stay right."""
    return [
        (one, endpoint)
        for endpoint, answer in zip(endpoints, answers, strict=True)
        for one in (answer if isinstance(answer, list) else (None,))
    ]


def _answers(endpoints: Sequence[str]) -> Sequence[list[ServedDevice] | AutolayersError]:
    for endpoint in endpoints:
        try:
            address(endpoint)
        except ValueError as error:
            raise UsageError(f"--rpc {error}") from None
    return in_threads(ask, endpoints) if endpoints else []
