"""The published rules of thumb, one row each: formula, assumptions, what it leaves out, its own
worked examples.

The command line, the documentation and the tests of the examples are all made from RULES. GB is
10**9 bytes here, as in the sources; a GPU's size is what its maker prints in binary units (an "80
GB" A100 holds 80 GiB).
"""

from __future__ import annotations

from math import floor

from ..errors import UsageError
from ..records import dataclass
from .inputs import OPTIMIZERS, Inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GB, MB = 10**9, 10**6
# PyTorch's CUDA context as the batch rule's source measured it (1343 MB on its card).
_CUDA_CONTEXT = 1.3 * GB


@dataclass(frozen=True)
class Answer:
    """A rule's value (bytes, or layers) and how it came about."""

    value: float
    working: str
    note: str = ""
    as_published: float | None = None  # where the source's own arithmetic gives another figure


@dataclass(frozen=True)
class Example:
    """A worked example: what is given (as a user types it) and the figure its source prints."""

    given: Mapping[str, object]
    figure: str  # "168 GB": compared at the decimals written here
    gpus: int | None = None
    published: bool = False  # the figure is the source's own arithmetic, `Answer.as_published`


@dataclass(frozen=True)
class Rule:
    name: str
    title: str
    formula: str
    needs: tuple[str, ...]
    compute: Callable[[Inputs], Answer]
    assumes: str
    leaves_out: str
    source: str
    examples: tuple[Example, ...]
    takes: tuple[str, ...] = ()  # optional inputs
    unit: str = "bytes"  # or "layers"
    scheme: str | None = None  # the training scheme this rule is
    erratum: str = ""  # where its source errs, what is right, and why


def _weights(inputs: Inputs) -> float:
    assert inputs.params is not None and inputs.bits is not None
    # bits, not bytes: some types have 4.5
    return inputs.params * inputs.bits / 8


def _count(params: float) -> str:
    # 7e9 -> "7B"
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if params >= factor:
            return f"{params / factor:.4g}{suffix}"
    return f"{params:.10g}"


def _bytes(inputs: Inputs) -> str:
    assert inputs.bits is not None
    return f"{inputs.bits / 8:g} bytes"


def _times_weights(factor: float) -> Callable[[Inputs], Answer]:
    def compute(inputs: Inputs) -> Answer:
        assert inputs.params is not None
        lead = "" if factor == 1 else f"{factor:g} × "
        return Answer(
            factor * _weights(inputs), f"{lead}{_count(inputs.params)} × {_bytes(inputs)}"
        )

    return compute


def _serving(inputs: Inputs) -> Answer:
    assert inputs.params is not None and inputs.bits is not None
    # the source writes 4 bytes / (32 / Q), which is Q / 8
    return Answer(
        _weights(inputs) * (1 + inputs.overhead),
        f"{_count(inputs.params)} × 4 bytes / (32 / {inputs.bits:g}) × {1 + inputs.overhead:g}",
    )


def _kv_cache(inputs: Inputs) -> Answer:
    assert inputs.layers is not None and inputs.hidden is not None and inputs.sequence is not None
    # K and V, two bytes each, as wide as the hidden state
    value: float = 2 * 2 * inputs.layers * inputs.hidden * inputs.sequence * inputs.batch
    working = (
        f"2 × 2 bytes × {inputs.layers} × {inputs.hidden} × {inputs.sequence} × {inputs.batch}"
    )
    note = ""
    # the rule without heads is of multi-head attention
    if inputs.heads is not None and inputs.kv_heads is not None and inputs.kv_heads != inputs.heads:
        # only the KV heads are cached
        value = value * inputs.kv_heads / inputs.heads
        working += f" × {inputs.kv_heads}/{inputs.heads} heads"
        note = "MQA" if inputs.kv_heads == 1 else "GQA"
    return Answer(value, working, note)


def _layers_that_fit(inputs: Inputs) -> Answer:
    """Return how many layers the GPU holds beside `extra` bytes."""
    assert inputs.gpu is not None
    if inputs.layer_size is not None:
        # a given size of a layer goes before the mean of the model
        per_layer = float(inputs.layer_size)
    elif inputs.params is not None and inputs.bits is not None and inputs.layers is not None:
        per_layer = _weights(inputs) / inputs.layers
    else:
        raise UsageError("layers_that_fit needs --layer-size, or --params, --bits and --layers")
    if inputs.extra > inputs.gpu:
        raise UsageError(
            f"layers_that_fit: --extra ({inputs.extra} bytes) is more than the GPU holds "
            f"({inputs.gpu})"
        )
    layers = (inputs.gpu - inputs.extra) / per_layer
    working = (
        f"({inputs.gpu / GB:.4g} GB - {inputs.extra / GB:.4g} GB) / {per_layer / MB:.4g} MB a layer"
    )
    # a part of a layer does not fit
    whole = floor(layers)
    as_published = None if round(layers) == whole else round(layers)  # the source rounds
    if inputs.layers is not None and whole >= inputs.layers:
        return Answer(
            inputs.layers, working, f"space for {whole}, so all {inputs.layers}", as_published
        )
    return Answer(whole, working, as_published=as_published)


def _optimizer(inputs: Inputs) -> Answer:
    assert inputs.params is not None
    # values per parameter, in the weights' type: AdamW keeps two moments
    copies = OPTIMIZERS[inputs.optimizer]
    return Answer(
        copies * _weights(inputs),
        f"{copies} × {_count(inputs.params)} × {_bytes(inputs)}",
        inputs.optimizer,
    )


def _training_sum(inputs: Inputs) -> Answer:
    # the erratum of this rule says what is counted twice
    whole = 4 * _weights(inputs)
    gradients, states = _weights(inputs), _optimizer(inputs).value
    return Answer(
        whole + gradients + states,
        f"{whole / GB:.4g} + {gradients / GB:.4g} + {states / GB:.4g} GB",
        inputs.optimizer,
    )


def _training_margin(inputs: Inputs) -> Answer:
    summed = _training_sum(inputs).value
    return Answer(
        summed * (1 + inputs.overhead),
        f"{summed / GB:.4g} GB × {1 + inputs.overhead:g}",
        inputs.optimizer,
    )


def _per_parameter(
    name: str, bytes_each: float, parts: str, adamw_only: bool
) -> Callable[[Inputs], Answer]:
    def compute(inputs: Inputs) -> Answer:
        assert inputs.params is not None
        if adamw_only and inputs.optimizer != "adamw":
            raise UsageError(f"{name} is published for AdamW only, not {inputs.optimizer}")
        return Answer(
            inputs.params * bytes_each, f"{_count(inputs.params)} × {bytes_each:g} bytes ({parts})"
        )

    return compute


def _training_batch(inputs: Inputs) -> Answer:
    assert inputs.hidden is not None and inputs.intermediate is not None and inputs.bits is not None
    assert inputs.sequence is not None and inputs.layers is not None
    # weights and gradients, the optimiser's states, and a CUDA context
    fixed = 2 * _weights(inputs) + _optimizer(inputs).value + _CUDA_CONTEXT
    # activations of one sequence
    each = (inputs.hidden + inputs.intermediate) * inputs.sequence * inputs.layers * inputs.bits / 8
    # The source counts MB by the thousand but turns them into GB by dividing by 1024.
    as_published = fixed + each / MB * inputs.batch / 1024 * GB
    weights, states = _weights(inputs) / GB, _optimizer(inputs).value / GB
    return Answer(
        fixed + each * inputs.batch,
        f"{weights:.4g} + {weights:.4g} + {states:.4g} + {_CUDA_CONTEXT / GB:g} GB + "
        f"({inputs.hidden} + {inputs.intermediate}) × {inputs.sequence} × {inputs.layers} × "
        f"{inputs.batch} × {_bytes(inputs)}",
        inputs.optimizer,
        as_published,
    )


def _total(inputs: Inputs) -> Answer:
    serving = _serving(inputs)
    # without a shape of the model the 20 % of serving must do for the cache
    if inputs.layers is None or inputs.hidden is None or inputs.sequence is None:
        return Answer(serving.value, serving.working, "serving alone: no KV cache given")
    cache = _kv_cache(inputs)
    return Answer(
        serving.value + cache.value,
        f"{serving.value / GB:.4g} GB + {cache.value / GB:.4g} GB",
        "serving + KV cache",
    )


_SUBSTRATUS = "Substratus, Calculating GPU memory for serving LLMs (2023)"
_COUNTING = "the bytes-per-parameter tables of model cards and memory calculators"
_COURSE = "course notes that count FP32 training as 4 + 8 + 4 + 8 bytes a parameter"
_FACTORY = "the hardware table of LLaMA-Factory's README"
# the inputs that several examples share
_13B = {"params": "13B", "bits": "fp32"}
_6B: dict[str, object] = {
    "params": "6B",
    "bits": "int8",
    "hidden": 4096,
    "intermediate": 11008,
    "sequence": 2048,
    "layers": 32,
    "batch": 50,
}
_CACHE: dict[str, object] = {"layers": 32, "hidden": 4096, "sequence": 2048}
_NO_ACTIVATIONS = "activations, which grow with batch and sequence; the framework's own memory"
_TWICE = (
    "Four times the model already is weights + gradients + two AdamW states (1 + 1 + 2), so adding "
    "gradients and optimiser to it counts both twice: 13B in FP32 needs 208 GB without "
    "activations, 250 GB with 20 %, not 437. The rule is kept because it is quoted; it errs on the "
    "safe side."
)

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(
            "serving",
            "to serve",
            "P × 4 bytes / (32 / Q) × 1.2",
            ("params", "bits"),
            _serving,
            "every weight has Q bits; 20 % more covers KV cache, activations and buffers",
            "context length, batch and KV heads: the 20 % is the same for 1 token and for 128k",
            _SUBSTRATUS,
            (
                Example({"params": "70B", "bits": 16, "gpu": "80GiB"}, "168 GB", gpus=2),
                Example({"params": "70B", "bits": 4, "gpu": "24GiB"}, "42 GB", gpus=2),
            ),
            takes=("overhead", "gpu"),
            erratum="Two A100 80 GB are enough only because such a card holds 80 GiB (85.9 GB): "
            "168 GB are 2.1 times "
            '80 × 10^9 bytes, but 1.96 times 80 GiB. A derived "FP8 training" figure of 21 GB for '
            "70B puts "
            "1 byte for the 4 bytes and divides by 32 / 8 all the same, so it shrinks the weights "
            "twice: the "
            "formula "
            "gives 70 × 4 / (32 / 8) × 1.2 = 84 GB, and that is serving. Training 70B takes 16 "
            "bytes a parameter "
            "with "
            "mixed precision, 1120 GB before activations.",
        ),
        Rule(
            "holding",
            "to hold the weights",
            "P × Q / 8",
            ("params", "bits"),
            _times_weights(1),
            "FP32 4, FP16 2, INT8 1, INT4 0.5 bytes a parameter; one type for every tensor",
            "everything but weights; scales of quantised blocks unless Q counts them (q4_0 has 4.5 "
            "bits); tensors kept at a higher precision",
            _COUNTING,
            (
                Example({"params": "1B", "bits": "fp32"}, "4 GB"),
                Example(_13B, "52 GB"),
                Example({"params": "7B", "bits": "fp16"}, "14 GB"),
                Example({"params": "7B", "bits": "int8"}, "7 GB"),
                Example({"params": "7B", "bits": "int4"}, "3.5 GB"),
            ),
            takes=("gpu",),
        ),
        Rule(
            "inference",
            "to run, about the model's size",
            "P × Q / 8",
            ("params", "bits"),
            _times_weights(1),
            "the weights dominate",
            "KV cache and compute buffers, which exceed the weights at long contexts",
            _COUNTING,
            (Example(_13B, "52 GB"),),
            takes=("gpu",),
            erratum="Some sources add gradients and optimiser states here. Inference keeps "
            "neither: no backward pass runs, so there is no gradient to store and nothing to "
            "optimise.",
        ),
        Rule(
            "kv_cache",
            "KV cache",
            "2 × 2 bytes × layers × hidden × sequence × batch × KV heads / heads",
            ("layers", "hidden", "sequence"),
            _kv_cache,
            "K and V, each 2 bytes (FP16); MHA: KV heads = heads; MQA: one KV head; GQA: a few",
            "padding of the cell count, sliding windows, recurrent layers, latent attention (MLA), "
            "head sizes that are not hidden / heads, quantised cache types",
            "transformer inference arithmetic as quoted for a 7B model",
            (
                Example({**_CACHE, "batch": 64}, "68.7 GB"),
                Example(_CACHE, "1.07 GB"),
                Example({**_CACHE, "batch": 64, "heads": 32, "kv_heads": 8}, "17.2 GB"),
                Example({**_CACHE, "batch": 64, "heads": 32, "kv_heads": 1}, "2.1 GB"),
            ),
            takes=("batch", "heads", "kv_heads", "gpu"),
        ),
        Rule(
            "layers_that_fit",
            "layers that fit",
            "(available - extra) / memory per layer",
            ("gpu",),
            _layers_that_fit,
            "all layers are equally large, parameters × bits / layers; extra covers all else",
            "embedding and output layer, the KV cache that comes with each layer, compute buffers",
            "llama.cpp tuning guides for n_gpu_layers",
            (
                Example({"gpu": "14GB", "extra": "4GB", "layer_size": "400MB"}, "25 layers"),
                Example({"params": "7B", "bits": 4, "layers": 80, "gpu": "8GB"}, "80 layers"),
                Example(
                    {"params": "7B", "bits": 4, "layers": 80, "gpu": "8GB"},
                    "183 layers",
                    published=True,
                ),
            ),
            takes=("extra", "layer_size", "params", "bits", "layers"),
            unit="layers",
            erratum="8 GB / 43.75 MB is 182.9: the source rounds it to 183, but only 182 whole "
            "layers fit (all 80 of "
            "that model "
            'either way). llama.cpp\'s n_gpu_layers counts the output layer too, so "all" is the '
            "layers + 1.",
        ),
        Rule(
            "training",
            "to train, about 4 times the model",
            "4 × P × Q / 8",
            ("params", "bits"),
            _times_weights(4),
            "weights, gradients and two AdamW states at one precision",
            _NO_ACTIVATIONS,
            _COUNTING,
            (Example(_13B, "208 GB"),),
            takes=("gpu",),
        ),
        Rule(
            "gradients",
            "gradients",
            "P × Q / 8",
            ("params", "bits"),
            _times_weights(1),
            "one value a parameter, at the precision of the weights",
            "all else; inference keeps none",
            _COUNTING,
            (Example(_13B, "52 GB"),),
            takes=("gpu",),
        ),
        Rule(
            "optimizer",
            "optimiser states",
            "2 × P × Q / 8 with AdamW, P × Q / 8 with SGD",
            ("params", "bits"),
            _optimizer,
            "AdamW keeps two moments; SGD keeps a momentum (plain SGD keeps nothing)",
            "all else; inference keeps none",
            _COUNTING,
            (Example(_13B, "104 GB"), Example({**_13B, "optimizer": "sgd"}, "52 GB")),
            takes=("optimizer", "gpu"),
        ),
        Rule(
            "training_sum",
            "to train, summed",
            "4 × model + gradients + optimiser",
            ("params", "bits"),
            _training_sum,
            "the three rules above added",
            _NO_ACTIVATIONS,
            _COUNTING,
            (Example(_13B, "364 GB"),),
            takes=("optimizer", "gpu"),
            erratum=_TWICE,
        ),
        Rule(
            "training_margin",
            "to train, summed, with margin",
            "(4 × model + gradients + optimiser) × 1.2",
            ("params", "bits"),
            _training_margin,
            "20 % covers what is not counted",
            _NO_ACTIVATIONS,
            _COUNTING,
            (Example(_13B, "437 GB"),),
            takes=("optimizer", "overhead", "gpu"),
            erratum=_TWICE,
        ),
        Rule(
            "training_fp32",
            "to train in FP32",
            "P × (4 + 20) bytes",
            ("params",),
            _per_parameter(
                "training_fp32", 24, "4 weights + 4 gradients + 8 AdamW + 8 activations", True
            ),
            "4 bytes to hold, 20 more to train: 8 AdamW, 4 gradients, 8 activations and "
            "temporaries",
            "how activations grow with batch and sequence: 8 bytes a parameter is a guess",
            _COURSE,
            (Example({"params": "1B"}, "24 GB"),),
            takes=("gpu",),
            scheme="fp32",
        ),
        Rule(
            "training_mixed",
            "to train in mixed precision",
            "P × 16 bytes",
            ("params",),
            _per_parameter(
                "training_mixed", 16, "2 weights + 2 gradients + 4 master weights + 8 AdamW", True
            ),
            "AdamW; FP16 weights and gradients, FP32 master weights and moments",
            _NO_ACTIVATIONS,
            "mixed-precision accounting as in the ZeRO paper (2019)",
            (Example({"params": "8B"}, "128 GB"),),
            takes=("gpu",),
            scheme="mixed",
        ),
        Rule(
            "training_fp16",
            "to train in FP16 throughout",
            "P × 8 bytes",
            ("params",),
            _per_parameter("training_fp16", 8, "2 weights + 2 gradients + 4 AdamW", True),
            "AdamW; everything in 16 bits",
            _NO_ACTIVATIONS,
            _FACTORY,
            (Example({"params": "7B"}, "56 GB"),),
            takes=("gpu",),
            scheme="fp16",
        ),
        Rule(
            "lora",
            "LoRA",
            "P × 2 bytes",
            ("params",),
            _per_parameter("lora", 2, "frozen weights", False),
            "the frozen weights in 16 bits dominate; adapters are small",
            "the adapters' weights, gradients and optimiser; activations",
            _FACTORY,
            (Example({"params": "7B"}, "14 GB"),),
            takes=("gpu",),
            scheme="lora",
        ),
        Rule(
            "qlora",
            "QLoRA",
            "P × 0.5 bytes",
            ("params",),
            _per_parameter("qlora", 0.5, "frozen weights", False),
            "the frozen weights in 4 bits dominate; adapters are small",
            "quantisation constants, the adapters' weights, gradients and optimiser; activations",
            _FACTORY,
            (Example({"params": "7B"}, "3.5 GB"),),
            takes=("gpu",),
            scheme="qlora",
        ),
        Rule(
            "training_batch",
            "to train, by batch",
            "weights + gradients + optimiser + 1.3 GB + (hidden + feed-forward) × sequence × "
            "layers × batch × Q / 8",
            ("params", "bits", "hidden", "intermediate", "sequence", "layers"),
            _training_batch,
            "all states at the precision of the weights; PyTorch's CUDA context takes 1.3 GB; one "
            "activation per hidden and feed-forward unit",
            "attention scores, logits, temporaries; int8 AdamW as counted needs 8-bit optimiser "
            "states",
            "worked example for LLaMA-6B in int8",
            (Example(_6B, "74.8 GB"), Example(_6B, "73.6 GB", published=True)),
            takes=("batch", "optimizer", "gpu"),
            erratum="The source multiplies 990 MB by 50 and divides by 1024, which mixes units: "
            "48.3 and so 73.6 GB in all. In one unit the activations are 49.5 GB and the sum 74.8 "
            "GB. Both are given.",
        ),
        Rule(
            "total",
            "in all, to serve",
            "serving + KV cache",
            ("params", "bits"),
            _total,
            "the KV cache comes on top of the 20 %, which then is for buffers: an upper figure at "
            "short contexts",
            "what serving and KV cache leave out; without layers, hidden and sequence it is "
            "serving alone",
            "the sum of the two rules above",
            (
                Example({"params": "70B", "bits": 16, "gpu": "80GiB"}, "168 GB", gpus=2),
                Example({"params": "7B", "bits": 16, **_CACHE, "batch": 64}, "85.5 GB"),
            ),
            takes=("overhead", "layers", "hidden", "sequence", "batch", "heads", "kv_heads", "gpu"),
        ),
    )
}
