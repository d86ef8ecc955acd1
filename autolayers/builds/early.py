"""Rules of llama.cpp's builds before b9093, the oldest whose sizes are exact.

From b9093 on each of these rules is the same in every build. So this file can go once nobody runs
older ones: mypy then names every place that asks for one of its rules.
"""

from __future__ import annotations

from .rule import Rule, RuleSet


class EarlyRules(RuleSet):
    """The rules on which all builds from b9093 on agree."""

    # placement
    repacks_first = Rule(
        "placement",
        4435,
        "",
        "Q4_0 in RAM is repacked for the CPU, even if a GPU could read it",
        after=4080,
        last=4875,
        until=5310,
    )
    output_first = Rule(
        "placement", 7540, "#18148", "-ngl counts the output layer first; before, last", after=7490
    )
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
    layer_embd_with_input = Rule(
        "placement",
        8929,
        "",
        "Gemma's embeddings of layers lie with the input, in RAM; before, with the output layer",
        after=8721,
    )
    splits_tensors = Rule(
        "placement",
        9093,
        "",
        "-sm tensor: each device computes its part of every matrix",
        after=8607,
    )

    # cache
    encoders_without_cache = Rule(
        "cache", 5760, "", "encoders have no cache of keys and values", after=5310
    )
    window_cache = Rule(
        "cache", 5427, "#13194", "sliding layers have their own cache of the window's size"
    )
    cache_rows = Rule(
        "cache", 5760, "", "a cache has one padded row per cell; before, one row in all", after=5310
    )
    streams = Rule(
        "cache", 5913, "#14363", "one cache per slot, unless -kvu; before, one for all slots"
    )
    cells_by_256 = Rule(
        "cache",
        7060,
        "#17046",
        "n_ctx is rounded up to 256; before, to 32 without flash attention",
        after=6760,
    )
    olmo2_window = Rule(
        "cache", 6600, "", "OLMo 2's attention slides if its file has a window", after=6170
    )
    windows_without_cache = Rule(
        "cache", 7080, "", "EmbeddingGemma, whose attention slides, has no cache", after=6760
    )
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
    hybrid_cells = Rule(
        "cache",
        8165,
        "",
        "the slots of a hybrid model share the context; before, each had all of it",
        after=7940,
    )
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
    pads_masks = Rule(
        "graph", 0, "", "attention's mask has a multiple of 64 rows", last=7080, until=7480
    )
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
    keys_last = Rule(
        "graph", 6910, "", "K comes after V in the graph; before, between Q and V", after=6760
    )
    shares_state_ids = Rule(
        "graph",
        5990,
        "",
        "all layers view the list of states once; before, each its own",
        after=5900,
    )
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
    glu_op = Rule(
        "graph",
        5780,
        "#14158",
        "a gate's activation and product are one op; before, two",
        after=5760,
    )
    views_qk = Rule(
        "graph",
        5880,
        "",
        "Q and K of a fused QKV are views if they are roped; before, copies",
        after=5760,
    )
    scan_ids = Rule(
        "graph",
        5900,
        "#9126",
        "SSM_SCAN reads the states of a batch by their ids; before, they were gathered",
        after=5760,
    )
    set_rows = Rule(
        "graph",
        6070,
        "#14959",
        "K and V are stored by row indices, inputs of the graph; before, copied",
        after=6050,
    )
    views_v = Rule(
        "graph", 6400, "", "V of a fused QKV is a view too, and Q and K of all", after=6170
    )
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
    fused_delta_nets = Rule(
        "graph", 8380, "", "a delta net is one op; before, products in chunks of tokens", after=8100
    )
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
    embeddings_input = Rule(
        "graph", 7800, "#18898", "an input of raw embeddings besides that of tokens", after=7780
    )
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
    split_inputs_30 = Rule("graph", 6600, "", "a split has up to 30 inputs; before, 10", after=6170)

    # backends
    copies_bf16 = Rule("backends", 5310, "", "CUDA copies into bf16 caches", after=4875)
    flash_mla = Rule(
        "backends",
        5760,
        "#13306",
        "CUDA's flash attention takes latent attention (576 and 512) from Turing on",
        after=5310,
    )
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
    flash_bf16 = Rule(
        "backends", 8672, "", "CUDA's flash attention takes bf16, and heads of 512", after=8380
    )
    flash_192 = Rule(
        "backends", 9093, "", "CUDA's flash attention takes heads of 192 and 320", after=8929
    )
    metal_reorders = Rule("backends", 6450, "#15929", "Metal runs a split's nodes in its own order")
    vulkan_reorders = Rule(
        "backends", 7150, "#17475", "Vulkan runs a split's nodes in its own order"
    )
    metal_reorders_far = Rule(
        "backends",
        8010,
        "#19555",
        "Metal moves nodes over 64 others and more kinds of them; before, over 8",
    )
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
    auto_slots = Rule("server", 6927, "#16736", "four unified slots by default; before, one")
    draft_ends_if_added = Rule(
        "server",
        9093,
        "#22358",
        "a draft's BOS and EOS are the model's only where they are added; before, in any case",
        after=8929,
    )
