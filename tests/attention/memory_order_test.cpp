// Attention on split sequences whose operands are not row-major.
#include <gtest/gtest.h>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

// Results have the memory order of the queries. ATen's kernel assumes that the last dimension of each operand is
// contiguous.
TEST(AttentionMemoryOrder, ResultsAndGradientsEqualOneDevice) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    Draw draw(4);
    const auto reordered = [](const at::Tensor& t) {
      return t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    };
    for (int which = 0; which < 8; ++which) {
      std::vector<at::Tensor> regular, split;
      for (int i = 0; i < 3; ++i) {
        const at::Tensor t = draw.normal({2, 4, 6, 8});
        regular.push_back((which >> i & 1 ? reordered(t) : t).requires_grad_());
        split.push_back(distribute_tensor(regular[i].detach(), mesh, {Shard(2)}).requires_grad_());
      }
      const auto weight = draw.normal({2, 4, 6, 8});
      const auto of = [](const std::vector<at::Tensor>& t) {
        return at::scaled_dot_product_attention(t[0], t[1], t[2]);
      };
      const auto expected = of(regular), actual = of(split);
      expect_close(actual, expected, "result");
      (expected * weight).sum().backward();
      (actual * distribute_tensor(weight, mesh, {Shard(2)})).sum().backward();
      for (int i = 0; i < 3; ++i) expect_close(split[i].grad(), regular[i].grad(), c10::str(which, " gradient ", i));
    }
  });
}

}  // namespace
}  // namespace dtensor::test
