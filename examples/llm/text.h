// Texts as tokens: files, folders and JSONL, by the model's own tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hf_config.h"
#include "tokenizer/tokenizer.h"
#include "train/data.h"

namespace llm {

// FOLDER/tokenizer.json. Throws UsageError where it is missing or of a kind that is not served.
tokenizer::Tokenizer read_tokenizer(const std::string& folder);

// The tokens of all files, one after the other: text files as they are, of each line of a .jsonl file its `field`, a
// text or a list of ids. After each file and line comes the token that ends a text, where the family has one. The
// tokenizer is read where there is a text. Throws UsageError with file and line, and with the flag that names them.
std::vector<std::int32_t> read_tokens(const std::vector<std::string>& paths, const std::string& field,
                                      const Family& family, const std::string& folder,
                                      const std::string& flag = "--data");

}  // namespace llm
