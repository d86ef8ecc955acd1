"""Well-known GPUs: the figures behind `--gpu rtx-3090`.

The memory is the total that CUDA (or ROCm) reports under Linux: the lowest seen in public llama.cpp logs of
2026 ("VRAM: ... MiB"), or 1.5 % less than advertised if none was found; a driver update moves it by up to 1
%. Bandwidth and fp16 rate are the vendor's: matrix units at boost clock, without sparsity (NVIDIA since
Turing: 1024 operations per clock and multiprocessor, with fp16 sums), else one or two times fp32.
"""

from __future__ import annotations

from ..backends import DEFAULT, METAL, SYCL, VULKAN, Hip
from ..records import dataclass
from ..units import GiB, MiB
from .macs import working_set


@dataclass(frozen=True)
class Card:
    """The figures of one `--gpu NAME`."""

    description: str
    usable: int                                   # MiB
    compute_capability: tuple[int, int] | None    # None: not CUDA
    n_sm: int | None
    bandwidth: int                                # 10**9 bytes per second; 0: the RAM's
    # 10**12 operations per second of its matrix units; 0: integrated.py
    fp16: float
    pcie: str                                     # PCIe generation and lanes; "": none, its memory is the system's
    backend: str = DEFAULT.name                   # the backend of its device
    ram: int = 0                                  # GiB of the machine as sold, if its memory is the system's

    @property
    def unified(self) -> bool:
        return self.ram > 0

    @property
    def system_ram(self) -> int:
        """Bytes of RAM that the system counts, 0 if its memory is its own: CUDA's total is the system's, as both
        lack what the firmware keeps (cudaMemGetInfo)."""
        return min(self.ram * GiB, self.usable * MiB) if self.backend == DEFAULT.name else self.ram * GiB

    @property
    def link(self) -> float | None:
        """Bytes per second that copies from RAM reach."""
        generation, _, lanes = self.pcie.partition("x")
        return _LANE[generation] * int(lanes) if lanes else None


_LANE = {"3": 0.886e9, "4": 1.77e9, "5": 3.54e9}      # 0.9 of a lane's bytes per second, by generation

# Apple's chips, the largest variant of each: 10**9 bytes per second, 10**12 fp16 operations per second, sizes
# in GiB
_APPLE = {
    "m1": (68, 2.6, (8, 16)), "m1-pro": (200, 5.3, (16, 32)), "m1-max": (400, 10.4, (32, 64)),
    "m1-ultra": (800, 20.8, (64, 128)), "m2": (100, 3.6, (8, 16, 24)), "m2-pro": (200, 6.8, (16, 32)),
    "m2-max": (400, 13.6, (32, 64, 96)), "m2-ultra": (800, 27.2, (64, 128, 192)), "m3": (100, 4.1, (8, 16, 24)),
    "m3-pro": (150, 7.4, (18, 36)), "m3-max": (400, 14.2, (36, 48, 64, 96, 128)),
    "m3-ultra": (819, 28.4, (96, 256, 512)), "m4": (120, 4.6, (16, 24, 32)), "m4-pro": (273, 9.2, (24, 48, 64)),
    "m4-max": (546, 18.4, (36, 48, 64, 128)), "m5": (153, 16.0, (16, 24, 32)),
    "m5-pro": (307, 32.0, (24, 48, 64)), "m5-max": (614, 64.0, (36, 48, 64, 128)),
}


CARDS = {
    "gtx-750-ti": Card("NVIDIA GeForce GTX 750 Ti", 2001, (5, 0), 5, 86, 1.4, "3x16"),
    "gtx-960-2g": Card("NVIDIA GeForce GTX 960", 2001, (5, 2), 8, 112, 2.4, "3x16"),
    "gtx-960-4g": Card("NVIDIA GeForce GTX 960", 4034, (5, 2), 8, 112, 2.4, "3x16"),
    "gtx-970": Card("NVIDIA GeForce GTX 970", 4034, (5, 2), 13, 224, 3.9, "3x16"),
    "gtx-980": Card("NVIDIA GeForce GTX 980", 4034, (5, 2), 16, 224, 5.0, "3x16"),
    "gtx-980-ti": Card("NVIDIA GeForce GTX 980 Ti", 6052, (5, 2), 22, 336, 6.1, "3x16"),
    "titan-x": Card("NVIDIA GeForce GTX TITAN X", 12188, (5, 2), 24, 336, 6.7, "3x16"),
    "titan-x-pascal": Card("NVIDIA TITAN X (Pascal)", 12188, (6, 1), 28, 480, 11.0, "3x16"),
    "gt-1030": Card("NVIDIA GeForce GT 1030", 1998, (6, 1), 3, 48, 1.1, "3x4"),
    "gtx-1050": Card("NVIDIA GeForce GTX 1050", 1998, (6, 1), 5, 112, 1.9, "3x16"),
    "gtx-1050-ti": Card("NVIDIA GeForce GTX 1050 Ti", 4034, (6, 1), 6, 112, 2.1, "3x16"),
    "gtx-1060-3g": Card("NVIDIA GeForce GTX 1060 3GB", 3012, (6, 1), 9, 192, 3.9, "3x16"),
    "gtx-1060-6g": Card("NVIDIA GeForce GTX 1060 6GB", 6063, (6, 1), 10, 192, 4.4, "3x16"),
    "gtx-1070": Card("NVIDIA GeForce GTX 1070", 8098, (6, 1), 15, 256, 6.5, "3x16"),
    "gtx-1070-ti": Card("NVIDIA GeForce GTX 1070 Ti", 8098, (6, 1), 19, 256, 8.2, "3x16"),
    "gtx-1080": Card("NVIDIA GeForce GTX 1080", 8098, (6, 1), 20, 320, 8.9, "3x16"),
    "gtx-1080-ti": Card("NVIDIA GeForce GTX 1080 Ti", 11094, (6, 1), 28, 484, 11.3, "3x16"),
    "titan-xp": Card("NVIDIA TITAN Xp", 12188, (6, 1), 30, 548, 12.1, "3x16"),
    "titan-v": Card("NVIDIA TITAN V", 12058, (7, 0), 80, 653, 110.0, "3x16"),
    "gtx-1650": Card("NVIDIA GeForce GTX 1650", 3712, (7, 5), 14, 128, 6.0, "3x16"),
    "gtx-1650-super": Card("NVIDIA GeForce GTX 1650 SUPER", 3712, (7, 5), 20, 192, 8.8, "3x16"),
    "gtx-1650-ti": Card("NVIDIA GeForce GTX 1650 Ti", 3712, (7, 5), 16, 192, 6.1, "3x16"),
    "gtx-1660": Card("NVIDIA GeForce GTX 1660", 5747, (7, 5), 22, 192, 10.1, "3x16"),
    "gtx-1660-super": Card("NVIDIA GeForce GTX 1660 SUPER", 5747, (7, 5), 22, 336, 10.0, "3x16"),
    "gtx-1660-ti": Card("NVIDIA GeForce GTX 1660 Ti", 5747, (7, 5), 24, 288, 10.9, "3x16"),
    "rtx-2060-6g": Card("NVIDIA GeForce RTX 2060", 5745, (7, 5), 30, 336, 51.6, "3x16"),
    "rtx-2060-12g": Card("NVIDIA GeForce RTX 2060", 11832, (7, 5), 34, 336, 57.4, "3x16"),
    "rtx-2070": Card("NVIDIA GeForce RTX 2070", 7782, (7, 5), 36, 448, 59.7, "3x16"),
    "rtx-2070-super": Card("NVIDIA GeForce RTX 2070 SUPER", 7782, (7, 5), 40, 448, 72.5, "3x16"),
    "rtx-2080": Card("NVIDIA GeForce RTX 2080", 7782, (7, 5), 46, 448, 80.5, "3x16"),
    "rtx-2080-super": Card("NVIDIA GeForce RTX 2080 SUPER", 7782, (7, 5), 48, 496, 89.2, "3x16"),
    "rtx-2080-ti": Card("NVIDIA GeForce RTX 2080 Ti", 10822, (7, 5), 68, 616, 107.6, "3x16"),
    "titan-rtx": Card("NVIDIA TITAN RTX", 24007, (7, 5), 72, 672, 130.5, "3x16"),
    "rtx-3050-6g": Card("NVIDIA GeForce RTX 3050 6GB", 5745, (8, 6), 18, 168, 27.1, "4x8"),
    "rtx-3050-8g": Card("NVIDIA GeForce RTX 3050", 7782, (8, 6), 20, 224, 36.4, "4x8"),
    "rtx-3060-8g": Card("NVIDIA GeForce RTX 3060", 7782, (8, 6), 28, 240, 51.2, "4x16"),
    "rtx-3060": Card("NVIDIA GeForce RTX 3060", 11906, (8, 6), 28, 360, 51.2, "4x16"),
    "rtx-3060-ti": Card("NVIDIA GeForce RTX 3060 Ti", 7782, (8, 6), 38, 448, 64.8, "4x16"),
    "rtx-3070": Card("NVIDIA GeForce RTX 3070", 7782, (8, 6), 46, 448, 81.3, "4x16"),
    "rtx-3070-ti": Card("NVIDIA GeForce RTX 3070 Ti", 7782, (8, 6), 48, 608, 87.0, "4x16"),
    "rtx-3080-10g": Card("NVIDIA GeForce RTX 3080", 9868, (8, 6), 68, 760, 119.0, "4x16"),
    "rtx-3080-12g": Card("NVIDIA GeForce RTX 3080", 11906, (8, 6), 70, 912, 122.6, "4x16"),
    "rtx-3080-ti": Card("NVIDIA GeForce RTX 3080 Ti", 11909, (8, 6), 80, 912, 136.0, "4x16"),
    "rtx-3090": Card("NVIDIA GeForce RTX 3090", 24115, (8, 6), 82, 936, 142.0, "4x16"),
    "rtx-3090-ti": Card("NVIDIA GeForce RTX 3090 Ti", 24115, (8, 6), 84, 1008, 160.0, "4x16"),
    "rtx-4060": Card("NVIDIA GeForce RTX 4060", 7806, (8, 9), 24, 272, 60.5, "4x8"),
    "rtx-4060-ti-8g": Card("NVIDIA GeForce RTX 4060 Ti", 7806, (8, 9), 34, 288, 88.3, "4x8"),
    "rtx-4060-ti-16g": Card("NVIDIA GeForce RTX 4060 Ti", 15939, (8, 9), 34, 288, 88.3, "4x8"),
    "rtx-4070": Card("NVIDIA GeForce RTX 4070", 11872, (8, 9), 46, 504, 116.6, "4x16"),
    "rtx-4070-super": Card("NVIDIA GeForce RTX 4070 SUPER", 11872, (8, 9), 56, 504, 141.9, "4x16"),
    "rtx-4070-ti": Card("NVIDIA GeForce RTX 4070 Ti", 11872, (8, 9), 60, 504, 160.4, "4x16"),
    "rtx-4070-ti-super": Card("NVIDIA GeForce RTX 4070 Ti SUPER", 15939, (8, 9), 66, 672, 176.4, "4x16"),
    "rtx-4080": Card("NVIDIA GeForce RTX 4080", 15939, (8, 9), 76, 716, 194.9, "4x16"),
    "rtx-4080-super": Card("NVIDIA GeForce RTX 4080 SUPER", 15939, (8, 9), 80, 736, 208.9, "4x16"),
    "rtx-4090": Card("NVIDIA GeForce RTX 4090", 24080, (8, 9), 128, 1008, 330.3, "4x16"),
    "rtx-4090-d": Card("NVIDIA GeForce RTX 4090 D", 24080, (8, 9), 114, 1008, 294.2, "4x16"),
    "rtx-5050": Card("NVIDIA GeForce RTX 5050", 7707, (12, 0), 20, 320, 52.7, "5x8"),
    "rtx-5060": Card("NVIDIA GeForce RTX 5060", 7707, (12, 0), 30, 448, 76.7, "5x8"),
    "rtx-5060-ti-8g": Card("NVIDIA GeForce RTX 5060 Ti", 7707, (12, 0), 36, 448, 94.8, "5x8"),
    "rtx-5060-ti-16g": Card("NVIDIA GeForce RTX 5060 Ti", 15841, (12, 0), 36, 448, 94.8, "5x8"),
    "rtx-5070": Card("NVIDIA GeForce RTX 5070", 11756, (12, 0), 48, 672, 123.5, "5x16"),
    "rtx-5070-ti": Card("NVIDIA GeForce RTX 5070 Ti", 15808, (12, 0), 70, 896, 175.8, "5x16"),
    "rtx-5080": Card("NVIDIA GeForce RTX 5080", 15808, (12, 0), 84, 960, 225.1, "5x16"),
    "rtx-5090": Card("NVIDIA GeForce RTX 5090", 32106, (12, 0), 170, 1792, 419.0, "5x16"),
    "rtx-5090-d": Card("NVIDIA GeForce RTX 5090 D", 32106, (12, 0), 170, 1792, 419.0, "5x16"),
    "rtx-5090-d-v2": Card("NVIDIA GeForce RTX 5090 D v2", 24080, (12, 0), 170, 1344, 419.0, "5x16"),
    "rtx-2060-laptop": Card("NVIDIA GeForce RTX 2060 with Max-Q Design", 5745, (7, 5), 30, 336, 47.9, "3x16"),
    "rtx-2070-laptop": Card("NVIDIA GeForce RTX 2070 with Max-Q Design", 7782, (7, 5), 36, 448, 53.1, "3x16"),
    "rtx-2080-laptop": Card("NVIDIA GeForce RTX 2080 with Max-Q Design", 7782, (7, 5), 46, 448, 74.9, "3x16"),
    "rtx-2080-super-laptop":
        Card("NVIDIA GeForce RTX 2080 Super with Max-Q Design", 7782, (7, 5), 48, 448, 76.7, "3x16"),
    "rtx-2050-laptop": Card("NVIDIA GeForce RTX 2050", 3712, (8, 6), 16, 112, 24.2, "3x8"),
    "rtx-3050-laptop-4g": Card("NVIDIA GeForce RTX 3050 Laptop GPU", 3712, (8, 6), 16, 192, 28.5, "4x8"),
    "rtx-3050-laptop-6g": Card("NVIDIA GeForce RTX 3050 6GB Laptop GPU", 5745, (8, 6), 20, 168, 30.5, "4x8"),
    "rtx-3050-ti-laptop": Card("NVIDIA GeForce RTX 3050 Ti Laptop GPU", 3712, (8, 6), 20, 192, 34.7, "4x8"),
    "rtx-3060-laptop": Card("NVIDIA GeForce RTX 3060 Laptop GPU", 5745, (8, 6), 30, 336, 43.8, "4x8"),
    "rtx-3070-laptop": Card("NVIDIA GeForce RTX 3070 Laptop GPU", 7782, (8, 6), 40, 448, 63.9, "4x8"),
    "rtx-3070-ti-laptop": Card("NVIDIA GeForce RTX 3070 Ti Laptop GPU", 7782, (8, 6), 46, 448, 69.9, "4x8"),
    "rtx-3080-laptop-8g": Card("NVIDIA GeForce RTX 3080 Laptop GPU", 7782, (8, 6), 48, 448, 75.9, "4x8"),
    "rtx-3080-laptop-16g": Card("NVIDIA GeForce RTX 3080 Laptop GPU", 15939, (8, 6), 48, 448, 75.9, "4x8"),
    "rtx-3080-ti-laptop": Card("NVIDIA GeForce RTX 3080 Ti Laptop GPU", 15939, (8, 6), 58, 512, 74.8, "4x8"),
    "rtx-4050-laptop": Card("NVIDIA GeForce RTX 4050 Laptop GPU", 5745, (8, 9), 20, 192, 48.5, "4x8"),
    "rtx-4060-laptop": Card("NVIDIA GeForce RTX 4060 Laptop GPU", 7782, (8, 9), 24, 256, 58.2, "4x8"),
    "rtx-4070-laptop": Card("NVIDIA GeForce RTX 4070 Laptop GPU", 7782, (8, 9), 36, 256, 80.2, "4x8"),
    "rtx-4080-laptop": Card("NVIDIA GeForce RTX 4080 Laptop GPU", 11872, (8, 9), 58, 432, 135.4, "4x8"),
    "rtx-4090-laptop": Card("NVIDIA GeForce RTX 4090 Laptop GPU", 15939, (8, 9), 76, 576, 158.8, "4x8"),
    "rtx-5050-laptop": Card("NVIDIA GeForce RTX 5050 Laptop GPU", 7707, (12, 0), 20, 384, 51.2, "5x8"),
    "rtx-5060-laptop": Card("NVIDIA GeForce RTX 5060 Laptop GPU", 7707, (12, 0), 26, 384, 66.6, "5x8"),
    "rtx-5070-laptop": Card("NVIDIA GeForce RTX 5070 Laptop GPU", 7707, (12, 0), 36, 384, 86.6, "5x16"),
    "rtx-5070-ti-laptop": Card("NVIDIA GeForce RTX 5070 Ti Laptop GPU", 11756, (12, 0), 46, 672, 104.6, "5x16"),
    "rtx-5080-laptop": Card("NVIDIA GeForce RTX 5080 Laptop GPU", 15808, (12, 0), 60, 896, 140.7, "5x16"),
    "rtx-5090-laptop": Card("NVIDIA GeForce RTX 5090 Laptop GPU", 24080, (12, 0), 82, 896, 181.4, "5x16"),
    "rtx-a400": Card("NVIDIA RTX A400", 3712, (8, 6), 6, 96, 10.8, "4x8"),
    "rtx-a1000": Card("NVIDIA RTX A1000", 7782, (8, 6), 18, 192, 26.9, "4x8"),
    "rtx-a2000-6g": Card("NVIDIA RTX A2000", 5745, (8, 6), 26, 288, 31.9, "4x16"),
    "rtx-a2000-12g": Card("NVIDIA RTX A2000 12GB", 11906, (8, 6), 26, 288, 31.9, "4x16"),
    "rtx-a4000": Card("NVIDIA RTX A4000", 15939, (8, 6), 48, 448, 76.7, "4x16"),
    "rtx-a4500": Card("NVIDIA RTX A4500", 19991, (8, 6), 56, 640, 94.6, "4x16"),
    "rtx-a5000": Card("NVIDIA RTX A5000", 24115, (8, 6), 64, 768, 111.1, "4x16"),
    "rtx-a5500": Card("NVIDIA RTX A5500", 24115, (8, 6), 80, 768, 136.4, "4x16"),
    "rtx-a6000": Card("NVIDIA RTX A6000", 48531, (8, 6), 84, 768, 154.8, "4x16"),
    "rtx-a5000-laptop": Card("NVIDIA RTX A5000 Laptop GPU", 15939, (8, 6), 48, 448, 77.4, "4x8"),
    "rtx-a5500-laptop": Card("NVIDIA RTX A5500 Laptop GPU", 15939, (8, 6), 58, 512, 89.0, "4x8"),
    "rtx-2000-ada": Card("NVIDIA RTX 2000 Ada Generation", 15939, (8, 9), 22, 224, 48.0, "4x8"),
    "rtx-4000-ada": Card("NVIDIA RTX 4000 Ada Generation", 19991, (8, 9), 48, 360, 106.8, "4x16"),
    "rtx-4000-sff-ada": Card("NVIDIA RTX 4000 SFF Ada Generation", 19991, (8, 9), 48, 280, 76.7, "4x16"),
    "rtx-4500-ada": Card("NVIDIA RTX 4500 Ada Generation", 24080, (8, 9), 60, 432, 158.5, "4x16"),
    "rtx-5000-ada": Card("NVIDIA RTX 5000 Ada Generation", 32200, (8, 9), 100, 576, 261.0, "4x16"),
    "rtx-5880-ada": Card("NVIDIA RTX 5880 Ada Generation", 48497, (8, 9), 110, 960, 277.0, "4x16"),
    "rtx-6000-ada": Card("NVIDIA RTX 6000 Ada Generation", 48497, (8, 9), 142, 960, 364.2, "4x16"),
    "rtx-2000-ada-laptop": Card("NVIDIA RTX 2000 Ada Generation Laptop GPU", 7782, (8, 9), 24, 256, 51.6, "4x8"),
    "rtx-3500-ada-laptop": Card("NVIDIA RTX 3500 Ada Generation Laptop GPU", 11872, (8, 9), 40, 432, 63.0, "4x8"),
    "rtx-4000-ada-laptop": Card("NVIDIA RTX 4000 Ada Generation Laptop GPU", 11872, (8, 9), 58, 432, 99.0, "4x8"),
    "rtx-5000-ada-laptop": Card("NVIDIA RTX 5000 Ada Generation Laptop GPU", 15939, (8, 9), 76, 576, 164.0, "4x8"),
    "rtx-pro-2000": Card("NVIDIA RTX PRO 2000 Blackwell", 15808, (12, 0), 34, 288, 87.0, "5x16"),
    "rtx-pro-4000": Card("NVIDIA RTX PRO 4000 Blackwell", 24080, (12, 0), 70, 672, 186.4, "5x16"),
    "rtx-pro-4000-sff": Card("NVIDIA RTX PRO 4000 Blackwell SFF Edition", 24080, (12, 0), 70, 432, 96.0, "5x8"),
    "rtx-pro-4500": Card("NVIDIA RTX PRO 4500 Blackwell", 32106, (12, 0), 82, 896, 218.3, "5x16"),
    "rtx-pro-5000-48g": Card("NVIDIA RTX PRO 5000 Blackwell", 48400, (12, 0), 110, 1344, 292.9, "5x16"),
    "rtx-pro-5000-72g": Card("NVIDIA RTX PRO 5000 Blackwell", 72600, (12, 0), 110, 1344, 292.9, "5x16"),
    "rtx-pro-6000": Card("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97247, (12, 0), 188, 1792, 503.8, "5x16"),
    "rtx-pro-6000-max-q":
        Card("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97247, (12, 0), 188, 1792, 438.9, "5x16"),
    "rtx-pro-6000-server":
        Card("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97247, (12, 0), 188, 1597, 477.4, "5x16"),
    "rtx-pro-1000-laptop":
        Card("NVIDIA RTX PRO 1000 Blackwell Generation Laptop GPU", 7707, (12, 0), 20, 384, 51.2, "5x8"),
    "rtx-pro-2000-laptop":
        Card("NVIDIA RTX PRO 2000 Blackwell Generation Laptop GPU", 7707, (12, 0), 26, 384, 66.6, "5x8"),
    "rtx-pro-3000-laptop":
        Card("NVIDIA RTX PRO 3000 Blackwell Generation Laptop GPU", 11756, (12, 0), 46, 672, 104.6, "5x16"),
    "rtx-pro-4000-laptop":
        Card("NVIDIA RTX PRO 4000 Blackwell Generation Laptop GPU", 15808, (12, 0), 60, 896, 140.7, "5x16"),
    "rtx-pro-5000-laptop":
        Card("NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU", 24080, (12, 0), 82, 896, 181.4, "5x16"),
    "quadro-rtx-6000": Card("Quadro RTX 6000", 24007, (7, 5), 72, 672, 130.5, "3x16"),
    "quadro-rtx-8000": Card("Quadro RTX 8000", 48400, (7, 5), 72, 672, 130.5, "3x16"),
    "quadro-rtx-5000": Card("Quadro RTX 5000", 15927, (7, 5), 48, 448, 89.2, "3x16"),
    "quadro-rtx-4000": Card("Quadro RTX 4000", 7782, (7, 5), 36, 416, 57.0, "3x16"),
    "t1000-8g": Card("NVIDIA T1000 8GB", 7782, (7, 5), 14, 160, 5.0, "3x16"),
    "quadro-p1000": Card("Quadro P1000", 4034, (6, 1), 5, 80, 1.9, "3x16"),
    "quadro-p2000": Card("Quadro P2000", 5052, (6, 1), 8, 140, 3.0, "3x16"),
    "quadro-p2200": Card("Quadro P2200", 5052, (6, 1), 10, 200, 3.8, "3x16"),
    "quadro-p4000": Card("Quadro P4000", 8098, (6, 1), 14, 243, 5.3, "3x16"),
    "quadro-p5000": Card("Quadro P5000", 16138, (6, 1), 20, 288, 8.9, "3x16"),
    "quadro-p6000": Card("Quadro P6000", 24200, (6, 1), 30, 432, 12.6, "3x16"),
    "tesla-k80": Card("Tesla K80", 11441, (3, 7), 13, 240, 4.4, "3x16"),       # one of its two GPUs
    "tesla-m40-12g": Card("Tesla M40", 11443, (5, 2), 24, 288, 6.8, "3x16"),
    "tesla-m40-24g": Card("Tesla M40 24GB", 22945, (5, 2), 24, 288, 6.8, "3x16"),
    "tesla-m60": Card("Tesla M60", 7618, (5, 2), 16, 160, 4.8, "3x16"),        # one of its two GPUs
    "tesla-p4": Card("Tesla P4", 7606, (6, 1), 20, 192, 5.5, "3x16"),
    "tesla-p40": Card("Tesla P40", 22905, (6, 1), 30, 346, 11.8, "3x16"),
    "tesla-p100-12g": Card("Tesla P100-PCIE-12GB", 12058, (6, 0), 56, 549, 18.7, "3x16"),
    "tesla-p100-16g": Card("Tesla P100-PCIE-16GB", 16138, (6, 0), 56, 732, 18.7, "3x16"),
    "tesla-p100-sxm2-16g": Card("Tesla P100-SXM2-16GB", 16138, (6, 0), 56, 732, 21.2, "3x16"),
    "tesla-t4": Card("Tesla T4", 14912, (7, 5), 40, 320, 65.0, "3x16"),
    "tesla-v100-16g": Card("Tesla V100-SXM2-16GB", 16138, (7, 0), 80, 898, 125.0, "3x16"),
    "tesla-v100-32g": Card("Tesla V100-SXM2-32GB", 32494, (7, 0), 80, 898, 125.0, "3x16"),
    "tesla-v100-pcie-16g": Card("Tesla V100-PCIE-16GB", 16138, (7, 0), 80, 898, 112.0, "3x16"),
    "tesla-v100-pcie-32g": Card("Tesla V100-PCIE-32GB", 32494, (7, 0), 80, 898, 112.0, "3x16"),
    "a2": Card("NVIDIA A2", 14912, (8, 6), 10, 200, 18.1, "4x8"),
    "a16": Card("NVIDIA A16", 14912, (8, 6), 10, 200, 18.1, "4x16"),
    "a10": Card("NVIDIA A10", 22731, (8, 6), 72, 600, 125.0, "4x16"),
    "a10g": Card("NVIDIA A10G", 22503, (8, 6), 72, 600, 125.0, "4x16"),
    "a30": Card("NVIDIA A30", 24115, (8, 0), 56, 933, 165.0, "4x16"),
    "a40": Card("NVIDIA A40", 45411, (8, 6), 84, 696, 149.7, "4x16"),
    "a100-40g": Card("NVIDIA A100-SXM4-40GB", 40326, (8, 0), 108, 1555, 312.0, "4x16"),
    "a100-40g-pcie": Card("NVIDIA A100-PCIE-40GB", 40326, (8, 0), 108, 1555, 312.0, "4x16"),
    "a100-80g": Card("NVIDIA A100-SXM4-80GB", 81037, (8, 0), 108, 2039, 312.0, "4x16"),
    "a100-80g-pcie": Card("NVIDIA A100 80GB PCIe", 81037, (8, 0), 108, 1935, 312.0, "4x16"),
    "a800-80g": Card("NVIDIA A800-SXM4-80GB", 81037, (8, 0), 108, 2039, 312.0, "4x16"),
    "l4": Card("NVIDIA L4", 22478, (8, 9), 58, 300, 121.0, "4x16"),
    "l20": Card("NVIDIA L20", 45457, (8, 9), 92, 864, 119.5, "4x16"),
    "l40": Card("NVIDIA L40", 45411, (8, 9), 142, 864, 181.0, "4x16"),
    "l40s": Card("NVIDIA L40S", 45411, (8, 9), 142, 864, 362.0, "4x16"),
    "h100-pcie": Card("NVIDIA H100 PCIe", 81007, (9, 0), 114, 2039, 756.0, "4x16"),
    "h100-80g": Card("NVIDIA H100 80GB HBM3", 81007, (9, 0), 132, 3352, 989.0, "5x16"),
    "h800": Card("NVIDIA H800", 81007, (9, 0), 132, 3352, 989.0, "5x16"),
    "h100-nvl": Card("NVIDIA H100 NVL", 95320, (9, 0), 132, 3938, 835.0, "5x16"),
    "h20": Card("NVIDIA H20", 97500, (9, 0), 78, 4000, 148.0, "4x16"),
    "h200": Card("NVIDIA H200", 143155, (9, 0), 132, 4917, 989.0, "5x16"),
    "gh200-96g": Card("NVIDIA GH200 480GB", 96768, (9, 0), 132, 4000, 989.0, "4x16"),
    "gh200-144g": Card("NVIDIA GH200 144G HBM3e", 143155, (9, 0), 132, 4900, 989.0, "4x16"),
    "b200": Card("NVIDIA B200", 182630, (10, 0), 148, 7700, 2250.0, "5x16"),
    "b300": Card("NVIDIA B300", 270000, (10, 3), 148, 8000, 2250.0, "5x16"),
    "jetson-xavier-nx-8g": Card("Xavier NX", 6850, (7, 2), 6, 60, 6.0, "", DEFAULT.name, 8),
    "jetson-agx-xavier-32g": Card("Xavier", 30500, (7, 2), 8, 137, 11.0, "", DEFAULT.name, 32),
    "jetson-orin-nano-8g": Card("NVIDIA Jetson Orin Nano 8GB", 7400, (8, 7), 8, 102, 8.0, "", DEFAULT.name, 8),
    "jetson-orin-nx-16g": Card("NVIDIA Jetson Orin NX 16GB", 15000, (8, 7), 8, 102, 9.6, "", DEFAULT.name, 16),
    "jetson-agx-orin-32g": Card("NVIDIA Jetson AGX Orin 32GB", 30000, (8, 7), 14, 204, 13.3, "", DEFAULT.name, 32),
    "jetson-agx-orin-64g": Card("NVIDIA Jetson AGX Orin 64GB", 61000, (8, 7), 16, 204, 21.3, "", DEFAULT.name, 64),
    "jetson-thor-128g": Card("NVIDIA Thor", 122000, (11, 0), 20, 273, 250.0, "", DEFAULT.name, 128),
    "gb10": Card("NVIDIA GB10", 124610, (12, 1), 48, 273, 125.0, "", DEFAULT.name, 128),
    # ROCm has no kernels for gfx803
    "rx-470-4g": Card("AMD Radeon RX 470", 4030, None, None, 211, 4.9, "3x16", VULKAN),
    "rx-470-8g": Card("AMD Radeon RX 470", 8060, None, None, 211, 4.9, "3x16", VULKAN),
    "rx-480-4g": Card("AMD Radeon RX 480", 4030, None, None, 224, 5.8, "3x16", VULKAN),
    "rx-480-8g": Card("AMD Radeon RX 480", 8060, None, None, 256, 5.8, "3x16", VULKAN),
    "rx-560-4g": Card("AMD Radeon RX 560", 4030, None, None, 112, 2.6, "3x8", VULKAN),
    "rx-570-4g": Card("AMD Radeon RX 570", 4030, None, None, 224, 5.1, "3x16", VULKAN),
    "rx-570-8g": Card("AMD Radeon RX 570", 8060, None, None, 224, 5.1, "3x16", VULKAN),
    "rx-580-4g": Card("AMD Radeon RX 580", 4030, None, None, 256, 6.2, "3x16", VULKAN),
    "rx-580-8g": Card("AMD Radeon RX 580", 8060, None, None, 256, 6.2, "3x16", VULKAN),
    "rx-590": Card("AMD Radeon RX 590", 8060, None, None, 256, 7.1, "3x16", VULKAN),
    "rx-vega-56": Card("AMD Radeon RX Vega 56", 8060, None, None, 410, 21.1, "3x16", Hip.name),
    "rx-vega-64": Card("AMD Radeon RX Vega 64", 8060, None, None, 484, 25.3, "3x16", Hip.name),
    "rx-5500-xt-4g": Card("AMD Radeon RX 5500 XT", 4030, None, None, 224, 10.4, "4x8", Hip.name),
    "rx-5500-xt-8g": Card("AMD Radeon RX 5500 XT", 8060, None, None, 224, 10.4, "4x8", Hip.name),
    "rx-5600-xt": Card("AMD Radeon RX 5600 XT", 6040, None, None, 288, 14.4, "4x16", Hip.name),
    "rx-5700": Card("AMD Radeon RX 5700", 8060, None, None, 448, 15.9, "4x16", Hip.name),
    "rx-5700-xt": Card("AMD Radeon RX 5700 XT", 8060, None, None, 448, 19.5, "4x16", Hip.name),
    "radeon-vii": Card("AMD Radeon VII", 16120, None, None, 1024, 26.9, "3x16", Hip.name),
    "rx-6400": Card("AMD Radeon RX 6400", 4030, None, None, 128, 7.1, "4x4", Hip.name),
    "rx-6500-xt": Card("AMD Radeon RX 6500 XT", 4030, None, None, 144, 11.5, "4x4", Hip.name),
    "rx-6600": Card("AMD Radeon RX 6600", 8060, None, None, 224, 17.9, "4x8", Hip.name),
    "rx-6600-xt": Card("AMD Radeon RX 6600 XT", 8060, None, None, 256, 21.2, "4x8", Hip.name),
    "rx-6650-xt": Card("AMD Radeon RX 6650 XT", 8060, None, None, 280, 21.6, "4x8", Hip.name),
    "rx-6700": Card("AMD Radeon RX 6700", 10070, None, None, 320, 22.6, "4x16", Hip.name),
    "rx-6700-xt": Card("AMD Radeon RX 6700 XT", 12090, None, None, 384, 26.4, "4x16", Hip.name),
    "rx-6750-xt": Card("AMD Radeon RX 6750 XT", 12090, None, None, 432, 26.6, "4x16", Hip.name),
    "rx-6800": Card("AMD Radeon RX 6800", 16120, None, None, 512, 32.3, "4x16", Hip.name),
    "rx-6800-xt": Card("AMD Radeon RX 6800 XT", 16120, None, None, 512, 41.5, "4x16", Hip.name),
    "rx-6900-xt": Card("AMD Radeon RX 6900 XT", 16120, None, None, 512, 46.1, "4x16", Hip.name),
    "rx-6950-xt": Card("AMD Radeon RX 6950 XT", 16120, None, None, 576, 47.3, "4x16", Hip.name),
    "rx-6600m": Card("AMD Radeon RX 6600M", 8060, None, None, 224, 17.7, "4x8", Hip.name),
    "rx-6700m": Card("AMD Radeon RX 6700M", 10070, None, None, 320, 21.2, "4x16", Hip.name),
    "rx-6800m": Card("AMD Radeon RX 6800M", 12090, None, None, 384, 23.6, "4x16", Hip.name),
    "rx-7600": Card("AMD Radeon RX 7600", 8060, None, None, 288, 43.5, "4x8", Hip.name),
    "rx-7600-xt": Card("AMD Radeon RX 7600 XT", 16120, None, None, 288, 45.1, "4x8", Hip.name),
    "rx-7650-gre": Card("AMD Radeon RX 7650 GRE", 8060, None, None, 288, 44.0, "4x8", Hip.name),
    "rx-7700": Card("AMD Radeon RX 7700", 16120, None, None, 624, 54.0, "4x16", Hip.name),
    "rx-7700-xt": Card("AMD Radeon RX 7700 XT", 12090, None, None, 432, 70.3, "4x16", Hip.name),
    "rx-7800-xt": Card("AMD Radeon RX 7800 XT", 16120, None, None, 624, 74.7, "4x16", Hip.name),
    "rx-7900-gre": Card("AMD Radeon RX 7900 GRE", 16120, None, None, 576, 92.0, "4x16", Hip.name),
    "rx-7900-xt": Card("AMD Radeon RX 7900 XT", 20150, None, None, 800, 103.0, "4x16", Hip.name),
    "rx-7900-xtx": Card("AMD Radeon RX 7900 XTX", 24190, None, None, 960, 122.8, "4x16", Hip.name),
    "rx-7600m-xt": Card("AMD Radeon RX 7600M XT", 8060, None, None, 288, 43.0, "4x8", Hip.name),
    "rx-7700s": Card("AMD Radeon RX 7700S", 8060, None, None, 288, 41.0, "4x8", Hip.name),
    "rx-7900m": Card("AMD Radeon RX 7900M", 16120, None, None, 576, 77.0, "4x16", Hip.name),
    "rx-9060": Card("AMD Radeon RX 9060", 8060, None, None, 288, 86.0, "5x16", Hip.name),
    "rx-9060-xt-8g": Card("AMD Radeon RX 9060 XT", 8060, None, None, 320, 103.0, "5x16", Hip.name),
    "rx-9060-xt-16g": Card("AMD Radeon RX 9060 XT", 16120, None, None, 320, 103.0, "5x16", Hip.name),
    "rx-9070-gre": Card("AMD Radeon RX 9070 GRE", 12090, None, None, 432, 137.0, "5x16", Hip.name),
    "rx-9070": Card("AMD Radeon RX 9070", 16120, None, None, 640, 145.0, "5x16", Hip.name),
    "rx-9070-xt": Card("AMD Radeon RX 9070 XT", 16120, None, None, 640, 195.0, "5x16", Hip.name),
    "pro-w6600": Card("AMD Radeon PRO W6600", 8060, None, None, 224, 20.8, "4x8", Hip.name),
    "pro-w6800": Card("AMD Radeon PRO W6800", 32240, None, None, 512, 35.7, "4x16", Hip.name),
    "pro-v620": Card("AMD Radeon PRO V620", 32240, None, None, 512, 40.6, "4x16", Hip.name),
    "pro-w7500": Card("AMD Radeon PRO W7500", 8060, None, None, 172, 24.0, "4x8", Hip.name),
    "pro-w7600": Card("AMD Radeon PRO W7600", 8060, None, None, 288, 40.0, "4x8", Hip.name),
    "pro-w7700": Card("AMD Radeon PRO W7700", 16120, None, None, 576, 56.5, "4x16", Hip.name),
    "pro-w7800": Card("AMD Radeon PRO W7800", 32240, None, None, 576, 90.5, "4x16", Hip.name),
    "pro-w7800-48g": Card("AMD Radeon PRO W7800 48GB", 48360, None, None, 864, 90.5, "4x16", Hip.name),
    "pro-w7900": Card("AMD Radeon PRO W7900", 48360, None, None, 864, 122.6, "4x16", Hip.name),
    "ai-pro-r9700": Card("AMD Radeon AI PRO R9700", 32240, None, None, 640, 191.0, "5x16", Hip.name),
    "strix-halo-32g": Card("AMD Radeon 8060S (Strix Halo)", 27500, None, None, 256, 59.4, "", Hip.name, 32),
    "strix-halo-64g": Card("AMD Radeon 8060S (Strix Halo)", 55000, None, None, 256, 59.4, "", Hip.name, 64),
    "strix-halo-96g": Card("AMD Radeon 8060S (Strix Halo)", 82500, None, None, 256, 59.4, "", Hip.name, 96),
    "strix-halo-128g": Card("AMD Radeon 8060S (Strix Halo)", 110000, None, None, 256, 59.4, "", Hip.name, 128),
    "radeon-8050s-32g": Card("AMD Radeon 8050S", 27500, None, None, 256, 47.5, "", Hip.name, 32),
    "radeon-8050s-64g": Card("AMD Radeon 8050S", 55000, None, None, 256, 47.5, "", Hip.name, 64),
    "radeon-8050s-128g": Card("AMD Radeon 8050S", 110000, None, None, 256, 47.5, "", Hip.name, 128),
    "pro-vii": Card("AMD Radeon Pro VII", 16120, None, None, 1024, 26.2, "4x16", Hip.name),
    "mi25": Card("AMD Instinct MI25", 16120, None, None, 484, 24.6, "3x16", Hip.name),
    "mi50-16g": Card("AMD Instinct MI50", 16120, None, None, 1024, 26.5, "4x16", Hip.name),
    "mi50-32g": Card("AMD Instinct MI50", 32240, None, None, 1024, 26.5, "4x16", Hip.name),
    "mi60": Card("AMD Instinct MI60", 32240, None, None, 1024, 29.5, "4x16", Hip.name),
    "mi100": Card("AMD Instinct MI100", 32240, None, None, 1229, 184.6, "4x16", Hip.name),
    "mi210": Card("AMD Instinct MI210", 64480, None, None, 1638, 181.0, "4x16", Hip.name),
    "mi250": Card("AMD Instinct MI250", 64480, None, None, 1638, 181.0, "4x16", Hip.name),
    "mi250x": Card("AMD Instinct MI250X", 64480, None, None, 1638, 191.5, "4x16", Hip.name),
    "mi300a": Card("AMD Instinct MI300A", 126000, None, None, 5300, 980.0, "", Hip.name, 128),
    "mi300x": Card("AMD Instinct MI300X", 193658, None, None, 5300, 1307.0, "5x16", Hip.name),
    "mi325x": Card("AMD Instinct MI325X", 258000, None, None, 6000, 1307.0, "5x16", Hip.name),
    "mi350x": Card("AMD Instinct MI350X", 290000, None, None, 8000, 2300.0, "5x16", Hip.name),
    "mi355x": Card("AMD Instinct MI355X", 290000, None, None, 8000, 2300.0, "5x16", Hip.name),
    "arc-a310": Card("Intel Arc A310", 4000, None, None, 124, 24.6, "4x8", SYCL),
    "arc-a380": Card("Intel Arc A380", 6000, None, None, 186, 33.0, "4x8", SYCL),
    "arc-a580": Card("Intel Arc A580", 8060, None, None, 512, 98.0, "4x16", SYCL),
    "arc-a750": Card("Intel Arc A750", 8060, None, None, 512, 118.0, "4x16", SYCL),
    "arc-a770-8g": Card("Intel Arc A770", 8060, None, None, 512, 137.6, "4x16", SYCL),
    "arc-a770-16g": Card("Intel Arc A770", 15900, None, None, 560, 137.6, "4x16", SYCL),
    "arc-a370m": Card("Intel Arc A370M Graphics", 4000, None, None, 112, 25.0, "4x8", SYCL),
    "arc-a550m": Card("Intel Arc A550M Graphics", 8060, None, None, 224, 29.5, "4x8", SYCL),
    "arc-a730m": Card("Intel Arc A730M Graphics", 12090, None, None, 336, 54.0, "4x16", SYCL),
    "arc-a770m": Card("Intel Arc A770M Graphics", 15900, None, None, 512, 108.0, "4x16", SYCL),
    "arc-pro-a60": Card("Intel Arc Pro A60 Graphics", 12090, None, None, 384, 67.0, "4x16", SYCL),
    "arc-b570": Card("Intel Arc B570", 10070, None, None, 380, 92.0, "4x8", SYCL),
    "arc-b580": Card("Intel Arc B580", 12090, None, None, 456, 117.0, "4x8", SYCL),
    "arc-pro-b50": Card("Intel Arc Pro B50", 16120, None, None, 224, 85.0, "4x8", SYCL),
    "arc-pro-b60": Card("Intel Arc Pro B60", 24180, None, None, 456, 98.0, "4x8", SYCL),
    "arc-pro-b65": Card("Intel Arc Pro B65", 32240, None, None, 608, 98.0, "5x16", SYCL),
    "arc-pro-b70": Card("Intel Arc Pro B70", 32240, None, None, 608, 183.0, "5x16", SYCL),
}

# integrated GPUs for --gpu, with their drivers' descriptions and the RAM of such machines, GiB
_INTEGRATED: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("steam-deck", "AMD Custom GPU 0405 (RADV VANGOGH)", (16,)),
    *((f"radeon-{number}m", f"AMD Radeon {number}M Graphics", sizes) for number, sizes in (
        (610, (16, 32, 64)), (660, (8, 16, 32)), (680, (16, 32, 64)), (740, (8, 16, 32)), (760, (16, 32, 64)),
        (780, (16, 32, 64, 96)), (840, (16, 32)), (860, (16, 32, 64)), (880, (16, 32, 64)),
        (890, (16, 32, 64, 96, 128)))),
    ("vega-8", "AMD Radeon Vega 8 Graphics", (8, 16, 32)), ("uhd-620", "Intel(R) UHD Graphics 620", (8, 16, 32)),
    ("uhd-630", "Intel(R) UHD Graphics 630", (8, 16, 32, 64)), ("uhd-730", "Intel(R) UHD Graphics 730", (8, 16, 32)),
    ("uhd-750", "Intel(R) UHD Graphics 750", (16, 32, 64)), ("uhd-770", "Intel(R) UHD Graphics 770", (16, 32, 64)),
    ("iris-xe", "Intel(R) Iris(R) Xe Graphics", (8, 16, 32)),
    ("arc-mtl", "Intel(R) Arc(tm) Graphics (MTL)", (16, 32, 64)),
    ("arc-130t", "Intel(R) Arc(TM) 130T GPU", (16, 32, 64)),
    ("arc-140t", "Intel(R) Arc(TM) 140T GPU", (16, 32, 64, 96)),
    ("arc-130v", "Intel(R) Arc(TM) 130V GPU", (16, 32)), ("arc-140v", "Intel(R) Arc(TM) 140V GPU", (16, 32)),
    ("arc-b390", "Intel(R) Arc(TM) B390 GPU", (16, 32, 64, 96)),
)

for _name, _description, _sizes in _INTEGRATED:
    for _gib in _sizes:      # Windows and amdgpu allow half of the RAM, Mesa's driver for Intel three quarters
        CARDS[f"{_name}-{_gib}g"] = Card(_description, _gib * 512, None, None, 0, 0.0, "", VULKAN, _gib)

for _chip, (_rate, _fp16, _sizes) in _APPLE.items():
    for _gib in _sizes:
        _name = f"Apple {_chip.replace('-', ' ').title()}"
        CARDS[f"{_chip}-{_gib}g"] = Card(_name, working_set(_gib), None, None, _rate, _fp16, "", METAL, _gib)


def table() -> str:
    """All GPUs as text, for --gpu list."""
    lines = [f"{'name':<20}{'MiB':>8}{'GB/s':>7}"]
    lines += [f"{key:<20}{card.usable:>8}{card.bandwidth or 'RAM':>7}" for key, card in CARDS.items()]
    return "\n".join([*lines, "any other GPU: give its memory, --gpu 24GiB"]) + "\n"
