"""Forks of llama.cpp: what their own words mean to a plan. The program gets its words unchanged.

command, notes = understood(command, environ)      # -ctk q8_KV is planned as f16, -rtr as --no-mmap
"""

from __future__ import annotations

from ..engines.ik_llama import IK_LLAMA
from ..engines.ik_llama import words as ik_words
from ..flags.table import lookup
from ..records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .command import WrappedCommand

_FIT = ("-fit", "--fit")  # a switch in ik_llama.cpp
# values of llama.cpp that ik_llama.cpp's parser refuses
_UNLIKE = {
    *((flag, value) for flag in ik_words.LAYERS for value in ("all", "auto")),
    *(("--fit", value) for value in ("on", "off")),
}


def understood(
    command: WrappedCommand, environ: Mapping[str, str], named: str = ""
) -> tuple[WrappedCommand, list[str]]:
    """Return the command with the words that a plan is made for, and notes; unchanged where its
    program is llama.cpp or cannot be asked. `named`: what --engine says of the program. Raises
    UsageError for words whose memory is not known.
    """
    if named == IK_LLAMA.name:
        words, engine, notes = ik_words.meant(command.words)
        return replace(command, meant=words, engine=engine), notes
    # (word, the word after it): enough to see words
    # that only a fork has, without asking the program
    following = list(zip(command.words, [*command.words[1:], ""], strict=False))
    if command.container or not any(_foreign(*pair) for pair in following):
        return command, []
    from ..detect import detect, help_words

    build = detect(command.launcher, environ)
    # All words of its --help, cache types with them
    listed = help_words(command.launcher, environ)
    caches = [after.lower() for word, after in following if word in ik_words.CACHES]
    if not build.fork and not any(name in listed for name in caches):
        return command, []
    # An unknown fork: its own words are planned as the nearest of llama.cpp, with notes
    if build.engine is not IK_LLAMA:
        words, _, notes = ik_words.meant(
            command.words, {}, tuple(listed), build.fork or "this program"
        )
        return replace(command, meant=words), notes
    # -fa of commits before it took a value
    valued = ik_words.with_values(command.words) if build.bare_flash else command.words
    words, engine, notes = ik_words.meant(
        valued, types=(*listed, *ik_words.OWN_TYPES), listed=build.flags or ()
    )
    return replace(command, meant=words, engine=engine), notes


def places_itself(command: WrappedCommand, environ: Mapping[str, str], named: str = "") -> str:
    """Return why there is nothing to plan for a command whose program, which --engine may have
    `named`, chooses by itself; "" for others."""
    following = zip(command.words, [*command.words[1:], ""], strict=False)
    # llama.cpp's --fit has a value, on or off
    if command.container or not any(_switch(word, after, _FIT) for word, after in following):
        return ""
    from ..detect import detect

    if named != IK_LLAMA.name and detect(command.launcher, environ).engine is not IK_LLAMA:
        return ""
    return f"with --fit {IK_LLAMA.name} places the layers itself: nothing to plan"


def _switch(word: str, after: str, names: tuple[str, ...] = ("-fit", *ik_words.SWITCHES)) -> bool:
    return word in names and (not after or after.startswith("-"))


def _foreign(word: str, after: str) -> bool:
    if word in ik_words.WORDS and lookup(word) is None:
        return True
    if word in ik_words.CACHES and ik_words.is_own_type(after):
        return True
    if word in ik_words.FLASH and after not in ("on", "off", "auto"):
        return True
    if word in ik_words.VALUED and after[:1] not in ("", "-"):
        return True
    if (word, after) in _UNLIKE:
        return True
    return after in ik_words.SPLITS or _switch(word, after)
