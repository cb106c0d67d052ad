// Failures during publication of a call, polling, and dropped messages.
#include <atomic>
#include <thread>

#include "comm/fixture.h"
#include "comm/record/call_history.h"

namespace dtensor::test {
namespace {

using std::chrono::milliseconds;

template <class Condition>
bool within(milliseconds time, Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  while (!condition() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
  return condition();
}

// A history whose last owner is the slot of a published call: it is destroyed when its rank publishes its third call.
std::shared_ptr<const CallHistory> dying(std::function<void()> last_words) {
  static const std::string text = "aten::add";
  auto* history = new CallHistory;
  history->add({.hash = 1, .text = &text});
  return {history, [last_words](const CallHistory* h) { last_words(), delete h; }};
}

// Rank 1 has begun to publish a collective when the run fails. Rank 0 must not leave before rank 1 is done.
TEST(LateFailure, MemoryOfAReturnedRankIsNotRead) {
  std::atomic<bool> entered{false}, gone{false}, through{false};
  const auto body = [&](Communicator world) {
    if (world.rank() == 2) {
      within(milliseconds(5000), [&] { return entered.load(); });
      std::this_thread::sleep_for(milliseconds(50));
      return world.abort("stop");
    }
    const Communicator pair = world.subgroup({0, 1});
    std::vector<at::Tensor> out = {at::zeros({2}), at::zeros({2})};
    const at::Tensor mine = at::ones({2});
    const auto linger = [&] { entered = true, within(milliseconds(300), [&] { return gone.load(); }); };
    with_call_history(pair, world.rank() == 1 ? dying(linger) : nullptr).all_gather(out, mine).wait();
    pair.all_gather(out, mine).wait();
    for (const auto& t : out) t.zero_();
    EXPECT_THROW(pair.all_gather(out, mine).wait(), CommError);
    if (world.rank() == 1) through = true;
    if (world.rank() == 0) {
      mine.fill_(7), gone = true;
      within(milliseconds(5000), [&] { return through.load(); });  // keeps its memory valid while rank 1 may read it
    }
    EXPECT_FALSE(out[0].eq(7).any().item<bool>());
  };
  run_local(3, body);
}

// Polling must end.
TEST(LateFailure, ReceiveWithoutSenderIsDone) {
  for (const bool throws : {true, false}) {
    const auto body = [&](Communicator world) {
      if (world.rank() == 1) {
        if (throws) throw std::runtime_error("the disk is full");
        return;
      }
      const Work work = world.recv(at::zeros({2}), 1);
      EXPECT_TRUE(within(milliseconds(3000), [&] { return work.done(); }));
      Work(work).wait();
    };
    EXPECT_ANY_THROW(run_local(2, body));
  }
}

// A program that drops a receive would continue with old values, so the run must fail. A receive into a conjugate view
// uses a temporary tensor.
TEST(LateFailure, DroppedReceiveWithoutSenderFailsTheRun) {
  const at::Tensor regular = at::zeros({2}), conjugated = at::zeros({2}, at::kComplexFloat).conj();
  for (const at::Tensor& target : {regular, conjugated}) {
    for (const bool polls : {false, true}) {
      const auto body = [&](Communicator world) {
        if (world.rank() == 1) return;
        const Work work = world.recv(target, 1);
        EXPECT_TRUE(!polls || within(milliseconds(3000), [&] { return work.done(); }));
      };
      EXPECT_THROW(run_local(2, body), CommError);
    }
  }
}

// The mismatch is detected by the first or the second end. An end that has received the error may continue.
TEST(LateFailure, DroppedMismatchedMessageFailsTheRun) {
  for (const bool reported : {false, true}) {
    for (const int first : {0, 1}) {
      std::atomic<bool> posted{false}, met{false};
      const auto body = [&](Communicator world) {
        if (world.rank() != first) within(milliseconds(5000), [&] { return posted.load(); });
        Work half = world.rank() == 0 ? world.send(at::ones({4}), 1) : world.recv(at::zeros({5}), 0);
        (world.rank() == first ? posted : met) = true;
        within(milliseconds(5000), [&] { return met.load(); });
        if (reported) {
          EXPECT_THROW(half.wait(), CommError);
        }
      };
      if (reported) {
        EXPECT_NO_THROW(run_local(2, body));
      } else {
        EXPECT_THROW(run_local(2, body), CommError);
      }
    }
  }
}

// One end has received the error and continues, the other dropped its work.
TEST(LateFailure, DroppedSendFailsTheRunAfterErrorOnTheOtherEnd) {
  std::atomic<bool> posted{false}, met{false};
  const auto body = [&](Communicator world) {
    if (world.rank() == 0) {
      const Work dropped = world.send(at::ones({4}), 1);
      posted = true;
      within(milliseconds(5000), [&] { return met.load(); });
      return;
    }
    within(milliseconds(5000), [&] { return posted.load(); });
    EXPECT_THROW(world.recv(at::zeros({5}), 0).wait(), CommError);
    met = true;
  };
  EXPECT_THROW(run_local(2, body), CommError);
}

// On one rank a helper thread waits for a late helper, and on the other rank the main thread waits: this is not a
// deadlock.
TEST(LateFailure, WaitingHelperThreadsAreNotADeadlock) {
  run_local(2, [](Communicator world) {
    const Communicator ranks = world.subgroup({0, 1}), helpers = world.subgroup({0, 1});
    std::thread helper([&] {
      if (world.rank() == 0) std::this_thread::sleep_for(milliseconds(300));
      helpers.barrier();
    });
    if (world.rank() == 1) std::this_thread::sleep_for(milliseconds(300));
    try {
      ranks.barrier();
    } catch (const CommError& e) {
      ADD_FAILURE() << e.what();
    }
    helper.join();
  });
}

// As for other unsupported types, the call fails and the run continues.
TEST(Misuse, UnsupportedDtypeDoesNotEndTheRun) {
  run_local(2, [](Communicator world) {
    EXPECT_THROW(world.all_reduce(at::zeros({2}, at::kComplexHalf), ReduceOp::sum).wait(), c10::Error);
    world.barrier();
  });
}

}  // namespace
}  // namespace dtensor::test
