"""The same work for many things side by side: threads where it waits for a network, processes where it counts.

    in_threads(read, names)                # results in the order of names; what a call raises is its result
    in_processes(plan, models)             # the same on all cores, where the system can fork
"""

from __future__ import annotations

import os
import sys

from .errors import AutolayersError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    T = TypeVar("T")
    R = TypeVar("R")

THREADS = 8        # connections to one server at once
_MOST = 16384      # items' numbers that a pipe holds


def _attempt(work: Callable[[T], R], item: T) -> R | AutolayersError:
    try:
        return work(item)
    except AutolayersError as error:
        return error


def in_threads(work: Callable[[T], R], items: Sequence[T],
               done: Callable[[], None] = lambda: None) -> list[R | AutolayersError]:
    """work(item) for each; `done` is called behind each, from one thread at a time."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    pool = ThreadPoolExecutor(min(THREADS, max(1, len(items))))
    try:
        asked = [pool.submit(_attempt, work, item) for item in items]
        for _ in as_completed(asked):
            done()
        return [future.result() for future in asked]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def cores() -> int:
    """How many processes help: the cores that this one may use, and one where the system cannot fork safely."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def in_processes(work: Callable[[T], R], items: Sequence[T], workers: int | None = None,
                 done: Callable[[], None] = lambda: None) -> list[R | AutolayersError]:
    """work(item) for each, dealt out to copies of this process; results are pickled. What a copy does not answer, for
    lack of memory say, is worked out here."""
    count = min(cores() if workers is None else workers, len(items))
    found: dict[int, R | AutolayersError] = {}
    if count > 1:
        _deal(work, items, count, found, done)
    for i, item in enumerate(items):
        if i not in found:
            found[i] = _attempt(work, item)
            done()
    return [found[i] for i in range(len(items))]


def _deal(work: Callable[[T], R], items: Sequence[T], count: int, found: dict[int, Any],
          done: Callable[[], None]) -> None:
    """Fills `found` by `count` copies of this process. They take the items' numbers, two bytes each, from one pipe."""
    import pickle
    from multiprocessing.connection import Connection, wait

    take, give = os.pipe()
    os.write(give, b"".join(i.to_bytes(2, "little") for i in range(min(len(items), _MOST))))
    os.close(give)
    readers: dict[Connection, int] = {}
    for _ in range(count):
        reader, writer = os.pipe()
        try:
            pid = os.fork()
        except OSError:                       # no more processes may be, or no memory for one: fewer do the work
            os.close(reader)
            os.close(writer)
            break
        if not pid:
            try:
                with Connection(writer, readable=False) as out:
                    while number := os.read(take, 2):
                        i = int.from_bytes(number, "little")
                        out.send_bytes(pickle.dumps((i, _attempt(work, items[i]))))
            finally:
                os._exit(0)
        os.close(writer)
        readers[Connection(reader, writable=False)] = pid
    os.close(take)
    while readers:
        for ready in wait(list(readers)):
            assert isinstance(ready, Connection)
            try:
                i, result = pickle.loads(ready.recv_bytes())
                found[i] = result
                done()
            except (EOFError, OSError):
                ready.close()
                os.waitpid(readers.pop(ready), 0)
