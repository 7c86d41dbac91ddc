// The options of a request for a drafter in a shared library. Included by server-schema.cpp.
#pragma once

#include "server-common.h"

// Returns the fields of a request that start with `specds_`, as JSON, or nothing. A predicted output, which may also be
// the `prediction` of the OpenAI API, may be text, text parts or tokens; text becomes tokens.
static std::string server_extern_request(const llama_vocab * vocab, const json & body) {
    const std::string predicted_output = "specds_predicted_output";
    json options = json::object();
    for (const auto & item : body.items()) {
        if (item.key().rfind("specds_", 0) == 0) {
            options[item.key()] = item.value();
        }
    }
    if (!options.contains(predicted_output) && body.contains("prediction") && !body.at("prediction").is_null()) {
        const json prediction = body.at("prediction");
        const bool has_content = prediction.is_object() && prediction.contains("content");
        options[predicted_output] = has_content ? prediction.at("content") : prediction;
    }
    if (options.contains(predicted_output)) {
        const json content = options.at(predicted_output);
        bool is_text = content.is_string();
        std::string text = is_text ? content.get<std::string>() : "";
        for (size_t i = 0; content.is_array() && i < content.size(); ++i) {
            const json & part = content.at(i);
            if (part.is_object()) {
                is_text = true;
                text += json_value(part, "text", std::string());
            }
        }
        if (is_text) {
            options[predicted_output] = common_tokenize(vocab, text, false, false);
        }
    }
    return options.empty() ? "" : options.dump();
}
