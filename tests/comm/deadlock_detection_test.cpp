// Deadlock detection from control messages, step by step, without data messages.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <thread>

#include "comm/p2p/job/job.h"

namespace dtensor::p2p {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Control messages of each rank that it has not received yet.
using ControlQueues = std::vector<std::deque<ControlMessage>>;

class FakeTransport final : public Transport {
 public:
  FakeTransport(ControlQueues& reported, int rank) : reported_(reported), rank_(rank) {}
  const char* name() const override { return "fake"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(reported_.size()); }
  int local_size() const override { return 1; }
  int cores() const override { return 1; }
  int max_tag() const override { return 1000; }
  std::unique_ptr<Batch> batch(Channel, int) override { return nullptr; }
  void send_control(int peer, int tag, const std::string& text) override {
    reported_[static_cast<std::size_t>(peer)].push_back({rank_, tag, text});
  }
  std::optional<ControlMessage> poll_control() override {
    auto& mine = reported_[static_cast<std::size_t>(rank_)];
    if (mine.empty()) return std::nullopt;
    ControlMessage word = mine.front();
    mine.pop_front();
    return word;
  }
  void pause(std::chrono::nanoseconds, bool) override {}
  void finish() override {}
  [[noreturn]] void abort() override { std::abort(); }
  bool abort_ends_all() const override { return false; }

 private:
  ControlQueues& reported_;
  int rank_;
};

class Rank {
 public:
  Rank(ControlQueues& reported, int rank) : job_(std::make_unique<FakeTransport>(reported, rank), {}) {}
  ~Rank() { job_.close(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Polls as a rank that waits in `place` for the other. Returns whether it detects a deadlock.
  bool detects_deadlock(const std::string& place) {
    job_.poll();
    return job_.post_wait(place, {1 - job_.rank()}, -1);
  }
  void resume() {
    job_.poll();
    job_.end_wait();
  }

 private:
  Job job_;
};

// The last state that a rank reported is outdated: the other rank arrived since and is in the next barrier.
TEST(DeadlockDetection, PausedRankIsNotInADeadlock) {
  ControlQueues reported(2);
  Rank stopped(reported, 0), other(reported, 1);
  EXPECT_FALSE(stopped.detects_deadlock("barrier #1"));
  const auto end = Clock::now() + milliseconds(900);
  for (; Clock::now() < end; std::this_thread::sleep_for(milliseconds(5)))
    EXPECT_FALSE(other.detects_deadlock("barrier #2"));
  EXPECT_FALSE(stopped.detects_deadlock("barrier #1"));  // before it has received the messages
  EXPECT_FALSE(other.detects_deadlock("barrier #2"));
  stopped.resume();
  EXPECT_FALSE(other.detects_deadlock("barrier #2"));
}

TEST(DeadlockDetection, RanksThatWaitForEachOtherDetectADeadlock) {
  ControlQueues reported(2);
  Rank first(reported, 0), second(reported, 1);
  const auto begin = Clock::now();
  bool found = false;
  while (!found && Clock::now() - begin < std::chrono::seconds(30)) {
    found = first.detects_deadlock("barrier #1 on tp {0, 1}") || second.detects_deadlock("recv #1");
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_TRUE(found);
  EXPECT_GT(Clock::now() - begin, milliseconds(500));  // the delay covers messages that overtake each other
}

}  // namespace
}  // namespace dtensor::p2p
