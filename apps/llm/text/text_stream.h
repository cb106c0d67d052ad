// Streams new tokens as text: returns text as soon as its characters are complete.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace llm {

// The returned texts, concatenated, are the text of all tokens after that of the prompt. The text of a token may depend
// on the tokens before it (leading spaces), and a character may consist of several tokens.
class TextStream {
 public:
  TextStream(const tokenizer::Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt);
  std::string add(std::int64_t token);  // Complete characters so far, possibly none.
  std::string finish();                 // The remaining text, complete or not.

 private:
  std::string take(bool only_full);

  const tokenizer::Tokenizer& tokenizer_;
  // The tokens since the second-last returned text. The last of them may not have been returned.
  tokenizer::Ids window_;
  std::size_t emitted_ = 0;
};

}  // namespace llm
