// The rule of every operator as text, so that changes of rules are readable differences.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "sharding_prop/rule_book/rule_list.h"
#include "support/data.h"

namespace dtensor::test {
namespace {

// tests/data/rules.golden has one line for every operator of the rule book. DTENSOR_RENEW=1 renews it; review the
// difference.
TEST(RulesGolden, TextsOfAllRulesAreUpToDate) {
  const std::string path = test::source_path("tests/data/rules.golden");
  std::ifstream file(path);
  std::set<std::string> want;
  for (std::string line; std::getline(file, line);) want.insert(line);
  std::vector<std::string> now = rule_strings();
  std::erase_if(now,
                [](const std::string& line) { return line.rfind("aten::", 0) != 0 && line.rfind("tag ", 0) != 0; });
  std::string difference;
  for (const std::string& line : now) {
    if (want.erase(line) == 0) difference += "+ " + line + "\n";
  }
  for (const std::string& line : want) difference += "- " + line + "\n";
  EXPECT_EQ(difference, "") << path;
  if (std::getenv("DTENSOR_RENEW") == nullptr) return;
  std::ofstream out(path);
  for (const std::string& line : now) out << line << '\n';
}

}  // namespace
}  // namespace dtensor::test
