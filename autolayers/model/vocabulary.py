"""Whether a draft model has its target's vocabulary, by the rule of llama.cpp
(common_speculative_are_compatible in common/speculative.cpp, compared with b5310, b5900, b6170,
b8929, b9093 and b11549).

    # "token 7 is 'ab' there and 'ba' here", "" where llama-server drafts with it
    unlike(model, draft)
"""

from __future__ import annotations

import os
from itertools import islice

from ..gguf.vocabulary import strings
from ..quoting import printable
from .keys import TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .model import Model

_MOST = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE
_FIRST = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID
_KEY = "tokenizer.ggml."


def unlike(model: Model, draft: Model, *, only_added: bool = True) -> str:
    """Return how the vocabularies differ; "" if no difference is known. `only_added`: BOS and EOS
    must agree only where they are added. Token texts are compared if both files are on this
    machine."""
    types = [TYPES.get(str(_key(each, "model"))) for each in (model, draft)]
    # a header without a vocabulary: only the sizes are known
    if None in types:
        return _sizes(model, draft)
    if types[0] != types[1]:
        return f"the draft's vocabulary is {types[1]}, the model's {types[0]}"
    for end in ("bos", "eos"):
        # what differs in the first or last token; only what the files say, or what both leave to
        # one default
        name = f"add_{end}_token"
        adds = [_key(each, name) for each in (model, draft)]
        # added whatever the file says (from b8672 on)
        if _key(model, "pre") == "gemma4" and end == "bos":
            adds = [True, True]
        if None not in adds and bool(adds[0]) != bool(adds[1]):
            in_model, in_draft = (str(bool(value)).lower() for value in adds)
            ends = f"{name} is {in_draft} in the draft, {in_model} in the model"
        else:
            # Whether the token plays no part, or the files do not say whether it is added.
            # Whether both have the same kind of vocabulary, and so the same defaults.
            unsaid = None in adds and not all(
                _key(model, key) == _key(draft, key) for key in ("model", "pre")
            )
            ends = (
                ""
                if (unsaid or (only_added and True not in adds))
                else _other_token(model, draft, end)
            )
        if difference := ends:
            return difference
    return _sizes(model, draft) or _texts(
        model, draft, min(model.hparams.n_vocab, draft.hparams.n_vocab)
    )


def _sizes(model: Model, draft: Model) -> str:
    own, other = model.hparams.n_vocab, draft.hparams.n_vocab
    # padding to a multiple makes sizes differ a little
    if not (own and other) or abs(own - other) <= _MOST:
        return ""
    return f"the draft has {other} tokens, the model {own}: they may differ by {_MOST}"


def _key(model: Model, name: str) -> object:
    return model.header.metadata.get(_KEY + name)


def _other_token(model: Model, draft: Model, end: str) -> str:
    ids = [_key(each, f"{end}_token_id") for each in (model, draft)]
    if None in ids or ids[0] == ids[1]:
        return ""
    return f"the draft's {end.upper()} is token {ids[1]}, the model's {ids[0]}"


def _texts(model: Model, draft: Model, n: int) -> str:
    paths = [each.header.files[0].path for each in (model, draft)]
    if not all(map(os.path.isfile, paths)):
        return ""
    # common_speculative_are_compatible begins at the sixth token
    tokens = [islice(strings(path, _KEY + "tokens"), _FIRST, n) for path in paths]
    for i, (own, other) in enumerate(zip(*tokens, strict=False), _FIRST):
        if own != other:
            texts = [
                printable(text.decode("utf-8", "backslashreplace"))[:40] for text in (other, own)
            ]
            return f"token {i} is {texts[0]!r} in the draft, {texts[1]!r} in the model"
    return ""
