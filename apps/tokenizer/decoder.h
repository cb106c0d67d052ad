// Decoders of tokenizer.json: from tokens to text.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tokenizer {

using Tokens = std::vector<std::string>;
using Decoder = std::function<Tokens(Tokens)>;

// ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, and a Sequence of them; null: tokens separated by spaces.
// Decodes all tokens together. Bytes that are not valid UTF-8 are kept. Throws Error for other types.
Decoder make_decoder(const nlohmann::json& description);

}  // namespace tokenizer
