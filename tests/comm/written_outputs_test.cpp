// A collective advances the version of its outputs on every rank: caches derived from a tensor compare its version and
// must agree across ranks.
#include "comm/fixture.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

TEST(WrittenOutputs, AdvanceTheVersionOnEveryRank) {
  run_local(2, [](Communicator world) {
    const auto writes = [&](const at::Tensor& tensor, const std::function<void()>& call) {
      const auto before = tensor._version();
      call();
      return tensor._version() - before;
    };
    const at::Tensor x = at::ones({2}), z = at::ones({2}, at::kComplexFloat);
    EXPECT_EQ(writes(x, [&] { world.all_reduce(x, ReduceOp::sum).wait(); }), 1);
    EXPECT_EQ(writes(x, [&] { world.broadcast(x, 0).wait(); }), 1);
    EXPECT_EQ(writes(x, [&] { world.broadcast(x, 1).wait(); }), 1);
    EXPECT_EQ(writes(z, [&] { world.broadcast(z.conj(), 1).wait(); }), 1);
  });
}

// The root sends its value, but the sum of all shares has changed.
TEST(WrittenOutputs, CachedSumIsInvalidAfterBroadcastOfItsShares) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor local = at::full({4}, 1.0 + static_cast<double>(mesh.coordinate()->at(0)));
    const at::Tensor shares = DTensor::from_local(local, mesh, {Partial()});
    expect_close(at::relu(shares), at::full({4}, 3.0f), "before");
    mesh.communicator(0).broadcast(DTensor(shares).to_local(), 0).wait();
    expect_close(at::relu(shares), at::full({4}, 2.0f), "after");
  });
}

}  // namespace
}  // namespace dtensor::test
