"""NVIDIA GPUs through the driver's management library, in the order and under the names llama.cpp's
CUDA uses.

NVML reports free memory without creating a CUDA context, so its `free` still includes that context:
every Device from here has `includes_context=False`. Only the first version of the memory call is
used, without its `used` field, whose meaning changed between drivers.

No driver, a broken driver, a lost GPU, MIG or an integrated GPU gives a note, never an exception.
The library is loaded in its own process: a crash, an exit or a hang costs the GPU that was
asked.
"""

from __future__ import annotations

import re
import sys

from ..backends import Cuda
from ..machine import Device
from ..programs import NoAnswer, apart
from ..records import replace
from . import visible
from .system import MOST_MEMORY, meminfo, platform, unified_available

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

# integrated GPUs whose memory is RAM; drivers answer NotSupported for them (DGX Spark, Jetson)
_UNIFIED = re.compile(r"\b(GB10|N1X|Thor|Orin|Xavier|nvgpu)\b", re.IGNORECASE)
_ATS = 2  # NVML_DEVICE_ADDRESSING_MODE_ATS: the GPU reads the system's page tables

# else 128
_CORES_PER_SM = {(6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}

# errors of nvmlInit, with their fix (codes of nvml.h)
_INIT = {
    4: "the NVIDIA driver refuses access (NVML: no permission): is this container or user allowed "
    "to use the GPU?",
    9: "the NVIDIA driver is not loaded (NVML): load it (modprobe nvidia) or reboot",
    13: "the NVIDIA driver is too old for NVML (function not found): update it",
    18: "the NVIDIA driver was updated without a reboot (NVML: driver/library version mismatch): "
    "reboot, or restart the container",
    999: "the NVIDIA driver does not answer (NVML: unknown error): are the device nodes "
    "/dev/nvidia* there?",
}
_NO_LIBRARY = 12

_MOST_GPUS, _MOST_INSTANCES = 64, 16  # a count above is no answer
_MOST_CORES, _MOST_CAPABILITY = 1 << 20, 99
_MOST_RATE = 1 << 17  # MHz, bits of a bus
_FAILURES = 4  # GPUs that may end or block the process that asks them


def query(
    environ: Mapping[str, str], timeout: float = 10.0, root: str = "/"
) -> tuple[list[Device], list[str]]:
    """Return the GPUs that a CUDA program started under `environ` sees, named CUDA0..., and a line
    per problem.

    Without an NVIDIA driver: no GPUs and no note. A GPU that hangs is left out after `timeout`
    seconds, each later one after a quarter of that.
    """
    if sys.platform == "darwin":
        return [], []
    cards: list[Device] = []
    notes: list[str] = []
    first: int | None = 0
    # go on behind a GPU that ended or blocked the process
    for _ in range(_FAILURES):
        if first is not None:
            first = _ask(root, first, timeout, cards, notes)
            timeout /= 4
    shown, more = _in_cuda_order(cards, environ)
    # Windows moves GPU memory to RAM instead of refusing it
    wddm = platform(root) in ("windows", "wsl")
    return [
        replace(card, name=f"{Cuda.name}{i}", wddm=wddm) for i, card in enumerate(shown)
    ], notes + more


def _ask(
    root: str, first: int, timeout: float, cards: list[Device], notes: list[str]
) -> int | None:
    """Add the GPUs from number `first` on; return the number to go on with if one ended or blocked
    the process."""
    gpu, why = None, "ended the process that asked it"
    try:
        for row in apart(__name__, "answers", root, str(first), silence=timeout):
            if isinstance(row, dict):
                gpu = row.get("gpu", gpu)
                notes += row.get("notes", ())
                cards += [_device(card) for card in row.get("cards", ())]
                # without it the process ended early, by what it asked last
                if "end" in row:
                    return None
    except NoAnswer:
        why = f"did not answer within {timeout:g} s"
    if gpu is None:
        notes.append(f"the NVIDIA driver {why} (NVML)")
        return None
    notes.append(f"GPU {gpu} is left out: the NVIDIA driver {why} (NVML)")
    return int(gpu) + 1


def _device(row: Mapping[str, Any]) -> Device:
    capability = row.get("compute_capability")
    return Device(**{**row, "compute_capability": capability and tuple(capability)})


# --- in the child process


def answers(root: str, first: str) -> Iterator[dict[str, Any]]:
    """Yield {"gpu": number} before each GPU is asked, {"cards", "notes"} after it, {"end"} after
    the last."""
    nvml, problem = initialised()
    if problem:
        yield {"notes": [problem]}
    if nvml is not None:
        driver = _Driver(nvml, root)
        count = driver.count()
        for index in range(int(first), min(count, _MOST_GPUS)):
            yield {"gpu": index}
            cards = driver.gpu(index)
            if count > _MOST_GPUS and not cards:  # of a wrong count, this is the end
                break
            yield {
                "cards": [_said(card) for card in cards],
                "notes": driver.notes,
            }
            driver.notes = []
        yield {"notes": driver.notes}
    yield {"end": True}


def _said(card: Device) -> dict[str, Any]:
    """Return what is known of a card, as JSON has it."""
    return {name: value for name, value in vars(card).items() if value not in (None, ())}


def initialised() -> tuple[Any, str]:
    """Return the library ready to be asked, or None and what is wrong, "" without one."""
    if sys.platform.startswith("linux"):
        import ctypes

        try:
            # as pynvml does, but before importing it: most machines without this library have no
            # NVIDIA GPU
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None, ""
    try:
        import warnings

        with warnings.catch_warnings():
            # the retired PyPI package "pynvml" emits a warning here that does not concern the user
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml
    except ImportError:
        return None, (
            "the Python package nvidia-ml-py is missing, so NVIDIA GPUs are not seen: pip install "
            "nvidia-ml-py"
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        code = int(getattr(error, "value", 999))
        problem = _INIT.get(code, f"the NVIDIA driver does not answer (NVML: {error})")
        return None, "" if code == _NO_LIBRARY else problem
    except Exception as error:
        return None, f"the NVIDIA driver does not answer (NVML: {error})"
    return pynvml, ""


class _Driver:
    """One initialised NVML: reads every device that this process may open."""

    def __init__(self, nvml: Any, root: str) -> None:
        self.nvml, self.root = nvml, root
        self.notes: list[str] = []

    def ask(self, call: str, *args: object) -> Any:
        """Return the answer, or None if this driver or device has none."""
        try:
            return getattr(self.nvml, call)(*args)
        except (self.nvml.NVMLError, AttributeError, UnicodeDecodeError):
            return None

    def count(self) -> int:
        try:
            count = int(self.nvml.nvmlDeviceGetCount())
        except Exception as error:
            self.notes.append(f"the NVIDIA driver's answers make no sense (NVML: {error})")
            return 0
        if count > _MOST_GPUS:
            self.notes.append(
                f"the NVIDIA driver counts {count} GPUs: at most {_MOST_GPUS} are asked (NVML)"
            )
        return count

    def gpu(self, index: int) -> list[Device]:
        """Return one GPU or its MIG instances; none, with a note, where its answers make no
        sense."""
        try:
            handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
        except self.nvml.NVMLError as error:
            # a cgroup may hide single GPUs, which are still counted
            self.notes.append(f"GPU {index} cannot be opened and is left out (NVML: {error})")
            return []
        try:
            # (current, pending): 1 is enabled
            mode = self.ask("nvmlDeviceGetMigMode", handle)
            devices = (
                self.instances(index, handle) if mode and mode[0] == 1 else self.card(index, handle)
            )
        # pynvml unpacks what the driver answers: nonsense raises anything
        except Exception as error:
            self.notes.append(f"GPU {index} is left out: its answers make no sense (NVML: {error})")
            return []
        # a lost GPU may answer with all bits set
        if any(card.total > MOST_MEMORY for card in devices):
            self.notes.append(
                f"GPU {index} is left out: it reports {devices[0].total} bytes (NVML)"
            )
            return []
        return devices

    def card(self, index: int, handle: object) -> list[Device]:
        """Return one device, or its MIG instances in MIG mode; none, with a note, if it does not
        answer."""
        nvml = self.nvml
        # a note without a name would not say which card is meant
        name = self.ask("nvmlDeviceGetName", handle) or f"NVIDIA GPU {index}"
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            # in MIG mode the whole GPU is closed to users
            if error.value == nvml.NVML_ERROR_NO_PERMISSION:
                return self.instances(index, handle)
            if self.unified(name, handle, error.value):
                return [self.shared_memory(name, handle)]
            self.notes.append(
                f"GPU {index} ({name}) does not report its memory and is left out (NVML: {error}); "
                "give it with --gpu SIZE, or use --llama-server"
            )
            # CUDA still counts one without memory information, but not one that has fallen off the
            # bus
            return (
                [self.device(name, handle, 0, 0)]
                if error.value == nvml.NVML_ERROR_NOT_SUPPORTED
                else []
            )
        if (
            _UNIFIED.search(name)
            and self.unified_total()
            and memory.total >= 0.9 * self.unified_total()
        ):
            return [self.shared_memory(name, handle)]
        return [self.device(name, handle, memory.total, memory.free)]

    def instances(self, index: int, handle: object) -> list[Device]:
        """Return the MIG instances of one GPU, in NVML's order."""
        devices = []
        parent = self.ask("nvmlDeviceGetName", handle) or f"NVIDIA GPU {index}"
        for i in range(
            min(_MOST_INSTANCES, self.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
        ):
            instance = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i)
            # a slot without an instance has no handle
            memory = instance and self.ask("nvmlDeviceGetMemoryInfo", instance)
            if not memory:
                continue
            device = self.device(
                self.ask("nvmlDeviceGetName", instance) or parent, handle, memory.total, memory.free
            )
            # an instance has an unknown share of the parent's figures
            devices.append(
                replace(
                    device, uuid=self.ask("nvmlDeviceGetUUID", instance), bandwidth=None, n_sm=None
                )
            )
        if not devices:
            self.notes.append(
                f"GPU {index} ({parent}) is in MIG mode or not permitted, "
                "and no instance of it can be used"
            )
        return devices

    def device(self, name: str, handle: object, total: int, free: int) -> Device:
        pci = self.ask("nvmlDeviceGetPciInfo", handle)
        capability = self.capability(handle)
        display = self.ask("nvmlDeviceGetDisplayActive", handle)
        return Device(
            name="",
            total=total,
            free=min(free, total),
            description=name,
            backend=Cuda.name,
            source="nvml",
            uuid=self.ask("nvmlDeviceGetUUID", handle),
            # the function is 0 for GPUs; llama.cpp compares the same form
            pci_id=pci and f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
            compute_capability=capability,
            driver=self.ask("nvmlSystemGetDriverVersion") or "",
            power_limit=self.watts("nvmlDeviceGetPowerManagementLimit", handle),
            power_default=self.watts("nvmlDeviceGetPowerManagementDefaultLimit", handle),
            display=None if display is None else bool(display),
            bandwidth=self.bandwidth(handle),
            n_sm=self.multiprocessors(handle, capability),
        )

    def capability(self, handle: object) -> tuple[int, int] | None:
        """Return the compute capability, if it is one that a GPU may have."""
        capability: tuple[int, int] | None = self.ask("nvmlDeviceGetCudaComputeCapability", handle)
        major, minor = capability or (0, 0)
        plausible = 0 < major <= _MOST_CAPABILITY and 0 <= minor <= _MOST_CAPABILITY
        return capability if plausible else None

    def bandwidth(self, handle: object) -> float | None:
        """Return the memory's bytes a second, if its width and clock are plausible."""
        bits = self.ask("nvmlDeviceGetMemoryBusWidth", handle)
        mhz = self.ask("nvmlDeviceGetMaxClockInfo", handle, self.nvml.NVML_CLOCK_MEM)
        if not bits or not mhz or max(bits, mhz) > _MOST_RATE:
            return None
        # double data rate: NVML gives the clock of one edge
        return float(mhz * 1e6 * 2 * bits / 8)

    def multiprocessors(self, handle: object, capability: tuple[int, int] | None) -> int | None:
        """Return the number of multiprocessors, by that of the cores."""
        cores = self.ask("nvmlDeviceGetNumGpuCores", handle)
        if not cores or cores > _MOST_CORES or capability is None:
            return None
        return int(cores // _CORES_PER_SM.get(capability, 128))

    def watts(self, question: str, handle: object) -> int | None:
        """Return a limit of power that is plausible; NVML says milliwatts."""
        limit = self.ask(question, handle)
        return limit // 1000 if limit and 1000 <= limit <= 10**8 else None

    def unified(self, name: str, handle: object, code: int) -> bool:
        """Whether the memory is shared with the CPU. NotSupported alone is not enough: the name or
        the addressing mode must match too."""
        return (
            code == self.nvml.NVML_ERROR_NOT_SUPPORTED
            and self.unified_total() > 0
            and (
                _UNIFIED.search(name) is not None
                or self.ask("nvmlDeviceGetAddressingMode", handle) == _ATS
            )
        )

    def unified_total(self) -> int:
        return meminfo(self.root).get("MemTotal", 0)

    def shared_memory(self, name: str, handle: object) -> Device:
        """Return a GPU without memory of its own: it uses the system's."""
        memory = meminfo(self.root)
        device = self.device(name, handle, memory["MemTotal"], unified_available(memory))
        return replace(
            device,
            kind="igpu",
            unified=True,
            warning="unified memory: free is what the system has available",
        )


def _in_cuda_order(
    cards: list[Device],
    environ: Mapping[str, str],
    ask: Callable[[Mapping[str, str]], list[str] | None] = visible.ask_driver,
) -> tuple[list[Device], list[str]]:
    """Return `cards` as CUDA numbers them under `environ`, and notes.

    CUDA's default order puts the fastest GPU first, by its own measure. If that cannot matter
    (UUIDs, PCI order, identical GPUs) the order is derived here, otherwise the driver is asked.
    GPUs without memory are numbered too and dropped at the end.
    """
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    # NVML's own order is by the bus too, but does not promise it
    cards = sorted(cards, key=lambda card: card.pci_id or "")
    if cards and visible.parse(mask) == ():
        return [], [f"CUDA_VISIBLE_DEVICES={mask} hides every GPU"]
    # masks first, then what has no memory: CUDA numbers those too
    shown, notes = _shown(cards, environ, ask)
    if mask and cards and not shown:
        notes.append(f"CUDA_VISIBLE_DEVICES={mask} matches no GPU")
    return [card for card in shown if card.total], notes


def _shown(
    cards: list[Device],
    environ: Mapping[str, str],
    ask: Callable[[Mapping[str, str]], list[str] | None],
) -> tuple[list[Device], list[str]]:
    """Return the GPUs that the mask shows in CUDA's order, and a note if that is assumed."""
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    # CUDA shows at most one instance, so their order matters even among equals
    instances = [card for card in cards if _is_instance(card)]
    if visible.by_uuid(mask) or (_has_one_order(cards, environ) and not instances):
        return _picked(cards, mask), []
    # the driver's own library, in another process, as it makes a context
    answer = ask(environ)
    if answer is not None:
        # The GPUs in the driver's order, by the digits of their UUIDs.
        # the prefix of a MIG instance's UUID varies
        place = {(card.uuid or "")[4:].replace("-", "").lower(): card for card in cards}
        return [place[digits] for digits in answer if digits in place], []
    # a process gets at most one MIG instance, and none if it has full GPUs
    usable = [card for card in cards if not _is_instance(card)] or instances[:1]
    return _picked(usable, mask), [
        "the GPUs differ and CUDA could not be asked for their order: assuming PCI order (set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID, or UUIDs in CUDA_VISIBLE_DEVICES, to be certain)"
    ]


def _is_instance(card: Device) -> bool:
    """Return whether a card is a MIG instance, a part of a GPU."""
    return card.uuid is not None and card.uuid.startswith("MIG-")


def _picked(cards: list[Device], mask: str | None) -> list[Device]:
    """Return the GPUs that a mask picks, in its order."""
    return [cards[i] for i in visible.pick(mask, [card.uuid or "" for card in cards])]


def _has_one_order(cards: Sequence[Device], environ: Mapping[str, str]) -> bool:
    """Return whether CUDA's order is that of the PCI bus: it was set, or the GPUs are alike."""
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return by_bus or len({card.description for card in cards}) < 2
