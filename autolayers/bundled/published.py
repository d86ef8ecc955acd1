"""Where the bundled models are published, what people call them, and how good they are.

    product("qwen3-30b-a3b-q4_k_m")      # "Qwen3 30B-A3B Q4_K_M"
    download("qwen3-30b-a3b-q4_k_m")     # ("-hf", "unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M")
    download("rwkv6-7b-q4_k_m")          # (): no repository is known for it
    quality(MODELS["qwen3.8-27b"])       # 71.8

models.csv has a row a model:

    name        of the bundled headers, without the quantisation
    title       what people call it
    released    year and month, where it is known
    jobs        what it is for, of those of `autolayers best`; without chat and code it is not
                in its list
    index       of `source`, as it stood in the month `dated`; empty: none is published
    repository  of the Hub
    shape       the name whose header has the same tensors; empty: its own
    files       the quantisations that it has, with their bytes where they are known
"""

from __future__ import annotations

import re
from functools import cache
from math import log2

from ..records import dataclass
from ..tables import rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# at the end of a bundled name, e.g. "-q4_k_m", "-ud-q4_k_xl", "-mxfp4"
_QUANTISATION = re.compile(r"[-.](qat-ud-\w+|(?:ud-)?(?:i?q\d\w*|mxfp4|b?f16))$")


@dataclass(frozen=True)
class Published:
    """A model: the stem of its bundled names, its product name, the year and month of its release
    ("": not known), what it is for, its published index (0: none) with source and month, the
    repository of the Hub ("": not known), the model whose header has its tensors, and the bytes of
    its quantisations by their bundled names (0: not known)."""

    stem: str
    name: str
    released: str
    jobs: tuple[str, ...]
    index: float
    dated: str
    source: str
    repository: str
    shape: str
    files: dict[str, int]

    @property
    def vision(self) -> bool:
        """Whether the repository has a projector beside the model."""
        return "pictures" in self.jobs

    @property
    def current(self) -> bool:
        """Whether people take it today."""
        return bool({"chat", "code"}.intersection(self.jobs))

    @property
    def coding(self) -> bool:
        return "code" in self.jobs


def _read(row: dict[str, str]) -> Published:
    stem = row["name"]
    files = {}
    for file in row["files"].split():
        kind, _, size = file.partition(":")
        files[f"{stem}-{kind.lower()}"] = int(size or 0)
    return Published(
        stem,
        row["title"],
        row["released"],
        tuple(row["jobs"].split()),
        float(row["index"] or 0),
        row["dated"],
        row["source"],
        row["repository"],
        row["shape"] or stem,
        files,
    )


# Stem of the bundled names -> the model
MODELS = {row["name"]: _read(row) for row in rows("bundled/models.csv")}
_ONE_FILE = frozenset(("gpt-oss-120b", "gpt-oss-20b"))  # repositories of one quantisation
# "35B-A3B": all parameters and the active ones, in billions
_SIZE = re.compile(r"([\d.]{1,9})B(?:-A([\d.]{1,9})B)?")
# Q8_K_XL of a bundled name without ud-: Unsloth's, which alone makes it
_LARGE = re.compile(r"^q\d_k_xl$")


def product(name: str) -> str:
    """Return the bundled model as people call it, with its quantisation."""
    row = MODELS.get(stem(name))
    return f"{row.name} {quantisation(name)}" if row else name


def of(name: str) -> Published | None:
    """Return what is known of the bundled model; None for another."""
    return MODELS.get(stem(name))


def download(name: str) -> Sequence[str]:
    """Return llama-server's flags that download the bundled model, without the projector that is
    not in its plan; () if no repository is known."""
    row = MODELS.get(stem(name))
    if row is None or name not in row.files:
        return ()
    # -hf needs no tag where there is a single file
    quant = "" if stem(name) in _ONE_FILE else f":{quantisation(name)}"
    return ("-hf", row.repository + quant, *(("--no-mmproj",) if row.vision else ()))


def quality(model: Published) -> float:
    """Return the index of a model; of one without, that of indexed models as large and as old, less
    what those differ by, as a guess is no reason to be first; 0 of one that is not of today."""
    if model.index or not model.current:
        return model.index
    placed, spread = _placed()
    return placed(model) - spread


@cache
def _placed() -> tuple[Callable[[Published], float], float]:
    """Return the line through the indexed models by size and age, and their distance from it. Twice
    the size is worth as much as 3.5 months (Densing law of LLMs, arXiv 2412.04315); of a mixture
    the size is the geometric mean of all and of the active parameters."""

    def at(model: Published) -> float:
        whole, active = (_SIZE.findall(model.name.upper()) or [("9", "")])[0]
        year, month = map(int, model.released.split("-"))
        return log2(float(whole) * float(active or whole)) / 2 + (12 * year + month) / 3.5

    known = [(at(model), model.index) for model in MODELS.values() if model.index]
    x, y = (sum(column) / len(known) for column in zip(*known, strict=True))
    slope = sum((a - x) * (b - y) for a, b in known) / sum((a - x) ** 2 for a, _ in known)
    spread = (sum((b - y - slope * (a - x)) ** 2 for a, b in known) / len(known)) ** 0.5
    return lambda model: y + slope * (at(model) - x), spread


def stem(name: str) -> str:
    """Return the bundled name without its quantisation."""
    return _QUANTISATION.sub("", name)


def quantisation(name: str) -> str:
    """Return Q4_K_M or UD-Q4_K_XL of a bundled name."""
    match = _QUANTISATION.search(name)
    kind = match[1].upper() if match else ""
    # e.g. "q4_k_xl" -> "UD-Q4_K_XL"
    return f"UD-{kind}" if _LARGE.match(kind.lower()) else kind
