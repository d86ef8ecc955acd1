"""Rules of llama.cpp's builds before b9093, the oldest whose sizes are exact.

From b9093 on each of these rules is the same in every build. So this file can go once nobody runs
older ones: mypy then names every place that asks for one of its rules.
"""

from __future__ import annotations

from .rule import Rule, RuleSet


class EarlyRules(RuleSet):
    """The rules on which all builds from b9093 on agree."""

    # placement
    # such weights are in CPU_REPACK, no longer in pinned memory (make_cpu_buft_list)
    repacks_first = Rule(
        "placement",
        4435,
        "",
        "Q4_0 in RAM is repacked for the CPU, even if a GPU could read it",
        after=4080,
        last=4875,
        until=5310,
    )
    # A partial offload of a build without it leaves the output matrix in RAM, and op offload
    # copies it
    # into the first GPU's compute buffer for every prompt: 609 MiB for 152,064 x 5,120 in Q6_K.
    output_first = Rule(
        "placement", 7540, "#18148", "-ngl counts the output layer first; before, last", after=7490
    )
    # a norm is a few KiB, but the device that it is on decides where nodes after it run
    lfm2_norm_with_output = Rule(
        "placement",
        7490,
        "",
        "LFM2's last norm lies with the output; before, with the input, in RAM",
        after=7080,
    )
    embd_norm_in_block = Rule(
        "placement",
        8672,
        "",
        "the norm of the embeddings lies with block 0; before, with the input, in RAM",
        after=8380,
    )
    # of Gemma 3n and 4: up to 2.8 GiB on the GPU in builds without it
    layer_embd_with_input = Rule(
        "placement",
        8929,
        "",
        "Gemma's embeddings of layers lie with the input, in RAM; before, with the output layer",
        after=8721,
    )
    # the meta device of ggml-backend-meta.cpp
    splits_tensors = Rule(
        "placement",
        9093,
        "",
        "-sm tensor: each device computes its part of every matrix",
        after=8607,
    )

    # cache
    # an encoder attends within its batch: builds without it allocate cells that nothing reads
    encoders_without_cache = Rule(
        "cache", 5760, "", "encoders have no cache of keys and values", after=5310
    )
    # llama_kv_cache_iswa; without it sliding layers need the whole context's cells
    window_cache = Rule(
        "cache", 5427, "#13194", "sliding layers have their own cache of the window's size"
    )
    # decides the padding of quantised caches, which is added per tensor or per row
    cache_rows = Rule(
        "cache", 5760, "", "a cache has one padded row per cell; before, one row in all", after=5310
    )
    # without it -np changes nothing of the cache: n_stream is 1
    streams = Rule(
        "cache", 5913, "#14363", "one cache per slot, unless -kvu; before, one for all slots"
    )
    # flash attention wanted 256 before as well
    cells_by_256 = Rule(
        "cache",
        7060,
        "#17046",
        "n_ctx is rounded up to 256; before, to 32 without flash attention",
        after=6760,
    )
    # before, every layer had the full context, whatever its file says
    olmo2_window = Rule(
        "cache", 6600, "", "OLMo 2's attention slides if its file has a window", after=6170
    )
    windows_without_cache = Rule(
        "cache", 7080, "", "EmbeddingGemma, whose attention slides, has no cache", after=6760
    )
    # MLA: V repeated what K begins with, nearly half of the cache
    mla_keys_only = Rule(
        "cache",
        7980,
        "",
        "latent attention stores only keys, whose first part is V; before, also V",
        after=7800,
    )
    lfm2_window = Rule(
        "cache", 8165, "", "LFM2's attention slides if its file has a window", after=7940
    )
    # n_ctx_seq instead of n_ctx for each slot: -np 4 took four times the cells
    hybrid_cells = Rule(
        "cache",
        8165,
        "",
        "the slots of a hybrid model share the context; before, each had all of it",
        after=7940,
    )
    # two more inputs (a Hadamard matrix each) and products of Q, K, V and the result
    rotates_cache = Rule(
        "cache", 8607, "#21038", "a quantised cache holds rotated keys and values", after=8571
    )
    rotates_views = Rule(
        "cache",
        9093,
        "",
        "keys and values that are parts of a fused QKV are rotated; before, llama.cpp aborted",
        after=8929,
    )
    rotates_apart = Rule(
        "cache",
        8929,
        "",
        "a sliding window's cache has its own rotations; before, the other's, and none if the "
        "layers' caches differ",
        after=8672,
    )

    # graph
    # GGML_KQ_MASK_PAD: more for micro-batches that are no multiple of 64, a token's above all
    pads_masks = Rule(
        "graph", 0, "", "attention's mask has a multiple of 64 rows", last=7080, until=7480
    )
    # as measuring does today: ggml_backend_sched_reserve_size resets the scheduler
    drops_pins = Rule(
        "graph",
        5760,
        "",
        "graphs are reserved without the devices that their builder chose for norms",
        after=5310,
        last=5900,
        until=5930,
    )
    drops_pins_again = Rule(
        "graph",
        6620,
        "",
        "graphs are once more reserved without those devices",
        after=6170,
        last=6900,
        until=7060,
    )
    # the order decides which results live at the same time
    keys_last = Rule(
        "graph", 6910, "", "K comes after V in the graph; before, between Q and V", after=6760
    )
    # views take no space, yet each is a node that the scheduler may cut at
    shares_state_ids = Rule(
        "graph",
        5990,
        "",
        "all layers view the list of states once; before, each its own",
        after=5900,
    )
    # early nodes let CUDA fuse them, and their results live longer
    expands_views = Rule(
        "graph",
        5990,
        "#14753",
        "experts and their views are nodes before their sums; before, when the next layer needs "
        "them",
        after=5900,
    )
    expands_weights = Rule(
        "graph",
        6600,
        "",
        "the weights of the chosen experts are nodes before their products",
        after=6170,
    )
    expands_sums = Rule(
        "graph",
        8910,
        "",
        "each sum of experts is a node as soon as it is made; before, when the next layer needs it",
        after=8672,
    )
    encoders_flash = Rule("graph", 5310, "", "encoders may have flash attention too", after=4875)
    # DeepSeek's and MiMo's heads; without flash attention the scores are in the compute buffer
    flash_unlike_heads = Rule(
        "graph",
        5310,
        "",
        "flash attention takes heads of V of another width than K's; before, it was turned off",
        after=4875,
    )
    flash_any_keys = Rule(
        "graph",
        7080,
        "",
        "encoders may have flash attention with any number of tokens; before, a multiple of 256",
        after=6760,
    )
    # encoders have keys and values of f32, as nothing stores them
    casts_f32_cache = Rule(
        "graph", 5310, "", "flash attention casts keys and values of f32 to f16", after=4875
    )
    pools_sequences = Rule(
        "graph", 5600, "", "pooling has one row per sequence; before, one per token", after=5310
    )
    ropes_first = Rule(
        "graph",
        5310,
        "",
        "DeepSeek-V2's heads begin with the roped part",
        after=4875,
        last=7720,
        until=7800,
    )
    mla_heads_at_once = Rule(
        "graph",
        5760,
        "#13306",
        "latent attention's V is one product per head after flash attention; before, one per token",
        after=5310,
    )
    # GLU has a result of its own; activation and product could write over their inputs
    glu_op = Rule(
        "graph",
        5780,
        "#14158",
        "a gate's activation and product are one op; before, two",
        after=5760,
    )
    # a copy is a result of its own: 1 MiB for 512 tokens and a width of 512
    views_qk = Rule(
        "graph",
        5880,
        "",
        "Q and K of a fused QKV are views if they are roped; before, copies",
        after=5760,
    )
    # the gathered states of a layer were a result, as large as the layer's own
    scan_ids = Rule(
        "graph",
        5900,
        "#9126",
        "SSM_SCAN reads the states of a batch by their ids; before, they were gathered",
        after=5760,
    )
    # inputs for the row numbers: 8 bytes a token for K, for a transposed V one for each element
    set_rows = Rule(
        "graph",
        6070,
        "#14959",
        "K and V are stored by row indices, inputs of the graph; before, copied",
        after=6050,
    )
    # Phi-3 copied all three (ggml_cont) in builds without it
    views_v = Rule(
        "graph", 6400, "", "V of a fused QKV is a view too, and Q and K of all", after=6170
    )
    # DeepSeek-V3's routing: more nodes of n_expert x n_ubatch
    groups_experts = Rule(
        "graph", 6910, "", "with experts in groups, the best groups are chosen first", after=6760
    )
    clamps_weights = Rule(
        "graph", 6910, "", "the sum of the chosen experts' weights is clamped", after=6760
    )
    expands_gates = Rule(
        "graph",
        6910,
        "",
        "a feed-forward's gate is a node before its down product",
        after=6760,
        last=7080,
        until=7480,
    )
    views_openelm_v = Rule("graph", 7980, "", "OpenELM's V is a view; before, a copy", after=7800)
    expands_norms = Rule(
        "graph", 8165, "", "a delta net's input comes before its states", after=7940
    )
    # a prompt of several slots then outgrows the reserved graph in use
    reserves_one = Rule(
        "graph", 0, "", "graphs of several slots are reserved for one", last=5310, until=5760
    )
    reserves_one_again = Rule(
        "graph",
        5913,
        "#14363",
        "graphs of unified slots are reserved for one",
        last=7080,
        until=7490,
    )
    # dozens of nodes for a layer before: see delta_net_unfused.py
    fused_delta_nets = Rule(
        "graph", 8380, "", "a delta net is one op; before, products in chunks of tokens", after=8100
    )
    # GGML_TENSOR_FLAG_OUTPUT: the allocator never gives their space to another node
    keeps_outputs = Rule(
        "graph", 7720, "", "a graph's results are outputs, which nothing overwrites", after=7490
    )
    glm_sections = Rule(
        "graph",
        7720,
        "",
        "GLM-4 has four positions per token if its file has sections; before, one",
        after=7490,
    )
    layer_embd_last = Rule(
        "graph",
        7720,
        "",
        "Gemma's embeddings of layers come after what is added to them; before, first",
        after=7490,
    )
    embeddings_at_once = Rule(
        "graph",
        7710,
        "#18599",
        "the embeddings come before the first layer's other inputs",
        after=7540,
    )
    # n_embd_inp x n_ubatch x 4 bytes on the host, whatever a batch holds
    embeddings_input = Rule(
        "graph", 7800, "#18898", "an input of raw embeddings besides that of tokens", after=7780
    )
    # Vulkan and SYCL limit the size of one buffer
    graph_chunks = Rule(
        "graph",
        6620,
        "",
        "a graph's buffer is split into chunks of the backend's largest buffer; before, one",
        after=6170,
    )
    best_chunk = Rule(
        "graph",
        7080,
        "",
        "of several chunks, the one with the least growth grows; before, the first with room",
        after=6760,
    )
    # GGML_SCHED_MAX_SPLIT_INPUTS: a split is cut where it would have more
    split_inputs_30 = Rule("graph", 6600, "", "a split has up to 30 inputs; before, 10", after=6170)

    # backends
    # where a backend lacks an op, the node runs on the CPU, and copies to and fro are inputs
    copies_bf16 = Rule("backends", 5310, "", "CUDA copies into bf16 caches", after=4875)
    # in builds without it such attention runs on the CPU with -fa
    flash_mla = Rule(
        "backends",
        5760,
        "#13306",
        "CUDA's flash attention takes latent attention (576 and 512) from Turing on",
        after=5310,
    )
    # Mamba's layers ran on the CPU before, however many were offloaded
    cuda_scans = Rule("backends", 5310, "", "CUDA runs SSM_SCAN and SSM_CONV", after=4875)
    scan_shapes = Rule(
        "backends",
        5900,
        "",
        "CUDA's SSM_SCAN and SSM_CONV take only shapes with a kernel; before, any",
        after=5760,
    )
    cuda_sets = Rule("backends", 7080, "", "CUDA runs SET", after=6760)
    flash_by_kernel = Rule(
        "backends",
        6600,
        "",
        "CUDA runs flash attention if it has a kernel; before, by the head size",
        after=6170,
    )
    flash_576 = Rule(
        "backends",
        7980,
        "",
        "CUDA's flash attention with heads of 576 takes any number of heads; before, multiples of "
        "16",
        after=7710,
    )
    flash_512 = Rule("backends", 8609, "#20998", "CUDA's flash attention takes heads of 512")
    flash_bf16 = Rule("backends", 8672, "", "CUDA's flash attention takes bf16", after=8380)
    flash_192 = Rule(
        "backends", 9093, "", "CUDA's flash attention takes heads of 192 and 320", after=8929
    )
    # another order, other lifetimes: up to 48 % of the compute buffer
    metal_reorders = Rule("backends", 6450, "#15929", "Metal runs a split's nodes in its own order")
    # ggml_vk_graph_optimize looks 20 nodes ahead: up to 31 % of the compute buffer
    vulkan_reorders = Rule(
        "backends", 7150, "#17475", "Vulkan runs a split's nodes in its own order"
    )
    metal_reorders_far = Rule(
        "backends",
        8010,
        "#19555",
        "Metal moves nodes over 64 others and more kinds of them; before, over 8",
    )
    # get_alloc_size of FLASH_ATTN_EXT and MUL_MAT_ID
    metal_scratch = Rule(
        "backends",
        8185,
        "",
        "Metal's flash attention and products of experts hold what their kernels need",
    )
    vulkan_flash = Rule(
        "backends",
        4435,
        "",
        "Vulkan runs flash attention on NVIDIA's tensor cores, heads of K and V of one size and "
        "type",
        after=4080,
    )
    vulkan_small_types = Rule(
        "backends",
        4875,
        "",
        "Vulkan multiplies IQ1 to IQ4_XS and copies into quantised caches",
        after=4435,
    )
    vulkan_bf16 = Rule(
        "backends", 5310, "", "Vulkan multiplies bf16, and copies into it", after=4875
    )
    vulkan_flash_anywhere = Rule(
        "backends",
        5760,
        "",
        "Vulkan runs flash attention on all GPUs, with f16, q8_0 and q4_0",
        after=5310,
    )
    vulkan_flash_mla = Rule(
        "backends", 5900, "", "Vulkan runs latent attention's flash attention", after=5760
    )
    vulkan_flash_heads = Rule(
        "backends",
        6760,
        "",
        "Vulkan's flash attention takes heads of any multiple of 8; before, of ten sizes",
        after=6170,
    )
    vulkan_k_rows = Rule("backends", 6760, "", "Vulkan runs GET_ROWS of K-quants", after=6170)
    vulkan_scans = Rule("backends", 7080, "", "Vulkan runs SSM_SCAN and SSM_CONV", after=6760)
    vulkan_delta_net_parts = Rule(
        "backends", 7490, "", "Vulkan runs the operations of a delta net in chunks", after=7080
    )
    vulkan_fused_adds = Rule(
        "backends",
        7720,
        "",
        "Vulkan keeps two sums together, and experts chosen by sigmoids",
        after=7490,
    )
    vulkan_buffer_limit = Rule(
        "backends", 7720, "", "Vulkan leaves tensors larger than a buffer to the CPU", after=7490
    )
    vulkan_range_limit = Rule(
        "backends",
        8380,
        "",
        "Vulkan leaves tensors larger than a shader can address to the CPU",
        after=7720,
    )
    vulkan_offloads_rows = Rule(
        "backends",
        8380,
        "",
        "Vulkan computes operations of 32 rows whose weight is in RAM; before, of 32 in their "
        "second dimension",
        after=8100,
    )
    vulkan_delta_net = Rule(
        "backends", 8380, "", "Vulkan runs a delta net that is one op", after=7720
    )
    vulkan_flash_types = Rule(
        "backends",
        8929,
        "",
        "Vulkan's flash attention takes q4_1, q5_0, q5_1 and iq4_nl too",
        after=8672,
    )
    vulkan_flash_pairs = Rule(
        "backends", 9093, "", "Vulkan's flash attention takes K and V of two types", after=8929
    )
    # four copies of each input from two GPUs on (N_COPIES)
    vulkan_pipelines = Rule(
        "backends",
        7540,
        "",
        "Vulkan computes asynchronously, with events: prompts are pipelined over several GPUs",
        after=7490,
    )
    metal_pipelines = Rule(
        "backends", 7960, "", "Metal computes asynchronously, with events", after=7800
    )

    # flags
    # a launch that is written for an older build must end with a bare -fa, or without it
    flash_word = Rule(
        "flags",
        6325,
        "#15434",
        "-fa takes on, off or auto, and auto is the default; before, a bare -fa, and off is the "
        "default",
    )
    log_colors = Rule(
        "flags",
        6600,
        "#15792",
        "--log-colors takes on, off or auto, and auto is the default; before, a bare --log-colors, "
        "and off is the default",
        after=6325,
    )
    layers_auto = Rule("flags", 7540, "", "-ngl takes auto; before, a number alone", after=7490)
    trace_level = Rule(
        "flags",
        8000,
        "",
        "-lv counts 3 info, 4 trace; before, every buffer line was always printed",
    )

    # server
    # server.cpp: -np -1
    auto_slots = Rule("server", 6927, "#16736", "four unified slots by default; before, one")
    draft_ends_if_added = Rule(
        "server",
        9093,
        "#22358",
        "a draft's BOS and EOS are the model's only where they are added; before, in any case",
        after=8929,
    )
