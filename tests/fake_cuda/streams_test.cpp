// Order between streams: each missing wait, record or recordStream is an error, and complete orders are none.
#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include "fake_cuda/calls.h"

namespace dtensor::test::fake_cuda {
namespace {

using c10::cuda::CUDAStreamGuard;
using c10::cuda::getCurrentCUDAStream;
using c10::cuda::getStreamFromPool;

at::TensorOptions on_device() { return at::TensorOptions(at::kFloat).device(at::kCUDA); }

std::vector<std::string> errors_on_one(const std::function<void()>& body) {
  return errors_of_devices(1, {1, kShort}, [&](int) { body(); });
}

TEST(FakeStreams, TensorsComputeOnTheDevice) {
  expect_none(errors_on_one([] {
    const auto x = at::arange(6, on_device()).view({2, 3}).requires_grad_();
    const auto y = (x.t().matmul(x) * 2).relu().sum();
    y.backward();
    EXPECT_TRUE(x.grad().is_cuda());
    const auto z = x.detach().cpu().requires_grad_();
    (z.t().matmul(z) * 2).relu().sum().backward();
    EXPECT_TRUE(at::equal(x.grad().cpu(), z.grad()));
  }));
}

TEST(FakeStreams, WaitOrdersStreams) {
  for (const bool waits : {true, false}) {
    const auto errors = errors_on_one([&] {
      const auto x = at::ones({4}, on_device());
      const auto side = getStreamFromPool();
      order(getCurrentCUDAStream().stream(), side.stream());
      {
        const CUDAStreamGuard guard(side);
        x.add_(1);
      }
      if (waits) order(side.stream(), getCurrentCUDAStream().stream());
      const auto y = x * 3;
      cudaDeviceSynchronize();
    });
    if (waits) expect_none(errors);
    if (!waits)
      expect_error(errors, {"race on device 0: aten::mul reads 16 bytes on stream 0", "aten::add writes",
                            "stream 0 must wait for an event that stream"});
  }
}

TEST(FakeStreams, EventsCoverOnlyWhatPrecedesThem) {
  const auto errors = errors_on_one([] {
    const auto x = at::ones({4}, on_device());
    const auto side = getStreamFromPool();
    cudaEvent_t event = nullptr;
    ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    ok(cudaEventRecord(event, nullptr));
    x.add_(1);  // after the event
    ok(cudaStreamWaitEvent(side.stream(), event, 0));
    const CUDAStreamGuard guard(side);
    const auto y = x + 1;
    cudaDeviceSynchronize();
    ok(cudaEventDestroy(event));
  });
  expect_error(errors, {"race on device 0: aten::add reads", "aten::add writes 16 bytes on stream 0"});
}

TEST(FakeStreams, HostWaitOrdersStreams) {
  for (const int how : {0, 1, 2, 3}) {
    const auto errors = errors_on_one([&] {
      const auto x = at::ones({4}, on_device());
      cudaEvent_t event = nullptr;
      ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      ok(cudaEventRecord(event, nullptr));
      if (how == 1) ok(cudaStreamSynchronize(nullptr));
      if (how == 2) ok(cudaEventSynchronize(event));
      const auto sum = how == 3 ? x.sum().item<float>() : 4;
      EXPECT_EQ(sum, 4);
      const CUDAStreamGuard guard(getStreamFromPool());
      const auto y = x + 1;
      cudaDeviceSynchronize();
      ok(cudaEventDestroy(event));
    });
    if (how == 0) expect_error(errors, {"race on device 0"});
    if (how != 0) expect_none(errors);
  }
}

// The memory of a tensor may be reused on the stream of its allocation when it is freed.
TEST(FakeStreams, MemoryIsKeptForOtherStreams) {
  for (const int how : {0, 1, 2}) {
    const auto errors = errors_on_one([&] {
      const auto side = getStreamFromPool();
      {
        const auto x = at::ones({4}, on_device());
        order(nullptr, side.stream());
        const CUDAStreamGuard guard(side);
        const auto y = x + 1;
        if (how == 1) c10::cuda::CUDACachingAllocator::recordStream(x.storage().data_ptr(), side);
        if (how == 2) order(side.stream(), nullptr);
      }
      cudaDeviceSynchronize();
    });
    if (how == 0)
      expect_error(errors,
                   {"memory freed too early: aten::add reads 16 bytes on stream", "call recordStream for stream"});
    if (how != 0) expect_none(errors);
  }
}

// A new allocation may have been used on its stream before, so other streams wait for that stream first.
TEST(FakeStreams, AllocationPrecedesOtherStreams) {
  const auto errors = errors_on_one([] {
    const auto x = at::empty({4}, on_device());
    const CUDAStreamGuard guard(getStreamFromPool());
    x.fill_(1);
    cudaDeviceSynchronize();
  });
  expect_error(errors, {"race on device 0: aten::fill_ writes", "the allocation writes 16 bytes on stream 0"});
}

TEST(FakeStreams, DisjointPartsOfMemoryDoNotConflict) {
  expect_none(errors_on_one([] {
    const auto x = at::ones({8}, on_device());
    const auto side = getStreamFromPool();
    order(nullptr, side.stream());
    x.narrow(0, 0, 4).add_(1);
    {
      const CUDAStreamGuard guard(side);
      x.narrow(0, 4, 4).add_(1);
    }
    cudaDeviceSynchronize();
  }));
}

// NCCL operations are on a stream of their own; both directions need an event.
TEST(FakeStreams, CommunicationIsOrderedWithKernels) {
  for (const int missing : {0, 1, 2}) {
    const auto id = new_id();
    const auto errors = errors_of_devices(2, {1, kShort}, [&](int rank) {
      ncclComm_t comm = world(id, 2, rank);
      const auto x = at::full({4}, rank + 1.0, on_device());
      const auto side = getStreamFromPool();
      if (missing != 1) order(nullptr, side.stream());
      ok(ncclAllReduce(x.data_ptr(), x.data_ptr(), 4, ncclFloat, ncclSum, comm, side.stream()));
      if (missing != 2) order(side.stream(), nullptr);
      const auto y = x * 2;
      cudaDeviceSynchronize();
      const auto sum = y.sum().item<float>();
      if (missing == 0) {
        EXPECT_EQ(sum, 24);
      }
      ok(ncclCommAbort(comm));
    });
    if (missing == 0) expect_none(errors);
    if (missing == 1) expect_error(errors, {"race on device 1: ncclAllReduce of 4 Float32, sum", "aten::fill_ writes"});
    if (missing == 2)
      expect_error(errors, {"race on device 1: aten::mul reads", "ncclAllReduce of 4 Float32, sum writes"});
  }
}

// A copy from pinned memory reads it later, so the host must not overwrite it before a wait.
TEST(FakeStreams, CopiesFromPinnedMemoryRunInTheBackground) {
  for (const bool waits : {true, false}) {
    int wrong = 0;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      expect_none(errors_of_devices(1, {seed}, [&](int) {
        const auto host = at::ones({4}).pin_memory();
        const auto x = host.to(at::kCUDA, /*non_blocking=*/true);
        if (waits) ok(cudaStreamSynchronize(nullptr));
        host.fill_(7);
        if (x.sum().item<float>() != 4) ++wrong;
      }));
    }
    EXPECT_EQ(wrong > 0, !waits);
  }
}

TEST(FakeStreams, MixedDevicesAreRefused) {
  expect_none(errors_on_one([] {
    const auto x = at::ones({4}, on_device());
    EXPECT_THROW(x + at::ones({4}), c10::Error);
    EXPECT_THROW(x + at::ones({4}, on_device().device(at::Device(at::kCUDA, 1))), c10::Error);
    EXPECT_EQ((x + at::ones({})).sum().item<float>(), 8);
  }));
}

}  // namespace
}  // namespace dtensor::test::fake_cuda
