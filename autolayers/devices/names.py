"""The cards of the table by their names: as people type them, as drivers write them, with and
without makers' words.

    find("4070 Ti Super"), find("m2-max", ram=64 << 30)
    completed(device)          # with the figures of its card that the driver does not report
"""

from __future__ import annotations

from ..backends import DEFAULT, backend
from ..errors import UsageError
from ..records import replace
from ..tables import listed, rows
from ..units import GiB, MiB, is_whole_size
from .cards import CARDS, Card
from .integrated import has_no_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..machine import Device

_SEEN = 0.88  # least share of the advertised memory that a driver shows
_MOST = 8  # of a question's answers

# Words that people and drivers add, as patterns, and what stands for them in the table of cards
_SAID = [
    (row["pattern"], f" {row['meant']} " if row["meant"] else " ")
    for row in rows("devices/names.tsv")
]
_OPTIONAL = listed("nvidia geforce amd radeon instinct quadro tesla apple intel rtx gtx gt rx")
# whose GPUs these words are for
_MAKERS = (
    ("NVIDIA", r"nvidia|geforce|[gr]tx|quadro|tesla|jetson"),
    ("AMD", r"amd|radeon|rx|instinct|ryzen"),
    ("Intel", r"intel|arc|iris|uhd"),
    ("Apple", r"apple|macbook|imac"),
)
# of a key, what a name of the same GPU may lack
_FAMILIES = frozenset(listed("rtx gtx gt rx radeon arc pro ai jetson agx tesla quadro"))
# of one GPU's boards, whose figures are nearly the same
_FORMS = r"sxm\d?|pcie?|hbm\d?e?|\d+g"


def find(name: str, ram: int = 0) -> Card:
    """Return the entry of that name; of several sizes of a machine's RAM the one with `ram` bytes.
    Raises UsageError with the candidates if it is ambiguous, or with the unknown name."""
    # "m2-max" with 64 GiB of RAM is m2-max-64g
    keys = candidates(name)
    if len(keys) > 1:
        # Apple's chips are sold with several sizes of RAM
        keys = [key for key in keys if CARDS[key].ram * GiB == ram] or keys
    if len(keys) == 1:
        return CARDS[keys[0]]
    if keys:
        raise UsageError(f"which {name}? {' or '.join(keys)}")
    raise UsageError(f"neither a size nor a known GPU: {name!r} ({_near(name)})")


def candidates(name: str) -> list[str]:
    """Return the keys of the GPUs that a name may mean; empty if it is none.

    >>> candidates("RX 580"), candidates("rtx4090m")
    (['rx-580-4g', 'rx-580-8g'], ['rtx-4090-laptop'])
    """
    # a size, as most values of --gpu are
    if is_whole_size(name):
        return []
    import re  # few calls

    keys = _of_maker(name, _candidates(name))
    if not keys and re.search(r"\d{4} *m$", name.strip().lower()):
        # 4090M, as laptops' GPUs are often called
        keys = _of_maker(name, _candidates(name.strip()[:-1] + " laptop"))
    return keys


def _with_its_size(wanted: str) -> str | None:
    """Return the card whose name and size these are; None if there is none."""
    for plain, key in _KEYS.items():
        size = _size(wanted, plain)
        # a driver shows less than is advertised
        if size and _SEEN * size * 1024 <= CARDS[key].usable <= size * 1024:
            return key
    return None


def _candidates(name: str) -> list[str]:
    wanted = _plain(name)
    if not wanted:
        return []
    # exactly a key of the table
    if wanted in _KEYS:
        return [_KEYS[wanted]]
    # only the size may be omitted: a "3060" is never a 3060 Ti, but "4060 Ti" and "A100" come in
    # two sizes
    if sizes := [key for plain, key in _KEYS.items() if _size(plain, wanted)]:
        return sizes
    # nor may it be wrong: "RTX 3060 12GB" is the 3060, but there is none with 10
    if (key := _with_its_size(wanted)) is not None:
        return [key]
    if sized := [key for key, card in CARDS.items() if _plain(card.description) == wanted]:
        return sized
    # the words of a name as a key has them, without its maker
    words = _normal(name).split()
    return _with_words(
        {_letters(word) for word in words} - {"nvidia", "geforce", "amd", "intel", "apple", ""}
    )


def _with_words(words: set[str]) -> list[str]:
    """Return the cards whose keys have all of these words: those without further ones, if a number
    is among them."""
    if all(map(_is_general, words)):
        return []
    # more than one card may have them: the caller asks which one is meant
    among = [key for key in CARDS if words <= set(key.split("-"))]
    bare = [key for key in among if all(map(_is_general, set(key.split("-")) - words))]
    if bare and any(c.isdigit() for c in "".join(words)):
        return bare
    return among if len(among) <= _MOST else []


def _is_general(word: str) -> bool:
    """Return whether a word is that of a family or a size, and names no card."""
    return word in _FAMILIES or (word.endswith("g") and word[:-1].isdecimal())


def described(description: str, mib: int) -> Card | None:
    """Return the entry for a driver's description; if there are several sizes, the one with the
    nearest memory. None if unknown."""
    return min(boards(description), key=lambda card: abs(card.usable - mib), default=None)


def boards(description: str) -> list[Card]:
    """Return the entries for a driver's description: several if a board is sold with more than one
    size of memory, such as the RTX 3060; none if it is unknown."""
    import re  # few calls

    # no driver's name: a size, or a device of an RPC server
    if not description or description.startswith("hypothetical") or ": " in description:
        return []
    # the same letters first, as only they name one board
    cards = _by_letters(description)
    # the same chip on another board, such as SXM instead of PCIe
    bare = "" if cards else _form(description)
    if re.search(r"\d", bare):
        cards = [card for card in CARDS.values() if _form(card.description) == bare]
    return cards


def _by_letters(description: str) -> list[Card]:
    """Return the cards with the letters of a description, or with all but those of a size."""
    wanted = _plain(description)
    if not wanted:
        return []
    cards = [card for card in CARDS.values() if _plain(card.description) == wanted]
    if cards:
        return cards
    keys = [
        key
        for plain, key in _KEYS.items()
        if plain == wanted or _size(plain, wanted) or _size(wanted, plain)
    ]
    return [CARDS[key] for key in _of_maker(description, keys)]


def completed(device: Device) -> Device:
    """Return the device, completed with known figures of its model that the driver does not
    report."""
    if device.kind == "igpu" and has_no_memory(device.description):
        device = replace(device, unified=True)
    card = described(device.description, device.total // MiB)
    # a MIG instance has a share of the GPU
    if card is None or (device.uuid or "").startswith("MIG-"):
        return device
    # The figures of a model that hold for a device of its kind and backend.
    figures: dict[str, Any] = {
        "bandwidth": card.bandwidth * 1e9 or None,
        "fp16_tflops": card.fp16 or None,
    }
    if device.kind != "rpc":  # its link is the network
        figures["link"] = card.link
    if device.kind != "igpu":  # the source knows its pool
        figures["unified"] = card.unified
    # of another backend, such as Vulkan, these would mean nothing
    if device.backend == card.backend == DEFAULT.name:
        figures["compute_capability"] = card.compute_capability
        figures["n_sm"] = card.n_sm
    # what the driver reports stays
    return replace(device, **{key: getattr(device, key) or figures[key] for key in figures})


# --- words and letters


def _normal(name: str) -> str:
    import re  # few calls

    text = name.lower()
    # in the table's order: chips before the words that everybody adds
    for pattern, meant in _SAID:
        text = re.sub(pattern, meant, text)
    return " ".join(text.split())


def _letters(text: str) -> str:
    letters = "".join(c for c in text if c.isalnum())
    # 16GB, 16GiB and 16g are the same card
    for unit in ("gib", "gb"):
        letters = letters[: -len(unit)] + "g" if letters.endswith(unit) else letters
    return letters


def _plain(name: str) -> str:
    """ "NVIDIA RTX-4060 Ti 16GB" and "rtx4060ti16g" give the same letters."""
    letters = _PLAIN.get(name)
    if letters is None:
        letters = _PLAIN[name] = _bare(_letters(_normal(name)))
    return letters


def _bare(letters: str) -> str:
    for word in _OPTIONAL:
        letters = letters.removeprefix(word)
    return letters


def _form(description: str) -> str:
    """Return the letters without memory sizes and forms of boards: "A100-SXM-80GB" and
    "A100-SXM4-40GB" have the same."""
    import re  # few calls

    # "80 GB" -> "80g", which _FORMS then takes out
    words = re.sub(r"(\d{1,6}) {0,9}gi?b\b", r"\1g", _normal(description)).split()
    return _bare(_letters("".join(word for word in words if not re.fullmatch(_FORMS, word))))


def _size(name: str, stem: str) -> int:
    """Return 12 for "306012g" after "3060", 0 if the rest is not a size."""
    if not name.startswith(stem) or not name.endswith("g"):
        return 0
    rest = name[len(stem) : -1]
    is_size = rest.isdecimal() and len(rest) < 4 and rest[0] != "0"
    return int(rest) if is_size else 0


def _of_maker(name: str, keys: Iterable[str]) -> list[str]:
    """Return those of the maker that the name has, if it has one: a GTX 580 is no RX 580."""
    import re  # few calls

    makers = {maker for maker, words in _MAKERS if re.search(rf"(?<![a-z])({words})", name.lower())}
    return [key for key in keys if makers <= {_maker(CARDS[key])}]


def _maker(card: Card) -> str:
    return backend(card.backend).vendor or card.description.partition(" ")[0].partition("(")[0]


_PLAIN: dict[str, str] = {}
_KEYS = {_bare(key.replace("-", "")): key for key in CARDS}


def _close(name: str) -> list[str]:
    """Return the keys with the most similar spelling, first those with the same letters."""
    from difflib import get_close_matches

    full = {key.replace("-", ""): key for key in CARDS}
    wanted = _letters(_normal(name))
    close = get_close_matches(wanted, full, 5, 0.7)
    # swapped letters are the likeliest slip: "xtr-4090"
    close.sort(key=lambda letters: sorted(letters) != sorted(wanted))
    return [full[letters] for letters in close[:3]]


def _near(name: str) -> str:
    wanted = _plain(name)
    near = [key for plain, key in _KEYS.items() if len(wanted) > 1 and wanted in plain]
    near = near or _close(name)
    perhaps = f"perhaps {', '.join(near[:5])}; " if near else ""
    if not near and "+" in name:
        return f"several GPUs are separated by commas: {name.replace('+', ',')}"
    if "mac" in name.lower():
        perhaps = "a Mac is named by its chip and RAM, such as m2-max-32g; "
    return perhaps + "--gpu list shows them all; or write its memory: 24GiB"
