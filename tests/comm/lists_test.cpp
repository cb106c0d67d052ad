// List collectives: tensors of different dtypes and sizes, uneven between ranks, views of any strides. Between
// processes, long tensors are separate messages and short ones are packed.
#include "comm/fixture.h"
#include "comm/memory/pool/buffer_pool.h"

namespace dtensor::test {
namespace {

// Uneven between ranks; every third tensor is long, some of the others are empty.
std::int64_t rows(std::int64_t rank, std::int64_t k) { return k % 3 == 1 ? 9000 + 100 * rank + k : (rank * 5 + k) % 4; }

class Lists : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};

TEST_P(Lists, EntriesOfAnyDtypeAreGathered) {
  on_ranks(ranks(), [&](Communicator world) {
    const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kDouble};
    for (std::size_t n = 1; n <= dtypes.size(); ++n) {
      std::vector<at::Tensor> expected, outputs, inputs;
      for (int i = 0; i < world.size(); ++i) {
        for (std::size_t k = 0; k < n; ++k) {
          const auto seed = static_cast<std::int64_t>(k) + i;
          expected.push_back(sample({rows(i, static_cast<std::int64_t>(k)), 3}, at::kInt, seed).to(dtypes[k]));
          outputs.push_back(strided_like(at::zeros_like(expected.back()), static_cast<int>(seed) % 4));
          if (i == world.rank()) inputs.push_back(strided_like(expected.back(), static_cast<int>(k + n) % 4));
        }
      }
      world.all_gather_list(outputs, inputs).wait();
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::equal(outputs[i], expected[i])) << n << ' ' << i;
    }
  });
}

TEST_P(Lists, EntriesOfAnyDtypeAreReduced) {
  on_ranks(ranks(), [&](Communicator world) {
    for (std::size_t n = 1; n <= 4; ++n) {
      const auto part = [&](int from, int to, std::size_t k) {
        return sample({rows(to, static_cast<std::int64_t>(k)), 2}, at::kDouble, from * 10 + to);
      };
      std::vector<at::Tensor> inputs, outputs, full;
      for (int to = 0; to < world.size(); ++to) {
        for (std::size_t k = 0; k < n; ++k)
          inputs.push_back(strided_like(part(world.rank(), to, k), static_cast<int>(to + n) % 4));
      }
      for (std::size_t k = 0; k < n; ++k) {
        outputs.push_back(strided_like(at::zeros_like(part(0, world.rank(), k)), static_cast<int>(k) % 4));
        full.push_back(strided_like(part(world.rank(), 0, k), static_cast<int>(k + 1) % 4));
      }
      world.reduce_scatter_list(outputs, inputs, ReduceOp::sum).wait();
      world.all_reduce_list(full, ReduceOp::sum).wait();
      for (std::size_t k = 0; k < n; ++k) {
        at::Tensor scattered = part(0, world.rank(), k), reduced = part(0, 0, k);
        for (int i = 1; i < world.size(); ++i) {
          scattered = scattered + part(i, world.rank(), k);
          reduced = reduced + part(i, 0, k);
        }
        EXPECT_TRUE(at::equal(outputs[k], scattered)) << n << ' ' << k;
        EXPECT_TRUE(at::equal(full[k], reduced)) << n << ' ' << k;
      }
    }
  });
}

std::size_t large_requests() {
  const MemoryPoolStats stats = memory_pool_stats();
  return stats.hits + stats.misses;
}

// A long tensor is sent from its memory to the target's memory. Sums need a buffer for each other rank's part and
// share.
TEST_P(Lists, LongTensorsAreNotPacked) {
  on_ranks(ranks(), [&](Communicator world) {
    const std::string name = world.backend_name();
    if (name == "local" || name == "nccl") return;  // thread ranks share one pool; these backends pack nothing
    const auto others = static_cast<std::size_t>(world.size() - 1);
    const std::vector<at::Tensor> mine(3, at::ones({20000}));
    std::vector<at::Tensor> all;
    for (std::size_t i = 0; i < 3 * (others + 1); ++i) all.push_back(at::zeros({20000}));
    const auto before = large_requests();
    world.all_gather_list(all, mine).wait();
    EXPECT_EQ(large_requests() - before, 0u);
    world
        .reduce_scatter_list({at::empty({20000}), at::empty({20000})},
                             std::vector<at::Tensor>(2 * (others + 1), mine[0]), ReduceOp::sum)
        .wait();
    EXPECT_EQ(large_requests() - before, 2 * others);
    world.all_reduce_list({at::ones({400000}), at::ones({400000})}, ReduceOp::sum).wait();
    EXPECT_EQ(large_requests() - before, 4 * others);
  });
}

// As for single tensors: an output that overlaps memory that other ranks read would give undefined values.
TEST(ListsInPlace, OverlapIsRefusedExceptForTheOwnPart) {
  on_ranks(2, [](Communicator world) {
    const auto next = 1 - world.rank();
    std::vector<at::Tensor> inputs;
    for (int i = 0; i < 4; ++i) inputs.push_back(at::ones({4}));
    const std::vector<at::Tensor> others = {inputs[2 * next], inputs[2 * next + 1]};
    EXPECT_THROW(world.reduce_scatter_list(others, inputs, ReduceOp::sum).wait(), c10::Error);
    EXPECT_THROW(world.all_gather_list(inputs, others).wait(), c10::Error);
    EXPECT_THROW(world.all_gather({inputs[0], inputs[1]}, inputs[static_cast<std::size_t>(next)]).wait(), c10::Error);
    const auto own = static_cast<std::size_t>(2 * world.rank());
    EXPECT_NO_THROW(world.all_gather_list(inputs, {inputs[own], inputs[own + 1]}).wait());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Lists, ::testing::Values(1, 2, 3, 4), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace dtensor::test
