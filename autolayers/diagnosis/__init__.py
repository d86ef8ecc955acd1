"""Why a launch failed or is slow, read from its log.

    answer = explain(open("server.log", "rb"))
    answer.cause, answer.phase, answer.device, answer.bytes, answer.fatal      # "oom_device", "cache", "CUDA0", ...
"""

from __future__ import annotations

from .diagnosis import Diagnosis, explain

__all__ = ["Diagnosis", "explain"]
