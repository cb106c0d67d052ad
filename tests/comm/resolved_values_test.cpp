// Tensors whose memory does not hold their values: conjugate and negative views, zeros without memory, and lazy clones.
#include "comm/fixture.h"

namespace dtensor::test {
namespace {

class LazyBits : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};

at::Tensor numbers(int seed) {
  const at::Tensor real = sample({3, 2}, at::kFloat, seed);
  return at::complex(real, real + (seed + 1));
}
at::Tensor nothing() { return at::zeros({3, 2}, at::kComplexFloat); }

// Returns the same values behind a conjugate or negative bit.
at::Tensor conjugated(const at::Tensor& values) { return values.conj().resolve_conj().conj(); }
at::Tensor negated(const at::Tensor& values) { return at::_neg_view(-values); }

bool has_values(const at::Tensor& tensor, const at::Tensor& expected) {
  return same(tensor.resolve_conj().resolve_neg(), expected);
}

at::Tensor sum_of(int ranks, int times = 1) {
  at::Tensor sum = nothing();
  for (int i = 0; i < ranks; ++i) sum = sum + numbers(i) * times;
  return sum;
}

TEST_P(LazyBits, AreReducedAsValues) {
  on_ranks(ranks(), [&](Communicator world) {
    const int me = world.rank(), n = world.size();
    const at::Tensor on_some = me % 2 == 0 ? numbers(me) : conjugated(numbers(me));
    world.all_reduce(on_some, ReduceOp::sum).wait();
    EXPECT_TRUE(has_values(on_some, sum_of(n)));
    const at::Tensor apart = conjugated(nothing());
    world.all_reduce(apart, numbers(me), ReduceOp::sum).wait();
    EXPECT_TRUE(has_values(apart, sum_of(n)));
    const at::Tensor scattered = conjugated(nothing());
    world.reduce_scatter(scattered, std::vector<at::Tensor>(n, numbers(me)), ReduceOp::sum).wait();
    EXPECT_TRUE(has_values(scattered, sum_of(n)));
  });
}

TEST_P(LazyBits, AreOrderedByValue) {
  on_ranks(ranks(), [&](Communicator world) {
    const at::Tensor largest = negated(at::arange(4, at::kFloat) * (world.rank() + 1));
    const at::Tensor product = negated(at::full({3}, 2.0));
    world.all_reduce(largest, ReduceOp::max).wait();
    world.all_reduce(product, ReduceOp::product).wait();
    EXPECT_TRUE(has_values(largest, at::arange(4, at::kFloat) * world.size()));
    EXPECT_TRUE(has_values(product, at::full({3}, static_cast<double>(1 << world.size()))));
  });
}

TEST_P(LazyBits, AreSentAsValues) {
  on_ranks(ranks(), [&](Communicator world) {
    const int me = world.rank(), n = world.size();
    std::vector<at::Tensor> gathered, exchanged;
    for (int i = 0; i < n; ++i) gathered.push_back(conjugated(nothing())), exchanged.push_back(conjugated(nothing()));
    world.all_gather(gathered, conjugated(numbers(me))).wait();
    world.all_to_all(exchanged, std::vector<at::Tensor>(n, conjugated(numbers(me)))).wait();
    for (int i = 0; i < n; ++i) {
      EXPECT_TRUE(has_values(gathered[i], numbers(i)));
      EXPECT_TRUE(has_values(exchanged[i], numbers(i)));
    }
    const at::Tensor reported = me == 0 ? conjugated(numbers(7)) : me == 1 ? numbers(1) : conjugated(numbers(2));
    world.broadcast(reported, 0).wait();
    EXPECT_TRUE(has_values(reported, numbers(7)));
    const at::Tensor taken = conjugated(nothing());
    Work sent = world.send(conjugated(numbers(me)), (me + 1) % n);
    Work received = world.recv(taken, (me + n - 1) % n);
    received.wait(), sent.wait();
    EXPECT_TRUE(has_values(taken, numbers((me + n - 1) % n)));
  });
}

TEST_P(LazyBits, ListsAreSentAsValues) {
  on_ranks(ranks(), [&](Communicator world) {
    const int me = world.rank(), n = world.size();
    const std::vector<at::Tensor> sums = {conjugated(numbers(me)), numbers(me)};
    world.all_reduce_list(sums, ReduceOp::sum).wait();
    const std::vector<at::Tensor> parts = {conjugated(nothing()), nothing()};
    std::vector<at::Tensor> inputs, gathered;
    for (int i = 0; i < n; ++i) {
      inputs.push_back(conjugated(numbers(me))), inputs.push_back(numbers(me));
      gathered.push_back(conjugated(nothing())), gathered.push_back(nothing());
    }
    world.reduce_scatter_list(parts, inputs, ReduceOp::sum).wait();
    world.all_gather_list(gathered, {numbers(me), conjugated(numbers(me))}).wait();
    for (int k = 0; k < 2; ++k) {
      EXPECT_TRUE(has_values(sums[k], sum_of(n))) << k;
      EXPECT_TRUE(has_values(parts[k], sum_of(n))) << k;
      for (int i = 0; i < n; ++i) EXPECT_TRUE(has_values(gathered[2 * i + k], numbers(i))) << i << ' ' << k;
    }
  });
}

// Autograd makes such zeros for undefined tangents.
TEST_P(LazyBits, ZerosWithoutMemoryAreMaterialized) {
  on_ranks(ranks(), [&](Communicator world) {
    const at::Tensor zeros = at::_efficientzerotensor({2, 3}, at::TensorOptions(at::kFloat));
    std::vector<at::Tensor> gathered(world.size());
    for (auto& t : gathered) t = at::ones({2, 3});
    world.all_gather(gathered, zeros).wait();
    for (const auto& t : gathered) EXPECT_TRUE(same(t, at::zeros({2, 3})));
  });
}

// A lazy clone shares memory until one of the tensors is written.
TEST_P(LazyBits, LazyClonesAreCopiedOnlyOnWrite) {
  on_ranks(ranks(), [&](Communicator world) {
    const double me = world.rank() + 1.0, n = world.size();
    for (int trial = 0; trial < 100; ++trial) {
      const at::Tensor source = at::full({1000}, me), sum = at::_lazy_clone(source);
      world.all_reduce(sum, ReduceOp::sum).wait();
      EXPECT_TRUE(same(sum, at::full({1000}, n * (n + 1) / 2)));
      EXPECT_TRUE(same(source, at::full({1000}, me)));
    }
    const at::Tensor source = at::full({1000}, me), read = at::_lazy_clone(source), sum = at::zeros({1000});
    world.all_reduce(sum, read, ReduceOp::sum).wait();
    EXPECT_EQ(read.const_data_ptr(), source.const_data_ptr());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, LazyBits, ::testing::Values(1, 2, 3, 4), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace dtensor::test
