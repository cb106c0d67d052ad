// Requirements for every backend: splits and subgroups of communicators.
#include "comm/fixture.h"

namespace dtensor::test {
namespace {

class Groups : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};

TEST_P(Groups, SplitOrdersByKeyAndExcludesNegativeColors) {
  on_ranks(ranks(), [&](Communicator world) {
    const int me = world.rank();
    const auto half = world.split(me % 2, -me);
    const int peers = (world.size() + 1 - me % 2) / 2;
    EXPECT_EQ(half.size(), peers);
    EXPECT_EQ(half.ranks()[half.rank()], me);
    EXPECT_TRUE(std::is_sorted(half.ranks().rbegin(), half.ranks().rend()));
    const at::Tensor x = at::full({2}, static_cast<double>(me));
    half.all_reduce(x, ReduceOp::max).wait();
    EXPECT_EQ(x[0].item<double>(), half.ranks()[0]);
    const auto some = world.split(me == 0 ? -1 : 0, 0);
    EXPECT_EQ(static_cast<bool>(some), me != 0);
    if (some) {
      EXPECT_EQ(some.rank(), me - 1);
    }
  });
}

TEST_P(Groups, SubgroupsNeedOnlyTheirMembers) {
  on_ranks(ranks(), [&](Communicator world) {
    if (world.size() < 3 || world.rank() == 1 || world.rank() > 2) return;
    const auto some = world.subgroup({2, 0}, "odd");
    EXPECT_EQ(some.label(), "odd");
    EXPECT_EQ(some.ranks(), (std::vector<std::int64_t>{2, 0}));
    const at::Tensor x = at::full({1}, static_cast<double>(some.rank()));
    some.broadcast(x, 0).wait();
    EXPECT_EQ(x.item<double>(), 0);
    const auto inner = some.subgroup({1, 0});
    EXPECT_EQ(inner.ranks(), (std::vector<std::int64_t>{0, 2}));
    inner.barrier();
  });
}

TEST_P(Groups, EqualSubgroupsAreDistinctCommunicators) {
  on_ranks(ranks(), [&](Communicator world) {
    std::vector<std::int64_t> all(world.size());
    for (int i = 0; i < world.size(); ++i) all[i] = i;
    const auto a = world.subgroup(all), b = world.subgroup(all);
    EXPECT_FALSE(a == b);
    const at::Tensor x = at::ones({1}), y = at::ones({1});
    a.all_reduce(x, ReduceOp::sum).wait();
    b.all_reduce(y, ReduceOp::sum).wait();
    b.all_reduce(y, ReduceOp::sum).wait();
    EXPECT_EQ(x.item<double>(), world.size());
    EXPECT_EQ(y.item<double>(), world.size() * world.size());
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Groups, ::testing::Values(1, 2, 3, 4), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace dtensor::test
