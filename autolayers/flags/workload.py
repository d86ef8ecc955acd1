"""The workload: the request that placements are compared by.

workload("agent"), workload("4096+512@16384"), workload("512+256@0x8")
"""

from __future__ import annotations

from ..keys import written
from ..records import dataclass
from .kinds import Bad, tokens


@dataclass(frozen=True)
class Workload:
    """A request of `prompt` new tokens and `generate` generated ones, with `depth` tokens of the
    same sequence already in the cache; `requests` of them at once. It needs a context of at least
    `context`."""

    prompt: int = 2048
    generate: int = 512
    depth: int = 0
    requests: int = 1
    context: int = 0
    name: str = ""
    reuses: bool = False  # the next request changes what follows a long prefix

    def to_dict(self) -> dict[str, object]:
        return written("speed.workload", self)


# chat: a question with a document, or a few turns. agent: tool results of about 1000 tokens after a
# long prefix that is
# in the cache. batch: long documents, short answers.
WORKLOADS = {
    "chat": Workload(2048, 512, 0, name="chat"),
    "agent": Workload(1024, 256, 24576, context=32768, name="agent", reuses=True),
    "batch": Workload(8192, 256, 0, name="batch"),
}
CHAT = WORKLOADS["chat"]


def workload(text: str) -> Workload:
    """Return the workload of a text. Raises Bad for anything but a name, P+G, P+G@D or P+G@DxN."""
    if text in WORKLOADS:
        return WORKLOADS[text]
    what = (
        f"{', '.join(WORKLOADS)} or P+G@D: tokens of the prompt, of the answer and in the cache, "
        f"as in 4096+512@16k"
    )
    # "512+256@4096x8" from its end: count, depth, answer, prompt
    rest, times, count = text.partition("x")
    rest, at, depth = rest.partition("@")
    prompt, plus, generate = rest.partition("+")
    unfinished = (times and not count) or (at and not depth)
    if not plus or unfinished:
        raise Bad(what)
    requests = tokens(count, 1, what) if times else 1
    # llama.cpp's LLAMA_MAX_SEQ: no server has more slots
    if requests > 256:
        raise Bad("at most 256 requests at once")
    return Workload(
        tokens(prompt, 1, what),
        tokens(generate, 1, what),
        tokens(depth, 0, what) if at else 0,
        requests,
    )
