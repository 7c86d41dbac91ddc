// A drafter in a shared library that is loaded at run time; specds.h is the interface.
// Included by speculative.cpp, behind common_speculative_impl.
#include "specds.h"

#include "ggml-backend.h"

#include <ctime>
#include <dlfcn.h>

// of src/llama-model.h
const std::vector<std::pair<std::string, ggml_tensor *>> & llama_internal_get_tensor_map(const llama_model * model);

static bool common_extern_is_on_cpu(const ggml_tensor * tensor) {
    const std::string buffer = ggml_backend_buffer_name(tensor->buffer);
    return buffer.rfind("CPU", 0) == 0 || buffer == "AMX";
}

// Returns whether a backend has kernels that use a type's weights once for several tokens.
static bool common_extern_is_batched(const ggml_tensor * tensor) {
    const std::string buffer = ggml_backend_buffer_name(tensor->buffer);
    if (!common_extern_is_on_cpu(tensor) || buffer == "AMX" || buffer == "CPU_REPACK") {
        return true; // the CPU repacks weights for such kernels
    }
    switch (tensor->type) {
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_MXFP4:
        case GGML_TYPE_TQ1_0:
        case GGML_TYPE_TQ2_0:
            return false;
        default:
            return true;
    }
}

// The time of passes over several tokens.
struct common_extern_passes {
    std::vector<specds_step_time> times;

    // A fourth round comes first and warms up. Rounds end after this time.
    static constexpr int     n_rounds = 3;
    static constexpr int64_t t_max_us = 4000000;

    // Computes garbage, the fastest of three passes of each size, in turn.
    common_extern_passes(llama_context * ctx, int32_t n_max, bool is_cpu) {
        const clockid_t clock = is_cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC; // other load costs no CPU time
        const auto seconds = [&] {
            timespec now;
            clock_gettime(clock, &now);
            return now.tv_sec + now.tv_nsec / 1e9;
        };
        const int32_t n_most = std::min<int32_t>({1 + n_max, (int32_t) llama_n_batch(ctx), (int32_t) llama_n_ctx_seq(ctx)});
        llama_memory_t mem = llama_get_memory(ctx);
        llama_batch batch = llama_batch_init(16, 0, 1);
        const int64_t t_start = ggml_time_us();
        for (int round = 0; round <= n_rounds && (round < 2 || ggml_time_us() < t_start + t_max_us); ++round) {
            size_t i = 0;
            for (int32_t n_tokens : {1, 2, 3, 4, 6, 8, 12, 16}) {
                if (n_tokens > n_most) {
                    break;
                }
                batch.n_tokens = n_tokens;
                for (int32_t pos = 0; pos < n_tokens; ++pos) {
                    batch.token[pos]     = 0;
                    batch.pos[pos]       = pos;
                    batch.n_seq_id[pos]  = 1;
                    batch.seq_id[pos][0] = 0;
                    batch.logits[pos]    = true;
                }
                const double start = seconds();
                const bool is_done = llama_decode(ctx, batch) == 0;
                llama_synchronize(ctx);
                const double time = seconds() - start;
                const bool is_cleared = n_tokens == 1 || llama_memory_seq_rm(mem, 0, 1, -1);
                llama_memory_clear(mem, true);
                if (!is_done || !is_cleared) {
                    llama_batch_free(batch);
                    throw std::runtime_error(is_done ?
                            "the memory of this model cannot drop single tokens" : "a pass to measure its time failed");
                }
                if (round == 0) {
                    times.push_back({(size_t) n_tokens, INFINITY});
                } else {
                    times[i].seconds = std::min(times[i].seconds, time);
                }
                ++i;
            }
        }
        llama_batch_free(batch);
        llama_perf_context_reset(ctx);
    }

    // Returns the speed of steps whose drafts are all accepted, over that of steps without drafts.
    double most_gain() const {
        double gain = 1.0;
        for (const auto & pass : times) {
            gain = std::max(gain, pass.num_tokens * times[0].seconds / pass.seconds);
        }
        return gain;
    }
};

struct common_speculative_impl_extern : public common_speculative_impl {
    struct slot_state {
        std::vector<uint32_t> text; // the context of the last draft, then what was accepted of that
        llama_tokens drafted;
        uint64_t generation = 0;    // rises with each request of the slot
        bool     in_step = false;   // whether the last step drafted for it
        size_t   row = 0;
        size_t   n_read = 0;        // positions of the step whose predictions were read
    };

    // the functions of the library
    decltype(&specds_abi)                 fn_abi;
    decltype(&specds_open)                fn_open;
    decltype(&specds_draft)               fn_draft;
    decltype(&specds_observe_step)        fn_observe_step;
    decltype(&specds_num_predictions)     fn_num_predictions;
    decltype(&specds_observe_predictions) fn_observe_predictions;
    decltype(&specds_end)                 fn_end;
    decltype(&specds_stats)               fn_stats;
    decltype(&specds_last_error)          fn_last_error;
    decltype(&specds_close)               fn_close;

    specds_drafter * drafter = nullptr;
    llama_context  * ctx_tgt;
    uint32_t         n_vocab;
    std::vector<slot_state> slots;

    size_t  n_rows      = 0;
    size_t  n_positions = 0; // of each row of the step, for its longest draft
    int64_t t_drafted   = 0; // when the step began
    size_t  n_expected  = 0; // tokens of a step that only continues from the drafts
    size_t  n_seen      = 0;

    size_t n_predictions = 0; // of each position
    std::vector<uint32_t> predictions;
    bool has_predictions = false;

    common_speculative_impl_extern(const common_params_speculative & params, uint32_t n_seq)
        : common_speculative_impl(COMMON_SPECULATIVE_TYPE_EXTERN, n_seq, params.extern_n_max)
        , ctx_tgt(params.draft.ctx_tgt), slots(n_seq) {
        // it stays loaded: its threads may outlive the drafter
        void * lib = params.extern_lib.empty() ? nullptr : dlopen(params.extern_lib.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!lib) {
            throw std::runtime_error(params.extern_lib.empty() ? "--spec-type extern needs --spec-extern-lib" : dlerror());
        }
        auto load = [&](auto & fn, const char * name) {
            fn = reinterpret_cast<std::remove_reference_t<decltype(fn)>>(dlsym(lib, name));
            if (!fn) {
                throw std::runtime_error("'" + params.extern_lib + "' has no function " + name);
            }
        };
        load(fn_abi, "specds_abi");
        if (fn_abi() != SPECDS_ABI) {
            throw std::runtime_error(string_format("'%s' has ABI %u, this server needs %u",
                    params.extern_lib.c_str(), fn_abi(), SPECDS_ABI));
        }
        load(fn_open,                "specds_open");
        load(fn_draft,               "specds_draft");
        load(fn_observe_step,        "specds_observe_step");
        load(fn_num_predictions,     "specds_num_predictions");
        load(fn_observe_predictions, "specds_observe_predictions");
        load(fn_end,                 "specds_end");
        load(fn_stats,               "specds_stats");
        load(fn_last_error,          "specds_last_error");
        load(fn_close,               "specds_close");

        const llama_vocab * vocab = llama_model_get_vocab(llama_get_model(ctx_tgt));
        n_vocab = llama_vocab_n_tokens(vocab);
        std::vector<const char *> texts(n_vocab);
        for (uint32_t i = 0; i < n_vocab; ++i) {
            texts[i] = llama_vocab_get_text(vocab, i);
        }
        bool is_cpu = true;
        const std::string weights = weight_types(is_cpu);
        const common_extern_passes passes(ctx_tgt, n_max, is_cpu);
        const auto & times = passes.times;
        drafter = fn_open(params.extern_config.c_str(), n_vocab, texts.data(), true, times.data(), times.size());
        if (!drafter) {
            throw std::runtime_error(fn_last_error());
        }
        n_predictions = std::max(0, fn_num_predictions(drafter));
        const size_t i = std::min<size_t>(5, times.size() - 1); // 8 tokens
        SPC_INF("external drafter '%s', n_max = %d: a pass over %zu tokens takes %.2f times as long as one over 1 (%.2f ms), "
                "so drafts can gain at most %.2fx; weights: %s\n",
                params.extern_lib.c_str(), n_max, times[i].num_tokens, times[i].seconds / times[0].seconds,
                1e3 * times[0].seconds, passes.most_gain(), weights.c_str());
        SPC_INF("external drafter: %s\n", stats().c_str());
    }

    // the types of the weights by their share of bytes, and whether all are in the memory of the CPU
    std::string weight_types(bool & is_cpu) const {
        std::map<std::string, double> sizes;
        double total = 0;
        for (const auto & [name, tensor] : llama_internal_get_tensor_map(llama_get_model(ctx_tgt))) {
            if (!tensor->buffer || ggml_n_dims(tensor) < 2) {
                continue;
            }
            is_cpu = is_cpu && common_extern_is_on_cpu(tensor);
            std::string type = ggml_type_name(tensor->type);
            sizes[common_extern_is_batched(tensor) ? type : type + " (no kernel for several tokens)"] += ggml_nbytes(tensor);
            total += ggml_nbytes(tensor);
        }
        std::string result;
        for (const auto & [type, size] : sizes) {
            result += string_format("%s%.0f %% %s", result.empty() ? "" : ", ", 100 * size / total, type.c_str());
        }
        return result;
    }

    ~common_speculative_impl_extern() override {
        for (uint32_t id = 0; id < n_seq; ++id) {
            end((llama_seq_id) id);
        }
        SPC_INF("external drafter: %s\n", stats().c_str());
        fn_close(drafter);
    }

    std::string stats() {
        std::string text(std::max(0, fn_stats(drafter, nullptr, 0)) + 1, '\0');
        text.resize(std::max(0, fn_stats(drafter, text.data(), text.size())));
        return text;
    }

    void end(llama_seq_id seq_id) override {
        const uint32_t id = seq_id;
        auto & slot = slots[id];
        if (!slot.text.empty()) {
            fn_end(drafter, id, slot.generation, slot.text.data(), slot.text.size());
        }
        slot.generation++;
        slot.text.clear();
        slot.drafted.clear();
        slot.in_step = false;
    }

    void begin(llama_seq_id seq_id, const llama_tokens & /*prompt*/) override {
        end(seq_id);
    }

    bool process(const common_batch & batch) override {
        n_seen += batch.size();
        has_predictions = n_predictions > 0 && n_seen == n_expected && (size_t) batch.size() == n_expected && read_predictions(batch);
        return true;
    }

    bool read_predictions(const common_batch & batch) {
        predictions.assign(n_rows * n_positions * n_predictions, 0);
        for (int32_t i = 0; i < batch.size(); ++i) {
            auto & slot = slots[batch.tokens[i].seq_id];
            const float * logits = batch.tokens[i].output ? llama_get_logits_ith(ctx_tgt, i) : nullptr;
            if (!logits || !slot.in_step || slot.n_read >= n_positions) {
                return false;
            }
            likeliest(logits, predictions.data() + (slot.row * n_positions + slot.n_read++) * n_predictions);
        }
        return true;
    }

    // the n_predictions tokens of the greatest logits, the greatest first; few logits get past the comparison of a block
    void likeliest(const float * logits, uint32_t * tokens) const {
        constexpr uint32_t n_block = 32;
        std::vector<float> best(n_predictions, -INFINITY);
        for (uint32_t start = 0; start < n_vocab; start += n_block) {
            const uint32_t end   = std::min(n_vocab, start + n_block);
            const float    least = best.back();
            bool has_better = false;
            for (uint32_t i = start; i < end; ++i) {
                has_better |= logits[i] > least;
            }
            for (uint32_t i = start; has_better && i < end; ++i) {
                if (!(logits[i] > best.back())) {
                    continue;
                }
                size_t place = n_predictions - 1;
                for (; place > 0 && best[place - 1] < logits[i]; --place) {
                    best[place]   = best[place - 1];
                    tokens[place] = tokens[place - 1];
                }
                best[place]   = logits[i];
                tokens[place] = i;
            }
        }
    }

    void draft(common_speculative_draft_params_vec & dparams) override {
        if (t_drafted > 0 && n_seen == n_expected) {
            fn_observe_step(drafter, (ggml_time_us() - t_drafted) / 1e6);
        }
        if (has_predictions) {
            fn_observe_predictions(drafter, predictions.data(), predictions.size(), n_positions, n_predictions);
        }
        const auto rows = read_rows(dparams);
        std::vector<uint32_t> ids(rows.size() * n_max);
        std::vector<size_t>   lengths(rows.size());
        const int32_t status = fn_draft(drafter, rows.data(), rows.size(), n_max, ids.data(), ids.size(), lengths.data());
        if (status < 0) {
            SPC_WRN("external drafter: %s\n", fn_last_error());
            std::fill(lengths.begin(), lengths.end(), 0);
        }
        n_seen = 0;
        n_rows = n_expected = rows.size();
        n_positions = 1;
        for (size_t r = 0; r < rows.size(); ++r) {
            auto & result = *dparams[rows[r].slot].result;
            for (size_t i = 0; i < std::min<size_t>(lengths[r], rows[r].max_tokens); ++i) {
                const uint32_t token = ids[r * n_max + i];
                if (token >= n_vocab) {
                    break;
                }
                result.push_back((llama_token) token);
            }
            slots[rows[r].slot].drafted = result;
            n_expected += result.size();
            n_positions = std::max(n_positions, 1 + result.size());
        }
        has_predictions = false;
        t_drafted = ggml_time_us();
    }

    std::vector<specds_row> read_rows(const common_speculative_draft_params_vec & dparams) {
        std::vector<specds_row> rows;
        const int32_t n_drafting = std::count_if(dparams.begin(), dparams.end(), [](const auto & dp) { return dp.drafting; });
        // llama.cpp aborts if a batch is too small for the drafts and one token of each slot
        const int32_t n_fit = ((int32_t) llama_n_batch(ctx_tgt) - (int32_t) n_seq) / std::max(1, n_drafting);
        for (uint32_t id = 0; id < n_seq; ++id) {
            const auto & dp = dparams[id];
            auto & slot = slots[id];
            slot.in_step = dp.drafting;
            if (!dp.drafting) {
                continue;
            }
            slot.text.assign(dp.prompt->begin(), dp.prompt->end());
            slot.text.push_back(dp.id_last);
            slot.row    = rows.size();
            slot.n_read = 0;
            specds_row row = {};
            row.slot       = id;
            row.generation = slot.generation;
            row.max_tokens = std::max(0, std::min({n_max, n_fit, dp.n_max < 0 ? n_max : dp.n_max}));
            row.tokens     = slot.text.data();
            row.num_tokens = slot.text.size();
            row.min_prob   = -1.0f;
            row.options    = dp.extern_request && !dp.extern_request->empty() ? dp.extern_request->c_str() : nullptr;
            rows.push_back(row);
        }
        return rows;
    }

    void accept(llama_seq_id seq_id, uint16_t n_accepted, bool is_other) override {
        auto & slot = slots[seq_id];
        if (!is_other && n_accepted <= slot.drafted.size()) {
            slot.text.insert(slot.text.end(), slot.drafted.begin(), slot.drafted.begin() + n_accepted);
        }
        slot.drafted.clear();
    }
};
