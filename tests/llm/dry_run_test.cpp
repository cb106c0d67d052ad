// `llm train --dry-run` predicts the run that it replaces, from config.json alone.
#include <gtest/gtest.h>

#include <fstream>

#include "dtensor/dry_run.h"
#include "llm/commands/train.h"
#include "recorded.h"
#include "support/folder.h"

namespace {

nlohmann::json report_of(llm::Options options, const std::string& file) {
  options.train.dry_run_json = file;
  testing::internal::CaptureStdout();
  EXPECT_EQ(llm::report_dry_run(options, llm::read_family(options.model)), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout().find("loss"), std::string::npos);  // its numbers are invented
  std::ifstream in(file);
  return nlohmann::json::parse(in);
}

TEST(LlmDryRun, MemoryLimitAndMesh) {
  const dtensor::test::Folder folder;
  const std::string family = recorded::families().front();
  std::ofstream(folder / "config.json") << std::ifstream(recorded::folder(family) + "/config.json").rdbuf();
  llm::Options options;
  options.model = folder.path();
  options.train.batch = 4, options.train.seq = 8;
  options.mesh = llm::MeshSizes{};
  const auto alone = report_of(options, folder / "alone.json");
  EXPECT_EQ(alone.at("collectives").size(), 0u) << alone;
  options.mesh = llm::MeshSizes{.shard = 4};
  const auto sharded = report_of(options, folder / "sharded.json");
  EXPECT_GT(sharded.at("collectives").size(), 0u) << sharded;
  EXPECT_LT(sharded.at("peak_bytes").get<double>(), alone.at("peak_bytes").get<double>());
  options.train.memory_limit = 1e-6;
  EXPECT_EQ(llm::report_dry_run(options, llm::read_family(options.model)), 1);
}

}  // namespace
