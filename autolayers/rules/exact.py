"""The rules against the exact figures of a model that does have a file."""

from __future__ import annotations

import re

from ..errors import UsageError
from ..records import dataclass, replace
from .evaluate import Result, apply_all
from .inputs import Inputs, flag, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model import Model

_FROM_FILE = ("params", "layers", "hidden", "intermediate", "heads", "kv_heads")
# long enough that the cache shows, short enough that the 20 % rules mean it
_DEFAULT_SEQUENCE = 8192


@dataclass(frozen=True)
class Comparison:
    """One rule's result and the exact figure in the same unit; None where nothing exact exists
    (training)."""

    result: Result
    exact: int | None = None

    @property
    def error(self) -> float | None:
        """(rule - exact) / exact; positive where the rule says too much."""
        return (self.result.value - self.exact) / self.exact if self.exact else None


def compare(model: Model, **given: object) -> tuple[dict[str, Comparison], dict[str, str], Inputs]:
    """Return the rules for this model against what llama-server allocates with every layer on one
    large enough GPU.

    `given` are the inputs a file does not answer (sequence, batch, gpu, ...). Returns the
    comparisons, the reasons of the rules left out, and the inputs used. Raises UsageError for
    nonsense and for inputs that the file answers.
    """
    # a word that the file contradicts would make the comparison one of two models
    for name in _FROM_FILE:
        if given.get(name) is not None:
            raise UsageError(f"{flag(name)} comes from the model file; leave one of the two out")
    inputs = _inputs_of(model, read(given))
    results, refused = apply_all(inputs)
    # The exact figures by rule: bytes on all devices together, or layers on the given GPU.
    from ..api import plan
    from ..devices import Device

    assert inputs.sequence is not None
    # -np for the batch: each sequence has its own cells, as the rules count them
    context = ["-c", str(inputs.sequence * inputs.batch), "-np", str(inputs.batch)]
    everything = ["-ngl", str(model.n_layer + 1), *context]
    # one endless GPU: nothing stays in RAM but the embedding
    use = plan(model, everything, devices=[Device.hypothetical("1048576GiB")]).breakdown
    # both together, as the rules do not know where a tensor is
    places = [*use.devices.values(), use.host]
    total = sum(place.total for place in places)
    figures = {
        "holding": sum(place.model for place in places),
        "kv_cache": sum(place.context for place in places),
        "inference": total,
        "serving": total,
        "total": total,
    }
    # --strategy layers: whole layers, no experts in RAM, like the rule
    if inputs.gpu is not None:
        fitting = plan(
            model,
            [*context, "--strategy", "layers"],
            devices=[Device.hypothetical(f"{inputs.gpu}B")],
        )
        # llama.cpp's first layer on the GPU is the output layer, which the rule does not count.
        figures["layers_that_fit"] = max(0, fitting.n_gpu_layers - 1)
    exact = figures
    return (
        {name: Comparison(result, exact.get(name)) for name, result in results.items()},
        refused,
        inputs,
    )


def _inputs_of(model: Model, inputs: Inputs) -> Inputs:
    """Return `inputs` with what the header says. Where layers differ the one with most KV heads
    speaks for all, as the rules know one."""
    hparams = model.hparams
    layers = range(hparams.n_layer)
    widest = max(layers, key=hparams.n_head_kv)
    return replace(
        inputs,
        params=float(model.n_elements),
        bits=inputs.bits or _nominal_bits(_main_type(model)),
        layers=hparams.n_layer,
        hidden=hparams.n_embd,
        # mixtures and state-space models may have none
        intermediate=max(map(hparams.n_ff, layers)) or None,
        heads=hparams.n_head(widest) or None,
        kv_heads=hparams.n_head_kv(widest) or None,
        sequence=inputs.sequence or min(_DEFAULT_SEQUENCE, model.n_ctx_train or _DEFAULT_SEQUENCE),
    )


def _main_type(model: Model) -> str:
    """Return the type of most weights."""
    elements: dict[str, int] = {}
    for tensor in model.tensors.values():
        elements[tensor.type] = elements.get(tensor.type, 0) + tensor.n_elements
    return max(elements, key=lambda name: elements[name], default="f32")


def _nominal_bits(type_name: str) -> float:
    """Return the bits people quote for a type: 4 for q4_K, 16 for bf16."""
    # "q4_K" -> 4, as the rules' sources count; ggml's own 4.5 is in TYPES
    digits = re.search(r"\d+", type_name)
    return float(digits.group()) if digits else 32.0
