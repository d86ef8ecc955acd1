"""What a line looks like that names a cause: the rows of signs.tsv, and among them those of the
backends, whose drivers print them (backends/).
"""

from __future__ import annotations

import re

from ..backends import signs
from ..backends.sign import BYTES, MIB, NAME, Sign
from ..tables import rows

# what <NAME> and the like stand for in a pattern
_PARTS = {
    "BYTES": BYTES,
    "MIB": MIB,
    "NAME": NAME,
    "PART": r"[^/\\']{0,120}-\d{5}-of-\d{5}\.gguf",  # of a model in several files
    "EXIT": r"\b[eE]xit(?:ed)?(?: with)?(?: code| status)?:? ?\(?",  # before a process's code
}
BACKENDS = signs()  # and the names of the backends that print each
SIGNS: list[Sign] = []
for _row in rows("diagnosis/signs.tsv"):
    _first, _, _last = _row["builds"].partition("-")
    SIGNS += (
        BACKENDS
        if _row["cause"] == "backends"
        else [
            Sign(
                _row["cause"],
                _row["words"],
                re.sub("<([A-Z]+)>", lambda part: _PARTS[part[1]], _row["pattern"]),
                _row["phase"],
                weight=int(_row["weight"] or 9),
                first=int(_first or 0),
                last=int(_last or 0),
            )
        ]
    )
# Lines that sound like a cause and are none: printed before every failed load, or when nothing is
# wrong
# (the first: --fit's own dry run failed, and the load fails after it by itself)
HARMLESS = (
    "encountered an error while trying to fit params",
    "full capacity of the model will not be utilized",
    "control-looking token",
    "cannot be used with preferred buffer type",
    "retrying without",
    "falling back",
    "skipping reorder",
    "async uploads",
    "deficit",
    "this warning is normal during memory fitting",
    # 503 to who asks before the model is there
    '"Loading model"',
    "'Loading model'",
    # libraries beside the program that it was not built to load
    "failed to find ggml_backend_init",
)
