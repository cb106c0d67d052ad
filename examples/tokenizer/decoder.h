// From tokens to text: the decoders of tokenizer.json.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tokenizer {

using Tokens = std::vector<std::string>;
using Decoder = std::function<Tokens(Tokens)>;

// ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, and a Sequence of them; null: tokens with spaces between.
// What is decoded is all of them together. Bytes that are no UTF-8 stay as they are. Throws Error for others.
Decoder make_decoder(const nlohmann::json& description);

}  // namespace tokenizer
