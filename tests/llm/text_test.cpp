// Text input and output: prompts, training texts and JSONL lines through the model's tokenizer; generated text is
// streamed in complete characters.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "llm/program.h"
#include "llm/text/text.h"
#include "llm/text/text_stream.h"
#include "recorded.h"
#include "support/folder.h"
#include "tokenizer/unicode.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A model folder with a tokenizer of its 64 ids: letters, some pairs and, for all other characters, bytes.
class ModelFolder : public dtensor::test::Folder {
 public:
  explicit ModelFolder(const std::string& family) {
    for (const auto& entry : fs::directory_iterator(recorded::folder(family))) fs::copy(entry.path(), path());
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "\u2581", "th", "he", "\u2581t"};
    for (char c = 'a'; c <= 'z'; ++c) tokens.emplace_back(1, c);
    for (const char* byte : {"E6", "BC", "A2", "C3", "A9", "F0", "9F", "98", "80", "0A"})
      tokens.push_back(std::string("<0x") + byte + ">");
    while (tokens.size() < 64) tokens.push_back("," + std::to_string(tokens.size()));
    json vocabulary;
    for (std::size_t i = 0; i < tokens.size(); ++i) vocabulary[tokens[i]] = i;
    const auto special = [](const char* text, int id) {
      return json{{"content", text}, {"id", id}, {"special", true}};
    };
    write("tokenizer.json",
          {{"added_tokens", {special("<s>", 1), special("</s>", 2)}},
           {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}},
           {"post_processor", json::parse(R"({"type": "TemplateProcessing",
                                "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
                                "special_tokens": {"<s>": {"ids": [1]}}})")},
           {"decoder", json::parse(R"({"type": "Sequence", "decoders": [{"type": "Replace",
                                "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]})")},
           {"model",
            {{"type", "BPE"},
             {"vocab", vocabulary},
             {"byte_fallback", true},
             {"unk_token", "<unk>"},
             {"fuse_unk", true},
             {"merges", {"t h", "h e", "\u2581 t"}}}}});
  }
  std::string write(const std::string& name, const json& value) const { return write_text(name, value.dump()); }
  std::string write_text(const std::string& name, const std::string& text) const {
    std::ofstream(*this / name) << text;
    return *this / name;
  }
};

struct Output {
  int status;
  std::string text;
};

Output run(std::vector<std::string> words) {
  words.insert(words.begin(), "llm");
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  testing::internal::CaptureStdout();
  const int status = llm::run_program(static_cast<int>(arguments.size()), arguments.data());
  return {status, testing::internal::GetCapturedStdout()};
}

// Prints the prompt, the decoded tokens and their ids; the prompt's ids give the same tokens.
TEST(Text, GenerationIsEqualOnEveryMesh) {
  const ModelFolder folder("llama2");
  const auto tokenizer = llm::read_tokenizer(folder.str());
  const std::string prompt = "the thé 漢";
  const auto ids = tokenizer.encode(prompt, true);
  EXPECT_EQ(ids, (tokenizer::Ids{1, 4, 11, 3, 4, 36, 37, 3, 33, 34, 35}));
  std::vector<std::string> reported;
  for (const char* mesh : {"tp=1", "tp=2"}) {
    const std::vector<std::string> common = {"generate", "--model", folder.str(), "--max-new-tokens",
                                             "20",       "--mesh",  mesh,         "--print-tokens"};
    auto by_text = common, by_ids = common;
    by_text.insert(by_text.end(), {"--prompt", prompt});
    by_ids.insert(by_ids.end(), {"--tokens", c10::Join(",", ids)});
    const auto text = run(by_text), numbers = run(by_ids);
    ASSERT_EQ(text.status, 0);
    auto all = ids;
    std::istringstream list(numbers.text);
    for (std::string id; std::getline(list, id, ',');) all.push_back(std::stoi(id));
    EXPECT_EQ(all.size(), ids.size() + 20);
    EXPECT_EQ(text.text, tokenizer.decode(all, false) + "\n" + numbers.text);
    reported.push_back(text.text);
  }
  EXPECT_EQ(reported[0], reported[1]);
}

TEST(Text, SplitCacheTakesTheAxis) {
  const auto asked = [](const char* axis) {
    std::string words[] = {"llm", "generate", "--model", "m", "--tokens", "1", "--mesh", "dp=2", "--split-cache", axis};
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    std::optional<int> status;
    return llm::parse_args(static_cast<int>(argv.size()), argv.data(), status).sample.split_cache;
  };
  EXPECT_EQ(asked("dp"), "dp");
  EXPECT_THROW(asked("tp"), llm::UsageError);  // tp splits heads
}

TEST(Text, FilesAndLinesBecomeTokensWithBeginAndEnd) {
  const ModelFolder folder("llama2");
  auto family = llm::read_family(folder.str());
  family.end_tokens = {2};
  const auto tokens = [&](const std::string& path, const char* field = "text") {
    return llm::read_tokens({path}, field, family, folder.str());
  };
  const auto regular = folder.write_text("corpus.txt", "the a");
  const auto lines = folder.write_text("corpus.jsonl", R"({"text": "the", "said": "a b"})"
                                                       "\n\n"
                                                       R"({"text": [7, 8], "said": "c"})"
                                                       "\n");
  EXPECT_EQ(tokens(regular), (std::vector<std::int32_t>{1, 4, 11, 3, 7, 2}));
  EXPECT_EQ(tokens(lines), (std::vector<std::int32_t>{1, 4, 11, 2, 7, 8, 2}));
  EXPECT_EQ(tokens(lines, "said"), (std::vector<std::int32_t>{1, 7, 3, 8, 2, 1, 9, 2}));
  EXPECT_THROW(tokens(lines, "other"), llm::UsageError);
  // End-to-end: train on each kind of file, with the field given by a flag.
  for (const auto& [path, field] : {std::pair(regular, "text"), std::pair(lines, "said")}) {
    const auto out = run({"train", "--model", folder.str(), "--data", path, "--text-field", field, "--steps", "2",
                          "--seq", "4", "--batch", "2", "--mesh", "shard=2", "--log", folder.str() + "/log.jsonl"});
    EXPECT_EQ(out.status, 0);
    std::ifstream log(folder.str() + "/log.jsonl");
    EXPECT_EQ(std::count(std::istreambuf_iterator<char>(log), {}, '\n'), 2);  // steps
  }
  EXPECT_EQ(run({"train", "--model", folder.str(), "--data", lines, "--text-field", "other"}).status, 2);
}

// Values that a parser would round to an id are refused. The error names the flag of the file.
TEST(Text, InvalidIdIsReportedWithFlagAndLine) {
  const ModelFolder folder("llama2");
  const auto fine = folder.write_text("fine.jsonl", R"({"text": [3, 4, 5, 6, 7, 8, 9]})");
  const auto train = [&](const std::string& data, const std::string& eval) {
    testing::internal::CaptureStderr();
    const auto ended = run({"train", "--model", folder.str(), "--data", data, "--eval", eval, "--steps", "1", "--seq",
                            "4", "--batch", "2"});
    return std::pair(ended.status, testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(train(fine, fine).first, 0);
  for (const char* id : {"1.7", "3.0", "-1", "64", "true", "null", "\"7\"", "18446744073709551615", "1e300"}) {
    const auto bad = folder.write_text("bad.jsonl", std::string("\n{\"text\": [3, 4, 5, 6, 7, ") + id + "]}\n");
    EXPECT_EQ(train(bad, fine).first, 2) << id;
    const auto [status, error] = train(fine, bad);
    EXPECT_EQ(status, 2) << id;
    EXPECT_EQ(error.rfind("llm: --eval: " + bad + ":2: ", 0), 0U) << error;
  }
  EXPECT_EQ(train(fine, "/no/such").second, "llm: --eval: no file or folder /no/such\n");
}

TEST(Text, FlagsWithoutEffectAreRefused) {
  for (const auto& [command, flag, value, needs] : {std::tuple("train", "--lora-alpha", "8", "--lora-rank"),
                                                    {"train", "--lora-targets", "v_proj", "--lora-rank"},
                                                    {"train", "--eval-every", "2", "--eval"},
                                                    {"generate", "--top-p", "0.9", "a --temperature above 0"},
                                                    {"generate", "--seed", "7", "a --temperature above 0"}}) {
    const bool trains = std::string_view(command) == "train";
    std::string words[] = {"llm", command, "--model", "m", trains ? "--data" : "--tokens", trains ? "d" : "1",
                           flag,  value};
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    std::optional<int> ended;
    try {
      llm::parse_args(static_cast<int>(argv.size()), argv.data(), ended);
      ADD_FAILURE() << flag;
    } catch (const llm::UsageError& error) {
      EXPECT_EQ(std::string(error.what()).rfind(std::string(flag) + " needs " + needs, 0), 0U) << error.what();
    }
  }
}

bool ends_with_complete_character(const std::string& text) {
  std::size_t at = 0;
  std::uint32_t last = 0;
  while (at < text.size()) {
    const auto c = tokenizer::character_at(text, at);
    last = c.code, at = c.end;
  }
  return last < tokenizer::kInvalidByte;
}

// The parts of a stream concatenate to the full text for any tokens. If the text is valid UTF-8, each part is.
RC_GTEST_PROP(Text, PartsOfAStreamConcatenateToTheText, ()) {
  const std::string family = *rc::gen::element("llama2", "mistral", "gemma", "llama3", "unigram_bytes");
  static std::map<std::string, tokenizer::Tokenizer> read;
  auto found = read.find(family);
  if (found == read.end()) {
    const auto path = dtensor::test::data_path("tokenizer/" + family + ".json");
    found = read.emplace(family, tokenizer::Tokenizer::read(path)).first;
  }
  const auto& own = found->second;
  tokenizer::Ids ids;
  const bool text = *rc::gen::arbitrary<bool>();
  if (text) {
    for (const auto& word : *rc::gen::container<std::vector<std::string>>(
             rc::gen::element<std::string>("the ", "é", "漢字", "😀", " ", "\n", "  a", "<s>", "▁", "xyz")))
      for (const auto id : own.encode(word)) ids.push_back(id);
  } else {
    ids = *rc::gen::container<tokenizer::Ids>(rc::gen::inRange(0, static_cast<std::int32_t>(own.size())));
  }
  const std::size_t cut = ids.empty() ? 0 : *rc::gen::inRange<std::size_t>(0, ids.size());
  const std::vector<std::int64_t> prompt(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
  const auto before = own.decode({prompt.begin(), prompt.end()}, false);
  llm::TextStream stream(own, prompt);
  std::string reported;
  for (std::size_t i = cut; i < ids.size(); ++i) {
    const auto part = stream.add(ids[i]);
    reported += part;
    RC_ASSERT(!text || part.empty() || ends_with_complete_character(before + reported));
  }
  reported += stream.finish();
  RC_ASSERT(before + reported == own.decode(ids, false));
}

}  // namespace
