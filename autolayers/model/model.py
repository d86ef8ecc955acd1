"""A model as llama.cpp reads it: its header, its hyperparameters and the role of each tensor."""

from __future__ import annotations

from ..errors import ModelError, UsageError
from ..flags.kinds import as_c
from ..gguf import Header, TensorInfo, n_bytes, read_header
from ..quoting import printable
from ..records import dataclass, lazy, replace
from .architectures import Architecture, architecture
from .hparams import Hparams
from .keys import possible, unknown_words, wrong_type
from .quantisation import is_kept, quantisation, stored_as
from .shapes import Loader
from .tensors import classify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any

    from ..builds import Rules
    from .body import Body

# the ops whose weights llama-quantize quantises
_QUANTISED = ("MUL_MAT", "MUL_MAT_ID", "GET_ROWS")


@dataclass(frozen=True)
class Weight:
    """A tensor of the file with the two facts that decide its place: its layer's class and the op
    that reads it."""

    info: TensorInfo
    layer: str  # input, output or repeating
    block: int  # of a repeating tensor; 0 for those created with the first block
    op: str  # ggml's name, NONE: never loaded
    known: bool  # False: llama.cpp has no such name


class Model:
    """A model as its header describes it; immutable. Raises ModelError if llama.cpp would not load
    it.

        model = read_model("model.gguf")
        model.name, model.architecture, model.size, model.n_layer, model.n_ctx_train
        model.hparams.n_embd_k_gqa(0)
    """

    body: Body | None = None  # of an architecture without rules, where a program was asked

    def __init__(
        self,
        header: Header,
        path: str,
        row: Architecture | None = None,
        whole: Model | None = None,
        checked: bool = True,
    ) -> None:
        """`row`: the architecture's, if a build has another one than today's. `whole`: the model
        that the header is a part. Not `checked`: a program loads it that takes files which
        llama.cpp refuses."""
        # before the architecture is asked: these files have one too
        instead = _instead(header)
        if instead:
            raise ModelError(f"{path} is {instead}")
        name = header.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ModelError(
                f"{path}: no general.architecture, so not a model that llama.cpp can load"
            )
        # a name without a row gets the bound of an unknown architecture
        self.row: Architecture = row or architecture(name, header.metadata)
        self.header = header
        self.path = path
        self.checked = checked and whole is None
        self.architecture = printable(name)
        self._whole_size = whole.size if whole else None
        # an outline: its hyperparameters were read with the tensors that it no longer has
        if whole:
            self.hparams: Hparams = whole.hparams.of(header.metadata)
            return
        try:
            self.hparams = Hparams(self.row, header.metadata, header.tensors)
        except ModelError as error:
            unknown = (
                "" if self.row.known else f" ({self.architecture} is no architecture known here)"
            )
            raise ModelError(f"{path}: {error}{unknown}") from None

    @property
    def name(self) -> str:
        """general.name, or the file's name without its extension; one printable line."""
        name = self.header.metadata.get("general.name")
        # some conversions leave it empty
        if not (isinstance(name, str) and name):
            name = self.path.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".gguf")
        return printable(name)

    @property
    def quantisation(self) -> str:
        """Q4_K_M or the like, as the file's name or the header says it; "" if neither does."""
        return quantisation(self.path, self.header.metadata)

    @lazy
    def size(self) -> int:
        """Bytes of all tensors in the file."""
        return self.header.n_bytes if self._whole_size is None else self._whole_size

    @property
    def n_elements(self) -> int:
        """Weights: the elements of all tensors in the file."""
        return sum(info.n_elements for info in self.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        """The file's bits per element of its tensors."""
        return 8 * self.header.n_bytes / max(1, self.n_elements)

    @property
    def n_layer(self) -> int:
        """What n_gpu_layers counts: all blocks, MTP blocks included; n_layer + 1 offloads
        everything."""
        return self.hparams.n_layer_all

    @property
    def n_ctx_train(self) -> int:
        return self.hparams.n_ctx_train

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return self.header.tensors

    @lazy
    def tensor_types(self) -> frozenset[str]:
        """The types of the file's tensors."""
        return frozenset([info.type for info in self.tensors.values()])

    @lazy
    def weights(self) -> tuple[Weight, ...]:
        """All tensors, classified, in file order."""
        return tuple(
            Weight(info, *classify(self.row, name)) for name, info in self.header.tensors.items()
        )

    @property
    def is_moe(self) -> bool:
        return self.hparams.n_expert > 0

    @lazy
    def _loader(self) -> Loader:
        return Loader(self.hparams, self.tensors)

    @lazy
    def refusal(self) -> str:
        """Why llama.cpp does not load the file, with its own words; "" if nothing is known against
        it."""
        if not (self.checked and self.row.known and self.tensors):
            return ""
        # a value of the wrong type ends the load before any tensor is looked for
        wrong = wrong_type(self.row.name, self.header.metadata)
        return f"{wrong}: llama.cpp does not load it" if wrong else self._loader.refusal()

    @lazy
    def inexact(self) -> tuple[str, ...]:
        """Why this model's sizes are upper bounds rather than exact; empty if they are exact."""
        reasons = list(self.header.notes)
        if not self.row.proven:
            what = "not compared with llama.cpp yet" if self.row.known else "unknown to autolayers"
            reasons.append(
                f"architecture {self.architecture} is {what}: its memory use is an upper bound"
            )
        # names of an unknown architecture are all unknown
        foreign = self._foreign() if self.row.known else []
        if foreign:
            end = (
                f'; it ends with "{self._loader.wrong_number(len(foreign))}"'
                if self.checked
                else ""
            )
            reasons.append(
                f"{len(foreign)} tensors that llama.cpp does not know ({foreign[0]}), "
                f"counted with their layers{end}"
            )
        if self.checked and self.row.known:
            reasons += unknown_words(self.row.name, self.header.metadata)
            if maybe := possible(self.row.name, self.header.metadata):
                reasons.append(f"{maybe}: llama.cpp may not load the file")
        missing = self._loader.incomplete()
        if missing:
            reasons.append(
                f"{missing[0]} is missing, which other blocks have: llama.cpp may not load the file"
            )
        if not all(info.exact for info in self.header.tensors.values()):
            reasons.append(
                "tensors of an unknown type are counted with all the space they may take"
            )
        return tuple(reasons)

    def _foreign(self) -> list[str]:
        """Return the names of the tensors that llama.cpp would not read or does not know."""
        unknown = [weight.info.name for weight in self.weights if not weight.known]
        return list(dict.fromkeys([*self._loader.unread(), *unknown]))

    def read_by(self, rules: Rules) -> Model:
        """Return this model as a possibly older build reads it, which may use less of its
        header."""
        row, header = self._row_of(rules), self.header
        # a key that this build ignores is taken out, so that its default holds
        # The keys that a build of these rules does not read as a list.
        window = self.row.window
        unread = []
        # these architectures took a list in every build
        always_read = window is None or window.array or window.list_before
        if not rules.window_lists and not always_read:
            unread.append(f"{self.architecture}.attention.sliding_window_pattern")
        if row.recurrent == "interval" and not rules.recurrent_lists:
            unread.append(f"{self.architecture}.attention.recurrent_layers")
        if any(isinstance(header.metadata.get(key), (list, tuple)) for key in unread):
            metadata = {
                name: value for name, value in header.metadata.items() if name not in unread
            }
            header = Header(
                header.version,
                header.alignment,
                metadata,
                header.tensors,
                header.files,
                header.notes,
            )
        same = row is self.row and header is self.header
        return (
            self
            if same
            else Model(header, self.path, row, checked=self.checked).measured(self.body)
        )

    def _row_of(self, rules: Rules) -> Architecture:
        """Return the architecture as a build of these rules has it."""
        row = self.row
        # e.g. before Rules.olmo2_window OLMo 2 had no window
        for rule, facts in row.before:
            if not rules.has(rule):
                row = replace(row, **facts)
        # older builds loaded it with the first block (rule embd_norm_in_block)
        has_norm = "token_embd_norm.weight" in self.header.tensors
        if has_norm and "token_embd_norm" not in row.places and not rules.embd_norm_in_block:
            row = replace(row, places={**row.places, "token_embd_norm": "input"})
        return row

    def overridden(self, override_kv: tuple[tuple[str, str], ...]) -> Model:
        """Return this model with --override-kv applied: ("key", "type:value") pairs; only scalars
        can be replaced."""
        if not override_kv:
            return self
        metadata = dict(self.header.metadata)
        # Of two for one key the first counts: llama_model_loader inserts them into a map
        for key, text in reversed(override_kv):
            metadata[key] = _override(key, text)
        return self._with(metadata, self.header.tensors).measured(self.body)

    def measured(self, body: Body | None) -> Model:
        """Return this model with what the installed program measured of its graph."""
        if body is None:
            return self
        changed = Model(self.header, self.path, self.row, checked=self.checked)
        changed.body = body
        return changed

    def quantised(self, type: str, larger: bool = False) -> Model:
        """Return this model as `llama-quantize --pure` would write it: every matrix that is larger
        in that ggml type, or the one that its rows can have; the others too, where a `larger` model
        is meant."""
        tensors = dict(self.header.tensors)
        for weight in self.weights:
            info = weight.info
            if (
                # norms and biases stay as they are
                info.n_dims < 2 or weight.op not in _QUANTISED or is_kept(info.name)
            ):
                continue
            kind = stored_as(type, info.ne[0])
            size = n_bytes(kind, info.ne)
            # a smaller model is meant: --pure would also enlarge what is stored smaller
            if larger or size < info.n_bytes:
                tensors[info.name] = TensorInfo(
                    info.name, kind, info.ne, info.n_dims, info.offset, size, info.file
                )
        return self._with(self.header.metadata, tensors)

    def outline(self) -> Model:
        """Return this model without its tensors, its vocabulary and lists: what the plans of many
        models keep of it."""
        header = self.header
        facts = {
            key: value
            for key, value in header.metadata.items()
            # lists and vocabularies are most of a header's memory
            if not (isinstance(value, tuple) or key.startswith("tokenizer."))
        }
        less = Header(header.version, header.alignment, facts, {}, header.files, header.notes)
        return Model(less, self.path, self.row, self)

    def _with(self, metadata: dict[str, object], tensors: dict[str, TensorInfo]) -> Model:
        header = self.header
        changed = Header(
            header.version, header.alignment, metadata, tensors, header.files, header.notes
        )
        return Model(changed, self.path, checked=self.checked)

    def __repr__(self) -> str:
        return f"Model({self.path!r}, {self.architecture}, {self.n_layer} layers)"


def _typed(kind: str, value: str) -> Any:
    """Return the value of an override; None where its type is none or does not admit it."""
    try:
        # llama.cpp's atol takes 12 of "12abc", which nobody can have meant
        if kind == "int":
            return int(as_c(value))
        if kind == "float":
            return float(as_c(value))
    except ValueError:
        return None
    if kind == "bool" and value in ("true", "false"):
        return value == "true"
    # llama_model_kv_override::val_str has 128 bytes with the terminating zero
    return value if kind == "str" and len(value) <= 127 else None


def _override(key: str, text: str) -> Any:
    kind, colon, value = text.partition(":")
    typed = _typed(kind, value) if colon else None
    if typed is not None:
        return typed
    raise UsageError(
        f"--override-kv {key}={text}: write KEY=int:N, float:X, bool:true, bool:false or str:TEXT"
    )


def _instead(header: Header) -> str:
    """Return the kind of a file that is not a model; "" for a model."""
    for is_kind, what, flag in (
        (is_projector, "a projector for images or sound", "--mmproj"),
        (is_adapter, "an adapter", "--lora"),
        (is_control_vector, "a control vector", "--control-vector"),
    ):
        if is_kind(header):
            return f"{what}; give it with {flag}, and its model with -m"
    # an importance matrix is a GGUF file as well
    matrix = header.metadata.get("general.type") == "imatrix"
    return "what llama-quantize --imatrix takes, not a model" if matrix else ""


def is_projector(header: Header) -> bool:
    """Return whether a file is for --mmproj, and not a model."""
    name = header.metadata.get("general.architecture")
    return isinstance(name, str) and architecture(name).projector


def is_adapter(header: Header) -> bool:
    """Return whether a file is for --lora."""
    return header.metadata.get("general.type") == "adapter"


def is_control_vector(header: Header) -> bool:
    """Return whether a file is for --control-vector: common_control_vector_load_one accepts nothing
    but directions."""
    return bool(header.tensors) and all(
        name.startswith("direction.") and name.partition(".")[2].isdigit()
        for name in header.tensors
    )


def read_model(path: str | PathLike[str] | Any) -> Model:
    """Return the Model of a GGUF file (or of what autolayers.gguf.read_header takes). Only the
    header is read."""
    header = read_header(path)
    return Model(header, header.files[0].path)
