"""On NVIDIA cards free memory would be another than CUDA can allocate.

What NVML says against what CUDA says, on a real NVIDIA GPU: python3 -m pytest -m gpu
tests/devices/test_gpu.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from autolayers.backends.cuda.pool import context
from autolayers.devices import discover, visible
from autolayers.devices.measure import bus

pytestmark = pytest.mark.gpu

MiB, GiB = 1 << 20, 1 << 30

# In processes of their own, so that each context is gone before the next number is read.
CUDA = """
import ctypes, json, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
index = int(sys.argv[1])

def call(name, *args):
    code = getattr(cuda, name)(*args)
    assert code == 0, (name, code)

def attribute(number):
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value

device, ctx, name = ctypes.c_int(), ctypes.c_void_p(), ctypes.create_string_buffer(256)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), index)
call("cuDeviceGetName", name, 256, device)
call("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), device)
call("cuCtxSetCurrent", ctx)
call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
a, b, size = ctypes.c_uint64(), ctypes.c_uint64(), 1 << 30
call("cuMemAlloc_v2", ctypes.byref(a), ctypes.c_size_t(size))
call("cuMemAlloc_v2", ctypes.byref(b), ctypes.c_size_t(size))
best = 1e9
for _ in range(10):
    start = time.perf_counter()
    call("cuMemcpyDtoD_v2", b, a, ctypes.c_size_t(size))
    call("cuCtxSynchronize")
    best = min(best, time.perf_counter() - start)
print(json.dumps({"name": name.value.decode(), "free": free.value, "total": total.value,
                  "sm": attribute(16), "cc": [attribute(75), attribute(76)],
                  "bandwidth": 2 * size / best}))
"""


@pytest.fixture(scope="module")
def both():
    """(Device, what CUDA says of it) for every visible GPU; NVML is asked before CUDA has a
    context."""
    devices = discover(os.environ).devices
    assert devices, discover(os.environ).notes
    pairs = []
    for i, device in enumerate(devices):
        done = subprocess.run(
            [sys.executable, "-c", CUDA, str(i)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        pairs.append((device, json.loads(done.stdout)))
        print(pairs[-1])
    return pairs


def test_devices_have_the_order_and_names_of_cuda(both):
    uuids = [device.uuid[4:].replace("-", "") for device, _ in both]
    assert uuids == visible.ask_driver(os.environ)
    for i, (device, cuda) in enumerate(both):
        assert (device.name, device.description) == (f"CUDA{i}", cuda["name"])
        assert list(device.compute_capability) == cuda["cc"] and device.n_sm == cuda["sm"]
        assert device.source == "nvml" and device.pci_id


def test_nvml_s_free_less_the_context_is_cuda_s_free(both):
    for device, cuda in both:
        assert cuda["total"] <= device.total and cuda["total"] > 0.93 * device.total
        bare = device.free - cuda["free"]  # a context with nothing loaded into it
        print(f"{device.description}: a bare context takes {bare / MiB:.0f} MiB")
        assert 0 <= bare <= context(device.compute_capability)


def test_bandwidth_is_what_copies_come_near_to(both):
    for device, cuda in both:
        print(
            f"{device.description}: {device.bandwidth / 1e9:.0f} GB/s read, "
            f"{cuda['bandwidth'] / 1e9:.0f} GB/s copied"
        )
        assert 0.4 * device.bandwidth < cuda["bandwidth"] < 1.05 * device.bandwidth


def test_the_bus_can_be_measured():
    speed = bus()["bus"]
    print(f"bus: {speed / 1e9:.1f} GB/s")
    assert 1e9 < speed < 1e12


def test_a_uuid_mask_is_obeyed(both):
    last = both[-1][0]
    found = discover({**os.environ, "CUDA_VISIBLE_DEVICES": last.uuid[:16]}).devices
    assert [(d.name, d.uuid) for d in found] == [("CUDA0", last.uuid)]
    assert discover({**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}).devices == ()


def test_asking_is_quick():
    discover(os.environ)
    start = time.perf_counter()
    discover(os.environ)
    # no assertion on time: printed for a person
    print(f"discover: {time.perf_counter() - start:.3f} s")
