"""What a plan needs to know of a program."""

from __future__ import annotations

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable


@dataclass(frozen=True)
class Engine:
    """One program; what is not said is as in llama-server."""

    name: str
    # it leaves n_outputs_max at 0, so llama_context reserves logits of every token of a micro-batch
    # (src/llama-context.cpp, from b9464 on; before, every program's were)
    whole_batches: bool = False
    # it asks for all of these logits, where others ask for the last ones
    reads_all: bool = False
    # it keeps prompts and checkpoints of its slots (--cache-ram, --ctx-checkpoints)
    serves: bool = True
    # it runs one where no number is given, llama-server four slots
    one_sequence: bool = False
    # cells of a sequence where no context is given: as many sequences as a batch holds
    chunk: int = 0
    # several slots share one cache, with one sequence more than slots
    spare_sequence: bool = False
    hidden_slots: int = 0  # more than it is asked for, all in one cache
    # a draft of any kind adds rollback steps to a recurrent state
    rolls_back: bool = False
    written_by: str = ""  # what writes its launch, if its words are not llama-server's
    # all slots share one cache in which sliding windows keep every position; flash attention is on
    # but for -fa off
    one_cache: bool = False
    # -ts are parts of bytes, and -sm none leaves layers on other GPUs
    shares_bytes: bool = False
    # words of its own cut each layer over the devices, or leave their split to it
    cuts: bool = False
    # several GPUs work on a prompt at once, with copies of their inputs
    pipelines: bool = True
    seen: str = ""  # its commit that is planned, if it is not llama.cpp
    said: Hashable = None  # what words of its own say of a launch, in its module's form
    words: tuple[str, ...] = ()  # these words, as a launch has them
    fields: tuple[str, ...] = ()  # of Params, whose values these words say
    lacks: tuple[str, ...] = ()  # flags of llama-server that it has not
    unwritten: tuple[str, ...] = ()  # those that mean something else there
    rules: tuple[tuple[str, bool], ...] = ()  # of builds/rules.tsv, which hold otherwise in it

    @property
    def is_llama_cpp(self) -> bool:
        """Whether its library is llama.cpp's own, so that a build's rules hold."""
        return not self.rules

    @property
    def program(self) -> str:
        """Whose flags it takes, as in flags/arguments.csv: others are planned in llama-server's
        words. "" for a fork, whose programs share one parser."""
        if not self.is_llama_cpp:
            return ""
        return self.name.removeprefix("llama-") if self.name.startswith("llama-") else "server"

    @property
    def lists_nothing(self) -> bool:
        """Whether it cannot be asked for its devices."""
        return "--list-devices" in self.lacks


LLAMA_SERVER = Engine("llama-server")
