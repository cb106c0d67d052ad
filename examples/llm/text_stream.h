// New tokens as text, told as soon as it is whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace llm {

// The texts that it gives, one after the other, are what all tokens say behind what the prompt says: a token's text
// may depend on those before it (spaces at the begin), and a character may come in several tokens.
class TextStream {
 public:
  TextStream(const tokenizer::Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt);
  std::string add(std::int64_t token);  // what is whole now, possibly nothing
  std::string finish();                 // what is left, whole or not

 private:
  std::string take(bool only_full);

  const tokenizer::Tokenizer& tokenizer_;
  // The tokens since the text before the last one that was told; those after it are not told yet.
  tokenizer::Ids window_;
  std::size_t emitted_ = 0;
};

}  // namespace llm
