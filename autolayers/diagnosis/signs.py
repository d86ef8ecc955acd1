"""What a line looks like that names a cause: the rows of signs.tsv, and among them those of the
backends, whose drivers print them (backends/).
"""

from __future__ import annotations

from ..backends import signs
from ..backends.sign import Sign, signs_of

BACKENDS = signs()  # and the names of the backends that print each
SIGNS: list[Sign] = []
for _row, _sign in signs_of("diagnosis/signs.tsv"):
    SIGNS += BACKENDS if _row["cause"] == "backends" else [_sign]
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
