"""How far a file is from the original: what is usual for its type, or what llama-perplexity
measured of that very file.

    usual(model)                # Usual: the median and the range over about twenty models
    read(text, source)          # llama-perplexity --kl-divergence: Divergence by the model's file
    closer(one, other)          # 1, -1 or 0: which of two measured ones is closer to the original

A divergence is shown with its source only. Two are compared within one source, and equal below
EQUAL or EQUAL_FACTOR. Without figures, the larger of two files of a model half a bit apart is
closer (99.2 % of 2849 public pairs); less is not decided by size. Divergences of weights and of
caches are never added up.
"""

from __future__ import annotations

import re

from ...records import as_json, dataclass
from ..quantisations import main_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...model import Model

# Two divergences of one source differ by noise below this sum, and below this factor.
EQUAL, EQUAL_FACTOR = 0.005, 1.5
# type of all weights: mean KL divergence, the median over models and the least and most of any;
# text and base differ
TYPES = {
    "q8_0": (0.0015, 0.0005, 0.008),
    "q6_K": (0.0040, 0.0009, 0.018),
    "q5_K": (0.012, 0.0026, 0.029),
    "iq4_xs": (0.026, 0.008, 0.075),
    "q4_K": (0.029, 0.007, 0.066),
    "q4_0": (0.037, 0.010, 0.11),
    "iq3_s": (0.077, 0.025, 0.67),
    "q3_K": (0.083, 0.028, 0.32),
    "iq3_xxs": (0.13, 0.041, 0.50),
    "q2_K": (0.29, 0.088, 1.3),
    "iq2_xxs": (0.68, 0.16, 2.9),
    "iq1_s": (1.7, 0.36, 5.2),
}
# Types without figures of their own, and the type that is as close to the original.
_ALIKE = {
    "q5_0": "q5_K",
    "q5_1": "q5_K",
    "q4_1": "q4_0",
    "iq4_nl": "q4_K",
    "iq2_xs": "iq2_xxs",
    "iq2_s": "q2_K",
    "iq1_m": "iq1_s",
}
# Mean KL divergence up to this, and the bits of the types that people know for it.
_BANDS = ((0.005, 6), (0.02, 5), (0.06, 4), (0.2, 3), (float("inf"), 2))

# Lines of llama-perplexity, e.g. "llama_model_loader: loaded meta data with 35 key-value pairs and
# 399 tensors from m.gguf (version GGUF V3 (latest))".
_LOADED = re.compile(r"loaded meta data with [^()]{0,60} tensors from (.{1,300}?) \(version")
_SIZE = re.compile(r"file size\s+=\s+([\d.]+) (GiB|MiB) \(")
# E.g. "Mean    KLD:   0.028123 ±   0.000412".
_KLD = re.compile(r"Mean\s+KLD:\s+([-\d.]+)\s+±\s+([\d.]+)")
_TOP = re.compile(r"Same top p:\s+([\d.]+)")


@dataclass(frozen=True)
class Usual:
    """Of files whose weights are mostly of this type."""

    type: str
    median: float
    least: float
    most: float
    small: bool  # the model is one of those that are a band worse

    @property
    def band(self) -> str:
        at = next(i for i, (highest, _) in enumerate(_BANDS) if self.median <= highest)
        # A model of few weights loses more by the same type: one band lower, at most the last.
        return f"as Q{_BANDS[min(len(_BANDS) - 1, at + self.small)][1]}"

    def to_dict(self) -> dict[str, object]:
        return {**as_json(self), "band": self.band}


@dataclass(frozen=True)
class Divergence:
    """A mean KL divergence of one file, and the share of tokens whose most likely successor is the
    original's."""

    kld: float
    error: float
    same_top: float | None
    source: str
    file: str = ""
    size: str = ""  # of its tensors, as llama.cpp prints it

    def to_dict(self) -> dict[str, object]:
        return {
            "kld": self.kld,
            "error": self.error,
            "same_top": self.same_top,
            "source": self.source,
        }


def usual(model: Model) -> Usual | None:
    """Return the quality that is usual for the type of most of the matrices' bytes; None for
    unquantised and unknown ones."""
    name = main_type(model)
    figures = TYPES.get(_ALIKE.get(name, name))
    return None if figures is None else Usual(name, *figures, model.n_elements < 4e9)


def level(usual: Usual | None, measured: Divergence | None, bits_per_weight: float) -> int:
    """Return 2 to 6, as in Q2 to Q6: by the measured divergence, otherwise the type's, otherwise
    bits (of MXFP4 or an unquantised file). A small model's is not a level lower, as no other file
    of it is closer for its bits."""
    if measured is None and usual is None:
        return max(2, min(6, int(bits_per_weight)))
    divergence = usual.median if usual else 0.0
    # What was measured of this file beats what is usual for its type.
    if measured is not None:
        divergence = measured.kld
    return next(bits for highest, bits in _BANDS if divergence <= highest)


def read(text: str, source: str) -> list[Divergence]:
    """Return the measurements in llama-perplexity's output, of one file or several after each
    other."""
    measurements: list[Divergence] = []
    file = size = ""
    kld: tuple[float, float] | None = None
    for line in text.splitlines():
        if match := _LOADED.search(line):
            # A new file: what was read before belongs to the one before it.
            file = match[1].strip()
            size = ""
            kld = None
        elif match := _SIZE.search(line):
            size = size or f"{match[1]} {match[2]}"
        elif match := _KLD.search(line):
            kld = float(match[1]), float(match[2])
            measurements.append(Divergence(*kld, None, source, file, size))
        # Printed some lines after the KLD, so the measurement is completed.
        elif (match := _TOP.search(line)) and kld:
            last = measurements.pop()
            measurements.append(
                Divergence(last.kld, last.error, float(match[1]), source, last.file, last.size)
            )
            kld = None
    return measurements


def of(model: Model, measured: Sequence[Divergence]) -> Divergence | None:
    """Return the measurement of this very file: of its name, and of its size where the output has
    that."""
    name = _base(model.path)
    n_bytes = model.header.n_bytes
    sizes = {"", f"{n_bytes / 2**30:.2f} GiB", f"{n_bytes / 2**20:.2f} MiB"}
    return next(
        # The last measurement counts, where one file was measured again.
        (one for one in reversed(measured) if _base(one.file) == name and one.size in sizes),
        None,
    )


def _base(path: str) -> str:
    return re.split(r"[/\\:]", path)[-1].lower()


def closer(one: Divergence, other: Divergence) -> int:
    """Return 1 where the first is closer to the original, -1 where the other is, 0 where they are
    equal."""
    # A tiny negative mean is noise around 0.
    own = max(0.0, one.kld)
    others = max(0.0, other.kld)
    low = min(own, others)
    high = max(own, others)
    if high - low < EQUAL or high < EQUAL_FACTOR * low:
        return 0
    return 1 if own < others else -1
