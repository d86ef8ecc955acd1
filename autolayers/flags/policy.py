"""autolayers' own flags as the values a planner goes by.

    params, policy = read(["-c", "8192", "--budget", "CUDA0=10GiB"], os.environ)
"""

from __future__ import annotations

from ..errors import UsageError
from ..records import dataclass
from .params import Params
from .workload import CHAT, Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .parse import Arguments


@dataclass(frozen=True)
class Policy:
    """What a planner is to aim at. `strategy` None means not given: auto, but a given -ngl is taken literally.

    `n_ctx` is None (the largest context that costs no layer), "max" or a number; `budget` holds bytes per device
    name, `margin` bytes per device; `gpu` and `ram` (bytes), or the file `machine`, say the machine, `backend` what
    drives its GPUs, `build` the llama.cpp build: its number, or a builds.Build. `alone`: the answer is to be
    n_gpu_layers and nothing else. `workload` is what placements are compared by."""

    strategy: str | None = None
    n_ctx: int | str | None = None
    n_ctx_min: int | None = None
    kv_types: tuple[str, ...] = ()
    budget: tuple[tuple[str, int], ...] = ()
    margin: tuple[int, ...] | None = None
    gpu: str | None = None
    ram: int | None = None
    build: Any = None
    alone: bool = False
    workload: Workload = CHAT
    machine: str | None = None
    backend: str | None = None

    def margins(self, devices: int) -> tuple[int, ...]:
        """`margin` of each of so many devices, the last size for those behind it; empty where none was given. Raises
        UsageError for more sizes than devices."""
        given = self.margin or ()
        if len(given) > max(1, devices):
            raise UsageError(f"--margin has {len(given)} sizes for {devices} device" + ("" if devices == 1 else "s"))
        return given + given[-1:] * (devices - len(given))


def read(words: Sequence[str] | Params | Arguments, environ: Mapping[str, str] | None) -> tuple[Params, Policy]:
    """What is fixed and what is aimed at, from words, a Params or parsed Arguments. Raises UsageError."""
    from . import check
    from .parse import Arguments

    if isinstance(words, Params):
        return words, Policy()
    if isinstance(words, str):
        raise UsageError(f"words are a list, such as {words.split()!r:.60}, not {words!r:.60}")
    if not isinstance(words, Arguments):
        if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"words are a list of strings, such as ['-c', '8192'], not {words!r:.60}")
        words = check.read("plan", words, environ)
        if words.positional:
            raise UsageError(f"not a flag: {words.positional[0]!r}")
    return words.params, read_policy(words.own)


def read_policy(own: Mapping[str, Any]) -> Policy:
    """The Policy of Arguments.own; other keys are left alone. Raises UsageError."""
    if own.get("format") == "number" and own.get("kv-types"):
        raise UsageError("--kv-types chooses flags that n_gpu_layers alone is wrong without: --format flags prints all")
    return Policy(own.get("strategy"), own.get("ctx"), own.get("ctx-min"), own.get("kv-types", ()),
                  own.get("budget", ()), own.get("margin"), own.get("gpu"), own.get("ram"), own.get("llama-build"),
                  own.get("format") == "number", own.get("workload", CHAT), own.get("machine"), own.get("backend"))
