"""The launch that starts where memory is not the reason: the command of a log, with as few words
changed as may be.

    mend = mended(verdict, facts, inputs)  # None where no command helps: a cut file, an old build
    mend.words, mend.changed, mend.dropped
"""

from __future__ import annotations

import re

from ..errors import UsageError
from ..flags.check import flag_meant
from ..flags.parse import Item, items
from ..flags.table import Argument
from ..records import dataclass
from .working import SECRET, LogInputs, with_model

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .facts import Facts
    from .hits import Verdict


@dataclass(frozen=True)
class Mended:
    """`words`: the command's, `changed`: those that are new, `dropped`: those that they take the
    place of; `why`: what was changed."""

    words: tuple[str, ...]
    changed: tuple[str, ...]
    dropped: tuple[str, ...]
    why: str

    def to_dict(self, build: int) -> dict[str, object]:
        """As Launch.to_dict; nothing of it was planned, so nothing is said of its memory."""
        return {
            "build": build or None,
            "words": list(self.words),
            "devices": [],
            "without": list(self.dropped),
            "fits": None,
            "exact": False,
            "header": None,
        }


def mended(verdict: Verdict, facts: Facts, inputs: LogInputs) -> Mended | None:
    """Return the command that helps against a cause; None without a command in the log, or where
    none helps."""
    rule = _RULES.get(verdict.cause)
    # Without the command there is nothing to change
    if rule is None or not facts.words:
        return None
    path = facts.model or (inputs.model.path if inputs.model is not None else "")
    try:
        return rule(verdict, [*items(with_model(facts.words, path))])
    except UsageError:  # a command that was cut
        return None


# flags that place the same weights: one of them takes the others' place
_EXPERTS = {"-cmoe", "-ncmoe", "-ot"}


def with_flags(words: Sequence[str], path: str, flags: Sequence[str]) -> tuple[str, ...]:
    """Return a command with other flags, each in the place of what it has of them; () where the
    command was cut, or where they are none of a launch."""
    try:
        given, new = [*items(with_model(tuple(words), path))], [*items(flags)]
    except UsageError:
        return ()
    names = {item.flag.canonical if isinstance(item.flag, Argument) else "" for item in new}
    if not names or "" in names or names & {"--list-devices"}:
        return ()
    if names & _EXPERTS:
        names |= _EXPERTS
    changed = _with_changes(given, lambda item: () if _is(item, *names) else None, "", tuple(flags))
    return changed.words if changed is not None else ()


def _with_changes(
    given: Iterable[Item],
    change: Callable[[Item], tuple[str, ...] | None],
    why: str,
    appended: tuple[str, ...] = (),
) -> Mended | None:
    """Return the command with what `change` gives in place of a flag's words (None keeps them, ()
    leaves them out) and `appended`; None where that is the same."""
    words: list[str] = []
    changed: list[str] = [*appended]
    dropped: list[str] = []
    for item in given:
        other = change(item)
        # Never repeated: the page is pasted into issues
        secret = isinstance(item.flag, Argument) and item.flag.canonical in SECRET
        if secret or any("://" in word for word in item.words):
            continue
        if other is None:
            words += item.words
            continue
        words += other
        changed += other
        dropped += item.words
    return (
        Mended((*words, *appended), tuple(changed), tuple(dropped), why)
        if changed or dropped
        else None
    )


def _is(item: Item, *names: str) -> bool:
    return isinstance(item.flag, Argument) and item.flag.canonical in names


def _port(verdict: Verdict, given: list[Item]) -> Mended | None:
    """Take another port: the next, which is as likely free as any."""
    # The default of most builds; since about b11501 it is 9931
    taken = next((item.value for item in given if _is(item, "--port")), "8080")
    if not taken.isdecimal() or not 0 < int(taken) < 65535:
        return None
    other = ("--port", str(int(taken) + 1))
    if any(_is(item, "--port") for item in given):
        return _with_changes(
            given, lambda item: other if _is(item, "--port") else None, "another port"
        )
    return _with_changes(given, lambda item: None, "another port", other)


def _flag(verdict: Verdict, given: list[Item]) -> Mended | None:
    """Take the flag that is meant, or none."""
    refused = verdict.detail.get("flag", "")
    meant = flag_meant(refused)

    def change(item: Item) -> tuple[str, ...] | None:
        # The log names the flag as it was written
        if not item.words or item.words[0].partition("=")[0] != refused:
            return None
        return (*meant, *item.words[len(meant) :]) if meant else ()

    why = f"{refused} is {' '.join(meant)} here" if meant else f"without {refused}"
    return _with_changes(given, change, why)


def _file(verdict: Verdict, given: list[Item]) -> Mended | None:
    """Leave out a projector that cannot be loaded; load a split model by its first part."""
    if verdict.detail.get("part") == "projector":
        return _without_projector(given)
    if "idx" not in verdict.detail:
        return None
    return _with_changes(
        given,
        lambda item: (
            (item.words[0], re.sub(r"-\d{5}-of-(?=\d{5}\.gguf$)", "-00001-of-", item.value))
            if _is(item, "-m")
            else None
        ),
        "the first part, which finds the others",
    )


def _without_projector(given: list[Item]) -> Mended | None:
    """Load the model alone: its projector is in the command, or -hf brings it."""
    named = any(_is(item, *_PROJECTOR) for item in given)
    return _with_changes(
        given,
        lambda item: () if _is(item, *_PROJECTOR) else None,
        "without the projector: text alone",
        () if named else ("--no-mmproj",),
    )


_PROJECTOR = ("-mm", "--mmproj", "-mmu", "--mmproj-url")


def _pair(verdict: Verdict, given: list[Item]) -> Mended | None:
    """Leave out the file that is of another model."""
    word = verdict.detail.get("sign", "")
    if re.search("text model|clip|mmproj", word):
        return _without_projector(given)
    # Sign words: "draft model", "vocab_type", otherwise an adapter's
    names = (
        ("-md", "--model-draft")
        if "draft" in word or "vocab_type" in word
        else ("--lora", "--lora-scaled", "--control-vector")
    )
    return _with_changes(
        given,
        lambda item: () if item.name in names or _is(item, *names) else None,
        "without the file of another model",
    )


def _combination(verdict: Verdict, given: list[Item]) -> Mended | None:
    """Turn flash attention on for a quantised V cache; leave that cache out where it is on already,
    or where the type's blocks do not divide the model's heads."""
    if which := verdict.detail.get("cache", "").lower():
        return _with_changes(
            given,
            lambda item: () if _is(item, f"-ct{which}") else None,
            f"the {which.upper()} cache as f16",
        )
    part, sign = verdict.detail.get("part", ""), verdict.detail.get("sign", "")
    if part not in ("v cache", "tensor flash") and "flash" not in sign:
        return None
    needs = "-sm tensor" if part == "tensor flash" else "a quantised V cache"
    why = f"{needs} needs flash attention"
    # With it on, the backend has no kernel for this cache: the cache must change
    on = part != "tensor flash" and any(
        _is(item, "-fa") and item.value in ("on", "1", "enabled") for item in given
    )
    if on:
        return _with_changes(
            given, lambda item: () if _is(item, "-ctv") else None, "the V cache as f16"
        )
    if any(_is(item, "-fa") for item in given):
        return _with_changes(given, lambda item: ("-fa", "on") if _is(item, "-fa") else None, why)
    return _with_changes(given, lambda item: None, why, ("-fa", "on"))


_RULES: dict[str, Callable[[Verdict, list[Item]], Mended | None]] = {
    # the projector in RAM, where the GPU has no room for it
    "oom_device": lambda verdict, given: (
        _with_changes(
            given,
            lambda item: () if _is(item, "--mmproj-offload") else None,
            "the projector in RAM",
            ("--no-mmproj-offload",),
        )
        if verdict.detail.get("part", "").startswith("projector")
        else None
    ),
    "port_busy": _port,
    "bad_flag": _flag,
    "bad_file": _file,
    "bad_model": _file,
    "old_build": _file,
    "pair_mismatch": _pair,
    "bad_combo": _combination,
}
