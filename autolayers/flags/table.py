"""llama-server's arguments as facts: the rows of arguments.csv and legacy.csv.

    lookup("--no-kv-offload")      # (the row of -kvo, False)

Rows keep llama.cpp's own order, because that is the order in which it reads the environment.
"""

from __future__ import annotations

from ..tables import rows
from . import kinds
from .kinds import Kind, preset

# llama.cpp's other programs with flags of their own in common/arg.cpp, without "llama-"
_OTHERS = (
    "cli completion speculative lookup batched-bench perplexity imatrix embedding retrieval "
    "passkey parallel batched debug cvector-generator export-lora mtmd-cli tts diffusion-cli "
    "finetune fit-params results export-graph-ops download tokenize"
)
PROGRAMS = frozenset(("server", *_OTHERS.split()))
GONE = 11548  # the newest source has it not: how long it had been gone was not looked up


class Argument:
    """One argument of llama-server or another program. The first name is the canonical one: the
    short form that every build knows. `field` is the Params field that it sets; without one it does
    not affect memory. `negated`: the names that switch it off. `first` and `last`: the first and
    last llama.cpp build that knows it (0: older than any supported build; still today). `of`: the
    programs that have it, as set_examples and set_excludes of common/arg.cpp say; all of them where
    it is empty. `now`: the flag that takes its value today."""

    __slots__ = ("env", "field", "first", "kind", "last", "names", "negated", "now", "of")

    def __init__(
        self,
        names: str,
        kind: Kind,
        field: str = "",
        env: str = "",
        negated: str = "",
        *,
        first: int = 0,
        last: int = 0,
        of: str = "",
        now: str = "",
    ) -> None:
        self.names = tuple(names.split())
        self.kind = kind
        self.field = field
        self.env = env
        self.negated = tuple(negated.split())
        self.first, self.last = first, last
        self.of = tuple(of.split())
        self.now = now

    @property
    def canonical(self) -> str:
        return self.names[0]

    @property
    def takes_value(self) -> bool:
        return self.kind.words > 0

    @property
    def accumulates(self) -> bool:
        return self.kind.adds

    def is_of(self, program: str) -> bool:
        """Return whether a program has it, as "server"; one that is not known may have it."""
        return not self.of or program in self.of or program not in PROGRAMS

    def written(self, positive: bool) -> str:
        """Return the canonical name that switches it on or off."""
        return self.names[0] if positive or not self.negated else self.negated[0]

    def __repr__(self) -> str:
        return f"Argument({' '.join(self.names)!r})"


def _preset(row: dict[str, str]) -> Kind:
    """Return what a flag of presets.csv sets; numbers are whole, and embedding is a switch."""
    given = {name: text for name, text in row.items() if text and name != "flag"}
    return preset(
        **{
            name: text == "True" if name == "embedding" else int(text) if text.isdigit() else text
            for name, text in given.items()
        }
    )


_PRESETS = {row["flag"]: _preset(row) for row in rows("flags/presets.csv")}


def _read(name: str) -> tuple[Argument, ...]:
    return tuple(
        Argument(
            row["names"],
            _PRESETS.get(row["names"]) or getattr(kinds, row["kind"]),
            row["field"],
            row["env"],
            row["negated"],
            first=int(row["first"] or 0),
            last=int(row["last"] or 0),
            of=_OTHERS if row["of"] == "others" else row["of"],
            now=row["now"],
        )
        for row in rows(f"flags/{name}.csv")
    )


# arguments of builds since 2024 that today's refuses: the user's build may be old
LEGACY = _read("legacy")
ARGUMENTS = _read("arguments")

_by_name: dict[str, tuple[Argument, bool]] = {}
_by_field: dict[str, list[Argument]] = {}


def lookup(word: str) -> tuple[Argument, bool] | None:
    """Return the row of a name, and False for a negated one. llama.cpp reads _ as - in words that
    start with two dashes."""
    # Made at the first use: a library that parses no words pays nothing
    if not _by_name:
        # Today's last: where a name is in both, today's meaning counts
        for row in (*LEGACY, *ARGUMENTS):
            for name in row.names:
                _by_name[name] = row, True
            for name in row.negated:
                _by_name[name] = row, False
    return _by_name.get(word.replace("_", "-") if word.startswith("--") else word)


def rows_of(field: str) -> list[Argument]:
    """Return the arguments that set a Params field, in their order."""
    if not _by_field:
        for row in ARGUMENTS:
            _by_field.setdefault(row.field, []).append(row)
    return _by_field[field]
