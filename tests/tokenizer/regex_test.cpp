// Regular expressions: compared with std::regex for common features, and with the Python package `tokenizers`.
#include "tokenizer/regex.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/data.h"
#include "tokenizer/error.h"

namespace {

using Found = std::vector<std::string>;

Found found(const std::string& pattern, const std::string& text) {
  Found all;
  for (const auto& [begin, end] : tokenizer::Regex(pattern).find_all(text))
    all.push_back(text.substr(begin, end - begin));
  return all;
}

// Expressions of a small grammar over a, b and c.
std::string random_pattern(int depth) {
  const auto kind = *rc::gen::inRange(0, depth == 0 ? 4 : 10);
  const auto sub = [&] { return random_pattern(depth - 1); };
  if (kind < 2) return std::string(1, static_cast<char>('a' + *rc::gen::inRange(0, 3)));
  if (kind == 2) return "[ab]";
  if (kind == 3) return "[^a]";
  if (kind == 4) return "(?:" + sub() + "|" + sub() + ")";
  if (kind == 5) return "(?:" + sub() + "){1,3}";
  if (kind == 6) return "(?:" + sub() + ")?" + sub();
  if (kind == 7) return "a(?:" + sub() + ")*?c";
  if (kind == 8) return sub() + "(?!" + sub() + ")";
  return sub() + sub();
}

RC_GTEST_PROP(Regex, MatchesStdRegex, ()) {
  const std::string pattern = random_pattern(2);
  // Short: nested repeats need exponential time in both implementations.
  const auto length = *rc::gen::inRange<std::size_t>(0, 12);
  const auto text = *rc::gen::container<std::string>(length, rc::gen::element('a', 'b', 'c'));
  Found expected;
  const std::regex theirs(pattern);
  for (std::sregex_iterator m(text.begin(), text.end(), theirs), end; m != end; ++m) {
    if (m->length() > 0) expected.push_back(m->str());
  }
  RC_ASSERT(found(pattern, text) == expected);
}

TEST(Regex, SupportsUnicodeClassesAndPossessiveRepeats) {
  EXPECT_EQ(found("\\p{Lu}\\p{Ll}+", "Ärger über ÖlÉ"), (Found{"Ärger", "Öl"}));
  EXPECT_EQ(found("[^\\s\\p{L}]+", "a1\u3000٣b —½c"), (Found{"1", "٣", "—½"}));
  EXPECT_EQ(found("\\P{L}", "aé1ж"), (Found{"1"}));
  EXPECT_EQ(found("(?i:'s|'ll)", "'S 'll 'Ll 'ſ 'x"), (Found{"'S", "'ll", "'Ll", "'ſ"}));
  EXPECT_EQ(found("[一-龥]{2}", "漢字かな漢"), (Found{"漢字"}));
  EXPECT_EQ(found("a++a", "aaa"), (Found{}));
  EXPECT_EQ(found("a+a", "aaa"), (Found{"aaa"}));
  EXPECT_EQ(found("\\x61\\u0062\\x{1F600}", "ab😀"), (Found{"ab😀"}));
  EXPECT_EQ(found("^a|c$", "abcac"), (Found{"a", "c"}));
  EXPECT_EQ(found("\\S+", "a\xff b"), (Found{"a\xff", "b"}));  // An invalid byte is a character.
  EXPECT_EQ(found("b",
                  "\xe6"
                  "b\xf0"),
            (Found{"b"}));  // The characters after it are found.
  EXPECT_EQ(found("\\s+(?!\\S)", std::string(100000, ' ') + "x").front().size(), 99999U);
}

// tools/tokenizer/make.py patterns
TEST(Regex, MatchesThePythonPackage) {
  const auto cases = nlohmann::json::parse(std::ifstream(dtensor::test::data_path("tokenizer/patterns.json")));
  ASSERT_GT(cases.size(), 30U);
  for (const auto& one : cases) {
    const std::string pattern = one.at("pattern"), text = one.at("text");
    if (one.at("found").is_null()) {
      EXPECT_THROW(tokenizer::Regex{pattern}, tokenizer::Error) << pattern;
    } else {
      EXPECT_EQ(found(pattern, text), one.at("found").get<Found>()) << pattern;
    }
  }
}

// Backtracking over exponentially many ways is limited.
TEST(Regex, TooMuchBacktrackingIsAnError) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "ab";
  try {
    found("^(?:a|b|ab)*$", text + "!");
    FAIL() << "no error";
  } catch (const tokenizer::Error& error) {
    EXPECT_NE(std::string(error.what()).find("retry-limit"), std::string::npos) << error.what();
  }
}

}  // namespace
