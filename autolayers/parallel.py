"""Maps a function over items in parallel: threads for network I/O, processes for computation.

in_threads(read, names)       # results in the order of names; an error is its call's result
in_processes(plan, models)    # on all cores, if the system can fork
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

THREADS = 8  # connections to one server at once
_MOST = 16384  # item indices that fit a pipe's buffer


def _attempt(work: Callable[[T], R], item: T) -> R | AutolayersError:
    try:
        return work(item)
    except AutolayersError as error:
        return error


def in_threads(
    work: Callable[[T], R], items: Sequence[T], done: Callable[[], None] = lambda: None
) -> list[R | AutolayersError]:
    """Return work(item) for each; `done` is called after each, by one thread at a time."""
    from concurrent.futures import ThreadPoolExecutor, as_completed

    pool = ThreadPoolExecutor(min(THREADS, max(1, len(items))))
    try:
        futures = [pool.submit(_attempt, work, item) for item in items]
        for _ in as_completed(futures):
            done()
        return [future.result() for future in futures]
    finally:
        # on Ctrl-C the downloads that did not begin are dropped
        pool.shutdown(wait=False, cancel_futures=True)


def cores() -> int:
    """Return the number of processes: the cores that this one may use, or one if the system cannot
    fork safely."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def in_processes(
    work: Callable[[T], R],
    items: Sequence[T],
    workers: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[R | AutolayersError]:
    """Return work(item) for each, in forked copies of this process; results are pickled. Items that
    a copy fails to answer, such as for lack of memory, are computed here."""
    count = min(cores() if workers is None else workers, len(items))
    results: dict[int, R | AutolayersError] = {}
    if count > 1:
        _deal(work, items, count, results, done)
    for i, item in enumerate(items):
        if i not in results:
            results[i] = _attempt(work, item)
            done()
    return [results[i] for i in range(len(items))]


def _deal(
    work: Callable[[T], R],
    items: Sequence[T],
    count: int,
    results: dict[int, Any],
    done: Callable[[], None],
) -> None:
    """Fills `results` with `count` copies of this process. They take item indices, two bytes each,
    from one pipe."""
    import pickle
    from multiprocessing.connection import Connection, wait

    take, give = os.pipe()
    # copies take the next index when they are free, so no one waits for the slowest share
    os.write(give, b"".join(i.to_bytes(2, "little") for i in range(min(len(items), _MOST))))
    os.close(give)
    readers: dict[Connection, int] = {}
    for _ in range(count):
        reader, writer = os.pipe()
        try:
            # a copy has the model and everything measured so far: nothing is pickled on the way in
            pid = os.fork()
        except OSError:  # out of processes or memory: fewer do the work
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
                # from our own fork
                i, result = pickle.loads(ready.recv_bytes())
                results[i] = result
                done()
            # it is done, or died: what it did not answer is computed by the caller
            except (EOFError, OSError):
                ready.close()
                os.waitpid(readers.pop(ready), 0)
