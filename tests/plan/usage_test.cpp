// Invalid arguments of `plan` are one line and status 2.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "plan/program.h"
#include "support/captured.h"
#include "support/data.h"
#include "support/folder.h"
#include "train/program.h"

namespace plan {
namespace {

using Words = std::vector<std::string>;

TEST(PlanUsage, EachInvalidArgumentIsOneLine) {
  for (const auto& [more, message] : std::vector<std::pair<Words, std::string>>{
           {{"--microbatches", "0"}, "--microbatches: Value 0 not in range 1 to"},
           {{"--microbatches", "4,-3"}, "--microbatches: Value -3 not in range 1 to"},
           {{"--most-runs", "0"}, "--most-runs: Value 0 not in range 1 to"},
           {{"--most-runs", "-1"}, "--most-runs: Value -1 not in range 1 to"},
           {{"--memory-limit", "-1"}, "--memory-limit: "},
           {{"--memory-reserve", "-1"}, "--memory-reserve: "},
           {{"--memory-reserve", "1000"},
            "--memory-reserve: expected less than the memory of a rank, 85.5 GB, got 1e+03"},
           {{"--float8", "maybe"}, "--float8: maybe not in"},
           {{"--float8", "any", "--hardware", "a100"},
            "--float8 any: the hardware table 'a100' has no rates of 'product float8'"},
           {{"--offload", "maybe"}, "--offload: maybe not in"},
           {{"--optimizer", "sgd"}, "--optimizer: sgd not in"},
           {{"--parameters", "bf16", "--precision", "float32"}, "--parameters bf16 needs --precision bf16"},
           {{"--ep", "0"}, "--ep: Value 0 not in range 1 to"},
           {{"--hardware", "nosuch"}, "cannot read the hardware table nosuch"},
           {{"--schedule", "foo"}, "--schedule: foo not in"},
           {{"--recompute", "some"}, "--recompute: some not in"},
           {{"--precision", "fp9"}, "--precision: fp9 not in"},
           {{"--mesh", "foo=8"}, "--mesh: expected each of"},
           {{"--mesh", "shard=4"}, "has 4 ranks, but --ranks is 8"},
           {{"--model", "/nosuch"}, "--preset excludes --model"},
       }) {
    Words words = {"plan", "search", "--preset", "llama3-8b", "--ranks", "8", "--batch", "64"};
    words.insert(words.end(), more.begin(), more.end());
    const auto [status, out, error] = dtensor::test::run_captured(words, run_program);
    EXPECT_EQ(status, 2) << more[0] << " " << more[1] << ": " << error;
    EXPECT_EQ(error.rfind("plan: ", 0), 0U) << error;
    EXPECT_NE(error.find(message), std::string::npos) << message << ": " << error;
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  }
}

// What `train --plan FILE` prints for a plan in which the first `from` is replaced.
dtensor::test::ProgramOutput train_with_plan(const std::string& from, const std::string& to) {
  std::ostringstream text;
  text << std::ifstream(dtensor::test::source_path("tests/data/plan_tp2.json")).rdbuf();
  std::string plan = text.str();
  const auto at = plan.find(from);
  TORCH_CHECK(at != std::string::npos, from);
  const dtensor::test::Folder folder;
  std::ofstream(folder / "plan.json") << plan.replace(at, from.size(), to);
  const Words words = {"train",
                       "--data",
                       dtensor::test::data_path("oracles/transformer.json"),
                       "--batch",
                       "4",
                       "--seq",
                       "8",
                       "--ranks",
                       "2",
                       "--steps",
                       "1",
                       "--plan",
                       folder / "plan.json"};
  return dtensor::test::run_captured(
      words, [](int argc, char** argv) { return train::run_program(train::Kind::dense, argc, argv); });
}

TEST(PlanUsage, EachInvalidFieldOfAPlanFileIsOneLine) {
  EXPECT_EQ(train_with_plan("none", "none").status, 0);
  for (const auto& [from, to, message] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"\"none\"", "\"selective\"", "`train` recomputes blocks or nothing; `llm train` supports \"selective\""},
           {"\"none\"", "\"fully\"", "\"none\", \"selective\" or \"full\", got \"fully\""},
           {"{", "{ \"accumulate\": \"some\",", "to be \"sharded\" or \"unsharded\", got \"some\""},
           {"\"none\"", "3", "is not a plan"},
           {"recompute", "recompte", "is not a plan"},
           {"\"tp\": 2", "\"tp\": -2", "tp"},
           {"\"tp\": 2", "\"tp\": 0", "tp"},
           {"\"microbatches\": 1", "\"microbatches\": 0", "expected 1 to 65536 microbatches, got 0"},
           {"\"tp\": 2", "\"tp\": \"2\"", "is not a plan"},
           {"\"tp\": 2", "\"tp\": 3",
            "the layout tp=3 does not fit the model: the 4 heads of keys are not a multiple of tp"},
           {"\"tp\": 2", "\"tp\": 2, \"ep\": 2",
            "the layout tp=2,ep=2 does not fit the model: the model has no experts for ep"},
           {"{", "[", "is not a plan"},
           {"{", "{ \"cpu_offload\": true,", "got \"cpu_offload\""},
           {"{", "{ \"offload\": true,", "`train` keeps parameters on the device; `llm train` supports \"offload\""},
           {"{", "{ \"offload\": \"yes\",", "is not a plan"},
           {"{", "{ \"optimizer\": \"sgd\",", "to be \"adamw\" or \"muon\", got \"sgd\""},
           {"{", "{ \"parameters\": \"bfloat16\",", "\"parameters\" of \"bfloat16\" need \"bf16\": true"},
           {"\"bf16\": false", "\"bf16\": true, \"parameters\": \"bfloat16\"", "`llm train` supports \"parameters\""},
       }) {
    const auto [status, out, error] = train_with_plan(from, to);
    EXPECT_EQ(status, 2) << to << ": " << error;
    EXPECT_EQ(error.rfind("train: ", 0), 0U) << error;
    EXPECT_NE(error.find(message), std::string::npos) << to << ": " << error;
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  }
}

}  // namespace
}  // namespace plan
