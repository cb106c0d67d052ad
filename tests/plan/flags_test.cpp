// Flags of `plan search` that choose layouts and files change what a search tries and writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dtensor/estimate.h"
#include "plan/program.h"
#include "program_data.h"
#include "support/captured.h"
#include "support/folder.h"

namespace plan {
namespace {

using Words = std::vector<std::string>;

// What `plan search` prints for a small model on two ranks.
dtensor::test::ProgramOutput search(const dtensor::test::Folder& folder, const Words& more) {
  std::ofstream(folder / "config.json") << R"({"model_type": "llama", "vocab_size": 64, "hidden_size": 32,
      "intermediate_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2})";
  Words words = {"plan",  "search", "--model",     folder.str(), "--ranks",        "2", "--batch", "64",
                 "--seq", "4096",   "--recompute", "none",       "--microbatches", "2"};
  if (std::find(more.begin(), more.end(), "--hardware") == more.end()) {
    words.insert(words.end(), {"--hardware", "h100"});
  }
  words.insert(words.end(), more.begin(), more.end());
  return dtensor::test::run_captured(words, run_program);
}

TEST(PlanFlags, ChooseTheLayoutsThatAreTried) {
  for (const auto& [more, layouts] : std::vector<std::pair<Words, int>>{
           {{"--mesh", "shard=2"}, 4},
           {{"--mesh", "shard=2", "--reshard-after-forward", "false"}, 2},
           {{"--mesh", "shard=2", "--accumulate", "sharded"}, 2},
           {{"--mesh", "shard=2", "--accumulate", "unsharded", "--reshard-after-forward", "true"}, 1},
           {{"--mesh", "pp=2", "--accumulate", "any"}, 2},  // a pipeline reduces once
           {{"--mesh", "shard=2", "--float8", "any"}, 8},
           {{"--mesh", "shard=2", "--offload", "any"}, 6},
           {{"--mesh", "shard=2", "--offload", "true"}, 2},
           {{"--mesh", "shard=2", "--optimizer", "any"}, 8},
           {{"--mesh", "shard=2", "--parameters", "any"}, 8},
           {{"--mesh", "shard=2", "--parameters", "any", "--precision", "any"}, 12},
           {{"--mesh", "shard=2", "--float8", "true", "--parameters", "bf16", "--optimizer", "muon"}, 4},
           {{"--mesh", "pp=2", "--schedule", "interleaved"}, 2},
           {{"--mesh", "pp=2", "--schedule", "interleaved", "--chunks", "2,4"}, 4},
           {{"--mesh", "pp=2", "--schedule", "1f1b,zb-h1", "--chunks", "2,4"}, 4}}) {
    const dtensor::test::Folder folder;
    const auto [status, out, error] = search(folder, more);
    EXPECT_NE(out.find(": " + std::to_string(layouts) + " layouts\n"), std::string::npos) << out << error;
  }
}

TEST(PlanFlags, OffloadingNeedsRatesOfTheHost) {
  const dtensor::test::Folder folder;
  auto hardware = dtensor::HardwareModel::read(program_data("plan/hardware/h100.json"));
  hardware.rates.erase("transfer");
  std::ofstream(folder / "h.json") << hardware.json();
  EXPECT_EQ(search(folder, {"--hardware", folder / "h.json", "--offload", "any"}).error,
            "plan: --offload any: expected rates of 'host' and 'transfer' in the hardware table 'h100', got none of "
            "'transfer'\n");
}

// No layout of the small model fits into the rest of the memory.
TEST(PlanFlags, ReserveIsSubtractedFromTheLimit) {
  const dtensor::test::Folder folder;
  const auto status = [&](const char* reserve) {
    return search(folder, {"--mesh", "shard=2", "--memory-limit", "100", "--memory-reserve", reserve}).status;
  };
  EXPECT_EQ(status("0"), 0);
  EXPECT_EQ(status("99.9999"), 1);
  const Words too_little = {"--mesh", "shard=2", "--memory-limit", "5"};  // the table's reserve is 5.5 GB
  EXPECT_EQ(search(folder, too_little).error,
            "plan: --memory-reserve: expected less than the memory of a rank, 5 GB, got 5.5\n");
}

TEST(PlanFlags, RunsOfAnExhaustiveSearchAreAllLayouts) {
  const dtensor::test::Folder folder;
  const auto lines = [&](const Words& more) {
    Words words = {"--runs", folder / "runs.csv"};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_EQ(search(folder, words).status, 0);
    std::ifstream in(folder / "runs.csv");
    return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
  };
  EXPECT_EQ(lines({"--exhaustive"}), 1 + 14);
  EXPECT_LT(lines({}), 1 + 14);  // bounds decide the others
  const auto [status, out, error] = search(folder, {"--mesh", "shard=2", "--runs", "/no/such/folder/runs.csv"});
  EXPECT_EQ(status, 2) << out;
  EXPECT_EQ(error, "plan: --runs: cannot write /no/such/folder/runs.csv\n");
}

}  // namespace
}  // namespace plan
