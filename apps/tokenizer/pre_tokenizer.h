// Pre-tokenizers of tokenizer.json: split a text into pieces that a model encodes separately.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tokenizer {

struct Piece {
  std::string text;
  bool begins = false;  // Starts with the first character of the text.
};
using Pieces = std::vector<Piece>;
using PreTokenizer = std::function<Pieces(const Piece&)>;

// ByteLevel, Split, Metaspace, Digits, and a Sequence of them; null: one piece. Throws Error for others.
PreTokenizer make_pre_tokenizer(const nlohmann::json& description);

// GPT-2 represents a byte by a printable character: itself if it is printable in Latin-1, else the next free one from
// 256 on.
const std::array<std::uint32_t, 256>& printable_bytes();

}  // namespace tokenizer
