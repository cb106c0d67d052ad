// Plain operands among DTensors: every rank has the same values, each in its own order of memory.
#include "dtensor/attention.h"
#include "dtensor/inspect.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// Heads before the sequence in memory, or behind it.
at::Tensor turned(const at::Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); }

TEST(AttentionOfPlainOperands, HasOneOrderOnAllRanks) {
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

}  // namespace
}  // namespace dtensor::test
