"""What a plan needs to know of a program."""

from __future__ import annotations

from ..records import dataclass


@dataclass(frozen=True)
class Engine:
    """One program. `whole_batches`: it leaves n_outputs_max at 0, so llama_context reserves logits of every token of a
    micro-batch (src/llama-context.cpp, from b9464 on; before, every program's were). `reads_all`: it asks for
    all of them, where others ask for the last ones. `one_sequence`: it runs one where
    no number is given, llama-server four slots. `rolls_back`: a draft of any kind adds rollback steps to a recurrent
    state, in llama-server those of its own MTP blocks and the like alone. `written_by`: what writes
    its launch, if its words are not llama-server's. `rules`: rules of a build (builds/table.py)
    that hold otherwise in it."""

    name: str
    whole_batches: bool = False
    reads_all: bool = False
    one_sequence: bool = False
    rolls_back: bool = False
    written_by: str = ""
    rules: tuple[tuple[str, bool], ...] = ()

    @property
    def is_llama_cpp(self) -> bool:
        """Whether its library is llama.cpp's own, so that a build's rules hold."""
        return not self.rules


LLAMA_SERVER = Engine("llama-server")
