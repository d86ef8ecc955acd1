"""CUDA devices that are not there, for the real llama.cpp: python tests/mock_cuda.py SOURCE OUT.cpp

Takes ggml-cuda's host-side rules (which operations it supports, what it fuses, what a tensor takes, when it wants a batch)
out of the llama.cpp source that the tests build, and wraps them into a backend whose devices have memory but no arithmetic:
buffers are address space, graphs are not computed. Preloaded into llama-server or llama-fit-params, everything else is theirs.

    LD_PRELOAD=libmockcuda.so MOCK_CUDA=25769803776,8589934592 llama-server ...      # bytes of each device
"""

from __future__ import annotations

import pathlib
import re
import sys


def cut(path: pathlib.Path, start: str, end: str = "\n}\n") -> str:
    """From the line that begins with `start` to the closing brace in column 0."""
    text = path.read_text()
    begin = text.index("\n" + start) + 1
    return text[begin:text.index(end, begin) + len(end)]


def rules(cuda: pathlib.Path) -> str:
    """The functions of ggml-cuda that decide placement and sizes, and the definitions they need."""
    struct = "\n};\n"
    main, attention, common = cuda / "ggml-cuda.cu", cuda / "fattn.cu", cuda / "common.cuh"
    types = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bf16", "f16")
    built = {("q4_0", "q4_0"), ("q8_0", "q8_0"), ("f16", "f16"), ("bf16", "bf16")}       # without GGML_CUDA_FA_ALL_QUANTS
    parts = [
        *re.findall(r"^#define GGML_CUDA_CC_.*$", common.read_text(), re.MULTILINE),
        *(f"#define GGML_CUDA_FA_{k.upper()}_{v.upper()} {int((k, v) in built)}" for k in types for v in types),
        HEAD,
        *(cut(common, f"static bool {name}_available(") for name in ("amd_mfma", "amd_wmma", "volta_mma", "turing_mma")),
        cut(cuda / "fattn-common.cuh", "struct ggml_cuda_flash_attn_ext_f16_extra_data {", struct),
        cut(cuda / "fattn-common.cuh", "static inline ggml_cuda_flash_attn_ext_f16_extra_data ggml_cuda_flash_attn_ext_get_f16_extra_data("),
        cut(cuda / "fattn-mma-f16.cuh", "static constexpr __host__ __device__ bool ggml_cuda_flash_attn_ext_mma_f16_may_use_sparse("),
        cut(attention, "bool ggml_cuda_flash_attn_ext_mma_f16_shall_use_sparse("),
        "template <int D, ggml_type K, ggml_type V>\n"
        "static void ggml_cuda_flash_attn_ext_vec_case(ggml_backend_cuda_context &, ggml_tensor *) {}",
    ]
    text = attention.read_text()
    begin = text.index("#define FATTN_VEC_CASE(D,")
    parts.append(text[begin:text.index("static void ggml_cuda_flash_attn_ext_vec(", begin)])
    for start in ("static bool ggml_cuda_fattn_kv_type_supported(", "static best_fattn_kernel ggml_cuda_get_best_fattn_kernel(",
                  "size_t ggml_cuda_flash_attn_ext_get_alloc_size(", "bool ggml_cuda_flash_attn_ext_supported("):
        if "best_fattn_kernel ggml" in start:
            parts.insert(-1, cut(attention, "enum best_fattn_kernel {", struct))
        parts.append(cut(attention, start))
    parts += [
        cut(cuda / "fwht.cu", "bool ggml_cuda_op_mul_mat_use_fwht("),
        cut(cuda / "lightning-indexer.cu", "bool ggml_cuda_lightning_indexer_supported("),
        cut(cuda / "topk-moe.cuh", "struct ggml_cuda_topk_moe_args {", struct),
        cut(cuda / "topk-moe.cu", "bool ggml_cuda_should_use_topk_moe("),
        cut(main, "static bool ggml_cuda_topk_moe_fusion("),
        cut(main, "static constexpr int MOE_WEIGHTED_REDUCTION_MAX_EXPERTS", ";"),
        cut(main, "struct ggml_cuda_moe_weighted_reduction_match {", struct),
        cut(main, "static bool ggml_cuda_match_moe_weighted_reduction("),
    ]
    optimize = cut(main, "static void ggml_backend_cuda_graph_optimize(")
    optimize = optimize[:optimize.index("#ifdef USE_CUDA_GRAPH")] + "}\n"
    parts.append(optimize.replace("ggml_backend_cuda_context * cuda_ctx = (ggml_backend_cuda_context *) backend->context;",
                                  "GGML_UNUSED(backend);"))
    parts += [cut(main, start) for start in (
        "static size_t ggml_backend_cuda_buffer_type_get_alloc_size(", "static bool ggml_backend_cuda_device_supports_op(",
        "static bool ggml_backend_cuda_device_supports_buft(", "static int64_t get_op_batch_size(",
        "static bool ggml_backend_cuda_device_offload_op(")]
    return "\n".join(parts)


HEAD = """\
#include "ggml.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml-backend-impl.h"
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include <sys/mman.h>
#define GGML_CUDA_USE_CUB
#define FLASH_ATTN_AVAILABLE
#define __host__
#define __device__
#define MATRIX_ROW_PADDING 512
#define QK_K 256
#define FATTN_KQ_STRIDE 256

struct device_info { int cc = 890; size_t smpb = 49152; bool integrated = false; };
struct cuda_info { device_info devices[16]; };
static const cuda_info & ggml_cuda_info() { static cuda_info info; return info; }
static int ggml_cuda_highest_compiled_arch(int cc) { return cc; }
struct ggml_backend_cuda_context { int device; std::string name; };
struct ggml_backend_cuda_buffer_type_context { int device; std::string name; };
struct ggml_backend_cuda_device_context {
    int device; std::string name; std::string description; std::string pci_bus_id; int op_offload_min_batch_size; size_t memory;
};
static const char * ggml_backend_cuda_buffer_type_get_name(ggml_backend_buffer_type_t type) {
    return ((ggml_backend_cuda_buffer_type_context *) type->context)->name.c_str();
}
static bool ggml_backend_buft_is_cuda(ggml_backend_buffer_type_t type) {
    return type->iface.get_name == ggml_backend_cuda_buffer_type_get_name;
}
static const char * pinned_name(ggml_backend_buffer_type_t) { return "CUDA_Host"; }
static bool ggml_backend_buft_is_cuda_host(ggml_backend_buffer_type_t type) { return type->iface.get_name == pinned_name; }
"""

TAIL = """\
using device_context = ggml_backend_cuda_device_context;

// buffers: address space that nobody touches
static void buffer_free(ggml_backend_buffer_t b) { if (b->size) munmap(b->context, b->size); }
static void * buffer_base(ggml_backend_buffer_t b) { return b->context; }
static void buffer_memset(ggml_backend_buffer_t, ggml_tensor *, uint8_t, size_t, size_t) {}
static void buffer_set(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t) {}
static void buffer_get(ggml_backend_buffer_t, const ggml_tensor *, void * data, size_t, size_t size) { memset(data, 0, size); }
static bool buffer_copy(ggml_backend_buffer_t, const ggml_tensor *, ggml_tensor *) { return true; }
static void buffer_clear(ggml_backend_buffer_t, uint8_t) {}
static ggml_backend_buffer_t buffer_alloc(ggml_backend_buffer_type_t type, size_t size) {
    void * at = mmap(nullptr, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    ggml_backend_buffer_i i = {};
    i.free_buffer = buffer_free; i.get_base = buffer_base; i.memset_tensor = buffer_memset; i.set_tensor = buffer_set;
    i.get_tensor = buffer_get; i.cpy_tensor = buffer_copy; i.clear = buffer_clear;
    return ggml_backend_buffer_init(type, i, at, size);
}
static size_t alignment(ggml_backend_buffer_type_t) { return 128; }

static ggml_backend_reg_t registry();
static ggml_backend_buffer_type_t device_buffers(ggml_backend_dev_t device) {
    static ggml_backend_buffer_type types[16];
    const int n = ((device_context *) device->context)->device;
    if (!types[n].context) {
        types[n].iface.get_name = ggml_backend_cuda_buffer_type_get_name;
        types[n].iface.alloc_buffer = buffer_alloc;
        types[n].iface.get_alignment = alignment;
        types[n].iface.get_alloc_size = ggml_backend_cuda_buffer_type_get_alloc_size;
        types[n].device = device;
        types[n].context = new ggml_backend_cuda_buffer_type_context{ n, "CUDA" + std::to_string(n) };
    }
    return &types[n];
}
static ggml_backend_buffer_type_t pinned_buffers(ggml_backend_dev_t) {
    static ggml_backend_buffer_type type;
    const ggml_backend_buffer_type_i & cpu = ggml_backend_cpu_buffer_type()->iface;
    type.iface.get_name = pinned_name;
    type.iface.alloc_buffer = buffer_alloc;
    type.iface.get_alignment = cpu.get_alignment;
    type.iface.get_alloc_size = cpu.get_alloc_size;
    type.iface.is_host = cpu.is_host;
    type.device = ggml_backend_reg_dev_get(registry(), 0);
    return &type;
}

// streams: nothing is computed
static const char * stream_name(ggml_backend_t b) { return ((ggml_backend_cuda_context *) b->context)->name.c_str(); }
static void stream_free(ggml_backend_t b) { delete (ggml_backend_cuda_context *) b->context; delete b; }
static void stream_wait(ggml_backend_t) {}
static ggml_status stream_compute(ggml_backend_t, ggml_cgraph *) { return GGML_STATUS_SUCCESS; }
static void stream_set(ggml_backend_t, ggml_tensor *, const void *, size_t, size_t) {}
static void stream_get(ggml_backend_t, const ggml_tensor *, void * data, size_t, size_t size) { memset(data, 0, size); }
static bool stream_copy(ggml_backend_t, ggml_backend_t, const ggml_tensor *, ggml_tensor *) { return true; }
static void stream_event(ggml_backend_t, ggml_backend_event_t) {}

static const char * device_name(ggml_backend_dev_t d) { return ((device_context *) d->context)->name.c_str(); }
static const char * device_description(ggml_backend_dev_t d) { return ((device_context *) d->context)->description.c_str(); }
static void device_memory(ggml_backend_dev_t d, size_t * free, size_t * total) { *free = *total = ((device_context *) d->context)->memory; }
static enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }
static void device_props(ggml_backend_dev_t d, ggml_backend_dev_props * p) {
    p->name = device_name(d); p->description = device_description(d); p->type = device_type(d);
    p->device_id = ((device_context *) d->context)->pci_bus_id.c_str();
    device_memory(d, &p->memory_free, &p->memory_total);
    p->caps = { true, true, false, true, true };
}
static ggml_backend_t device_stream(ggml_backend_dev_t d, const char *) {
    static ggml_guid guid = { 'm', 'o', 'c', 'k', 'c', 'u', 'd', 'a' };
    auto * c = (device_context *) d->context;
    ggml_backend_i i = {};
    i.get_name = stream_name; i.free = stream_free; i.synchronize = stream_wait; i.graph_compute = stream_compute;
    i.set_tensor_async = stream_set; i.get_tensor_async = stream_get; i.cpy_tensor_async = stream_copy;
    i.event_record = stream_event; i.event_wait = stream_event; i.graph_optimize = ggml_backend_cuda_graph_optimize;
    return new ggml_backend{ &guid, i, d, new ggml_backend_cuda_context{ c->device, c->name } };
}
static ggml_backend_event_t event_new(ggml_backend_dev_t d) { return new ggml_backend_event{ d, nullptr }; }
static void event_free(ggml_backend_dev_t, ggml_backend_event_t e) { delete e; }
static void event_wait(ggml_backend_dev_t, ggml_backend_event_t) {}

static std::vector<ggml_backend_dev_t> & devices() { static std::vector<ggml_backend_dev_t> all; return all; }
static const char * registry_name(ggml_backend_reg_t) { return "CUDA"; }
static size_t registry_count(ggml_backend_reg_t) { return devices().size(); }
static ggml_backend_dev_t registry_device(ggml_backend_reg_t, size_t i) { return devices()[i]; }
static void * registry_function(ggml_backend_reg_t, const char *) { return nullptr; }
static ggml_backend_reg_t registry() {
    static ggml_backend_reg all = { GGML_BACKEND_API_VERSION, { registry_name, registry_count, registry_device, registry_function }, nullptr };
    return &all;
}

extern "C" __attribute__((weak)) void ggml_backend_register(ggml_backend_reg_t reg);     // not there in a shell that starts the program

__attribute__((constructor)) static void present() {
    const char * sizes = ggml_backend_register ? getenv("MOCK_CUDA") : nullptr;
    for (const char * at = sizes; at && *at && devices().size() < 16;) {
        char * end = nullptr;
        const size_t memory = strtoull(at, &end, 10);
        const int n = (int) devices().size();
        char id[32];
        snprintf(id, sizeof id, "0000:%02x:00.0", n + 1);
        ggml_backend_device_i i = {};
        i.get_name = device_name; i.get_description = device_description; i.get_memory = device_memory; i.get_type = device_type;
        i.get_props = device_props; i.init_backend = device_stream; i.get_buffer_type = device_buffers;
        i.get_host_buffer_type = pinned_buffers; i.supports_op = ggml_backend_cuda_device_supports_op;
        i.supports_buft = ggml_backend_cuda_device_supports_buft; i.offload_op = ggml_backend_cuda_device_offload_op;
        i.event_new = event_new; i.event_free = event_free; i.event_synchronize = event_wait;
        devices().push_back(new ggml_backend_device{ i, registry(), new device_context{ n, "CUDA" + std::to_string(n), "mock", id, 32, memory } });
        at = *end ? end + 1 : end;
    }
    if (!devices().empty()) ggml_backend_register(registry());
}
"""


def main(source: str, out: str) -> None:
    cuda = pathlib.Path(source) / "ggml" / "src" / "ggml-cuda"
    pathlib.Path(out).write_text(rules(cuda) + TAIL)


if __name__ == "__main__":
    main(*sys.argv[1:])
