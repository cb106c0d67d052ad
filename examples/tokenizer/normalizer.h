// What is done to a text before it is cut: the normalizers of tokenizer.json.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tokenizer {

using Normalizer = std::function<std::string(std::string)>;

// NFC, NFD, Prepend, Replace, Strip, and a Sequence of them; null: the text as it is. Throws Error for others.
Normalizer make_normalizer(const nlohmann::json& description);

// Replace, of normalizers and decoders: {"String": ..} or {"Regex": ..}, and what stands there instead.
Normalizer make_replacement(const nlohmann::json& description);

}  // namespace tokenizer
