"""Well-known cards: what a `--gpu rtx-3090` has.

The memory is what CUDA (or ROCm) reports as the card's total under Linux, the lowest seen in public llama.cpp
logs of 2026 ("VRAM: ... MiB"), where none was found 1.5 % less than advertised; a driver update moves it by up
to 1 %. Bandwidth is the maker's.
"""

from __future__ import annotations

from ..backends import DEFAULT, Hip
from ..errors import UsageError
from ..records import dataclass


@dataclass(frozen=True)
class Card:
    description: str
    usable: int                                   # MiB
    compute_capability: tuple[int, int] | None    # None: not CUDA
    n_sm: int | None
    bandwidth: int                                # 10**9 bytes per second
    backend: str = DEFAULT.name                   # whose device it is


CARDS = {
    "gtx-1060-6g": Card("NVIDIA GeForce GTX 1060 6GB", 6063, (6, 1), 10, 192),
    "gtx-1070": Card("NVIDIA GeForce GTX 1070", 8098, (6, 1), 15, 256),
    "gtx-1080": Card("NVIDIA GeForce GTX 1080", 8098, (6, 1), 20, 320),
    "gtx-1080-ti": Card("NVIDIA GeForce GTX 1080 Ti", 11094, (6, 1), 28, 484),
    "gtx-1650": Card("NVIDIA GeForce GTX 1650", 3712, (7, 5), 14, 128),
    "gtx-1660": Card("NVIDIA GeForce GTX 1660", 5747, (7, 5), 22, 192),
    "gtx-1660-super": Card("NVIDIA GeForce GTX 1660 SUPER", 5747, (7, 5), 22, 336),
    "gtx-1660-ti": Card("NVIDIA GeForce GTX 1660 Ti", 5747, (7, 5), 24, 288),
    "rtx-2060-6g": Card("NVIDIA GeForce RTX 2060", 5745, (7, 5), 30, 336),
    "rtx-2060-12g": Card("NVIDIA GeForce RTX 2060", 11832, (7, 5), 34, 336),
    "rtx-2070": Card("NVIDIA GeForce RTX 2070", 7782, (7, 5), 36, 448),
    "rtx-2070-super": Card("NVIDIA GeForce RTX 2070 SUPER", 7782, (7, 5), 40, 448),
    "rtx-2080": Card("NVIDIA GeForce RTX 2080", 7782, (7, 5), 46, 448),
    "rtx-2080-ti": Card("NVIDIA GeForce RTX 2080 Ti", 10822, (7, 5), 68, 616),
    "rtx-3050-8g": Card("NVIDIA GeForce RTX 3050", 7782, (8, 6), 20, 224),
    "rtx-3060": Card("NVIDIA GeForce RTX 3060", 11906, (8, 6), 28, 360),
    "rtx-3060-ti": Card("NVIDIA GeForce RTX 3060 Ti", 7782, (8, 6), 38, 448),
    "rtx-3070": Card("NVIDIA GeForce RTX 3070", 7782, (8, 6), 46, 448),
    "rtx-3070-ti": Card("NVIDIA GeForce RTX 3070 Ti", 7782, (8, 6), 48, 608),
    "rtx-3080-10g": Card("NVIDIA GeForce RTX 3080", 9868, (8, 6), 68, 760),
    "rtx-3080-12g": Card("NVIDIA GeForce RTX 3080", 11906, (8, 6), 70, 912),
    "rtx-3080-ti": Card("NVIDIA GeForce RTX 3080 Ti", 11909, (8, 6), 80, 912),
    "rtx-3090": Card("NVIDIA GeForce RTX 3090", 24115, (8, 6), 82, 936),
    "rtx-3090-ti": Card("NVIDIA GeForce RTX 3090 Ti", 24115, (8, 6), 84, 1008),
    "rtx-4060": Card("NVIDIA GeForce RTX 4060", 7806, (8, 9), 24, 272),
    "rtx-4060-ti-8g": Card("NVIDIA GeForce RTX 4060 Ti", 7806, (8, 9), 34, 288),
    "rtx-4060-ti-16g": Card("NVIDIA GeForce RTX 4060 Ti", 15939, (8, 9), 34, 288),
    "rtx-4070": Card("NVIDIA GeForce RTX 4070", 11872, (8, 9), 46, 504),
    "rtx-4070-super": Card("NVIDIA GeForce RTX 4070 SUPER", 11872, (8, 9), 56, 504),
    "rtx-4070-ti": Card("NVIDIA GeForce RTX 4070 Ti", 11872, (8, 9), 60, 504),
    "rtx-4070-ti-super": Card("NVIDIA GeForce RTX 4070 Ti SUPER", 15939, (8, 9), 66, 672),
    "rtx-4080": Card("NVIDIA GeForce RTX 4080", 15939, (8, 9), 76, 716),
    "rtx-4080-super": Card("NVIDIA GeForce RTX 4080 SUPER", 15939, (8, 9), 80, 736),
    "rtx-4090": Card("NVIDIA GeForce RTX 4090", 24080, (8, 9), 128, 1008),
    "rtx-5060": Card("NVIDIA GeForce RTX 5060", 7707, (12, 0), 30, 448),
    "rtx-5060-ti-8g": Card("NVIDIA GeForce RTX 5060 Ti", 7707, (12, 0), 36, 448),
    "rtx-5060-ti-16g": Card("NVIDIA GeForce RTX 5060 Ti", 15841, (12, 0), 36, 448),
    "rtx-5070": Card("NVIDIA GeForce RTX 5070", 11756, (12, 0), 48, 672),
    "rtx-5070-ti": Card("NVIDIA GeForce RTX 5070 Ti", 15808, (12, 0), 70, 896),
    "rtx-5080": Card("NVIDIA GeForce RTX 5080", 15808, (12, 0), 84, 960),
    "rtx-5090": Card("NVIDIA GeForce RTX 5090", 32106, (12, 0), 170, 1792),
    "rtx-3060-laptop": Card("NVIDIA GeForce RTX 3060 Laptop GPU", 5745, (8, 6), 30, 336),
    "rtx-3070-laptop": Card("NVIDIA GeForce RTX 3070 Laptop GPU", 7782, (8, 6), 40, 448),
    "rtx-3080-laptop-16g": Card("NVIDIA GeForce RTX 3080 Laptop GPU", 15939, (8, 6), 48, 448),
    "rtx-4050-laptop": Card("NVIDIA GeForce RTX 4050 Laptop GPU", 5745, (8, 9), 20, 192),
    "rtx-4060-laptop": Card("NVIDIA GeForce RTX 4060 Laptop GPU", 7782, (8, 9), 24, 256),
    "rtx-4070-laptop": Card("NVIDIA GeForce RTX 4070 Laptop GPU", 7782, (8, 9), 36, 256),
    "rtx-4080-laptop": Card("NVIDIA GeForce RTX 4080 Laptop GPU", 11872, (8, 9), 58, 432),
    "rtx-4090-laptop": Card("NVIDIA GeForce RTX 4090 Laptop GPU", 15939, (8, 9), 76, 576),
    "rtx-5070-ti-laptop": Card("NVIDIA GeForce RTX 5070 Ti Laptop GPU", 11756, (12, 0), 46, 672),
    "rtx-5080-laptop": Card("NVIDIA GeForce RTX 5080 Laptop GPU", 15808, (12, 0), 60, 896),
    "rtx-5090-laptop": Card("NVIDIA GeForce RTX 5090 Laptop GPU", 24080, (12, 0), 82, 896),
    "rtx-a2000-12g": Card("NVIDIA RTX A2000 12GB", 11906, (8, 6), 26, 288),
    "rtx-a4000": Card("NVIDIA RTX A4000", 15939, (8, 6), 48, 448),
    "rtx-a5000": Card("NVIDIA RTX A5000", 24115, (8, 6), 64, 768),
    "rtx-a6000": Card("NVIDIA RTX A6000", 48531, (8, 6), 84, 768),
    "rtx-4000-ada": Card("NVIDIA RTX 4000 Ada Generation", 19991, (8, 9), 48, 360),
    "rtx-6000-ada": Card("NVIDIA RTX 6000 Ada Generation", 48497, (8, 9), 142, 960),
    "rtx-pro-6000": Card("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97247, (12, 0), 188, 1792),
    "quadro-rtx-5000": Card("Quadro RTX 5000", 15927, (7, 5), 48, 448),
    "tesla-p40": Card("Tesla P40", 22905, (6, 1), 30, 346),
    "tesla-p100-16g": Card("Tesla P100-PCIE-16GB", 16138, (6, 0), 56, 732),
    "tesla-t4": Card("Tesla T4", 14912, (7, 5), 40, 320),
    "tesla-v100-16g": Card("Tesla V100-SXM2-16GB", 16138, (7, 0), 80, 898),
    "tesla-v100-32g": Card("Tesla V100-SXM2-32GB", 32494, (7, 0), 80, 898),
    "a10": Card("NVIDIA A10", 22731, (8, 6), 72, 600),
    "a40": Card("NVIDIA A40", 45411, (8, 6), 84, 696),
    "a100-40g": Card("NVIDIA A100-SXM4-40GB", 40326, (8, 0), 108, 1555),
    "a100-80g": Card("NVIDIA A100-SXM4-80GB", 81037, (8, 0), 108, 2039),
    "l4": Card("NVIDIA L4", 22478, (8, 9), 58, 300),
    "l20": Card("NVIDIA L20", 45457, (8, 9), 92, 864),
    "l40": Card("NVIDIA L40", 45411, (8, 9), 142, 864),
    "l40s": Card("NVIDIA L40S", 45411, (8, 9), 142, 864),
    "h100-80g": Card("NVIDIA H100 80GB HBM3", 81007, (9, 0), 132, 3352),
    "h100-nvl": Card("NVIDIA H100 NVL", 95320, (9, 0), 132, 3938),
    "h200": Card("NVIDIA H200", 143155, (9, 0), 132, 4917),
    "b200": Card("NVIDIA B200", 182630, (10, 0), 148, 7700),
    "rx-6600": Card("AMD Radeon RX 6600", 8060, None, None, 224, Hip.name),
    "rx-6600-xt": Card("AMD Radeon RX 6600 XT", 8060, None, None, 256, Hip.name),
    "rx-6700-xt": Card("AMD Radeon RX 6700 XT", 12090, None, None, 384, Hip.name),
    "rx-6750-xt": Card("AMD Radeon RX 6750 XT", 12090, None, None, 432, Hip.name),
    "rx-6800": Card("AMD Radeon RX 6800", 16120, None, None, 512, Hip.name),
    "rx-6800-xt": Card("AMD Radeon RX 6800 XT", 16120, None, None, 512, Hip.name),
    "rx-6900-xt": Card("AMD Radeon RX 6900 XT", 16120, None, None, 512, Hip.name),
    "rx-6950-xt": Card("AMD Radeon RX 6950 XT", 16120, None, None, 576, Hip.name),
    "rx-7600": Card("AMD Radeon RX 7600", 8060, None, None, 288, Hip.name),
    "rx-7600-xt": Card("AMD Radeon RX 7600 XT", 16120, None, None, 288, Hip.name),
    "rx-7700-xt": Card("AMD Radeon RX 7700 XT", 12090, None, None, 432, Hip.name),
    "rx-7800-xt": Card("AMD Radeon RX 7800 XT", 16120, None, None, 624, Hip.name),
    "rx-7900-xt": Card("AMD Radeon RX 7900 XT", 20150, None, None, 800, Hip.name),
    "rx-7900-xtx": Card("AMD Radeon RX 7900 XTX", 24190, None, None, 960, Hip.name),
    "rx-9060-xt-8g": Card("AMD Radeon RX 9060 XT", 8060, None, None, 320, Hip.name),
    "rx-9060-xt-16g": Card("AMD Radeon RX 9060 XT", 16120, None, None, 320, Hip.name),
    "rx-9070": Card("AMD Radeon RX 9070", 16120, None, None, 640, Hip.name),
    "rx-9070-xt": Card("AMD Radeon RX 9070 XT", 16120, None, None, 640, Hip.name),
    "mi300x": Card("AMD Instinct MI300X", 193658, None, None, 5300, Hip.name),
}

# Makers' and families' words that people leave out or add.
_OPTIONAL = ("nvidia", "geforce", "amd", "radeon", "instinct", "quadro", "tesla", "rtx", "gtx", "rx")


def _plain(name: str) -> str:
    """"NVIDIA RTX-4060 Ti 16GB" and "rtx4060ti16g" are the same words."""
    letters = "".join(c for c in name.lower() if c.isalnum())
    letters = letters.replace("laptopgpu", "laptop").replace("mobile", "laptop")
    for word in _OPTIONAL:
        letters = letters.removeprefix(word)
    for unit in ("gib", "gb"):
        letters = letters[:-len(unit)] + "g" if letters.endswith(unit) else letters
    return letters


_KEYS = {_plain(key): key for key in CARDS}


def table() -> str:
    """All cards as text: what --gpu list prints."""
    lines = [f"{'name':<20}{'MiB':>8}{'GB/s':>7}"]
    lines += [f"{key:<20}{card.usable:>8}{card.bandwidth:>7}" for key, card in CARDS.items()]
    return "\n".join([*lines, "any other: its memory, --gpu 24GiB"]) + "\n"


def find(name: str) -> Card:
    """The card of that name. Raises UsageError naming the candidates where it is ambiguous, or the unknown name."""
    wanted = _plain(name)
    if wanted in _KEYS:
        return CARDS[_KEYS[wanted]]
    # What is left out may only be the size: a "3060" is never a 3060 Ti, but "4060 Ti" and "A100" come in two.
    sizes = [key for plain, key in _KEYS.items() if wanted and _size(plain, wanted)]
    if len(sizes) == 1:
        return CARDS[sizes[0]]
    if sizes:
        raise UsageError(f"which {name}? {' or '.join(sizes)}")
    # Nor may it be wrong: "RTX 3060 12GB" is the 3060, which there is not with 10.
    for plain, key in _KEYS.items():
        if _size(wanted, plain) == -(-CARDS[key].usable // 1024):
            return CARDS[key]
    raise UsageError(f"not a size and not a known card: {name!r} ({_near(wanted)})")


def _size(name: str, stem: str) -> int:
    """12 of "306012g" behind "3060", 0 where that is not the rest."""
    rest = name[len(stem):-1]
    return int(rest) if name.startswith(stem) and name.endswith("g") and rest.isdecimal() and len(rest) < 4 else 0


def _near(wanted: str) -> str:
    from difflib import get_close_matches

    near = [key for plain, key in _KEYS.items() if len(wanted) > 1 and wanted in plain]
    near = near or [_KEYS[plain] for plain in get_close_matches(wanted, _KEYS, 3, 0.75)]
    perhaps = f"perhaps {', '.join(near[:5])}; " if near else ""
    return perhaps + "--gpu list shows them all; or write its memory: 24GiB"
