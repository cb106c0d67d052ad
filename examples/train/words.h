// How GPT-2 cuts a text into words before it is encoded.
#pragma once

#include <string_view>
#include <vector>

namespace train {

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+: the words, which together are the text.
std::vector<std::string_view> words_of(std::string_view text);

}  // namespace train
