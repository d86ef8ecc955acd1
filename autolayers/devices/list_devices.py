"""The devices a llama.cpp program itself lists: `llama-server --list-devices`.

It lists every backend it was built with. On CUDA and ROCm it reads the free memory after creating
its context there, so those Devices have `includes_context=True`. It prints neither types nor PCI
addresses: GPUs that two backends list, and integrated GPUs, are recognised by their descriptions,
where llama_prepare_model_devices uses address and type.
"""

from __future__ import annotations

import re

from ..backends import backend, canonical
from ..errors import DeviceError
from ..machine import MAX_DEVICES, Device
from ..programs import NoAnswer, ask
from ..records import replace
from ..units import MiB
from .integrated import is_integrated
from .names import described
from .system import platform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# what NVML knows and the listing does not say
_OF_DRIVER = (
    *("uuid", "pci_id", "compute_capability", "display", "bandwidth", "n_sm", "kind", "driver"),
    *("power_limit", "power_default"),
)
_MOST = 4 * MAX_DEVICES  # under as many backends as a build may have
_LINE = re.compile(
    r"^  (?P<name>\S+): (?P<description>.*) \((?P<total>\d{1,9}) MiB, "
    r"(?P<free>\d{1,20}) MiB "
    r"free\)\s*$"
)


def query(
    program: str, environ: Mapping[str, str], rpc: Sequence[str] = (), timeout: float = 30.0
) -> tuple[list[Device], list[str]]:
    """Return what `program --list-devices` lists under `environ`, and notes.

    LLAMA_ARG_* variables are left out, as a bad one ends the program before it lists; LLAMA_ARG_RPC
    and `rpc` (host:port) add remote devices. Raises DeviceError when it cannot be run, takes too
    long or fails.
    """
    devices, notes = parse(run(program, environ, rpc, timeout))
    wddm = platform() in ("windows", "wsl")
    return [replace(device, wddm=wddm and device.kind != "rpc") for device in devices], notes


def run(
    program: str, environ: Mapping[str, str], rpc: Sequence[str] = (), timeout: float = 30.0
) -> str:
    """Return the listing's text. Raises DeviceError."""
    # llama.cpp handles --list-devices as soon as it reads it: later flags would be ignored
    command = [program, *(["--rpc", ",".join(rpc)] if rpc else []), "--list-devices"]
    environment = {
        name: value
        for name, value in environ.items()
        if not name.startswith("LLAMA_ARG_") or name == "LLAMA_ARG_RPC"
    }
    try:
        answer = ask(command, environment, timeout)
    except NoAnswer as error:
        raise DeviceError(f"{program} --list-devices: {error}: its devices are unknown") from None
    if answer.code:
        # The line of stderr with the reason: the first that mentions an error, otherwise the last.
        lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
        about = [
            line
            for line in lines
            if re.search(r"error|fail|cannot|could not|abort|assert", line, re.IGNORECASE)
        ]
        complaint = next(iter(about or lines[-1:]), "")[:200]
        why = f"{_reason(answer.code)}: {complaint}" if complaint else _reason(answer.code)
        raise DeviceError(f"{program} --list-devices failed ({why}): its devices are unknown")
    return answer.out


def _reason(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def parse(text: str) -> tuple[list[Device], list[str]]:
    """Return the devices of a listing, as llama.cpp would use them by default, and notes about the
    rest.

    >>> devices, notes = parse("  CUDA0: NVIDIA GeForce RTX 3080 Ti (11909 MiB, 11650 MiB free)\\n")
    >>> devices[0].name, devices[0].free >> 20
    ('CUDA0', 11650)
    """
    listed: list[Device] = []
    notes: list[str] = []
    found = [match for line in text.splitlines() if (match := _LINE.match(line))]
    if len(found) > _MOST:
        notes.append(f"{len(found)} devices are listed: the first {_MOST} are looked at")
    for match in found[:_MOST]:
        name, description = match["name"], match["description"]
        # "CUDA0" -> "CUDA"
        prefix = name.rstrip("0123456789")
        row = backend(prefix)
        total, free = int(match["total"]) * MiB, int(match["free"]) * MiB
        if total == 0:
            # BLAS and the like compute in system RAM and have no memory
            if row.context_first or row.free_is_total:
                notes.append(f"{name} ({description}) does not report its memory and is left out")
            continue
        warning = row.free_doubt
        if free > total:
            warning = f"{name} reports more free memory than its total; its total is used"
        elif free == total and row.free_is_total:
            warning = "free is the GPU's total: the driver does not report other programs' use"
        kind = "rpc" if row.remote else _kind(description, total)
        listed.append(
            Device(
                name,
                total,
                min(free, total),
                description,
                canonical(prefix),
                kind,
                includes_context=row.context_first,
                source="list-devices",
                warning=warning,
            )
        )
    # the devices that llama.cpp uses: RPC first, then GPUs without duplicates of another backend,
    # then integrated GPUs if there is no other GPU
    gpus: list[Device] = []
    remote = [device for device in listed if device.kind == "rpc"]
    for device in listed:
        if device.kind == "rpc":
            continue
        # The same GPU under an earlier backend, each of whose GPUs matches at most one of this
        # backend.
        same = [
            other
            for other in listed
            if other.backend == device.backend and _same_card(other, device)
        ]
        twins = [
            other for other in gpus if other.backend != device.backend and _same_card(other, device)
        ]
        number = same.index(device)
        twin = twins[number] if number < len(twins) else None
        if twin is None:
            gpus.append(device)
        else:
            notes.append(f"{device.name} is {twin.name} again and is left out")
    return remote + _discrete_first(gpus, notes), notes


def _kind(description: str, total: int) -> str:
    """Return gpu, or igpu if it is a part of the processor."""
    card = described(description, total // MiB)
    return "igpu" if is_integrated(description) and (card is None or card.unified) else "gpu"


def _discrete_first(gpus: list[Device], notes: list[str]) -> list[Device]:
    """Return the discrete GPUs, with a note for each other; the integrated ones of one backend if
    there is none."""
    discrete = [device for device in gpus if device.kind == "gpu"]
    if not discrete:
        return [device for device in gpus if device.backend == gpus[0].backend]
    notes += [
        f"{device.name} ({device.description}) is an integrated GPU, left out because of "
        f"{discrete[0].name}"
        for device in gpus
        if device.kind == "igpu"
    ]
    return discrete


def _same_card(one: Device, other: Device) -> bool:
    """Compare descriptions, to which Vulkan appends the driver's name: "AMD Radeon RX 7900 XTX
    (RADV NAVI31)"."""
    return (
        one.description.partition(" (RADV")[0].strip()
        == other.description.partition(" (RADV")[0].strip()
    )


def enrich(devices: list[Device], cards: list[Device]) -> list[Device]:
    """Return the listed CUDA devices, completed by NVML; memory sizes stay the listed ones.

    Both name devices in CUDA's order; a different description means that they are different GPUs.
    """
    by_name = {card.name: card for card in cards}
    result = []
    for device in devices:
        card = by_name.get(device.name)
        # positions alone would join different cards where a mask is set
        if card and card.description == device.description:
            device = replace(device, **{name: getattr(card, name) for name in _OF_DRIVER})
        result.append(device)
    return result
