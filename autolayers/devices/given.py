"""Hypothetical devices: --gpu values, by size or by name."""

from __future__ import annotations

from ..backends import DEFAULT, METAL, backend
from ..errors import UsageError
from ..machine import MAX_DEVICES, Device
from ..records import replace
from ..units import MiB, is_whole_size, parse_memory
from .macs import macos_of, working_set

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cards import Card

_DIGITS = 2  # of a number that is rather memory than a GPU's name
NO_GPU = ("0", "none", "no", "cpu")  # words of people for a machine without one


def _hypothetical(size: str, name: str = f"{DEFAULT.name}0", ram: int = 0) -> Device:
    """Return a hypothetical device: a size such as "24GiB", or a GPU's name such as "rtx-3090". Of
    a name of machines with several sizes of RAM, `ram` bytes choose.

    A size is exactly the free memory. The device's name follows its backend: ROCm0. Raises
    UsageError for anything else.

    >>> Device.hypothetical("24576MiB").free == 24576 << 20
    True
    """
    if not isinstance(size, str):
        raise UsageError(f"a size is a text such as '24GiB', not {size!r:.60}")
    text = size.strip()
    n_bytes = _size(text)
    if n_bytes is not None:
        return Device(name, n_bytes, n_bytes, f"hypothetical {text}")
    from .names import find

    # neither a size: a name, or an error that says what is near
    card = find(text, ram)
    usable = _usable(card, text) * MiB
    kind = "igpu" if card.unified and backend(card.backend).has_igpu else "gpu"
    return Device(
        name.replace(DEFAULT.name, card.backend),
        usable,
        usable,
        card.description,
        card.backend,
        kind,
        compute_capability=card.compute_capability,
        n_sm=card.n_sm,
        bandwidth=card.bandwidth * 1e9 or None,
        fp16_tflops=card.fp16 or None,
        link=card.link,
        unified=card.unified,
        ram=card.system_ram or None,
    )


Device.hypothetical = staticmethod(_hypothetical)


def _candidates(name: str) -> list[str]:
    """Return the keys of the GPUs that a name may mean; a size, as most are, needs no table."""
    if is_whole_size(name):
        return []
    from .names import candidates

    return candidates(name)


def _usable(card: Card, name: str) -> int:
    """Return the MiB that a card's GPU may use; on a Mac, by the macOS in its name. Raises
    UsageError."""
    macos = macos_of(name)
    if macos is None:
        return card.usable
    if card.backend != METAL:
        raise UsageError(f"{name}: {card.description} is no GPU of a Mac")
    return working_set(card.ram, macos)


def _size(text: str) -> int | None:
    """Return bytes; None if the text can only be a GPU's name: "4090" is one, while "24" most
    likely means GiB. Raises UsageError for what can be both: "780m"."""
    try:
        size = parse_memory(text)
    except UsageError:
        return None
    # Raise UsageError for a number that may be a GPU's name as well as memory.
    number = text.rstrip("mM ")
    short = text.isdigit() and len(text) <= _DIGITS
    either = short or (number != text and number.isdigit())
    if either and (keys := _candidates(text) or _candidates(number)):
        unit = "GiB" if short else "MiB"
        raise UsageError(f"which {text}? the GPU, {' or '.join(keys)}, or memory: {number}{unit}")
    if not text.isdigit() or size >= MiB or _candidates(text):
        return None if _candidates(text) else size
    # Raise UsageError for a number that most likely means GiB or MiB.
    if len(text) < 4:
        raise UsageError(f"{text} bytes of memory? write {text}GiB or {text}MiB")
    if int(text) % 256 == 0:
        raise UsageError(
            f"{text} bytes of memory? write {text}MiB, or see --gpu list for the known GPUs"
        )
    return None


def _times(part: str) -> tuple[int, str]:
    """Return (2, "24GiB") of "2x24GiB", "2 x 24GiB" and "24GiBx2"; an x that is part of a GPU's
    name counts nothing."""
    if "x" not in part.lower() or _candidates(part):
        return 1, part
    import re  # few calls

    # "2x4090"
    if before := re.fullmatch(r"(\d{1,3}) *[xX] *(.*)", part):
        return int(before[1]), before[2]
    after = re.fullmatch(r"(.*?) {0,9}[xX] {0,9}(\d{1,3})", part)
    return (int(after[2]), after[1]) if after and _exists(after[1]) else (1, part)


def _exists(text: str) -> bool:
    """Return whether it is a size or a GPU's name."""
    try:
        return _size(text) is not None or bool(_candidates(text))
    except UsageError:
        return True


def hypothetical(spec: str, ram: int = 0) -> list[Device]:
    """Return the devices of `--gpu`: sizes and GPU names, "24GiB,12GiB", "2x4090", "a100-80g",
    numbered per backend; `ram`: the bytes of RAM of a machine that comes in several sizes.

    Raises UsageError.

    >>> [device.name for device in hypothetical("24GiB,2x12GiB")]
    ['CUDA0', 'CUDA1', 'CUDA2']
    """
    devices: list[Device] = []
    # "--gpu none" is meant for the CPU: -dev has that word
    if spec.strip().lower() in NO_GPU:
        raise UsageError(f"--gpu {spec}: -dev none plans for the CPU alone")
    for part in spec.split(","):
        count, what = _times(part.strip())
        if not what.strip():
            raise UsageError(
                f"an empty device in --gpu {spec!r} (write for example 24GiB,12GiB or 2x24GiB)"
            )
        if not 1 <= count <= MAX_DEVICES or len(devices) + count > MAX_DEVICES:
            raise UsageError(f"--gpu {spec!r}: llama.cpp uses 1 to {MAX_DEVICES} devices")
        devices += [Device.hypothetical(what, ram=ram)] * count
    return numbered(devices)


def of_one_machine(spec: str, ram: int = 0) -> list[Device]:
    """Return the devices of `--gpu`. Raises UsageError also for GPUs of several machines with
    unified memory."""
    devices = hypothetical(spec, ram)
    if sum(device.ram is not None for device in devices) > 1:
        raise UsageError(
            f"--gpu {spec!r}: GPUs that share the system's memory are one a machine (autolayers "
            "cluster plans several machines)"
        )
    return devices


def numbered(devices: list[Device]) -> list[Device]:
    """Return the same, named by their backends in this order: CUDA0, CUDA1, ROCm0."""
    used: dict[str, int] = {}
    named = []
    for device in devices:
        number = used[device.backend] = used.get(device.backend, -1) + 1
        named.append(replace(device, name=f"{device.backend}{number}"))
    return named
