// Tokenizers give the results of the Python package `tokenizers` (recorded by tools/tokenizer/make.py) for one file of
// each family of models, and refuse unsupported files.
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/data.h"
#include "support/folder.h"
#include "tokenizer/unicode.h"

namespace {

using nlohmann::json;
using tokenizer::Ids;
using tokenizer::Tokenizer;

json read(const std::string& path) { return json::parse(std::ifstream(path)); }

std::string path_of(const std::string& family) {
  return family == "gpt2" ? dtensor::test::source_path("apps/train/tokenizer.json")
                          : dtensor::test::data_path("tokenizer/" + family + ".json");
}

const json& recorded() {
  static const json cases = read(dtensor::test::data_path("tokenizer/cases.json"));
  return cases;
}

class Family : public testing::TestWithParam<const char*> {
 protected:
  const json& expected() const { return recorded().at("families").at(GetParam()); }
  const Tokenizer own = Tokenizer::read(path_of(GetParam()));
};

TEST_P(Family, MatchesThePythonPackage) {
  const auto& texts = recorded().at("texts");
  ASSERT_GT(texts.size(), 100U);
  EXPECT_EQ(own.size(), expected().at("size"));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const auto ids = own.encode(text);
    EXPECT_EQ(ids, expected().at("ids")[i].get<Ids>()) << text;
    const auto again = expected().at("texts")[i].get<std::string>();
    if (again.find("\uFFFD") == std::string::npos) {  // Here, bytes that are not valid UTF-8 are kept.
      EXPECT_EQ(own.decode(ids), again) << text;
    }
  }
}

TEST_P(Family, AddsAndSkipsSpecialTokens) {
  EXPECT_EQ(own.encode("Hello, world!", true), expected().at("framed").get<Ids>());
  EXPECT_EQ(own.decode(own.encode("a<s>b</s>", true), false), expected().at("without_special").get<std::string>());
  EXPECT_EQ(own.decode({-1, 1 << 20}), "");
}

INSTANTIATE_TEST_SUITE_P(All, Family,
                         testing::Values("gpt2", "llama2", "mistral", "gemma", "llama3", "qwen", "tekken", "deepseek",
                                         "unigram", "unigram_bytes"),
                         [](const auto& info) { return std::string(info.param); });

RC_GTEST_PROP(Tokenizer, AnyBytesRoundTripIfTheVocabularyHasAllBytes, (const std::string& bytes)) {
  for (const char* family : {"gpt2", "llama3", "tekken", "deepseek"}) {
    const auto own = Tokenizer::read(path_of(family));
    const bool trims = bytes.find("<mask>") != std::string::npos;
    RC_ASSERT(trims || own.decode(own.encode(bytes)) == bytes);
  }
}

// The text is one piece. Encoding must take linear rather than quadratic time.
TEST(Tokenizer, LongTextOfOnePiece) {
  const auto own = Tokenizer::read(path_of("llama2"));
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "words and more ";
  EXPECT_EQ(own.decode(own.encode(text)), text);
}

// Properties of the forms with random characters: composition is idempotent, and both forms have the same
// decomposition.
RC_GTEST_PROP(Normalization, FormsAreConsistent, ()) {
  const auto code =
      rc::gen::oneOf(rc::gen::inRange<std::uint32_t>(1, 0x500), rc::gen::inRange<std::uint32_t>(0x1100, 0x1200),
                     rc::gen::inRange<std::uint32_t>(0x1E00, 0x2000), rc::gen::inRange<std::uint32_t>(0xAC00, 0xD7A4));
  std::string text;
  for (const auto c : *rc::gen::container<std::vector<std::uint32_t>>(code)) tokenizer::append(text, c);
  const auto short_form = tokenizer::composed(text), long_form = tokenizer::decomposed(text);
  RC_ASSERT(tokenizer::composed(short_form) == short_form);
  RC_ASSERT(tokenizer::composed(long_form) == short_form);
  RC_ASSERT(tokenizer::decomposed(short_form) == long_form);
  RC_ASSERT(tokenizer::decomposed(long_form) == long_form);
}

TEST(Normalization, MatchesUnicodeExamples) {
  EXPECT_EQ(tokenizer::composed("A\u030a"), "\u00c5");
  EXPECT_EQ(tokenizer::composed("\u212b"), "\u00c5");                // A sign that stands for a letter.
  EXPECT_EQ(tokenizer::composed("q\u0307\u0323"), "q\u0323\u0307");  // Marks in the order of their classes.
  EXPECT_EQ(tokenizer::composed("\u0958"), "\u0915\u093c");          // Excluded from composition.
  EXPECT_EQ(tokenizer::composed("\u1112\u1161\u11ab"), "\ud55c");    // Hangul
  EXPECT_EQ(tokenizer::composed("a\u0302\u0301"), "\u1ea5");         // Composes twice.
  EXPECT_EQ(tokenizer::composed("a\u0330\u0301"), "\u00e1\u0330");   // Across a mark of another class.
  EXPECT_EQ(tokenizer::composed("a\u0305\u0301"), "a\u0305\u0301");  // Not across a mark of the same class.
  EXPECT_EQ(tokenizer::composed("\xff\xcc"
                                "a\u030a"),
            "\xff\xcc\u00e5");  // Invalid bytes are kept.
}

using dtensor::test::Folder;

std::string write(const Folder& folder, const std::string& name, const std::string& text) {
  std::ofstream(folder / name) << text;
  return folder / name;
}

// Without a vocabulary, ids are those of GPT-2: 256 bytes starting with '!', one for each merge, and the end-of-text
// token.
TEST(Tokenizer, ReadsMergesWithoutVocabulary) {
  const Folder folder;
  const auto path =
      write(folder, "merges.txt", "#version: 0.2\nl o\nlo w\n\u0120 low\n");  // U+0120 stands for a space.
  const auto own = Tokenizer::read(path);
  EXPECT_EQ(own.size(), 256 + 3 + 1);
  EXPECT_EQ(own.encode("low low!<|endoftext|>"), (Ids{257, 258, 0, 259}));
  EXPECT_EQ(Tokenizer::read(folder.str()).size(), 260);
  write(folder, "vocab.json", R"({"l": 300, "lo": 5})");
  EXPECT_THROW(Tokenizer::read(path), tokenizer::Error);  // Merges of tokens without an id.
}

std::string refusal(const std::string& text) {
  const Folder folder;
  try {
    Tokenizer::read(write(folder, "tokenizer.json", text));
  } catch (const tokenizer::Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Tokenizer, UnsupportedFilesAreErrors) {
  const auto good = read(path_of("llama3"));
  const auto with = [&](const char* pointer, const json& value) {
    auto changed = good;
    changed[json::json_pointer(pointer)] = value;
    return refusal(changed.dump());
  };
  const auto with_pattern = [&](const char* pattern) {
    return with("/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", pattern}});
  };
  const std::pair<std::string, const char*> refused[] = {
      {refusal("{"), "expected a JSON object"},
      {refusal("{}"), "not a valid tokenizer.json"},
      {with("/model/type", "WordPiece"), "model of type WordPiece is not supported"},
      {with("/model/dropout", 0.5), "dropout 0.5 is not supported"},
      {with("/pre_tokenizer", {{"type", "BertPreTokenizer"}}), "pre-tokenizer of type BertPreTokenizer"},
      {with("/normalizer", {{"type", "Precompiled"}}), "normalizer of type Precompiled"},
      {with("/decoder", {{"type", "WordPiece"}}), "decoder of type WordPiece"},
      {with("/post_processor", {{"type", "BertProcessing"}}), "post-processor of type BertProcessing"},
      {with("/model/merges", {"ab"}), "expected a merge of two tokens"},
      {with("/model/merges", {"q qqq"}), "expected the token 'qqq' in the vocabulary"},
      {with("/model/vocab/new", 1 << 30), "expected an id in [0, 2^24) for 'new', got 1073741824"},
      {with("/added_tokens/0/single_word", true), "single_word"},
      {with_pattern("(a"), "'(a' is invalid (Oniguruma): end pattern with unmatched parenthesis"},
      {with_pattern("a)"), "unmatched close parenthesis"},
      {with_pattern("[a"), "premature end of char-class"},
      {with_pattern("\\p{Q}"), "invalid character property name {Q}"},
  };
  EXPECT_EQ(refusal(good.dump()), "none");
  for (const auto& [reported, expected] : refused)
    EXPECT_NE(reported.find(expected), std::string::npos) << reported << "\n" << expected;
}

}  // namespace
