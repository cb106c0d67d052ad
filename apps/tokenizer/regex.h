// Regular expressions of tokenizer.json. Oniguruma compiles and matches them, as in the Python package `tokenizers`, so
// patterns work as they do there.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct re_pattern_buffer;  // Oniguruma's compiled pattern.

namespace tokenizer {

class Regex {
 public:
  // Throws Error with the pattern and Oniguruma's reason.
  explicit Regex(const std::string& pattern);
  // Begin and end in bytes of each non-empty match. A byte that is not valid UTF-8 counts as one control character.
  // Throws Error if a match exceeds Oniguruma's limit of retries.
  std::vector<std::pair<std::size_t, std::size_t>> find_all(std::string_view text) const;

 private:
  std::string pattern_;
  std::shared_ptr<re_pattern_buffer> compiled_;
};

}  // namespace tokenizer
