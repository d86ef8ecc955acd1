"""The same question would have two answers.

What a launch takes does not depend on which launches were measured before it.
"""

from __future__ import annotations

from support import model

from autolayers import Device
from autolayers.flags.params import Params
from autolayers.machine import Machine
from autolayers.planner.evaluate import FULL, PROMPT, Evaluator
from autolayers.records import replace


def test_the_same_layers_have_one_answer_in_any_order_of_devices() -> None:
    """All layers on CUDA1, which is the first or the second of two."""
    devices = [Device(f"CUDA{i}", 1 << 30, 1 << 30) for i in range(2)]
    machine = Machine.of(devices, None, None, {})
    second = Params(n_gpu_layers=99, n_ctx=256, kv_offload=False, tensor_split=(0.0, 1.0))
    first = replace(second, device=("CUDA1", "CUDA0"), tensor_split=(1.0,))
    alone, after = (Evaluator.of(model("arcee-dense"), machine) for _ in range(2))
    assert after.candidate(first, PROMPT) is not None
    found, expected = (evaluator.candidate(second, FULL) for evaluator in (after, alone))
    assert found is not None and expected is not None
    assert found.breakdown.devices == expected.breakdown.devices
