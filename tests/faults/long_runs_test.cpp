// Long runs: process memory does not grow after the first tenth. Test runs use small counts; DTENSOR_FAULTS=100 gives
// those of docs/reliability.md.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>

#include "comm/record/interned_text.h"
#include "dtensor/dtensor.h"
#include "faults/errors.h"
#include "placement/spec.h"
#include "support/sanitizer.h"

namespace dtensor::test {
namespace {

double resident_mib() {
  std::size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) / (1 << 20);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Memory and time of one rank during `count` rounds.
class Watch {
 public:
  explicit Watch(int count) : count_(count) {}
  void after(int round) {
    if (round + 1 == std::max(count_ / 10, 1)) tenth_ = resident_mib(), first_ = seconds_since(begin_);
    if (round + 1 == count_) end_ = resident_mib(), all_ = seconds_since(begin_);
  }
  void expect_flat(const char* what, double margin_mib) const {
    std::printf("%-14s %6d: %7.1f MiB after a tenth, %7.1f at the end; %6.1f us each, the first tenth %6.1f\n", what,
                count_, tenth_, end_, 1e6 * all_ / count_, 1e6 * first_ / std::max(count_ / 10, 1));
    if (kSanitized) return;  // includes memory of the sanitizer
    EXPECT_LT(end_ - tenth_, margin_mib) << what;
  }

 private:
  int count_;
  double tenth_ = 0, end_ = 0, first_ = 0, all_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

constexpr double kMargin = 12;  // MiB: memory kept by allocators and the buffer pool

// Runs rounds on two ranks and watches the first.
void rounds(const char* what, int count, const std::function<void(const Communicator&, int)>& round) {
  Watch watch(count);
  run_local(2, [&](Communicator world) {
    set_cache_limit(64);  // fills the cache in the first tenth, also in short runs
    for (int i = 0; i < count; ++i) {
      round(world, i);
      world.barrier();
      if (world.rank() == 0) watch.after(i);
      world.barrier();
    }
    set_cache_limit();
  });
  watch.expect_flat(what, kMargin);
}

TEST(LongRuns, MemoryDoesNotGrowWithSteps) {
  at::Tensor w[2], x[2];
  rounds("steps", campaign(400), [&](const Communicator& world, int i) {
    const auto me = static_cast<std::size_t>(world.rank());
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    if (i == 0) w[me] = distribute_tensor(at::ones({16, 16}), mesh, {Shard(0)}).requires_grad_();
    if (i == 0) x[me] = distribute_tensor(at::ones({8, 16}), mesh, {Shard(0)});
    at::mm(x[me], w[me].t()).tanh().sum().backward();
    const at::NoGradGuard no_grad;
    w[me].add_(w[me].grad(), -0.01);
    w[me].mutable_grad().reset();
    if (DTensor(w[me].sum()).full_tensor().isnan().item<bool>()) FAIL();
  });
}

// Every round has new sizes, as sequence lengths that never repeat.
TEST(LongRuns, MemoryDoesNotGrowWithShapes) {
  rounds("shapes", campaign(1000), [&](const Communicator& world, int i) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2});
    const std::int64_t at = i * std::int64_t{7919} % (37 * 37 * 37);  // large and small alternate, each once
    const at::Tensor x =
        DTensor::from_local(at::ones({1 + at % 37, 1 + at / 37 % 37, 1 + at / (37 * 37)}), mesh, {Shard(0)});
    (x * 2 + x).sum(0);
  });
  EXPECT_LT(interned_spec_count(), 20000u);
}

TEST(LongRuns, MemoryDoesNotGrowWithMeshes) {
  rounds("meshes", campaign(500), [&](const Communicator& world, int i) {
    const auto mesh = init_device_mesh(world, at::kCPU, {2}, {"axis" + std::to_string(i)});
    const at::Tensor x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)});
    DTensor((x * 2 + x).sum()).full_tensor();
  });
  EXPECT_LE(interned_string_count(), 8192u);
}

TEST(LongRuns, MemoryDoesNotGrowWithCommunicators) {
  rounds("communicators", campaign(500), [&](const Communicator& world, int i) {
    const auto pair = world.subgroup({0, 1}, "pair" + std::to_string(i));
    pair.all_reduce(at::ones({4}), ReduceOp::sum).wait();
  });
}

TEST(LongRuns, MemoryDoesNotGrowWithRuns) {
  const int count = campaign(100);
  Watch watch(count);
  for (int i = 0; i < count; ++i) {
    run_local(2 + i % 3, [&](Communicator world) {
      const Checked checked(Checks::calls);
      const auto mesh = init_device_mesh(world, at::kCPU, {world.size()});
      const at::Tensor x = distribute_tensor(at::ones({6, 4}), mesh, {Shard(0)}).requires_grad_();
      (x * x).sum().backward();
    });
    watch.after(i);
  }
  watch.expect_flat("run_local", kMargin);
}

}  // namespace
}  // namespace dtensor::test
