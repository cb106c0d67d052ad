// A run that receives a termination signal saves at the next step on all ranks and exits with a separate status. It
// resumes as if it had not stopped.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "dtensor/checkpoint.h"
#include "resume.h"
#include "train/program.h"
#include "train/signals.h"

namespace {

namespace fs = std::filesystem;
using train::Options;
using train::StepRecord;

class Termination : public testing::Test {
 protected:
  Termination() { fs::remove_all(folder_); }
  ~Termination() override { fs::remove_all(folder_); }

  // On `ranks` thread ranks; the signal arrives after `at` steps on any thread.
  std::vector<StepRecord> run(int ranks, Options options, std::int64_t at = -1, int signal = SIGTERM) {
    options.mesh = train::MeshShape{.shard = ranks};
    std::vector<StepRecord> records;
    const train::TerminationSignals signals;
    dtensor::run_local(ranks, [&](dtensor::Communicator world) {
      const auto mine = train::train_on_mesh(world, options, resume::corpus(), [&](const StepRecord& record) {
        if (record.step == at && world.rank() == ranks - 1) ::raise(signal);
      });
      if (world.rank() == 0) records = mine;
    });
    return records;
  }

  Options saving(std::int64_t keep) const {
    Options o = resume::options();
    o.save = folder_;
    o.keep = keep;
    o.save_every = 3;
    o.resume = "latest";
    return o;
  }

  const std::string folder_ = resume::folder("termination_" + std::to_string(::getpid()));
};

TEST_F(Termination, RunStoppedByEitherSignalResumesOnOtherRanks) {
  const auto full = run(2, resume::options());
  for (const std::int64_t keep : {0, 2}) {
    for (const int signal : {SIGTERM, SIGUSR1}) {
      fs::remove_all(folder_);
      const auto first = run(2, saving(keep), 4, signal);
      // Ranks check after the step; the other rank may have checked before the signal arrived.
      ASSERT_TRUE(first.size() == 5 || first.size() == 6) << first.size();
      EXPECT_EQ(first.back().stop_signal, signal);
      EXPECT_LE(resume::largest_difference(first, full), 1e-9);
      if (keep > 0) {
        EXPECT_EQ(dtensor::checkpoint_steps(folder_).front(), std::ssize(first));
      }
      const auto rest = run(3, saving(keep));
      EXPECT_EQ(rest.front().step, std::ssize(first));
      EXPECT_EQ(rest.size(), 10 - first.size());
      EXPECT_EQ(rest.back().stop_signal, 0);
      EXPECT_LE(resume::largest_difference(rest, full), 1e-9);
    }
  }
}

TEST_F(Termination, SignalInTheLastStepEndsNormally) {
  const auto records = run(2, saving(0), 9);
  EXPECT_EQ(records.size(), 10U);
  EXPECT_EQ(records.back().stop_signal, 0);
}

TEST_F(Termination, RotatesAndSkipsDamagedCheckpoints) {
  Options first = saving(2);
  first.steps = 9;
  const auto full = run(2, resume::options());
  run(2, first);
  EXPECT_EQ(dtensor::checkpoint_steps(folder_), (std::vector<std::int64_t>{9, 6}));
  fs::resize_file(dtensor::checkpoint_of_step(folder_, 9) + "/model.safetensors", 100);
  testing::internal::CaptureStderr();
  const auto rest = run(2, saving(2));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("skipped, damaged: load "), std::string::npos) << said;
  EXPECT_NE(said.find("resuming after step 6 from "), std::string::npos) << said;
  EXPECT_NE(said.find("saved to "), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 4) << said;
  EXPECT_EQ(rest.front().step, 6);
  EXPECT_LE(resume::largest_difference(rest, full), 1e-9);
}

// A signal after the last save ends the program at once, during the comparison.
TEST_F(Termination, SignalDuringTheComparisonEndsTheProgram) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";  // A fork would lack the pool's threads.
  std::vector<std::string> words = {
      "train", "--hidden", "16",  "--layers", "1",     "--batch",   "4",      "--seq",
      "16",    "--steps",  "100", "--save",   folder_, "--compare", "--data", resume::options().data[0]};
  const auto compare = [&] {
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::thread([&] {
      while (!fs::exists(folder_)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      for (;; std::this_thread::sleep_for(std::chrono::milliseconds(2))) ::kill(::getpid(), SIGTERM);
    }).detach();
    std::_Exit(train::run_program(train::Kind::dense, static_cast<int>(words.size()), argv.data()));
  };
  // The program prints when the comparison starts, unless a signal arrives just before.
  EXPECT_EXIT(compare(), testing::KilledBySignal(SIGTERM), "step 100/100");
}

// The exit status of the program, started as a user does.
TEST_F(Termination, ProgramExitsWithASeparateStatus) {
  std::vector<std::string> words = {"train",
                                    "--hidden",
                                    "16",
                                    "--layers",
                                    "1",
                                    "--batch",
                                    "2",
                                    "--seq",
                                    "8",
                                    "--ranks",
                                    "2",
                                    "--steps",
                                    "1000000",
                                    "--save",
                                    folder_,
                                    "--data",
                                    resume::options().data[0],
                                    "--keep",
                                    "1",
                                    "--save-every",
                                    "1",
                                    "--resume"};
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::jthread scheduler([&](const std::stop_token& stop) {
    while (!stop.stop_requested() && dtensor::checkpoint_steps(folder_).empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ::kill(::getpid(), SIGTERM);
  });
  testing::internal::CaptureStderr();
  const int status = train::run_program(train::Kind::dense, static_cast<int>(words.size()), argv.data());
  scheduler.join();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, train::kExitRequeue);
  EXPECT_EQ(train::kExitRequeue, 75);
  EXPECT_NE(said.find("SIGTERM: saved to " + folder_), std::string::npos) << said;
  EXPECT_TRUE(dtensor::verify_checkpoint(folder_ + "/latest").empty());
}

}  // namespace
