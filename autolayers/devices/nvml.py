"""NVIDIA GPUs through the driver's management library, in the order and under the names llama.cpp's CUDA
uses.

NVML reports free memory without creating a CUDA context, so its `free` still includes that context: every
Device from here has `includes_context=False`. Only the first version of the memory call is used, without its
`used` field, whose meaning changed between drivers.

No driver, a broken driver, a lost GPU, MIG or an integrated GPU gives a note, never an exception.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress

from ..backends import Cuda
from ..machine import Device
from ..records import replace
from . import visible
from .system import meminfo, platform, unified_available

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# integrated GPUs whose memory is RAM; drivers answer NotSupported for them (DGX Spark, Jetson)
_UNIFIED = re.compile(r"\b(GB10|N1X|Thor|Orin|Xavier|nvgpu)\b", re.IGNORECASE)
_ATS = 2   # NVML_DEVICE_ADDRESSING_MODE_ATS: the GPU reads the system's page tables

_CORES_PER_SM = {(6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}   # else 128

# errors of nvmlInit, with their fix (codes of nvml.h)
_INIT = {
    4: "the NVIDIA driver refuses access (NVML: no permission): is this container or user allowed to use the "
       "GPU?",
    9: "the NVIDIA driver is not loaded (NVML): load it (modprobe nvidia) or reboot",
    13: "the NVIDIA driver is too old for NVML (function not found): update it",
    18: "the NVIDIA driver was updated without a reboot (NVML: driver/library version mismatch): reboot, "
        "or restart the container",
    999: "the NVIDIA driver does not answer (NVML: unknown error): are the device nodes /dev/nvidia* there?",
}
_NO_LIBRARY = 12


def query(environ: Mapping[str, str], timeout: float = 10.0,
          root: str = "/") -> tuple[list[Device], list[str]]:
    """The GPUs that a CUDA program started under `environ` sees, named CUDA0..., and a line per problem.

    Without an NVIDIA driver: no GPUs and no note. A driver that hangs is abandoned after `timeout` seconds.
    """
    if sys.platform == "darwin":
        return [], []
    import threading

    answer: list[tuple[list[Device], list[str]]] = []
    # a daemon: a thread that hangs in the driver must not keep the process alive
    worker = threading.Thread(target=lambda: answer.append(_query(root)), daemon=True)
    worker.start()
    worker.join(timeout)
    if not answer:
        return [], [f"the NVIDIA driver did not answer within {timeout:g} s (NVML)"]
    cards, notes = answer[0]
    shown, more = in_cuda_order(cards, environ)
    wddm = platform(root) in ("windows", "wsl")
    return [replace(card, name=f"{Cuda.name}{i}", wddm=wddm) for i, card in enumerate(shown)], notes + more


def _query(root: str) -> tuple[list[Device], list[str]]:
    if sys.platform.startswith("linux"):
        import ctypes

        try:
            # as pynvml does, but before importing it: most machines without this library have no NVIDIA GPU
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return [], []
    try:
        import warnings

        with warnings.catch_warnings():
            # the retired PyPI package "pynvml" emits a warning here that does not concern the user
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml
    except ImportError:
        return [], ["the Python package nvidia-ml-py is missing, so NVIDIA GPUs are not seen: pip install "
                    "nvidia-ml-py"]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        code = int(getattr(error, "value", 999))
        said = _INIT.get(code, f"the NVIDIA driver does not answer (NVML: {error})")
        return [], [] if code == _NO_LIBRARY else [said]
    except Exception as error:
        return [], [f"the NVIDIA driver does not answer (NVML: {error})"]
    try:
        return _Driver(pynvml, root).cards()
    except Exception as error:
        return [], [f"the NVIDIA driver's answers make no sense (NVML: {error})"]
    finally:
        with suppress(Exception):   # shutting down is optional
            pynvml.nvmlShutdown()


class _Driver:
    """One initialised NVML: reads every device that this process may open."""

    def __init__(self, nvml: Any, root: str) -> None:
        self.nvml, self.root = nvml, root
        self.notes: list[str] = []

    def ask(self, call: str, *args: object) -> Any:
        """The answer, or None if this driver or device has none."""
        try:
            return getattr(self.nvml, call)(*args)
        except (self.nvml.NVMLError, AttributeError):
            return None

    def cards(self) -> tuple[list[Device], list[str]]:
        found: list[Device] = []
        for index in range(self.nvml.nvmlDeviceGetCount()):
            try:
                handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
            except self.nvml.NVMLError as error:
                # a cgroup may hide single GPUs, which are still counted
                self.notes.append(f"GPU {index} cannot be opened and is left out (NVML: {error})")
                continue
            mode = self.ask("nvmlDeviceGetMigMode", handle)
            found += self.instances(index, handle) if mode and mode[0] == 1 else self.card(index, handle)
        return found, self.notes

    def card(self, index: int, handle: object) -> list[Device]:
        """One device, or its MIG instances in MIG mode; none, with a note, if it does not answer."""
        nvml = self.nvml
        name = self.ask("nvmlDeviceGetName", handle) or f"NVIDIA GPU {index}"
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NO_PERMISSION:
                return self.instances(index, handle)
            if self.unified(name, handle, error.value):
                return [self.shared_memory(name, handle)]
            self.notes.append(f"GPU {index} ({name}) does not report its memory and is left out (NVML: "
                              f"{error}); "
                              "give it with --gpu SIZE, or use --llama-server")
            # CUDA still counts one without memory information, but not one that has fallen off the bus
            return [self.device(name, handle, 0, 0)] if error.value == nvml.NVML_ERROR_NOT_SUPPORTED else []
        if _UNIFIED.search(name) and self.unified_total() and memory.total >= 0.9 * self.unified_total():
            return [self.shared_memory(name, handle)]
        return [self.device(name, handle, memory.total, memory.free)]

    def instances(self, index: int, handle: object) -> list[Device]:
        """The MIG instances of one GPU, in NVML's order."""
        found = []
        parent = self.ask("nvmlDeviceGetName", handle) or f"NVIDIA GPU {index}"
        for i in range(self.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i)
            memory = instance and self.ask("nvmlDeviceGetMemoryInfo", instance)
            if not memory:
                continue
            device = self.device(self.ask("nvmlDeviceGetName", instance) or parent, handle, memory.total,
                                 memory.free)
            # an instance has an unknown share of the parent's figures
            found.append(replace(device, uuid=self.ask("nvmlDeviceGetUUID", instance), bandwidth=None,
                                 n_sm=None))
        if not found:
            self.notes.append(f"GPU {index} ({parent}) is in MIG mode or not permitted, "
                              "and no instance of it can be used")
        return found

    def device(self, name: str, handle: object, total: int, free: int) -> Device:
        pci = self.ask("nvmlDeviceGetPciInfo", handle)
        capability = self.ask("nvmlDeviceGetCudaComputeCapability", handle)
        cores = self.ask("nvmlDeviceGetNumGpuCores", handle)
        display = self.ask("nvmlDeviceGetDisplayActive", handle)
        bits = self.ask("nvmlDeviceGetMemoryBusWidth", handle)
        mhz = self.ask("nvmlDeviceGetMaxClockInfo", handle, self.nvml.NVML_CLOCK_MEM)
        driver = self.ask("nvmlSystemGetDriverVersion") or ""
        return Device(
            name="", total=total, free=min(free, total), description=name, backend=Cuda.name, source="nvml",
            uuid=self.ask("nvmlDeviceGetUUID", handle),
            pci_id=pci and f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
            compute_capability=capability, driver=driver if isinstance(driver, str) else driver.decode(),
            display=None if display is None else bool(display),
            # double data rate: NVML gives the clock of one edge
            bandwidth=mhz * 1e6 * 2 * bits / 8 if mhz and bits else None,
            n_sm=cores // _CORES_PER_SM.get(capability, 128) if cores and capability else None)

    def unified(self, name: str, handle: object, code: int) -> bool:
        """NotSupported alone is not enough: the name or the addressing mode must match too."""
        return (code == self.nvml.NVML_ERROR_NOT_SUPPORTED and self.unified_total() > 0
                and (_UNIFIED.search(name) is not None
                     or self.ask("nvmlDeviceGetAddressingMode", handle) == _ATS))

    def unified_total(self) -> int:
        return meminfo(self.root).get("MemTotal", 0)

    def shared_memory(self, name: str, handle: object) -> Device:
        memory = meminfo(self.root)
        device = self.device(name, handle, memory["MemTotal"], unified_available(memory))
        return replace(device, kind="igpu", unified=True,
                       warning="unified memory: free is what the system has available")


def in_cuda_order(cards: list[Device], environ: Mapping[str, str],
                  ask: Callable[[Mapping[str, str]], list[str] | None] = visible.ask_driver,
                  ) -> tuple[list[Device], list[str]]:
    """`cards` as CUDA numbers them under `environ`, and notes.

    CUDA's default order puts the fastest GPU first, by its own measure. If that cannot matter (UUIDs, PCI
    order, identical GPUs) the order is derived here, else the driver is asked. GPUs without memory are
    numbered too and dropped at the end.
    """
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    cards = sorted(cards, key=lambda card: card.pci_id or "")
    uuids = [card.uuid or "" for card in cards]
    notes: list[str] = []
    if cards and visible.parse(mask) == ():
        return [], [f"CUDA_VISIBLE_DEVICES={mask} hides every GPU"]
    instances = [card for card in cards if (card.uuid or "").startswith("MIG-")]
    one_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({card.description for card in cards}) < 2
    if visible.by_uuid(mask) or (one_order and not instances):
        shown = [cards[i] for i in visible.pick(mask, uuids)]
    elif (answer := ask(environ)) is not None:
        # only the digits: the prefix of a MIG instance's UUID varies
        place = {(card.uuid or "")[4:].replace("-", "").lower(): card for card in cards}
        shown = [place[digits] for digits in answer if digits in place]
    else:
        # a process gets at most one MIG instance, and none if it has full GPUs
        usable = [card for card in cards if card not in instances] or instances[:1]
        shown = [usable[i] for i in visible.pick(mask, [card.uuid or "" for card in usable])]
        notes.append("the GPUs differ and CUDA could not be asked for their order: assuming PCI order "
                     "(set CUDA_DEVICE_ORDER=PCI_BUS_ID, or UUIDs in CUDA_VISIBLE_DEVICES, to be certain)")
    if mask and cards and not shown:
        notes.append(f"CUDA_VISIBLE_DEVICES={mask} matches no GPU")
    return [card for card in shown if card.total], notes
