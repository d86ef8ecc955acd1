"""A child of the test process instead of a new interpreter: it has what tests have imported, and
starts in a tenth of the time.

    subprocess.run(**forked(lambda: main(words), environ), capture_output=True, timeout=HANGS)
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

HANGS = 300  # seconds: only ends a wait in vain


def forked(work: Callable[[], int | None], environ: Mapping[str, str]) -> dict[str, Any]:
    """What subprocess.Popen takes for a child that runs `work` in this environment and exits with
    what it returns."""

    def child() -> None:
        os.closerange(3, 4096)  # Popen waits for the end of its own pipe
        faulthandler.disable()
        # as a new interpreter has them
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(environ)
        sys.stdin = os.fdopen(0, encoding="utf-8")
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        code = 1
        try:
            code = work() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)

    return {"args": [sys.executable], "preexec_fn": child}
