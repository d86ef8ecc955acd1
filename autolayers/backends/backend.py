"""What llama.cpp asks of a ggml backend on one device, and the other facts that a backend's name
decides.

    class Cuda(Backend): name = "CUDA"; alignment = 128 ...       # one file or folder per backend
    on(device)  # autolayers.backends: that class, for one Device

The class attributes hold for every device of a backend; an instance is one device and may override
them. The methods are those of ggml_backend_device_i, ggml_backend_i and ggml_backend_buffer_type_i
(ggml/src/ggml-backend-impl.h), and autolayers.ggml.scheduler calls them. By default a backend runs
every operation.
"""

from __future__ import annotations

from ..builds import NEWEST_RULES, Rule, Rules
from ..ggml.tensor import ENDLESS, Buffer, Ne, Tensor, row_size
from ..ggml.types import BY_NAME, IK_NAMES, is_quantised
from ..records import replace
from ..units import MiB
from .ops import DEFAULT_TARGET, Ops, Parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from typing import ClassVar

    from ..ggml.scheduler import AddAllocDep
    from ..machine import Device
    from .kernels import Kernels

    Limit = tuple[Callable[[int], bool], str]


OFFLOAD_MIN_BATCH = 32  # GGML_OP_OFFLOAD_MIN_BATCH
NVIDIA = ("NVIDIA", "GeForce", "Quadro", "Tesla", "TITAN")  # words in the names of its GPUs
# Head sizes of keys and values for which CUDA, Vulkan, Metal and SYCL all have flash attention
# kernels, whatever the grouping of heads; CUDA has no others without.
FLASH_ATTN_HEADS = frozenset((40, 64, 72, 80, 96, 112, 128, 256))


# Valid values of a device's limit: (test of a value, what to report if it fails)
ALIGNMENT: Limit = (
    lambda value: 0 < value <= MiB and not value & (value - 1),
    ", not a power of two up to 1 MiB",
)
SIZE: Limit = (lambda value: value >= MiB, " bytes, less than 1 MiB")
COUNT: Limit = (lambda value: value > 0, ", less than 1")


class Backend:
    """One device; without a Device, what all devices share."""

    # names
    name = "?"  # the prefix of its devices' names: CUDA0, Vulkan1
    title = ""  # what people call it, where that is another word
    # buffers
    alignment = 32  # of every tensor in a buffer: get_alignment
    # rows of quantised tensors are padded to this many elements, once per tensor
    row_padding = 0
    max_size = ENDLESS  # of one buffer: get_max_size
    host_buffer = ""  # pinned host memory for weights that stay in RAM; "": none
    host_alignment = 32
    # get_max_size of the pinned buffer type, where it has one
    host_max_size = ENDLESS
    # launches
    row_splits: bool | Rule = False  # whether, or since which rule: splits_rows,
    async_events: bool | Rule = True  # pipelines
    mmap = True  # False: its presence turns the mapping of files off
    # llama.cpp lists devices that share the system's memory as of another kind
    has_igpu = True
    igpu_mmap = True  # the same, of a GPU that shares the system's memory
    # computes operations of this many rows or more whose weight is in RAM; 0: none
    offload_min_batch = 0
    # by operation, what must hold where it runs it (kernels.py); empty: it runs every one
    kernels: ClassVar[Kernels] = {}
    # supports_op, alloc_size and graph_optimize are its own rules
    modelled = False
    caches_experts = False  # the graphs of --moe-cache-mib were compared too
    # sizes computed from all this were compared with llama.cpp's own
    proven = False
    unproven = ""  # why not, "" where there is no more to say
    own_cards = False  # runs no other backend's cards
    flipped: ClassVar[Mapping[str, int]] = {}  # the limits of the other answer, where `undecided`
    undecided_doubt = ""  # why sizes are a bound where something is `undecided`
    makers: tuple[str, ...] = ()  # of its own cards: words of their descriptions
    vendor = ""  # who makes all of its cards, "" where several do
    also: tuple[str, ...] = ()  # other backends that llama.cpp is built with for its cards
    # what those of a device's `limits` can be that sizes follow from
    limits_are: tuple[tuple[str, Limit], ...] = ()
    # its devices' memory, as `--list-devices` reports it
    context_first = False  # free was read after creating the backend's context
    free_is_total = False  # total is listed as free if the driver does not report it
    free_doubt = ""  # why its free memory may be wrong
    remote = False  # its devices belong to another machine
    # bytes per device for the library that sums the results under -sm tensor
    communicator = 0
    # speed of an unknown device
    bandwidth = 400e9  # bytes per second
    fp16_per_bandwidth = 0.0  # operations per byte of it; 0: by the GPU's generation
    # programs that start a llama-server
    image = ""  # suffix of the tag of ghcr.io/ggml-org/llama.cpp:server
    device_nodes: tuple[str, ...] = ()  # flags that give the devices to a container
    # the variable that shows a process some of its GPUs, by their numbers
    visible = ""
    gpu_driver = ""  # the container runtime's driver that gives it all GPUs
    # None: that program cannot use its devices
    koboldcpp: tuple[str, ...] | None = None  # KoboldCpp's flags for it
    docker_model = True  # Docker Model Runner's llama.cpp has it (`install-runner --gpu`)
    linux = True  # runs on Linux, which services and containers are of
    nixpkgs: str | None = None  # the argument of its package llama-cpp that builds it
    # LLMKube's hardware.accelerator and gpu.runtime, "" where it does not choose by the latter
    # (internal/controller/deployment_builder.go, pkg/apiutil/gpu.go)
    llmkube: tuple[str, str] | None = None
    # logs
    old_name = ""  # the name of its only device in builds before 2026
    # of its lines; those that are not `name` mean `old_name` where it has one
    log_words: tuple[str, ...] = ()
    # the same, of a backend `built_from` another, whose words its log has too
    log_pattern = ""
    built_from = ""
    # the backend that runs the same GPUs: its log has that pattern too
    log_not = ""
    # (a word, a regular expression) of the lines that list its devices, with groups of `index`,
    # `description`, `major` and `minor` of the compute capability, `mib` or `mb`
    device_lines: tuple[tuple[str, str], ...] = ()
    nvidia = False  # its GPUs have a compute capability
    numbered = True  # logs call its devices by name and number
    ollama = ""  # Ollama's name of its library

    def __init__(
        self, device: Device | None = None, index: int = 0, rules: Rules = NEWEST_RULES
    ) -> None:
        """`index`: among the devices of a launch."""
        self.device, self.rules = device, rules
        self.given: Mapping[str, int] = (device and device.limits) or {}
        self.by_device()
        name = device.name if device else self.name
        self.buffer = Buffer(name, index, self.alignment, host=False, max_size=self.max_size)
        # an unknown property of the device decided where an operation runs: set by supports_op,
        # and read once the graph is placed, because then `otherwise` is measured too
        self.undecided = False

    def by_device(self) -> None:
        """Set what depends on the device and on its limits (`given`)."""

    @property
    def kind(self) -> Hashable:
        """Devices of one kind have the same alignment, operations and padding."""
        return self.name

    def splits_rows(self) -> bool:
        """Return whether it exports ggml_backend_split_buffer_type, which -sm row needs."""
        return self.rules.says(self.row_splits)

    def pipelines(self) -> bool:
        """Return whether its devices report async compute and events; otherwise llama_context does
        not pipeline prompts."""
        return self.rules.says(self.async_events)

    def has_kernel(self, op: Tensor) -> bool:
        """Return whether it runs an operation like this one, wherever its sources are."""
        holds = self.kernels.get(op.op)
        return holds is not None and holds(op, self)

    @property
    def parts(self) -> tuple[Backend, ...]:
        """The devices that it represents."""
        return (self,)

    @classmethod
    def runs(cls, native: type[Backend], description: str) -> bool:
        """Return whether it also runs the GPU of that description, which belongs to or was listed
        by `native`."""
        return (
            native is cls
            or not cls.own_cards
            or (not native.own_cards and any(word in description for word in cls.makers))
        )

    @classmethod
    def wrong_limits(cls, limits: Mapping[str, int]) -> str:
        """Return the first of a device's `limits` that is impossible; "": none."""
        for name, (holds, what) in cls.limits_are:
            if name in limits and not holds(limits[name]):
                return f"{name} is {limits[name]}{what}"
        return ""

    @property
    def doubt(self) -> str:
        """Why its sizes may be wrong; "": they were compared with llama.cpp's own."""
        name = self.device.backend if self.device else self.name
        return (
            ""
            if self.proven
            else self.unproven
            or f"backend {name}: sizes are an upper bound, not compared with llama.cpp's own"
        )

    @property
    def slow_quantised_cache(self) -> bool:
        """Whether measured launches read a quantised KV cache at about a tenth of the bandwidth."""
        return False

    def otherwise(self) -> Device | None:
        """Return a copy with the undecided property flipped; the larger result bounds both."""
        if self.device is None or not self.undecided:
            return self.device
        return replace(self.device, limits={**self.given, **self.flipped})

    def host_buffer_type(self) -> Buffer | None:
        """Return the type of pinned host memory, if any (ggml_backend_dev_host_buffer_type)."""
        # then weights in RAM are in plain memory
        if not self.host_buffer:
            return None
        return Buffer(
            self.host_buffer, -1, self.host_alignment, host=True, max_size=self.host_max_size
        )

    def supports_op(self, op: Tensor) -> bool:
        """Return whether it runs this operation, given where its sources are."""
        return self.has_kernel(op) if self.kernels else self.reaches(op)

    def reaches(self, op: Tensor) -> bool:
        """Return whether no source is in another device's memory. Views do not have a buffer yet
        when llama.cpp asks."""
        # a backend cannot read another one's memory: the scheduler would have to copy
        for source in op.src:
            buffer = source.buffer
            if (
                buffer is not None
                and buffer.device >= 0
                and buffer is not self.buffer
                and source.view_src is None
            ):
                return False
        return True

    def supports_buft(self, buffer: Buffer) -> bool:
        """Return whether it reads tensors in this buffer without a copy."""
        return buffer is self.buffer

    def offload_op(self, op: Tensor) -> bool:
        """Return whether it takes over an operation whose weight is in RAM, with a copy of the
        weight."""
        return self.offload_min_batch > 0 and batch_size(op) >= self.offload_min_batch

    def graph_optimize(
        self, nodes: list[Tensor], after: Tensor | None, add_alloc_dep: AddAllocDep
    ) -> list[Tensor]:
        """Return the nodes of one split in the order in which they will run. `add_alloc_dep(tensor,
        until)` keeps a tensor's memory until that node is done: one of `nodes`, or `after`, the
        first of the next split."""
        return nodes

    def alloc_size(self, tensor: Tensor) -> int:
        """Return the bytes that it requests in a buffer for this tensor, before alignment
        (get_alloc_size)."""
        return tensor.nbytes + self.padding(tensor.type, tensor.ne)

    def padding(self, type_: str, ne: Ne) -> int:
        """Return the bytes that fill up a tensor's last row."""
        # kernels read whole tiles of a row: MATRIX_ROW_PADDING of ggml-cuda
        if not self.row_padding or not ne[0] % self.row_padding:
            return 0
        if type_ not in BY_NAME and type_ not in IK_NAMES:
            return 4 * self.row_padding  # no block is larger than a padded row of f32
        return (
            row_size(type_, self.row_padding - ne[0] % self.row_padding)
            if is_quantised(type_)
            else 0
        )

    def padded(self, type_: str, ne: Ne, n_bytes: int) -> int:
        """Return the bytes that a weight or cache tensor of `n_bytes` takes in a buffer, alignment
        included (ggml-alloc.c)."""
        # ggml_tallocr_alloc: GGML_PAD of get_alloc_size
        return -(-(n_bytes + self.padding(type_, ne)) // self.alignment) * self.alignment

    def margin(self, ops: Ops) -> Parts:
        """Return (name, bytes) of its own use of the device beyond llama.cpp's buffers."""
        name = self.device.backend if self.device else self.name
        return ((f"{name}, as llama.cpp's default", DEFAULT_TARGET),)

    def again(self, ops: Ops) -> int:
        """Return the part of this that one more llama_context on the device takes: each has
        its own temporaries."""
        return 0


def is_part_of(v: Tensor, k: Tensor) -> bool:
    """Return whether V is a part of K, as in latent attention: V_is_K_view of the backends' flash
    attention."""
    return v.view_src is not None and (
        v.view_src is k or (v.view_src is k.view_src and v.view_offs == k.view_offs)
    )


def batch_size(op: Tensor) -> int:
    """Return the rows of work (get_op_batch_size of ggml-cuda, ggml-vulkan and ggml-sycl)."""
    # a few rows of a table: no reason to copy the table to a GPU
    if op.op == "GET_ROWS":
        return 0
    if op.op == "MUL_MAT":
        return op.ne[1]
    if op.op in ("MUL_MAT_ID", "ROPE", "ROPE_BACK"):
        return op.ne[2]
    return op.nrows
