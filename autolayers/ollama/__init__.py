"""Ollama: Modelfiles, and the best num_gpu, num_ctx and num_batch for them.

from autolayers.ollama.modelfile import parse, rewrite
from autolayers.sources.ollama.store import find
from autolayers.sources.ollama.api import Server
"""
