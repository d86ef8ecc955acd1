"""What the user asks for, read: llama-server's flags (Params) and, beside them, autolayers' own (Policy).

    params, policy = read(["-c", "8192", "--budget", "CUDA0=10GiB"], os.environ)

Here texts become numbers; the planner gets no flag to see.
"""

from __future__ import annotations

from .errors import UsageError
from .units import parse_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from dataclasses import dataclass

    from .arguments import Arguments
    from .params import Params
else:
    from .records import dataclass

_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@dataclass(frozen=True)
class Policy:
    """The planner's own flags, read. `strategy` None means not given: auto, but a given -ngl is taken literally.

    `n_ctx` is None (the largest context that costs no layer), "max" or a number; `budget` holds bytes per device
    name, `margin` bytes per device."""

    strategy: str | None = None
    n_ctx: int | str | None = None
    n_ctx_min: int | None = None
    kv_types: tuple[str, ...] = ()
    budget: tuple[tuple[str, int], ...] = ()
    margin: tuple[int, ...] | None = None
    gpu: str | None = None
    ram: int | None = None
    build: int | None = None


def read(words: Sequence[str] | Params | Arguments, environ: Mapping[str, str] | None) -> tuple[Params, Policy]:
    """What is fixed and what is wished, from words, a Params or parsed Arguments. Raises UsageError."""
    from .arguments import Arguments, config_files, parse
    from .params import Params

    if isinstance(words, Params):
        return words, Policy()
    if isinstance(words, Arguments):
        return words.params, read_policy(words.own)
    parsed = parse(list(words), environ, () if environ is None else config_files(environ))
    if parsed.positional:
        raise UsageError(f"not a flag: {parsed.positional[0]!r}")
    return parsed.params, read_policy(parsed.own)


def read_policy(own: Mapping[str, object]) -> Policy:
    """The Policy of autolayers' own flags. Raises UsageError naming the flag and what it allows."""
    ctx = _text(own, "ctx")
    n_ctx: int | str | None = ctx
    if ctx is not None and ctx != "max":
        n_ctx = _tokens("--ctx", ctx)
    floor = _text(own, "ctx-min")
    ladder = tuple(t.strip() for t in (_text(own, "kv-types") or "").split(",") if t.strip())
    for name in ladder:
        if name not in _CACHE_TYPES:
            raise UsageError(f"--kv-types: {name!r} is no cache type, use some of {', '.join(_CACHE_TYPES)}")
    ram, margin, build = _text(own, "ram"), _text(own, "margin"), _text(own, "llama-build")
    return Policy(
        strategy=_text(own, "strategy"),
        n_ctx=n_ctx,
        n_ctx_min=None if floor is None else _tokens("--ctx-min", floor),
        kv_types=ladder,
        budget=_budget(_text(own, "budget")),
        margin=None if margin is None else tuple(parse_size(m) for m in margin.split(",")),
        gpu=_text(own, "gpu"),
        ram=None if ram is None else parse_size(ram),
        build=None if build is None else _build(build),
    )


def _text(own: Mapping[str, object], key: str) -> str | None:
    value = own.get(key)
    return None if value is None or value is False else str(value)


def _tokens(flag: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 0 < value < 2**31:
        raise UsageError(f"{flag} {text!r}: expected a number of tokens" + (", or max" if flag == "--ctx" else ""))
    return value


def _build(text: str) -> int:
    try:
        return int(text.lstrip("b"))
    except ValueError:
        raise UsageError(f"--llama-build {text!r}: expected a build number such as b10488") from None


def _budget(text: str | None) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for item in (text or "").split(","):
        if not item:
            continue
        name, equals, size = item.partition("=")
        if not equals or not name:
            raise UsageError(f"--budget {item!r}: expected a device and a size, such as CUDA0=10GiB")
        found.append((name, parse_size(size)))
    return tuple(found)
