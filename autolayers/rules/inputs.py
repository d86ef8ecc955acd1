"""The inputs of a rule, and the one place where words become numbers."""

from __future__ import annotations

import math
from contextlib import suppress

from ..errors import UsageError
from ..ggml.types import TYPES as GGML_TYPES
from ..records import dataclass
from ..units import MiB, parse_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Files of mixed types: bits of one weight of Llama 3.1 8B in the table of llama.cpp's
# tools/quantize/README.md. A name that is a ggml type too, such as q2_k, stays that type's.
MIXTURES = {
    "iq2_m": 2.93,
    "q2_k_s": 2.97,
    "iq3_xs": 3.5,
    "q3_k_s": 3.64,
    "iq3_m": 3.76,
    "q3_k_m": 4.0,
    "q3_k_l": 4.3,
    "q4_k_s": 4.67,
    "q4_k_m": 4.89,
    "q5_k_s": 5.57,
    "q5_k_m": 5.7,
}
# Bits of one weight. ggml's types count the scales of their blocks, so q4_0 is 4.5; the names
# without a type of ggml's are those that the rules' sources use.
TYPES = {
    "fp32": 32.0,
    "float": 32.0,
    "fp16": 16.0,
    "half": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "int4": 4.0,
    "nf4": 4.0,
    **{type_.name.lower(): type_.type_size * 8 / type_.blck_size for type_ in GGML_TYPES},
    **MIXTURES,
}
OPTIMIZERS = {"adamw": 2, "sgd": 1}  # values kept per parameter, as the published rules count them
_SCHEMES = ("fp32", "mixed", "fp16", "lora", "qlora")

# as people write models: 7B, 350M
_COUNT_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


@dataclass(frozen=True)
class Inputs:
    """None is *not given*; sizes are bytes. A rule that needs what is None is not computed."""

    params: float | None = None
    bits: float | None = None
    layers: int | None = None
    hidden: int | None = None
    intermediate: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    sequence: int | None = None
    batch: int = 1
    optimizer: str = "adamw"
    scheme: str | None = None
    overhead: float = 0.2
    gpu: int | None = None
    extra: int = 0
    layer_size: int | None = None


def _number(value: object, what: str, example: str) -> float:
    # a bool is an int in Python, and True no number of layers
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UsageError(f"not {what}: {value!r} (write for example {example})")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise UsageError(f"not {what}: {value!r} (write for example {example})") from None
    if not math.isfinite(number):
        raise UsageError(f"not {what}: {value!r} (write for example {example})")
    return number


def _params(value: object) -> float:
    what, example = "a parameter count", "7B, 350M or 1.5e9"
    # a plain number counts parameters; a suffix multiplies
    factor, digits = 1.0, value
    if isinstance(value, str) and value.strip()[-1:].lower() in _COUNT_SUFFIXES:
        digits = value.strip()[:-1]
        factor = _COUNT_SUFFIXES[value.strip()[-1].lower()]
    try:
        count = _number(digits, what, example) * factor
    except UsageError:
        raise UsageError(f"not {what}: {value!r} (write for example {example})") from None
    if not 1000 <= count <= 1e18:  # 8 is most likely meant in billions
        raise UsageError(f"not a possible parameter count: {value!r} (write for example {example})")
    return count


def _bits(value: object) -> float:
    # a type's name goes before a number: "q4_0" has 4.5 bits with its scales
    if isinstance(value, str) and value.strip().lower() in TYPES:
        return TYPES[value.strip().lower()]
    bits = _number(value, "a number of bits or a type", "16, fp16 or q4_k_m")
    if not 1 <= bits <= 64:
        raise UsageError(
            f"not a possible number of bits per weight: {value!r} (1 to 64, or a type such as fp16)"
        )
    return bits


def _whole(name: str) -> Callable[[object], int]:
    def parse(value: object) -> int:
        number = _number(value, f"a whole number for {name}", "32")
        # "32.0" is a whole number, 2^40 is no model's size
        if number != int(number) or not 1 <= number <= 1 << 40:
            raise UsageError(f"not a possible number for {name}: {value!r} (a whole number from 1)")
        return int(number)

    return parse


def _overhead(value: object) -> float:
    # "20%" and 0.2 are the same
    percent = isinstance(value, str) and value.strip().endswith("%")
    number = _number(str(value).strip()[:-1] if percent else value, "an overhead", "0.2 or 20%")
    number = number / 100 if percent else number
    if not 0 <= number <= 10:
        raise UsageError(f"not a possible overhead: {value!r} (a fraction such as 0.2, or 20%)")
    return number


def _size(name: str, smallest: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, str):
            size = parse_size(value)
        else:
            size = round(_number(value, f"a size for {name}", "24GiB"))
        if not smallest <= size <= 1 << 60:
            raise UsageError(
                f"not a possible size for {name}: {value!r} (write for example 24GiB or 400MB)"
            )
        return size

    return parse


def _gpu(value: object) -> int:
    # of a caller in Python: bytes
    if not isinstance(value, str):
        return _size("gpu", MiB)(value)
    if "," in value:
        raise UsageError(
            f"one GPU size, please, not {value!r}: the answer is how many of that size"
        )
    # of 10**9 bytes, as the rules' sources count
    if value.strip()[-2:].lower() in ("mb", "gb", "tb"):
        with suppress(UsageError):
            return _size("gpu", MiB)(value)
    # A card's name is worth what the planner takes it for.
    from ..devices import Device

    # e.g. "RTX 3090" or "24GiB"
    return _size("gpu", MiB)(Device.hypothetical(value).total)


def _choice(name: str, allowed: tuple[str, ...]) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value.strip().lower() not in allowed:
            raise UsageError(f"not a known {name}: {value!r} (one of {', '.join(allowed)})")
        return value.strip().lower()

    return parse


# name -> its reader; autolayers.flags.own says what each means
FIELDS: dict[str, Callable[[object], object]] = {
    "params": _params,
    "bits": _bits,
    "layers": _whole("layers"),
    "hidden": _whole("hidden"),
    "intermediate": _whole("intermediate"),
    "heads": _whole("heads"),
    "kv_heads": _whole("kv_heads"),
    "sequence": _whole("sequence"),
    "batch": _whole("batch"),
    "optimizer": _choice("optimizer", tuple(OPTIMIZERS)),
    "scheme": _choice("scheme", _SCHEMES),
    "overhead": _overhead,
    "gpu": _gpu,
    "extra": _size("extra", 0),
    "layer_size": _size("layer_size", 1),
}


def flag(name: str) -> str:
    """ "--kv-heads" of "kv_heads": the option that gives a field."""
    return "--" + name.replace("_", "-")


def read(given: Mapping[str, object]) -> Inputs:
    """Return the inputs of words or numbers, None meaning not given. Raises UsageError for what no
    rule can mean."""
    parsed: dict[str, object] = {}
    for name, value in given.items():
        if name not in FIELDS:
            raise UsageError(f"no rule takes {name!r} (known: {', '.join(FIELDS)})")
        if value is not None:
            parsed[name] = FIELDS[name](value)
    inputs = Inputs(**parsed)  # type: ignore[arg-type]
    # grouped queries: a group of heads shares a KV head, so one divides the other
    if inputs.kv_heads is not None:
        if inputs.heads is None:
            raise UsageError("KV heads say nothing without the attention heads: give --heads too")
        if inputs.heads % inputs.kv_heads:
            raise UsageError(
                f"{inputs.kv_heads} KV heads do not divide {inputs.heads} attention heads"
            )
    if inputs.heads is not None and inputs.hidden is not None and inputs.hidden < inputs.heads:
        raise UsageError(
            f"a hidden size of {inputs.hidden} cannot hold {inputs.heads} attention heads"
        )
    return inputs
