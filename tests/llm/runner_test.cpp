// `llm train` has the flags of `train` for saving, resuming, interruption and logging.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "dtensor/checkpoint.h"
#include "llm/program.h"
#include "recorded.h"
#include "support/captured.h"
#include "support/folder.h"
#include "train/signals.h"

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class LlmTrain : public testing::Test {
 protected:
  LlmTrain() {
    std::ofstream text(path("text.jsonl"));
    for (int line = 0; line < 12; ++line) {
      nlohmann::json ids;
      for (int i = 0; i < 20; ++i) ids.push_back(3 + (7 * line + 5 * i + line * i) % 50);
      text << nlohmann::json{{"text", ids}}.dump() << "\n";
    }
  }

  std::string path(const std::string& name) const { return folder_ / name; }

  int run(const std::string& mesh, const Words& more, const std::string& model = recorded::folder("llama3")) const {
    Words words = {"llm",    "train", "--model", model, "--data",  path("text.jsonl"),
                   "--mesh", mesh,    "--seq",   "8",   "--dtype", "float64"};
    words.insert(words.end(), more.begin(), more.end());
    const auto ended = dtensor::test::run_captured(words, llm::run_program);
    error_ = ended.error, out_ = ended.out;
    return ended.status;
  }

  std::vector<double> losses(const std::string& log) const {
    std::vector<double> all;
    std::ifstream in(path(log));
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line).at("loss"));
    return all;
  }

  const dtensor::test::Folder folder_;
  mutable std::string error_, out_;
};

TEST_F(LlmTrain, ResumesFromNewestCheckpointOnAnotherMesh) {
  ASSERT_EQ(run("tp=2", {"--steps", "5", "--log", path("full.jsonl")}), 0) << error_;
  const Words keeps = {"--save", path("run"), "--keep", "2", "--resume"};
  const auto with = [&](Words more) {
    more.insert(more.end(), keeps.begin(), keeps.end());
    return more;
  };
  ASSERT_EQ(run("shard=2", with({"--steps", "3", "--save-every", "1", "--log", path("a.jsonl"), "--plot",
                                 path("loss.svg"), "--tensorboard", path("board")})),
            0)
      << error_;
  EXPECT_EQ(dtensor::checkpoint_steps(path("run")), (std::vector<std::int64_t>{3, 2}));
  EXPECT_TRUE(fs::file_size(path("loss.svg")) > 0 && !fs::is_empty(path("board")));
  ASSERT_EQ(run("tp=2", with({"--steps", "5", "--log", path("b.jsonl")})), 0) << error_;
  const auto full = losses("full.jsonl"), rest = losses("b.jsonl");
  auto both = losses("a.jsonl");
  both.insert(both.end(), rest.begin(), rest.end());
  ASSERT_EQ(both.size(), full.size());
  for (std::size_t i = 0; i < full.size(); ++i) EXPECT_NEAR(both[i], full[i], 1e-9) << i;
  EXPECT_EQ(run("tp=2", {"--steps", "5", "--keep", "2", "--save", path("run")}), 2);  // without --resume
  EXPECT_NE(error_.find("resume it with --resume"), std::string::npos) << error_;
}

// One command line serves the first start and every resumption, with one log and one axis.
TEST_F(LlmTrain, ResumedRunContinuesLogAndPlot) {
  const auto to = [&](const char* steps) {
    return run("tp=2", {"--steps", steps, "--save", path("run"), "--resume", "--log", path("log.jsonl"), "--plot",
                        path("loss.svg")});
  };
  ASSERT_EQ(to("8"), 0) << error_;
  ASSERT_EQ(to("12"), 0) << error_;
  EXPECT_EQ(losses("log.jsonl").size(), 12U);
  std::ifstream in(path("loss.svg"));
  const std::string svg((std::istreambuf_iterator<char>(in)), {});
  EXPECT_NE(svg.find(">11<"), std::string::npos);  // the last step on the axis
  EXPECT_EQ(svg.find(">0<"), std::string::npos);
}

TEST_F(LlmTrain, BitIdenticalRunsHaveOneHashOnEveryMesh) {
  const std::string label = "SHA-256 of parameters and optimizer states: ";
  std::string hash;
  for (const std::string mesh : {"tp=1", "tp=2", "shard=2", "shard=3", "dp=2,tp=2"}) {
    ASSERT_EQ(run(mesh, {"--steps", "3", "--bit-identical", "--log", path(mesh)}), 0) << error_;
    const auto found = out_.find(label);
    ASSERT_NE(found, std::string::npos) << out_;
    const auto digits = out_.substr(found + label.size(), 64);
    if (hash.empty()) hash = digits;
    EXPECT_EQ(digits, hash) << mesh;
    EXPECT_EQ(losses(mesh), losses("tp=1")) << mesh;
  }
  ASSERT_EQ(run("tp=2", {"--steps", "3"}), 0) << error_;
  EXPECT_EQ(out_.find(label), std::string::npos);
}

TEST_F(LlmTrain, SavesAndExitsOnSigterm) {
  std::atomic<bool> over{false};
  std::thread asks([&] {
    std::error_code none;
    const auto begun = [&] {
      return fs::exists(path("log.jsonl"), none) && fs::file_size(path("log.jsonl"), none) > 0;
    };
    while (!over && !begun()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (!over) ::kill(::getpid(), SIGTERM);
  });
  const int status = run("tp=2", {"--steps", "1000000", "--save", path("left"), "--log", path("log.jsonl")});
  over = true;
  asks.join();
  EXPECT_EQ(status, train::kExitRequeue) << error_;
  EXPECT_NE(error_.find("SIGTERM: saved to"), std::string::npos) << error_;
  const auto steps = std::to_string(losses("log.jsonl").size());
  EXPECT_EQ(run("tp=2", {"--steps", steps, "--load", path("left")}), 2);  // the checkpoint has completed them
  EXPECT_NE(error_.find("has done " + steps + " steps already"), std::string::npos) << error_;
}

TEST_F(LlmTrain, RefusesInvalidFlags) {
  EXPECT_EQ(run("tp=2", {"--keep", "2"}), 2);
  EXPECT_EQ(error_, "llm: --keep needs --save\n");
  EXPECT_EQ(run("tp=2", {"--save", ""}), 2);
  EXPECT_EQ(error_, "llm: --save: expected a value, got an empty string\n");
  EXPECT_EQ(run("tp=2", {"--weight-decay", "nan"}), 2);
  EXPECT_EQ(error_, "llm: --weight-decay: expected a number of at least 0, got nan\n");
}

// An unknown target among valid ones must not be ignored, since its adapters would be missing.
TEST_F(LlmTrain, RefusesUnknownLoraTargets) {
  for (const char* targets : {"nonsense", "q_proj,nonsense"}) {
    EXPECT_EQ(run("tp=2", {"--steps", "1", "--lora-rank", "2", "--lora-targets", targets}), 2) << targets;
    EXPECT_TRUE(error_.starts_with("llm: --lora-targets: the model has no projection nonsense, only ")) << error_;
    EXPECT_NE(error_.find("q_proj"), std::string::npos) << error_;
  }
  EXPECT_EQ(run("tp=2", {"--steps", "1", "--lora-rank", "2", "--lora-targets", "q_proj,down_proj"}), 0) << error_;
  EXPECT_EQ(run("tp=2", {"--lora-rank", "2", "--lora-alpha", "0"}), 2);  // such an adapter has no effect
}

// Otherwise adapters and losses would continue with batches of another text.
TEST_F(LlmTrain, ResumesOnlyWithTheSameText) {
  ASSERT_EQ(run("tp=2", {"--steps", "2", "--save", path("run")}), 0) << error_;
  fs::copy_file(path("text.jsonl"), path("more.jsonl"));
  EXPECT_EQ(run("tp=2", {"--steps", "3", "--load", path("run"), "--data", path("more.jsonl")}), 2);
  EXPECT_NE(error_.find("llm: " + path("run") + " was trained on another text"), std::string::npos) << error_;
  EXPECT_EQ(run("shard=2", {"--steps", "3", "--load", path("run")}), 0) << error_;
}

TEST_F(LlmTrain, ResumesOnlyWithTheSameLoraAlpha) {
  const std::vector<std::string> begin = {"--steps", "2", "--lora-rank", "2", "--save", path("run")};
  const std::vector<std::string> go_on = {"--steps", "3", "--lora-rank", "2", "--load", path("run"), "--lora-alpha"};
  const auto with = [](std::vector<std::string> words, const char* alpha) {
    words.emplace_back(alpha);
    return words;
  };
  ASSERT_EQ(run("tp=2", begin), 0) << error_;
  EXPECT_EQ(run("tp=2", with(go_on, "8")), 2);
  EXPECT_NE(error_.find(path("run") + " was trained with --lora-alpha 4 over "), std::string::npos) << error_;
  EXPECT_NE(error_.find(", not with --lora-alpha 8 over "), std::string::npos) << error_;
  EXPECT_EQ(run("tp=2", with(go_on, "4")), 0) << error_;
}

// On another mesh the base model is the same. The exported model with merged adapters has the same names and sizes, but
// is another base model.
TEST_F(LlmTrain, AdaptersResumeOnlyWithTheSameBaseModel) {
  const std::vector<std::string> adapted = {"--lora-rank", "2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), adapted.begin(), adapted.end());
    return more;
  };
  ASSERT_EQ(run("tp=2", with({"--steps", "2", "--save", path("run"), "--out", path("merged")})), 0) << error_;
  EXPECT_EQ(run("tp=2", with({"--steps", "3", "--load", path("run")}), path("merged")), 2);
  EXPECT_NE(error_.find(path("run") + " was trained with --lora-alpha 4 over a --model of fingerprint "),
            std::string::npos)
      << error_;
  EXPECT_EQ(run("dp=2,shard=2", with({"--steps", "3", "--load", path("run")})), 0) << error_;
  EXPECT_EQ(run("shard=3", with({"--steps", "3", "--load", path("run")})), 0) << error_;
}

}  // namespace
