"""llama.cpp's reading of a model: hyperparameters, layers, and which tensor belongs where."""

from __future__ import annotations

from .architectures import NAMES, Architecture, SlidingWindow, architecture
from .hparams import Hparams
from .model import Model, Weight, is_adapter, is_control_vector, is_projector, read_model

__all__ = [
    "NAMES",
    "Architecture",
    "Hparams",
    "Model",
    "SlidingWindow",
    "Weight",
    "architecture",
    "is_adapter",
    "is_control_vector",
    "is_projector",
    "read_model",
]
