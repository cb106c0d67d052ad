// Failures of thread ranks: a failure of one rank ends every rank soon, with a message that names rank, operation and
// cause.
#include <rapidcheck.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "comm/fixture.h"
#include "dtensor/comm_backend.h"

namespace dtensor::test {
namespace {

using std::chrono::milliseconds;

// Runs `body` and records what each rank and run_local throw.
struct Outcome {
  std::vector<std::string> of_rank;
  std::string of_run;
};

Outcome outcome(int ranks, const std::function<void(Communicator)>& body, RunOptions options = {}) {
  Outcome out;
  out.of_rank.resize(ranks);
  try {
    run_local(
        ranks,
        [&](Communicator world) {
          try {
            body(world);
          } catch (const std::exception& e) {
            out.of_rank[world.rank()] = e.what();
            throw;
          }
        },
        options);
  } catch (const std::exception& e) {
    out.of_run = e.what();
  }
  return out;
}

::testing::AssertionResult has(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (text.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << '"' << part << "\" not in: " << text;
  }
  return ::testing::AssertionSuccess();
}

// The helper of rank 1 waits for the others when its main thread calls.
TEST(Failure, TwoThreadsOfARankInOneCommunicatorFailOnEveryRank) {
  const auto out = outcome(3, [](Communicator world) {
    const auto reduce = [&](std::int64_t n) { world.all_reduce(at::ones({n}), ReduceOp::sum).wait(); };
    std::thread helper([&] {
      if (world.rank() == 1) {
        EXPECT_THROW(reduce(4), CommError);
      }
    });
    std::this_thread::sleep_for(milliseconds(world.rank() == 1 ? 50 : 250));
    EXPECT_THROW(reduce(5), CommError);
    helper.join();
    world.barrier();
  });
  for (int r : {0, 1, 2}) EXPECT_TRUE(has(out.of_rank[r], {"expected one thread of rank 1", "all_reduce #2"})) << r;
}

TEST(Failure, ThrowingRankWakesAllAndIsRethrownWithItsRank) {
  const auto out = outcome(4, [](Communicator world) {
    if (world.rank() == 2) throw std::runtime_error("the disk is full");
    const at::Tensor x = at::ones({4});
    world.all_reduce(x, ReduceOp::sum).wait();
  });
  EXPECT_TRUE(has(out.of_run, {"rank 2", "the disk is full"}));
  for (int r : {0, 1, 3}) EXPECT_TRUE(has(out.of_rank[r], {"rank 2", "the disk is full"})) << r;
}

TEST(Failure, ExceptionTypeIsKept) {
  auto check = [](Communicator world) { TORCH_CHECK_INDEX(world.rank() != 1, "no row 7"); };
  EXPECT_THROW(run_local(2, check), c10::IndexError);
  EXPECT_TRUE(has(outcome(2, check).of_run, {"rank 1", "no row 7"}));
  auto mismatch = [](Communicator world) { world.all_reduce(at::ones({2 + world.rank()}), ReduceOp::sum).wait(); };
  EXPECT_THROW(run_local(2, mismatch), CommError);
}

TEST(Failure, OneRankSkipsACollective) {
  const auto out = outcome(3, [](Communicator world) {
    if (world.rank() != 1) world.all_reduce(at::ones({4, 5}), ReduceOp::sum).wait();
  });
  EXPECT_TRUE(has(out.of_run, {"rank 1 returned", "all_reduce #1 (sum, Float [4, 5])"}));
  for (int r : {0, 2}) EXPECT_TRUE(has(out.of_rank[r], {"rank 1 returned", "waits in all_reduce #1"}));
}

TEST(Failure, OneRankSkipsACollectiveBeforeAnother) {
  const auto out = outcome(3, [](Communicator world) {
    if (world.rank() != 1) world.all_reduce(at::ones({4, 5}), ReduceOp::sum).wait();
    world.barrier();
  });
  for (int r : {0, 1, 2}) {
    EXPECT_TRUE(has(out.of_rank[r], {"disagree", "rank 0 called all_reduce #1 (sum, Float [4, 5])",
                                     "rank 1 called barrier #1", "rank 2 called all_reduce #1"}));
  }
}

TEST(Failure, TimeoutNamesRanksAndCollectives) {
  std::atomic<bool> over{false};
  const auto out = outcome(3,
                           [&](Communicator world) {
                             if (world.rank() == 2) {
                               while (!over) std::this_thread::sleep_for(milliseconds(1));
                               world.barrier();
                             }
                             try {
                               world.broadcast(at::ones({3}), 1).wait();
                             } catch (...) {
                               over = true;
                               throw;
                             }
                           },
                           {.timeout = milliseconds(150)});
  for (int r : {0, 1, 2})
    EXPECT_TRUE(has(out.of_rank[r], {"timeout after 150 ms", "broadcast #1 (root 1, Float [3])", "for rank 2",
                                     "rank 2 is in no collective"}))
        << r;
}

// The run ends long before the timeout, because neither rank can continue.
TEST(Failure, DeadlockAcrossCommunicatorsIsDetected) {
  const auto start = std::chrono::steady_clock::now();
  const auto out = outcome(3, [&](Communicator world) {
    const auto pair = world.rank() < 2 ? world.subgroup({0, 1}, "tp") : world;
    if (world.rank() == 0) pair.barrier();
    world.all_reduce(at::ones({3}), ReduceOp::sum).wait();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(2));
  const bool pair_first =
      has(out.of_run, {"waits in barrier #1 on tp {0, 1} for rank 1", "rank 1 waits in all_reduce #1"});
  const bool world_first =
      has(out.of_run, {"waits in all_reduce #1", "for rank 0", "rank 0 waits in barrier #1 on tp {0, 1}"});
  EXPECT_TRUE(pair_first || world_first) << out.of_run;
  for (const auto& text : out.of_rank) EXPECT_TRUE(has(text, {"ranks wait for each other"}));
}

TEST(Failure, AbortWakesAllRanksWithTheReason) {
  const auto out = outcome(3, [](Communicator world) {
    EXPECT_EQ(backend_of(world)->failure(), "");
    world.barrier();
    if (world.rank() == 0) world.abort("out of data");
    const auto reported = [&] { return has(backend_of(world)->failure(), {"rank 0 aborted", "out of data"}); };
    while (!reported()) std::this_thread::yield();
    world.barrier();
  });
  for (int r : {0, 1, 2}) EXPECT_TRUE(has(out.of_rank[r], {"rank 0 aborted", "out of data"}));
}

TEST(Failure, CallsAfterAFailureThrowTheSameError) {
  run_local(2, [](Communicator world) {
    const auto other = world.subgroup({0, 1});
    EXPECT_THROW(world.all_reduce(at::ones({1 + world.rank()}), ReduceOp::sum).wait(), CommError);
    try {
      other.barrier();
      ADD_FAILURE();
    } catch (const CommError& e) {
      EXPECT_TRUE(has(e.what(), {"disagree", "[1]", "[2]"}));
    }
  });
}

using Call = std::function<void(Communicator)>;
struct Disagreement {
  const char* name;
  Call call;
  std::vector<const char*> says;
};

// Arguments in which rank 1 differs from the other ranks.
std::vector<Disagreement> disagreements() {
  auto lists = [](Communicator w, std::int64_t size) { return at::ones({w.size(), size}).unbind(0); };
  return {
      {"kind",
       [](Communicator w) {
         w.rank() == 1 ? w.broadcast(at::ones({2}), 0).wait() : w.all_reduce(at::ones({2}), ReduceOp::sum).wait();
       },
       {"rank 1 called broadcast", "rank 0 called all_reduce"}},
      {"op",
       [](Communicator w) { w.all_reduce(at::ones({2}), w.rank() == 1 ? ReduceOp::max : ReduceOp::sum).wait(); },
       {"rank 1 called all_reduce #1 (max", "rank 0 called all_reduce #1 (sum"}},
      {"dtype",
       [](Communicator w) {
         w.all_reduce(at::ones({2}, w.rank() == 1 ? at::kDouble : at::kFloat), ReduceOp::sum).wait();
       },
       {"rank 1 called all_reduce #1 (sum, Double", "rank 0 called all_reduce #1 (sum, Float"}},
      {"shape",
       [](Communicator w) {
         w.all_reduce(at::ones({2, w.rank() == 1 ? 4 : 3}), ReduceOp::sum).wait();
       },
       {"rank 1 called all_reduce #1 (sum, Float [2, 4])", "[2, 3]"}},
      {"shape of the same size",
       [](Communicator w) {
         w.all_reduce(at::ones({w.rank() == 1 ? 3 : 2, w.rank() == 1 ? 2 : 3}), ReduceOp::sum).wait();
       },
       {"[3, 2]", "[2, 3]"}},
      {"root", [](Communicator w) { w.broadcast(at::ones({2}), w.rank() == 1 ? 1 : 0).wait(); }, {"root 1", "root 0"}},
      {"gathered size",
       [lists](Communicator w) {
         auto outputs = lists(w, 3);
         if (w.rank() == 1) outputs[1] = at::ones({4});
         w.all_gather(outputs, at::ones({w.rank() == 1 ? 4 : 3})).wait();
       },
       {"all_gather", "[4]", "[3]"}},
      {"scattered size",
       [lists](Communicator w) {
         auto inputs = lists(w, 3);
         if (w.rank() == 1) inputs[0] = at::ones({4});
         w.reduce_scatter(at::ones({3}), inputs, ReduceOp::sum).wait();
       },
       {"reduce_scatter", "[4]", "[3]"}},
      {"exchanged size",
       [lists](Communicator w) {
         auto inputs = lists(w, 3);
         if (w.rank() == 1) inputs[0] = at::ones({2});
         w.all_to_all(lists(w, 3), inputs).wait();
       },
       {"all_to_all", "[2]", "[3]"}},
      {"sizes in a list",
       [](Communicator w) {
         const std::int64_t first = w.rank() == 1 ? 4 : 3;
         w.all_reduce_list({at::ones({first}), at::ones({7 - first})}, ReduceOp::sum).wait();
       },
       {"rank 1 called all_reduce #1 (sum, Float [4] [3])", "(sum, Float [3] [4])"}},
  };
}

TEST(Failure, MismatchedCallsThrowOnEveryRank) {
  for (const auto& d : disagreements()) {
    for (int ranks : {2, 3, 4}) {
      const auto out = outcome(ranks, d.call);
      for (int r = 0; r < ranks; ++r) {
        EXPECT_TRUE(has(out.of_rank[r], {"disagree"})) << d.name << " on rank " << r << " of " << ranks;
        for (const char* part : d.says) EXPECT_TRUE(has(out.of_rank[r], {part})) << d.name;
      }
    }
  }
}

TEST(Failure, MismatchedMessageIsAnErrorOnBothEnds) {
  const auto out = outcome(2, [](Communicator world) {
    if (world.rank() == 0) world.send(at::ones({3}), 1, 7).wait();
    if (world.rank() == 1) world.recv(at::ones({4}), 0, 7).wait();
  });
  for (int r : {0, 1}) EXPECT_TRUE(has(out.of_rank[r], {"send", "to 1, tag 7", "[3]", "recv", "from 0", "[4]"}));
}

TEST(Failure, SendWithoutReceiveIsAnError) {
  const auto out = outcome(2, [](Communicator world) {
    if (world.rank() == 0) world.send(at::ones({3}), 1, 7).wait();
  });
  EXPECT_TRUE(has(out.of_run, {"rank 1 returned", "rank 0 waits in send #1 (to 1, tag 7, Float [3])"}));
}

TEST(Failure, PendingSendEndsWhenPeerThrows) {
  const auto out = outcome(2, [](Communicator world) {
    const Work sent = world.rank() == 0 ? world.send(at::ones({3}), 1) : Work();
    if (world.rank() == 1) throw std::runtime_error("lost");
    world.barrier();
  });
  EXPECT_TRUE(has(out.of_run, {"rank 1", "lost"}));
}

TEST(Misuse, InvalidArgumentsAreRefusedBeforeCommunication) {
  const auto refused = [](const char* part, const Call& call) {
    const auto out = outcome(2, call);
    EXPECT_TRUE(has(out.of_run, {part}));
  };
  refused("expected 2 outputs, one per rank, got 1",
          [](Communicator w) { w.all_gather(at::ones({2}), at::ones({2})); });
  refused("of one dtype, got Float and Double", [](Communicator w) {
    w.all_gather({at::ones({2}), at::ones({2}, at::kDouble)}, at::ones({2}));
  });
  refused("expected a rank in [0, 2), got 2", [](Communicator w) { w.broadcast(at::ones({2}), 2); });
  refused("expected a defined tensor", [](Communicator w) { w.all_reduce(at::Tensor(), ReduceOp::sum); });
  refused("avg does not support Int", [](Communicator w) { w.all_reduce(at::ones({2}, at::kInt), ReduceOp::avg); });
  refused("complex numbers do not support max",
          [](Communicator w) { w.all_reduce(at::ones({2}, at::kComplexFloat), ReduceOp::max); });
  refused("without internal overlap", [](Communicator w) { w.all_reduce(at::ones({1}).expand({3}), ReduceOp::sum); });
  refused("overlaps an input", [](Communicator w) {
    const at::Tensor x = at::ones({3});
    w.all_to_all({x.narrow(0, 0, 2), at::ones({2})}, {x.narrow(0, 1, 2), at::ones({2})});
  });
  refused("distinct ranks", [](Communicator w) { w.subgroup({0, 0}); });
  refused("not among the members", [](Communicator w) { w.subgroup({1 - w.rank()}); });
  refused("does not support tensors on meta",
          [](Communicator w) { w.all_reduce(at::ones({2}, at::kMeta), ReduceOp::sum); });
}

}  // namespace
}  // namespace dtensor::test
