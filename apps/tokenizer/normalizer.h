// Normalizers of tokenizer.json: applied to a text before it is split.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tokenizer {

using Normalizer = std::function<std::string(std::string)>;

// NFC, NFD, Prepend, Replace, Strip, and a Sequence of them; null: no change. Throws Error for others.
Normalizer make_normalizer(const nlohmann::json& description);

// Replace, for normalizers and decoders: {"String": ..} or {"Regex": ..}, and the replacement.
Normalizer make_replacement(const nlohmann::json& description);

}  // namespace tokenizer
