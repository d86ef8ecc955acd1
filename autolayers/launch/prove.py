"""Boots is not fills: a planned launch that is started, filled to the end of its context on every
slot at once, and watched meanwhile.

    proof = Prover(session, plan, added, part=1.0).prove()
    proof.held, proof.failed, proof.rows         # what was predicted, at the start, at the end

Prompts are random tokens, so that no slot shares another one's. An image is asked about first where
there is a projector; a draft is in use as in any request.
"""

from __future__ import annotations

import base64
import os
import random
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ..backends import HOST
from ..devices.calibrated import beside_of
from ..devices.held import held
from ..errors import AutolayersError, UsageError
from ..net import Limit
from ..output import say
from ..records import dataclass, replace
from ..store import keep, now
from ..units import MiB
from . import supervise, wait
from .attempts import Attempts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..diagnosis.log import LaunchLog
    from ..planner import Plan
    from .session import Session
    from .supervise import Ended

ANSWER = 128  # tokens that each slot generates at the end, or a quarter of its context
STEPS = 8  # requests in which a slot is filled, each longer than the one before
_READY = 60.0  # seconds from a loaded model to its answers
_LIMIT = 6 * 3600.0  # seconds of one request: a long context on a processor takes hours
_ENDS = 10.0  # seconds in which a server that fails a request may die of it
_MOST = 1 << 22  # bytes of an answer
_SIDE = 1024  # pixels of the image


@dataclass(frozen=True)
class ProvedRow:
    """Bytes on one device or in RAM, None where nothing tells. `limit`: what the plan leaves it."""

    name: str
    predicted: int
    limit: int | None
    start: int | None
    end: int | None

    @property
    def left(self) -> int | None:
        return None if self.limit is None or self.end is None else self.limit - self.end


@dataclass(frozen=True)
class Proof:
    """`filled` of `wanted` tokens, those of all slots; `failed`: the first request that did, or
    why the server ended."""

    slots: int
    wanted: int
    filled: int
    failed: str
    interrupted: bool
    rows: tuple[ProvedRow, ...]

    @property
    def short(self) -> tuple[ProvedRow, ...]:
        """What took more than the plan leaves it."""
        return tuple([row for row in self.rows if row.left is not None and row.left < 0])

    @property
    def held(self) -> bool:
        """Whether all was filled, nothing failed, and no device took more than it has."""
        whole = self.filled >= self.wanted and not self.interrupted
        return whole and not self.failed and not self.short

    def to_dict(self) -> dict[str, object]:
        return {
            "held": self.held,
            "slots": self.slots,
            "tokens": self.wanted,
            "filled": self.filled,
            "failed": self.failed or None,
            "interrupted": self.interrupted,
            "memory": {
                row.name: {
                    "predicted": row.predicted,
                    "start": row.start,
                    "end": row.end,
                    "left": row.left,
                }
                for row in self.rows
            },
        }


class Prover(Attempts):
    """One launch. `part`: of each slot's context; `now` is told what is done."""

    def __init__(
        self,
        session: Session,
        plan: Plan,
        added: list[str],
        part: float = 1.0,
        now: Callable[[str], None] = lambda what: None,
    ) -> None:
        super().__init__(session, plan, added, 0, True, False)
        given = self.given
        if given.value("--api-key-file") or not wait.is_known(given):
            raise UsageError("prove asks the server: without --api-key-file, and at a known port")
        if session.program() is None or len(session.command.launcher) > 1:
            raise UsageError("prove watches a llama-server that it starts itself")
        self.now = now
        self.at = wait.Address.of(given, session.build.default_port)
        if given.value("--port") is None:
            # another server may have the usual one
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.at = replace(self.at, port=int(probe.getsockname()[1]))
            self.added = [*added, "--port", str(self.at.port)]
        self.authorization = wait.authorization(given, session.environ)
        use = plan.breakdown
        self.slots = use.n_seq_max
        # with one cache for all slots they share its context
        each = use.n_ctx // self.slots if plan.params.kv_unified else use.n_ctx_seq
        if plan.inputs is not None:  # an input lies in one micro-batch
            each = min(each, use.n_ubatch)
        self.tokens = max(2, int(min(each, use.n_ctx_seq) * part))
        self.filled = [0] * self.slots
        self.failed = ""
        self.start: dict[str, int] = {}
        self.end: dict[str, int] = {}
        self.outcome: Ended | None = None

    def prove(self) -> Proof:
        """Start, fill and end it."""
        if wait.taken(self.at):
            raise UsageError(f"the port is in use at {self.at.url}: give another --port")
        self.run()
        outcome = self.outcome
        self._keep_beside()
        interrupted = outcome is not None and outcome.requested
        if not (self.failed or interrupted) and not any(self.filled):
            self.failed = "the server ended before it answered"
        return Proof(
            self.slots,
            self.slots * self.tokens,
            sum(self.filled),
            "" if interrupted else self.failed,
            interrupted,
            tuple(self._rows(None if outcome is None else outcome.launch)),
        )

    def _keep_beside(self) -> None:
        """Keep what drivers say that the process held besides llama.cpp's buffers, for the margins
        of later plans."""
        use = self.plan.breakdown
        extras = use.extra_by_device()
        date, build = now(), self.session.build.number
        seen = [
            beside_of(device, build, max(0, self.end[device.name] - predicted), date)
            for device in self.session.request.machine.devices
            if device.name in self.end and device.name in use.devices
            for predicted in [use.devices[device.name].total + extras.get(device.name, 0)]
        ]
        try:
            keep(seen, self.session.environ)
        except AutolayersError as error:
            say(f"what was seen cannot be kept: {error}")

    def _rows(self, launch: LaunchLog | None) -> list[ProvedRow]:
        """Return the devices that the plan uses, and RAM."""
        use = self.plan.breakdown
        extras = use.extra_by_device()
        printed = {} if launch is None else launch.breakdown
        rows = []
        for name, usage in use.devices.items():
            end = self.end.get(name)
            # llama.cpp's own table, where no driver tells: total, free, model, context, compute
            if end is None and name in printed:
                end = sum(printed[name][2:5]) * MiB
            limit = self.session.request.machine.limits.get(name)
            margins = sum(row.margin for row in self.plan.devices if row.name == name)
            predicted = usage.total + extras.get(name, 0)
            # the margin is for what llama.cpp does not count
            room = None if limit is None else limit if name in self.end else limit - margins
            rows.append(ProvedRow(name, predicted, room, self.start.get(name), end))
        host = self.plan.host
        limit = None if host.free is None else host.free + host.margin
        rows.append(
            ProvedRow("RAM", host.resident, limit, self.start.get(HOST), self.end.get(HOST))
        )
        return rows

    def _start(self, words: list[str]) -> Ended:
        with open(os.devnull, "wb", buffering=0) as nowhere:
            self.now("loading the model")
            self.outcome = supervise.run(
                words, self.session.environ, self._ready, nowhere, nowhere, self.probe_limit.end
            )
        return self.outcome

    def _probe(self) -> None:
        """Fill the server that is ready, then end it."""
        process = None
        try:
            process = self._process()
            if process is not None:
                self.start = self._sizes(process)
                params = self.plan.params
                if params.mmproj and not self.failed:
                    self.now("asking about an image")
                    self.failed = self._ask("/v1/chat/completions", _about_image())
                ask = self._embed if self.plan.inputs is not None else self._generate
                stop = threading.Event()

                def watch() -> None:
                    while not stop.wait(0.2):
                        self._watch(process)

                watcher = threading.Thread(target=watch, daemon=True)
                watcher.start()
                with ThreadPoolExecutor(self.slots) as pool:
                    for failure in pool.map(ask, range(self.slots)):
                        self.failed = self.failed or failure
                stop.set()
                watcher.join()
                self._watch(process)
        finally:
            # one that dies of a request says why in its log
            until = time.monotonic() + (_ENDS if self.failed else 0)
            while process is not None and process.is_running() and time.monotonic() < until:
                time.sleep(0.1)
            if process is not None:
                # End the server as a service manager does.
                import psutil

                with suppress(psutil.Error):
                    process.terminate()

    def _process(self) -> Any:
        """Return the server's process once it answers; None if it does not."""
        import psutil

        until = time.monotonic() + _READY
        while time.monotonic() < until:
            for child in psutil.Process().children(recursive=True):
                listens = wait.listening(child.pid, self.at.port)
                if listens and not wait.answer("GET", self.at.url + "/health", Limit(5))[1]:
                    return child
            time.sleep(0.2)
        self.failed = "it did not answer at its port"
        return None

    # --- what it takes

    def _sizes(self, process: Any) -> dict[str, int]:
        """Return what drivers and the system say that the process holds now."""
        import psutil

        by_address = held(process.pid)
        devices = self.session.request.machine.devices
        sizes = {
            each.name: by_address[each.pci_id] for each in devices if each.pci_id in by_address
        }
        with suppress(psutil.Error):
            sizes[HOST] = process.memory_info().rss
        return sizes

    def _watch(self, process: Any) -> None:
        for name, size in self._sizes(process).items():
            self.end[name] = max(size, self.end.get(name, 0))

    # --- requests

    def _generate(self, slot: int) -> str:
        """Fill one slot, and answer at its end; return what failed."""
        answer = min(ANSWER, self.tokens // 4)
        prompt = self._random(slot, self.tokens - answer - 1)
        for step in range(1, STEPS + 1):
            part = prompt[: max(1, len(prompt) * step // STEPS)]
            last = step == STEPS
            body = {
                "prompt": part,
                "n_predict": answer if last else 0,
                "ignore_eos": True,
                "cache_prompt": True,
                "id_slot": slot,
            }
            if self.failed or (failure := self._ask("/completion", body)):
                return self.failed or f"slot {slot}, {len(part)} tokens: {failure}"
            self._count(slot, self.tokens if last else len(part))
        return ""

    def _embed(self, slot: int) -> str:
        """Answer inputs of a whole micro-batch."""
        text = self._random(slot, self.tokens - 1)
        if self.plan.params.reranking:
            # as words, which are tokens or more: a quarter of the input
            words = "word " * (self.tokens // 4)
            failure = self._ask("/v1/rerank", {"query": "word", "documents": [words]})
        else:
            failure = self._ask("/embedding", {"content": text})
        if failure:
            return f"an input of {len(text)} tokens: {failure}"
        self._count(slot, self.tokens)
        return ""

    def _random(self, slot: int, count: int) -> list[int]:
        chance = random.Random(slot)
        # control tokens stand at either end of a vocabulary
        n_vocab = max(8, self.plan.model.hparams.n_vocab)
        return [chance.randrange(n_vocab // 4, n_vocab // 2) for _ in range(max(1, count))]

    def _count(self, slot: int, tokens: int) -> None:
        self.filled[slot] = tokens
        self.now(f"{sum(self.filled)} of {self.slots * self.tokens} tokens filled")

    def _ask(self, path: str, body: object) -> str:
        """Return why a request failed, "" if it did not."""
        url, limit = self.at.url + path, Limit(_LIMIT)
        return wait.answer("POST", url, limit, body, self.authorization, _MOST)[1]


def _about_image() -> dict[str, Any]:
    """Return a chat request with a picture of noise."""
    chance = random.Random(0)
    rows = b"".join(b"\0" + chance.randbytes(3 * _SIDE) for _ in range(_SIDE))
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    image = {"type": "image_url", "image_url": {"url": url}}
    content = [{"type": "text", "text": "What is this?"}, image]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 16}
