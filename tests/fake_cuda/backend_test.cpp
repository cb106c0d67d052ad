// The NCCL backend on simulated devices: what waits for what, the lifetime of communicators and memory, and failures.
#include "comm/nccl/backend.h"

#include <ATen/ATen.h>

#include <set>
#include <thread>

#include "comm/nccl/nccl_comm.h"
#include "dtensor/launch.h"
#include "fake_cuda/calls.h"

namespace dtensor::test::fake_cuda {
namespace {

at::TensorOptions gpu(const Communicator& world) {
  return at::TensorOptions(at::kFloat).device(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(world.rank())));
}

void on_schedules(int ranks, const std::function<void(const Communicator&)>& body) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) expect_none(errors_of_ranks(ranks, {seed}, body));
}

TEST(NcclBackend, CpuTensorsDoNotWaitForTheGpu) {
  on_schedules(2, [](const Communicator& world) {
    const at::Tensor sum = at::ones({4}, gpu(world)), header = at::zeros({1});
    if (world.rank() == 0) {
      const at::Tensor more = at::ones({4}, gpu(world));
      world.all_reduce(more, ReduceOp::sum).wait();
      Work work = world.all_reduce(sum, ReduceOp::sum);  // rank 1 joins after the header
      world.recv(header, 1).wait();
      EXPECT_EQ(header.item<float>(), 7);
      work.wait();
    } else {
      const at::Tensor more = at::ones({4}, gpu(world));
      world.all_reduce(more, ReduceOp::sum).wait();
      world.send(header.fill_(7), 0).wait();
      world.all_reduce(sum, ReduceOp::sum).wait();
    }
    EXPECT_EQ(sum.sum().item<float>(), 8);
  });
}

TEST(NcclBackend, CpuAndGpuCollectivesMayAlternate) {
  on_schedules(3, [](const Communicator& world) {
    for (int i = 0; i < 6; ++i) {
      const at::Tensor tensor =
          at::full({5}, static_cast<float>(world.rank() + i), i % 3 == 0 ? gpu(world) : at::kFloat);
      world.all_reduce(tensor, ReduceOp::sum).wait();
      EXPECT_EQ(tensor.cpu()[4].item<float>(), static_cast<float>(3 + 3 * i));
    }
  });
}

// Shards of equal sizes, of unequal sizes, and views with gaps.
TEST(NcclBackend, ListsEqualThoseOfOtherBackends) {
  on_schedules(3, [](const Communicator& world) {
    const int me = world.rank(), n = world.size();
    const auto value = [](int rank, int k) { return static_cast<float>(10 * rank + k); };
    const auto length = [](int rank, int k) { return k == 1 ? std::int64_t{1} + rank : std::int64_t{3}; };
    std::vector<at::Tensor> mine, all, parts, sums, full;
    for (int k = 0; k < 3; ++k) {
      const at::Tensor wide = at::full({length(me, k), 2}, value(me, k), gpu(world));
      mine.push_back(k == 2 ? wide.select(1, 1) : wide.select(1, 0).contiguous());
      sums.push_back(at::empty({length(me, k)}, gpu(world)));
      full.push_back(at::full({3}, value(me, k), gpu(world)));
    }
    for (int i = 0; i < n; ++i) {
      for (int k = 0; k < 3; ++k) {
        all.push_back(at::empty({length(i, k)}, gpu(world)));
        parts.push_back(at::full({length(i, k)}, value(me, k) + static_cast<float>(i), gpu(world)));
      }
    }
    Work gathered = world.all_gather_list(all, mine);
    Work scattered = world.reduce_scatter_list(sums, parts, ReduceOp::sum);
    Work reduced = world.all_reduce_list(full, ReduceOp::sum);
    gathered.wait(), scattered.wait(), reduced.wait();
    for (int k = 0; k < 3; ++k) {
      for (int i = 0; i < n; ++i) {
        const at::Tensor part = all[static_cast<std::size_t>(3 * i + k)].cpu();
        EXPECT_TRUE(at::equal(part, at::full({length(i, k)}, value(i, k))));
      }
      const float sum = static_cast<float>(30 + 3 * k);
      EXPECT_TRUE(at::equal(sums[k].cpu(), at::full({length(me, k)}, sum + static_cast<float>(3 * me))));
      EXPECT_TRUE(at::equal(full[k].cpu(), at::full({3}, sum)));
    }
  });
}

// An operand may be freed when its Work was waited for, not before.
TEST(NcclBackend, WorksKeepTheirTensors) {
  on_schedules(2, [](const Communicator& world) {
    std::vector<Work> works;
    std::vector<at::Tensor> sums;
    for (int i = 0; i < 6; ++i) {
      const at::Tensor give = at::full({100}, static_cast<float>(i), gpu(world));
      sums.push_back(at::empty({100}, gpu(world)));
      works.push_back(world.all_reduce(sums.back(), give, ReduceOp::sum));
      if (i % 2 == 1) works.front().wait();
    }
    for (Work& work : works) work.wait();
    for (int i = 0; i < 6; ++i) EXPECT_EQ(sums[i].cpu()[99].item<float>(), static_cast<float>(2 * i));
  });
}

// A rank that drops a communicator does not drop what another rank has yet to receive.
TEST(NcclBackend, DroppedCommunicatorsFinishTheirCalls) {
  on_schedules(2, [](const Communicator& world) {
    const at::Tensor tensor = at::full({4}, static_cast<float>(world.rank()), gpu(world));
    Work work;
    {
      const Communicator pair = world.subgroup({0, 1});
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      work = pair.broadcast(tensor, 0);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(120));  // The watchdog polls every 50 ms.
    work.wait();
    EXPECT_EQ(tensor.cpu()[3].item<float>(), 0);
  });
}

// c10's pool has 32 streams per device.
TEST(NcclBackend, StreamsAreNotShared) {
  expect_none(errors_of_devices(1, {}, [](int) {
    const auto pool = std::make_shared<nccl::StreamPool>(0);
    std::vector<std::shared_ptr<const c10::cuda::CUDAStream>> taken;
    std::set<cudaStream_t> distinct;
    for (int i = 0; i < 40; ++i) distinct.insert(taken.emplace_back(pool->take())->stream());
    EXPECT_EQ(distinct.size(), 40u);
    taken.pop_back();
    EXPECT_EQ(distinct.count(pool->take()->stream()), 1u) << "a returned stream is used again";
  }));
}

void expect_text(const std::exception& error, const std::string& text) {
  EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
}

TEST(NcclBackend, ConnectingEndsAfterTheTimeout) {
  errors_of_devices(1, {}, [](int) {
    run_local(1, [](const Communicator& cpu) {
      const auto device = std::make_shared<nccl::Device>(
          nccl::Device{0, nccl::WatchdogPtr(new nccl::Watchdog(cpu, std::chrono::milliseconds(100)))});
      try {
        nccl::connect(device, new_id(), 2, 0, {"tp", {0, 1}});
        FAIL() << "no error";
      } catch (const CommError& error) {
        expect_text(error, "timeout after 100 ms: waits in ncclCommInitRank of tp {0, 1}");
      }
    });
  });
}

TEST(NcclBackend, ConnectingEndsWhenAnotherRankFails) {
  errors_of_devices(1, {}, [](int) {
    std::string seen;
    const auto body = [&](const Communicator& cpu) {
      if (cpu.rank() == 1) throw std::runtime_error("out of data");
      const auto device = std::make_shared<nccl::Device>(
          nccl::Device{0, nccl::WatchdogPtr(new nccl::Watchdog(cpu, std::chrono::minutes(1)))});
      try {
        nccl::connect(device, new_id(), 2, 0, {"", {0, 1}});
      } catch (const CommError& error) {
        seen = error.what();
        throw;
      }
    };
    EXPECT_THROW(run_local(2, body), std::runtime_error);
    EXPECT_NE(seen.find("out of data"), std::string::npos) << seen;
  });
}

// A call that rank 1 does not join, after it has joined an earlier one.
void expect_end(const std::function<Work(const Communicator&, const at::Tensor&)>& start) {
  std::string seen;
  const auto errors = errors_of_ranks(2, {}, [&](const Communicator& world) {
    const at::Tensor tensor = at::ones({4}, gpu(world));
    world.all_reduce(tensor, ReduceOp::sum).wait();
    TORCH_CHECK(world.rank() == 0, "out of data");
    try {
      Work work = start(world, tensor);
      while (!work.done()) std::this_thread::yield();
      work.wait();
    } catch (const CommError& error) {
      seen = error.what();
      throw;
    }
  });
  expect_error(errors, {"out of data"});
  EXPECT_NE(seen.find("out of data"), std::string::npos) << seen;
}

TEST(NcclBackend, WaitsEndWhenAnotherRankFails) {
  expect_end([](const Communicator& world, const at::Tensor& t) { return world.all_reduce(t, ReduceOp::sum); });
  expect_end([](const Communicator& world, const at::Tensor& t) { return world.recv(t, 1); });
  expect_end([](const Communicator& world, const at::Tensor& t) { return world.send(t, 1); });
}

}  // namespace
}  // namespace dtensor::test::fake_cuda
