// Outputs of a resumed run: its log, plots and comparison cover the steps that it ran.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/captured.h"
#include "support/data.h"
#include "support/folder.h"
#include "train/layouts/compare.h"
#include "train/output/log.h"
#include "train/plots/plot.h"
#include "train/program.h"

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class ResumedOutputs : public testing::Test {
 protected:
  std::string path(const char* name) const { return folder_ / name; }

  int run(Words more, train::Kind program = train::Kind::dense) {
    Words words = {train::to_string(program),
                   "--hidden",
                   "16",
                   "--layers",
                   "1",
                   "--batch",
                   "4",
                   "--seq",
                   "8",
                   "--data",
                   dtensor::test::data_path("oracles/transformer.json")};
    words.insert(words.end(), more.begin(), more.end());
    const auto run = [&](int argc, char** argv) { return train::run_program(program, argc, argv); };
    const auto ended = dtensor::test::run_captured(words, run);
    out_ = ended.out, error_ = ended.error;
    return ended.status;
  }

  std::vector<std::int64_t> logged(const char* name = "log.jsonl") const {
    std::vector<std::int64_t> steps;
    std::ifstream in(path(name));
    for (std::string line; std::getline(in, line);) steps.push_back(nlohmann::json::parse(line).at("step"));
    return steps;
  }
  std::string content(const char* name) const {
    std::ifstream in(path(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const dtensor::test::Folder folder_;
  std::string error_, out_;
};

// The same command line starts and resumes the run, with one log.
TEST_F(ResumedOutputs, LogIsAppendedAfterEarlierSteps) {
  const Words always = {"--save",   path("run"), "--keep",         "2", "--save-every", "2",
                        "--resume", "--log",     path("log.jsonl")};
  const auto with_steps = [&](const char* steps) {
    Words words = always;
    words.insert(words.end(), {"--steps", steps});
    return run(words);
  };
  ASSERT_EQ(with_steps("3"), 0) << error_;
  ASSERT_EQ(with_steps("5"), 0) << error_;
  EXPECT_EQ(logged(), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(with_steps("5"), 2) << error_;  // No steps left; the log is kept.
  EXPECT_EQ(logged().size(), 5U);
  fs::remove_all(path("run") + "/step-00000005");  // As if killed before this save, while it wrote a line.
  std::ofstream(path("log.jsonl"), std::ios::app) << R"({"step":5,"lo)";
  ASSERT_EQ(with_steps("7"), 0) << error_;
  EXPECT_EQ(logged(), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6}));
  ASSERT_EQ(run({"--steps", "2", "--log", path("log.jsonl")}), 0);  // A new run.
  EXPECT_EQ(logged(), (std::vector<std::int64_t>{0, 1}));
}

TEST_F(ResumedOutputs, InvalidLogsAreReplaced) {
  for (const char* text :
       {"a letter\n", "[1]\n", "{\"step\":\"1\"}\n", "{\"step\":9}\n{\"step\":1}\n", "{\"step\":1}", ""}) {
    std::ofstream(path("log.jsonl")) << text;
    train::StepLog log(path("log.jsonl"));
    log.add({.step = 4});
    log.close();
    EXPECT_EQ(logged(), (std::vector<std::int64_t>{4})) << text;
  }
  train::StepLog full("/dev/full");
  testing::internal::CaptureStderr();
  full.add({.step = 4});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("training continues"), std::string::npos);
  EXPECT_THROW(full.close(), std::runtime_error);
}

// The tick labels of the step axis.
std::vector<double> steps_below(const std::string& svg) {
  std::vector<double> steps;
  const std::regex tick("text-anchor=\"middle\" >([0-9.]+)<");
  for (std::sregex_iterator it(svg.begin(), svg.end(), tick), end; it != end; ++it)
    steps.push_back(std::stod((*it)[1]));
  return steps;
}

TEST_F(ResumedOutputs, PlotsShowTheStepsOfTheRun) {
  ASSERT_EQ(run({"--steps", "20", "--save", path("run")}, train::Kind::experts), 0) << error_;
  ASSERT_EQ(run({"--steps", "30", "--load", path("run"), "--plot", path("loss.svg"), "--load-plot", path("load.svg")},
                train::Kind::experts),
            0)
      << error_;
  for (const char* name : {"loss.svg", "load.svg"}) {
    const auto steps = steps_below(content(name));
    ASSERT_GE(steps.size(), 2U) << name;
    EXPECT_GE(steps.front(), 20) << name;
    EXPECT_LE(steps.back(), 29) << name;
    EXPECT_GE(steps.back(), 25) << name;
  }
  EXPECT_NE(content("loss.svg").find(": 10 steps of"), std::string::npos);
}

// If training amplifies rounding, it did so before the first step of a resumed run. The reference curve sums a batch in
// another order.
TEST(ResumedRun, BoundIncludesRoundingOfEarlierSteps) {
  train::Options o;
  o.hidden = 16, o.layers = 1, o.batch = 4, o.seq = 8, o.steps = 80, o.lr = 0.2, o.warmup = 1;
  const auto corpus = train::Corpus::read({dtensor::test::data_path("oracles/transformer.json")}, o.seq);
  auto records = train::train_on_one_device(o, corpus, /*pieces=*/2);
  const auto full_tensor = train::compare_with_one_device(o, corpus, records);
  EXPECT_EQ(full_tensor.first_bound, 1e-5);  // Of step 0.
  EXPECT_TRUE(full_tensor.equal());
  records.erase(records.begin(), records.begin() + 70);
  const auto rest = train::compare_with_one_device(o, corpus, records);
  EXPECT_GT(rest.first, 1e-5);
  EXPECT_EQ(rest.first_step, 70);
  EXPECT_TRUE(rest.equal()) << rest.first << " " << rest.first_bound;
}

}  // namespace
