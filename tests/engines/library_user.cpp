// A user of llama.cpp's library, as KoboldCpp is: library_user -m FILE n_ctx=4096 n_batch=512 ...
// loads the model and creates a context with these parameters; the library's log has the sizes.

#include "llama.h"

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

static ggml_type type_of(const std::string & name) {
    for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
        const char * known = ggml_type_name((ggml_type) type);
        if (known && name == known) {
            return (ggml_type) type;
        }
    }
    return GGML_TYPE_F16;
}

int main(int argc, char ** argv) {
    llama_backend_init();
    llama_model_params model_params = llama_model_default_params();
    llama_context_params params = llama_context_default_params();
    params.swa_full = false;
    llama_model_kv_override overrides[2] = {};
    std::strcpy(overrides[0].key, "tokenizer.ggml.model");
    std::strcpy(overrides[0].val_str, "none");
    overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_STR;
    model_params.kv_overrides = overrides;
    model_params.load_mode = LLAMA_LOAD_MODE_NONE;
    std::vector<float> split(llama_max_devices(), 0.0f);
    for (int i = 3; i < argc; ++i) {
        const std::string word = argv[i], name = word.substr(0, word.find('=')),
                          value = word.substr(word.find('=') + 1);
        const int number = std::atoi(value.c_str());
        if (name == "n_ctx") {
            params.n_ctx = number;
        } else if (name == "n_batch") {
            params.n_batch = number;
        } else if (name == "n_ubatch") {
            params.n_ubatch = number;
        } else if (name == "n_seq_max") {
            params.n_seq_max = number;
        } else if (name == "n_rs_seq") {
            params.n_rs_seq = number;
        } else if (name == "kv_unified") {
            params.kv_unified = number;
        } else if (name == "swa_full") {
            params.swa_full = number;
        } else if (name == "ngl") {
            model_params.n_gpu_layers = number;
        } else if (name == "fa") {
            params.flash_attn_type = value == "on" ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        } else if (name == "ctk") {
            params.type_k = type_of(value);
        } else if (name == "ctv") {
            params.type_v = type_of(value);
        } else if (name == "ts") {
            std::stringstream parts(value);
            std::string part;
            for (size_t at = 0; std::getline(parts, part, ','); ++at) {
                split[at] = std::stof(part);
            }
            model_params.tensor_split = split.data();
        }
    }
    llama_model * model = llama_model_load_from_file(argv[2], model_params);
    return model && llama_init_from_model(model, params) ? 0 : 1;
}
