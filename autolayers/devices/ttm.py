"""Linux's ttm, the kernel module that limits how much RAM AMD's integrated GPUs take
(mem_info_gtt_total), by version.

    with_ttm(devices)                       # their driver: "ttm of Linux 6.17"
    parameters("ttm of Linux 6.12", 48 << 30)     # "ttm.pages_limit=12582912 amdgpu.gttsize=49152"
"""

from __future__ import annotations

import os

from ..records import replace
from ..units import MiB
from .system import file_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..machine import Device

_PAGE = 4096  # bytes
# the first Linux whose amdgpu takes the limit from ttm and warns of amdgpu.gttsize, its own
_ALONE = 6, 15
NEWEST = "ttm of Linux 6.15"
_OWN_PACKAGE = "amdttm"  # ttm in the driver that AMD ships apart from Linux (amdgpu-dkms)


def with_ttm(devices: Sequence[Device], root: str = "/") -> list[Device]:
    """Return the devices, AMD's integrated ones with ttm as their driver. `root`: see Host.read."""
    import re  # few calls

    # "6.17.0-14-generic"
    version = re.match(r"(\d{1,4})\.(\d{1,4})", file_text(root, "proc/sys/kernel/osrelease"))
    if version is None:
        return list(devices)
    module = (
        _OWN_PACKAGE if os.path.isdir(f"{root.rstrip('/')}/sys/module/{_OWN_PACKAGE}") else "ttm"
    )
    driver = f"{module} of Linux {version[1]}.{version[2]}"
    return [
        replace(device, driver=driver) if is_amds(device) and not device.driver else device
        for device in devices
    ]


def is_amds(device: Device) -> bool:
    """Return whether it is an integrated GPU of AMD's."""
    return device.kind == "igpu" and ("AMD" in device.description or "Radeon" in device.description)


def parameters(driver: str, limit: int) -> str:
    """Return the kernel parameters that let a GPU with this driver take `limit` bytes; "" for any
    other driver."""
    import re  # few calls

    match = re.fullmatch(r"(ttm|amdttm) of Linux (\d{1,4})\.(\d{1,4})", driver)
    if match is None:
        return ""
    module, version = match[1], (int(match[2]), int(match[3]))
    # 12582912 pages of 4 KiB are 48 GiB
    pages = f"{module}.pages_limit={limit // _PAGE}"
    return (
        pages
        if version >= _ALONE or module == _OWN_PACKAGE
        else f"{pages} amdgpu.gttsize={limit // MiB}"
    )
