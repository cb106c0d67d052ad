// The simulated NCCL: results of all operations, and an error for each way in which ranks can diverge.
#include "fake_cuda/calls.h"

namespace dtensor::test::fake_cuda {
namespace {

using Body = std::function<void(ncclComm_t, int rank, cudaStream_t)>;

std::vector<std::string> errors_on(int ranks, const Body& body, Schedule schedule = {}) {
  const auto id = new_id();
  return errors_of_devices(ranks, schedule, [&](int rank) {
    ncclComm_t comm = world(id, ranks, rank);
    body(comm, rank, new_stream());
    ncclCommAbort(comm);
  });
}

TEST(FakeNccl, CollectivesMoveData) {
  for (const int ranks : {1, 2, 3, 8}) {
    const auto n = static_cast<std::size_t>(ranks);
    expect_none(errors_on(ranks, [&](ncclComm_t comm, int rank, cudaStream_t stream) {
      const Floats mine(n, static_cast<float>(rank + 1)), sum(n), all(n * n), piece(1),
          root(n, static_cast<float>(rank));
      order(nullptr, stream);
      ok(ncclAllReduce(mine.data(), sum.data(), n, ncclFloat, ncclSum, comm, stream));
      ok(ncclAllGather(mine.data(), all.data(), n, ncclFloat, comm, stream));
      ok(ncclReduceScatter(mine.data(), piece.data(), 1, ncclFloat, ncclMax, comm, stream));
      ok(ncclBroadcast(root.data(), root.data(), n, ncclFloat, ranks - 1, comm, stream));
      ok(cudaStreamSynchronize(stream));
      EXPECT_EQ(sum.data()[0], static_cast<float>(ranks * (ranks + 1) / 2));
      for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(all.data()[i * n], static_cast<float>(i + 1));
      EXPECT_EQ(piece.data()[0], static_cast<float>(ranks));
      EXPECT_EQ(root.data()[0], static_cast<float>(ranks - 1));
    }));
  }
}

TEST(FakeNccl, GroupedMessagesMayCross) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto exchange = [](ncclComm_t comm, int rank, cudaStream_t stream) {
      const Floats give(4, static_cast<float>(rank)), take(4);
      order(nullptr, stream);
      ok(ncclGroupStart());
      ok(ncclSend(give.data(), 4, ncclFloat, (rank + 1) % 4, comm, stream));
      ok(ncclRecv(take.data(), 4, ncclFloat, (rank + 3) % 4, comm, stream));
      ok(ncclGroupEnd());
      ok(cudaStreamSynchronize(stream));
      EXPECT_EQ(take.data()[3], static_cast<float>((rank + 3) % 4));
    };
    expect_none(errors_on(4, exchange, {seed}));
  }
}

TEST(FakeNccl, CrossingSendsAreADeadlock) {
  const auto errors = errors_on(2,
                                [](ncclComm_t comm, int rank, cudaStream_t stream) {
                                  const Floats give(4), take(4);
                                  order(nullptr, stream);
                                  ok(ncclSend(give.data(), 4, ncclFloat, 1 - rank, comm, stream));
                                  ok(ncclRecv(take.data(), 4, ncclFloat, 1 - rank, comm, stream));
                                  ok(cudaStreamSynchronize(stream));
                                },
                                {1, kShort, false});
  expect_error(errors,
               {"deadlock", "cycle: 0 -> 1 -> 0", "rank 0 waits in cudaStreamSynchronize", "rank 1 waits in",
                "ncclSend of 4 Float32 to rank 1 on communicator", "ncclSend of 4 Float32 to rank 0", "before 1 more"});
}

TEST(FakeNccl, MissingRankIsADeadlock) {
  const auto errors = errors_on(2,
                                [](ncclComm_t comm, int rank, cudaStream_t stream) {
                                  const Floats x(4);
                                  order(nullptr, stream);
                                  if (rank == 0)
                                    ok(ncclAllReduce(x.data(), x.data(), 4, ncclFloat, ncclSum, comm, stream));
                                  ok(cudaStreamSynchronize(stream));
                                },
                                {1, kShort, false});
  expect_error(errors, {"deadlock", "rank 0 waits in cudaStreamSynchronize", "ncclAllReduce of 4 Float32, sum"});
}

// Two communicators on one stream each, in different orders.
TEST(FakeNccl, OrderOfCommunicatorsIsADeadlock) {
  const auto first = new_id(), second = new_id();
  const auto errors = errors_of_devices(2, {1, kShort, false}, [&](int rank) {
    ncclComm_t comms[2] = {world(first, 2, rank), world(second, 2, rank)};
    const Floats x(4);
    for (const int i : {rank, 1 - rank})
      ok(ncclAllReduce(x.data(), x.data(), 4, ncclFloat, ncclSum, comms[i], nullptr));
    ok(cudaStreamSynchronize(nullptr));
  });
  expect_error(errors, {"deadlock", "cycle: 0 -> 1 -> 0"});
}

// Operations of two communicators in different orders, on streams of their own, need both a place on the device.
TEST(FakeNccl, OperationsNeedAPlaceOnTheDevice) {
  for (const int concurrent : {1, 2}) {
    const auto first = new_id(), second = new_id();
    const auto errors = errors_of_devices(2, {1, kShort, false, concurrent}, [&](int rank) {
      ncclComm_t comms[2] = {world(first, 2, rank), world(second, 2, rank)};
      const cudaStream_t streams[2] = {new_stream(), new_stream()};
      const Floats x(4), y(4);
      float* const data[2] = {x.data(), y.data()};
      for (cudaStream_t stream : streams) order(nullptr, stream);
      for (const int i : {rank, 1 - rank}) {
        ok(ncclAllReduce(data[i], data[i], 4, ncclFloat, ncclSum, comms[i], streams[i]));
        for (int k = 0; i == rank && k < 20; ++k) cudaStreamQuery(streams[i]);  // starts it
      }
      ok(cudaDeviceSynchronize());
    });
    if (concurrent == 1) expect_error(errors, {"deadlock", "cycle: 0 -> 1 -> 0", "not started"});
    if (concurrent == 2) expect_none(errors);
  }
}

TEST(FakeNccl, DifferentCallsAreReported) {
  using Calls = std::vector<std::function<ncclResult_t(float*, ncclComm_t, cudaStream_t)>>;
  const Calls calls = {[](float* x, auto c, auto s) { return ncclAllReduce(x, x, 4, ncclFloat, ncclSum, c, s); },
                       [](float* x, auto c, auto s) { return ncclAllReduce(x, x, 3, ncclFloat, ncclSum, c, s); },
                       [](float* x, auto c, auto s) { return ncclAllReduce(x, x, 4, ncclInt32, ncclSum, c, s); },
                       [](float* x, auto c, auto s) { return ncclAllReduce(x, x, 4, ncclFloat, ncclMax, c, s); },
                       [](float* x, auto c, auto s) { return ncclBroadcast(x, x, 4, ncclFloat, 0, c, s); },
                       [](float* x, auto c, auto s) { return ncclBroadcast(x, x, 4, ncclFloat, 1, c, s); },
                       [](float* x, auto c, auto s) { return ncclReduce(x, x, 4, ncclFloat, ncclSum, 0, c, s); }};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto errors = errors_on(2, [&](ncclComm_t comm, int rank, cudaStream_t) {
        const Floats x(4);
        ok(calls[rank == 0 ? i : j](x.data(), comm, nullptr));
        ok(cudaStreamSynchronize(nullptr));
      });
      expect_error(errors, {"collective mismatch on communicator", "of devices 0, 1: rank "});
    }
  }
}

TEST(FakeNccl, MessagesOfDifferentSizesAreReported) {
  const auto errors = errors_on(2, [](ncclComm_t comm, int rank, cudaStream_t) {
    const Floats x(4);
    if (rank == 0) ok(ncclSend(x.data(), 4, ncclFloat, 1, comm, nullptr));
    if (rank == 1) ok(ncclRecv(x.data(), 3, ncclFloat, 0, comm, nullptr));
    ok(cudaStreamSynchronize(nullptr));
  });
  expect_error(errors, {"message mismatch", "ncclSend of 4 Float32 to rank 1", "ncclRecv of 3 Float32 from rank 0"});
}

TEST(FakeNccl, HostMemoryAndWrongRanksAreRefused) {
  const auto errors = errors_on(1, [](ncclComm_t comm, int, cudaStream_t stream) {
    float on_host = 0;
    EXPECT_EQ(ncclAllReduce(&on_host, &on_host, 1, ncclFloat, ncclSum, comm, stream), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("expected 4 bytes of allocated memory on device 0"),
              std::string::npos);
    const Floats x(2);
    EXPECT_EQ(ncclAllReduce(x.data() + 1, x.data() + 1, 2, ncclFloat, ncclSum, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(x.data(), 1, ncclFloat, 1, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  });
  expect_none(errors);
}

TEST(FakeNccl, AbortDropsQueuedOperations) {
  const auto aborts = [](ncclComm_t comm, int rank, cudaStream_t stream) {
    const Floats x(4, static_cast<float>(rank));
    order(nullptr, stream);
    if (rank == 0) ok(ncclAllReduce(x.data(), x.data(), 4, ncclFloat, ncclSum, comm, stream));
    ok(ncclCommAbort(comm));
    ok(cudaStreamSynchronize(stream));  // The other rank never called.
    EXPECT_EQ(x.data()[0], static_cast<float>(rank));
    EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 4, ncclFloat, ncclSum, comm, stream), ncclInvalidArgument);
  };
  expect_none(errors_on(2, aborts, {1, kShort, false}));
}

// Each rank sends to the other on a communicator of its own, and both receive later. The operations could run, but the
// first call of a communicator blocks the host.
TEST(FakeNccl, FirstMessageBlocksTheHost) {
  for (const bool connects : {false, true}) {
    const auto first = new_id(), second = new_id();
    const auto errors = errors_of_devices(2, {1, kShort, connects}, [&](int rank) {
      ncclComm_t comms[2] = {world(first, 2, rank), world(second, 2, rank)};
      const cudaStream_t streams[2] = {new_stream(), new_stream()};
      const Floats give(4), take(4);
      for (cudaStream_t stream : streams) order(nullptr, stream);
      ok(ncclSend(give.data(), 4, ncclFloat, 1 - rank, comms[rank], streams[rank]));
      ok(ncclRecv(take.data(), 4, ncclFloat, 1 - rank, comms[1 - rank], streams[1 - rank]));
      ok(cudaDeviceSynchronize());
    });
    if (!connects) expect_none(errors);
    if (connects)
      expect_error(errors, {"deadlock", "rank 0 waits in the first call of ncclSend of 4 Float32 to rank 1"});
  }
}

TEST(FakeNccl, SplitOrdersMembersByKey) {
  expect_none(errors_on(4, [](ncclComm_t comm, int rank, cudaStream_t) {
    ncclComm_t part = nullptr;
    ok(ncclCommSplit(comm, rank == 3 ? NCCL_SPLIT_NOCOLOR : 0, -rank, &part, nullptr));
    if (rank == 3) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    int size = 0, mine = -1;
    ok(ncclCommCount(part, &size));
    ok(ncclCommUserRank(part, &mine));
    EXPECT_EQ(size, 3);
    EXPECT_EQ(mine, 2 - rank);
    const Floats x(1, 1.0F);
    ok(ncclAllReduce(x.data(), x.data(), 1, ncclFloat, ncclSum, part, nullptr));
    ok(cudaStreamSynchronize(nullptr));
    EXPECT_EQ(x.data()[0], 3.0F);
    ok(ncclCommFinalize(part));
    ok(ncclCommDestroy(part));
  }));
}

void wait_for(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) ok(ncclCommGetAsyncError(comm, &state));
  ok(state);
}

void started(ncclResult_t result) {
  if (result != ncclInProgress) ok(result);
}

// A nonblocking call may leave its operation for later, so the caller must ask for the state before it goes on.
std::vector<std::string> nonblocking(std::uint64_t seed, bool waits) {
  const auto id = new_id();
  return errors_of_devices(2, {seed, kShort}, [&](int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInProgress);
    wait_for(comm);
    const cudaStream_t stream = new_stream();
    const Floats x(1, 1.0F), y(1);
    order(nullptr, stream);
    started(ncclAllReduce(x.data(), x.data(), 1, ncclFloat, ncclSum, comm, stream));
    if (waits) wait_for(comm);
    order(stream, nullptr);
    started(ncclAllReduce(x.data(), y.data(), 1, ncclFloat, ncclSum, comm, nullptr));
    wait_for(comm);
    ok(cudaStreamSynchronize(nullptr));
    EXPECT_EQ(y.data()[0], 4.0F);
    EXPECT_EQ(ncclCommFinalize(comm), ncclInProgress);
    wait_for(comm);
    ok(ncclCommDestroy(comm));
  });
}

TEST(FakeNccl, NonblockingCallsMustBeFinishedBeforeTheNext) {
  bool found = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    expect_none(nonblocking(seed, true));
    const auto errors = nonblocking(seed, false);
    if (errors.empty()) continue;
    expect_error(errors, {"got ncclInProgress; call ncclCommGetAsyncError first"});
    found = true;
  }
  EXPECT_TRUE(found);
}

TEST(FakeNccl, SharedDeviceIsRefused) {
  const auto id = new_id();
  expect_none(errors_of_devices(1, {}, [&](int) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 1), ncclInvalidUsage);
  }));
}

}  // namespace
}  // namespace dtensor::test::fake_cuda
