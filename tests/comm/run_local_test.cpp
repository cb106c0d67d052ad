// Thread ranks: nested runs, reused threads, more ranks than cores, random programs.
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <rapidcheck.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "comm/fixture.h"

namespace dtensor::test {
namespace {

TEST(RunLocal, NestsAndReusesThreads) {
  std::atomic<int> calls{0};
  for (int round = 0; round < 20; ++round) {
    run_local(3, [&](Communicator outer) {
      run_local(2, [&](Communicator inner) {
        const at::Tensor x = at::ones({1});
        inner.all_reduce(x, ReduceOp::sum).wait();
        EXPECT_EQ(x.item<double>(), 2);
        ++calls;
      });
      outer.barrier();
    });
  }
  EXPECT_EQ(calls, 120);
}

TEST(RunLocal, ErrorInNestedRunNamesBothRanks) {
  try {
    run_local(2, [](Communicator outer) {
      run_local(2, [&](Communicator inner) {
        if (outer.rank() == 1 && inner.rank() == 0) throw std::runtime_error("deep");
        inner.barrier();
      });
      outer.barrier();
    });
    ADD_FAILURE();
  } catch (const std::exception& e) {
    EXPECT_STREQ(e.what(), "rank 1: rank 0: deep");
  }
}

TEST(RunLocal, BackwardRunsOnTheRanksOwnThread) {
  run_local(2, [](Communicator world) {
    const at::Tensor x = at::ones({2}).requires_grad_();
    std::thread::id where;
    const at::Tensor y = x * 2;
    y.register_hook([&](const at::Tensor& g) {
      where = std::this_thread::get_id();
      world.barrier();
      return g;
    });
    y.sum().backward();
    EXPECT_EQ(where, std::this_thread::get_id());
  });
}

TEST(RunLocal, ManyRanksOnFewCores) {
  run_local(16, [](Communicator world) {
    for (int i = 0; i < 20; ++i) {
      const at::Tensor x = at::full({5}, static_cast<double>(i));
      world.all_reduce(x, ReduceOp::sum).wait();
      EXPECT_EQ(x[4].item<double>(), 16 * i);
    }
  });
}

TEST(RunLocal, MaximumTimeoutNeverExpires) {
  const auto body = [](Communicator world) {
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    world.barrier();
  };
  EXPECT_NO_THROW(run_local(2, body, {.timeout = std::chrono::milliseconds::max()}));
  EXPECT_NO_THROW(run_local(2, body, {.timeout = std::chrono::hours(24 * 365 * 1000)}));
}

TEST(RunLocal, IntraOpThreadCountIsRestored) {
  const auto of_new_thread = [] {
    int threads = 0;
    std::thread([&] { threads = at::get_num_threads(); }).join();
    return threads;
  };
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  run_local(2, [](Communicator) { EXPECT_EQ(at::get_num_threads(), 2); });
  EXPECT_EQ(of_new_thread(), 4);
  EXPECT_EQ(at::get_num_threads(), 4);
  run_local(2, [](Communicator) { EXPECT_EQ(at::get_num_threads(), 4); }, {.set_threads = false});
  at::set_num_threads(before);
}

// Runs a random program of collectives on random subgroups, equal on every rank, and checks values.
TEST(RunLocal, RandomPrograms) {
  EXPECT_TRUE(rc::check([] {
    const int ranks = *rc::gen::inRange(1, 6);
    const auto program = *rc::gen::container<std::vector<std::pair<int, int>>>(
        rc::gen::pair(rc::gen::inRange(0, 4), rc::gen::inRange(0, 9)));
    run_local(ranks, [&](Communicator world) {
      Communicator comm = world;
      for (auto [what, n] : program) {
        const double sum = [&] {
          double s = 0;
          for (auto r : comm.ranks()) s += static_cast<double>(r);
          return s;
        }();
        const at::Tensor x = at::full({n}, static_cast<double>(world.rank()), at::kDouble);
        if (what == 0) {
          comm.all_reduce(x, ReduceOp::sum).wait();
          RC_ASSERT(at::equal(x, at::full({n}, sum, at::kDouble)));
        } else if (what == 1) {
          comm.broadcast(x, n % comm.size()).wait();
          RC_ASSERT(at::equal(x, at::full({n}, static_cast<double>(comm.ranks()[n % comm.size()]), at::kDouble)));
        } else if (what == 2) {
          comm = world.split(world.rank() % (n + 1), n - world.rank());
        } else {
          comm.barrier();
        }
      }
    });
  }));
}

// Thread-local settings of a previous run do not leak into a reused thread.
TEST(RunLocal, ReusedThreadsHaveDefaultState) {
  run_local(2, [](Communicator) { at::autocast::set_autocast_enabled(at::kCPU, true); });
  run_local(2, [](Communicator) { EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU)); });
}

}  // namespace
}  // namespace dtensor::test
