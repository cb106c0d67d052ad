// Texts as tokens: files, folders and JSONL, with the model's tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llm/hf/hf_config.h"
#include "tokenizer/tokenizer.h"
#include "train/data/data.h"

namespace llm {

// FOLDER/tokenizer.json. Throws UsageError if it is missing or not supported.
tokenizer::Tokenizer read_tokenizer(const std::string& folder);

// The concatenated tokens of all files. A text file is one text; each line of a .jsonl file has a text or a list of ids
// in its `field`. The end-of-text token, if the family has one, follows each file and line. The tokenizer is read only
// if there is a text. Throws UsageError with the flag, the file and the line.
std::vector<std::int32_t> read_tokens(const std::vector<std::string>& paths, const std::string& field,
                                      const Family& family, const std::string& folder,
                                      const std::string& flag = "--data");

}  // namespace llm
