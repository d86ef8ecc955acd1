"""autolayers' own flags as the planner's goals and limits.

params, policy = read(["-c", "8192", "--budget", "CUDA0=10GiB"], os.environ)
"""

from __future__ import annotations

from ..errors import UsageError, WrongType
from ..records import dataclass
from . import check
from .params import Params
from .parse import Arguments
from .users import Users
from .workload import CHAT, Workload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


@dataclass(frozen=True)
class Policy:
    """The planner's goals and limits. `strategy` None means not given: auto, but a given -ngl is
    taken literally.

    `n_ctx` is None (the largest context that costs no layer), "max" or a number; `budget` holds
    bytes per device name, `margin` bytes per device; `gpu`, `ram` (bytes), `ram_bandwidth` (bytes
    per second) and `cores`, or the file `machine`, describe the machine, `backend` drives its GPUs,
    `build` is the llama.cpp build: its number, or a builds.Build. `alone`: the answer is
    n_gpu_layers and nothing else. `workload` is the request that placements are compared by;
    `acceptance` the share of drafted tokens that is accepted, if it was measured; `users` are
    served at once."""

    strategy: str | None = None
    n_ctx: int | str | None = None
    n_ctx_min: int | None = None
    kv_types: tuple[str, ...] = ()
    budget: tuple[tuple[str, int], ...] = ()
    margin: tuple[int, ...] | None = None  # bytes, one a device or the last for the rest
    gpu: str | None = None
    ram: int | None = None
    ram_bandwidth: float | None = None
    ram_limit: int | None = None  # bytes that a control group will allow
    cores: int | None = None
    build: Any = None
    alone: bool = False
    workload: Workload = CHAT
    machine: str | None = None
    backend: str | None = None
    acceptance: float | None = None
    agents: int = 0  # conversations to keep in RAM
    users: Users | None = None
    engine: str = ""  # the program's name in engines/, "": what starts it, or llama-server

    def margins(self, devices: int) -> tuple[int, ...]:
        """`margin` for each of `devices` devices, the last size repeated; empty if none was given.
        Raises UsageError for more sizes than devices."""
        given = self.margin or ()
        if len(given) > max(1, devices):
            raise UsageError(
                f"--margin has {len(given)} sizes for {devices} device"
                + ("" if devices == 1 else "s")
            )
        # As --fit-target does it: a single value holds for all devices
        return given + given[-1:] * (devices - len(given))


def read(
    words: Sequence[str] | Params | Arguments, environ: Mapping[str, str] | None
) -> tuple[Params, Policy]:
    """Return the constraints and the goals, from words, a Params or parsed Arguments. Raises
    UsageError."""
    arguments = arguments_of(words, environ)
    return arguments.params, read_policy(arguments.own)


def arguments_of(
    words: Sequence[str] | Params | Arguments, environ: Mapping[str, str] | None
) -> Arguments:
    """Return words, parsed as `autolayers MODEL` does; Params or Arguments pass through. Raises
    UsageError."""
    if isinstance(words, Arguments):
        return words
    if isinstance(words, Params):
        return Arguments(words)
    # A string is a sequence of characters: each would be read as a model's name
    if isinstance(words, str):
        raise WrongType(f"words are a list, such as {words.split()!r:.60}, not {words!r:.60}")
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise WrongType(f"words are a list of strings, such as ['-c', '8192'], not {words!r:.60}")
    arguments = check.read("plan", words, environ)
    # The model comes as an object here, so another word is a mistake
    if arguments.positional:
        raise UsageError(f"not a flag: {arguments.positional[0]!r}")
    return arguments


def read_policy(own: Mapping[str, Any]) -> Policy:
    """Return the Policy in Arguments.own; other keys are ignored. Raises UsageError."""
    # The number alone would be for caches that the launch does not have
    if own.get("format") == "number" and own.get("kv-types"):
        raise UsageError(
            "--kv-types chooses flags that n_gpu_layers depends on: --format flags prints all of "
            "them"
        )
    if own.get("format") == "number" and _users(own) is not None:
        raise UsageError(
            "--users chooses flags that n_gpu_layers depends on: --format flags prints all of them"
        )
    # --ram 64GiB@ddr5-6000x2 is one flag with two values
    ram, ram_bandwidth = own.get("ram") or (None, None)
    return Policy(
        strategy=own.get("strategy"),
        n_ctx=own.get("ctx"),
        n_ctx_min=own.get("ctx-min"),
        kv_types=own.get("kv-types", ()),
        budget=own.get("budget", ()),
        margin=own.get("margin"),
        gpu=own.get("gpu"),
        ram=ram,
        ram_bandwidth=ram_bandwidth,
        ram_limit=own.get("ram-limit"),
        cores=own.get("cores"),
        build=own.get("llama-build"),
        alone=own.get("format") == "number",
        workload=own.get("workload", CHAT),
        machine=own.get("machine"),
        backend=own.get("backend"),
        acceptance=own.get("acceptance"),
        agents=own.get("agents", 0),
        users=_users(own),
        engine=own.get("engine", ""),
    )


def _users(own: Mapping[str, Any]) -> Users | None:
    """Return who is to be served, None for one user. Raises UsageError."""
    users = Users(
        own.get("users"), own.get("ctx-per-user", 0), own.get("min-rate", 0.0), own.get("ttft", 0.0)
    )
    # A context for nobody would be silently ignored
    if users.context and users.count is None and not users.promise:
        raise UsageError("--ctx-per-user is of --users: give their number, or --min-rate or --ttft")
    # None: the plan is for one user, as without these flags
    return users if users.count or users.promise else None
