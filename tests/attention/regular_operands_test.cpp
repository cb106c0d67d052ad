// Regular operands among DTensors: every rank has the same values, but each may have its own memory order.
#include "dtensor/attention.h"
#include "dtensor/inspect.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// Returns a copy whose memory order has the sequence before the heads.
at::Tensor turned(const at::Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); }

TEST(AttentionOfRegularOperands, ResultsHaveOneMemoryOrderOnAllRanks) {
  const auto q = Draw(1).normal({2, 2, 6, 4}), k = Draw(2).normal({2, 2, 6, 4}), v = Draw(3).normal({2, 2, 6, 4});
  const auto expected = attention(q, k, v);
  for (const auto& placement : {Shard(2), Shard(1), Replicate()}) {
    on_mesh({2}, [&](const DeviceMesh& mesh) {
      const Checked calls(Checks::calls);
      const auto mine = mesh.coordinate()->at(0) == 1 ? turned(q) : q;
      const auto key = distribute_tensor(k, mesh, {placement}), value = distribute_tensor(v, mesh, {placement});
      const auto out = attention(mine, key, value);
      EXPECT_TRUE(out.is_contiguous()) << placement.str() << ' ' << out.strides();
      expect_close(out.view({2, -1}) + 1, expected.view({2, -1}) + 1, placement.str());
    });
  }
}

// Otherwise each rank would have its own softmax.
TEST(AttentionOfRegularOperands, RegularSinksAreCompared) {
  const auto full_tensor = Draw(1).normal({2, 4, 6, 4});
  const auto split = [&](const DeviceMesh& mesh) { return distribute_tensor(full_tensor, mesh, {Shard(2)}); };
  EXPECT_THROW(on_mesh({2},
                       [&](const DeviceMesh& mesh) {
                         const at::Tensor x = split(mesh);
                         const auto mine = at::full({4}, mesh.coordinate()->front(), at::kDouble);
                         attention(x, x, x, {.sinks = mine});
                       }),
               std::exception);
  on_mesh({2}, [&](const DeviceMesh& mesh) {
    const at::Tensor x = split(mesh), sinks = at::zeros({4}, at::kDouble);
    expect_close(attention(x, x, x, {.sinks = sinks}),
                 attention(full_tensor, full_tensor, full_tensor, {.sinks = sinks}), "sinks");
    const Strict strict;
    EXPECT_THROW(attention(x, x, x, {.sinks = sinks}), c10::Error);
  });
}

}  // namespace
}  // namespace dtensor::test
