// Point-to-point messages of the NCCL backend: no message waits for another one, for a collective, or for the host of a
// rank that has posted its receive.
#include "dtensor/comm.h"

#include <ATen/ATen.h>

#include <thread>

#include "fake_cuda/calls.h"

namespace dtensor::test::fake_cuda {
namespace {

at::Tensor on_gpu(const Communicator& world, float value, std::int64_t n = 3) {
  return at::full({n}, value, at::TensorOptions(at::kFloat).device(at::Device(at::kCUDA, world.rank())));
}

float first(const at::Tensor& t) { return t.cpu()[0].item<float>(); }

void on_schedules(int ranks, const std::function<void(const Communicator&)>& body) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) expect_none(errors_of_ranks(ranks, {seed}, body));
}

TEST(NcclMessages, CrossingSendsAreIndependent) {
  for (const int ranks : {2, 3, 4}) {
    on_schedules(ranks, [&](const Communicator& world) {
      const int next = (world.rank() + 1) % ranks, previous = (world.rank() + ranks - 1) % ranks;
      const at::Tensor give = on_gpu(world, static_cast<float>(world.rank())), take = on_gpu(world, -1);
      Work sent = world.send(give, next);
      world.recv(take, previous).wait();
      EXPECT_EQ(first(take), static_cast<float>(previous));
      sent.wait();
    });
  }
}

// Messages of each tag are in order; a message waits for none of another tag.
TEST(NcclMessages, TagsAreIndependent) {
  on_schedules(2, [](const Communicator& world) {
    const int peer = 1 - world.rank();
    std::vector<Work> sent;
    for (int i = 0; i < 4; ++i)
      sent.push_back(world.send(on_gpu(world, static_cast<float>(10 * world.rank() + i)), peer, i % 2));
    for (const int i : {1, 3, 0, 2}) {
      const at::Tensor take = on_gpu(world, -1);
      world.recv(take, peer, i % 2).wait();
      EXPECT_EQ(first(take), static_cast<float>(10 * peer + i));
    }
  });
}

// One forward, one backward: a stage sends an activation before the gradient that the next stage sends first is read.
TEST(NcclMessages, OneForwardOneBackwardMakesProgress) {
  on_schedules(3, [](const Communicator& world) {
    const int me = world.rank(), batches = 5, warmup = 2 - me;
    std::vector<Work> sent;
    std::deque<at::Tensor> forwards;
    int backwards = 0;
    const auto forward = [&](int batch) {
      at::Tensor x = on_gpu(world, static_cast<float>(batch));
      if (me > 0) world.recv(x, me - 1).wait();
      x = x + 1;
      if (me < 2) sent.push_back(world.send(x, me + 1));
      forwards.push_back(x);
    };
    const auto backward = [&] {
      at::Tensor g = on_gpu(world, 1);
      if (me < 2) world.recv(g, me + 1).wait();
      g = g + forwards.front();
      forwards.pop_front();
      if (me > 0) sent.push_back(world.send(g, me - 1));
      if (me == 0) EXPECT_EQ(first(g), static_cast<float>(1 + 3 * backwards + 1 + 2 + 3));
      ++backwards;
    };
    for (int i = 0; i < warmup; ++i) forward(i);
    for (int i = warmup; i < batches; ++i) forward(i), backward();
    while (backwards < batches) backward();
    for (Work& work : sent) work.wait();
  });
}

// Views with gaps are sent from, and received into, a contiguous copy.
TEST(NcclMessages, StridedAndEmptyTensors) {
  on_schedules(2, [](const Communicator& world) {
    const int peer = 1 - world.rank();
    const at::Tensor give = on_gpu(world, static_cast<float>(world.rank()), 12).view({3, 4}).select(1, 2);
    const at::Tensor take = on_gpu(world, -1, 12);
    Work empty = world.send(give.slice(0, 0, 0), peer), sent = world.send(give, peer);
    world.recv(take.slice(0, 0, 0), peer).wait();
    world.recv(take.view({3, 4}).select(1, 1), peer).wait();
    EXPECT_EQ(take.sum().item<float>(), static_cast<float>(3 * peer - 9));
  });
}

TEST(NcclMessages, ToItselfByTag) {
  on_schedules(1, [](const Communicator& world) {
    for (int i = 0; i < 4; ++i) world.send(on_gpu(world, static_cast<float>(i)), 0, i % 2);
    for (const int i : {1, 3, 0, 2}) {
      const at::Tensor take = on_gpu(world, -1);
      world.recv(take, 0, i % 2).wait();
      EXPECT_EQ(first(take), static_cast<float>(i));
    }
    EXPECT_THROW(world.recv(on_gpu(world, 0), 0), c10::Error);
  });
}

// A receive posted by a rank whose host then waits elsewhere lets its sender finish.
TEST(NcclMessages, ConnectWithoutTheHost) {
  on_schedules(2, [](const Communicator& world) {
    const at::Tensor tensor = on_gpu(world, static_cast<float>(world.rank()));
    if (world.rank() == 0) {
      world.send(tensor, 1).wait();
      world.barrier();
    } else {
      Work received = world.recv(tensor, 0);
      world.barrier();
      received.wait();
      EXPECT_EQ(first(tensor), 0);
    }
  });
}

// A Work waits at its end, like those of other backends.
TEST(NcclMessages, ADroppedWorkIsComplete) {
  on_schedules(2, [](const Communicator& world) {
    const at::Tensor tensor = on_gpu(world, static_cast<float>(world.rank()));
    world.rank() == 0 ? world.send(tensor, 1) : world.recv(tensor, 0);
    EXPECT_EQ(first(tensor), 0);
  });
}

}  // namespace
}  // namespace dtensor::test::fake_cuda
