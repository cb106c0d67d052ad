// Attention whose operands are one tensor, or computed from each other: gradients with a graph (create_graph) count
// each path once.
#include <gtest/gtest.h>

#include "attention/cases.h"

namespace dtensor::test {
namespace {

using Operands = std::vector<at::Tensor>;
using Make = std::function<Operands(const at::Tensor& x)>;

at::Tensor by_formula(const Operands& in) {
  const auto scores = at::matmul(in[0], in[1].transpose(2, 3)) / std::sqrt(static_cast<double>(in[0].size(3)));
  return at::matmul(at::softmax(scores, -1), in[2]);
}

// Returns the gradient of a sum of squares, and the gradient of that gradient's sum of squares.
Operands both(const at::Tensor& x, const at::Tensor& y) {
  const auto first = torch::autograd::grad({y.square().sum()}, {x}, {}, true, true)[0];
  return {first.detach(), torch::autograd::grad({first.square().sum()}, {x})[0]};
}

TEST(AttentionDerivedOperands, GradientsWithAGraphCountEachPathOnce) {
  const std::pair<const char*, Make> makes[] = {{"one tensor",
                                                 [](const at::Tensor& x) {
                                                   return Operands{x, x, x};
                                                 }},
                                                {"values of keys",
                                                 [](const at::Tensor& x) {
                                                   return Operands{x * 2, x, x.square()};
                                                 }},
                                                {"keys of queries",
                                                 [](const at::Tensor& x) {
                                                   return Operands{x, x.sin(), x + 1};
                                                 }},
                                                {"three scaled copies", [](const at::Tensor& x) {
                                                   return Operands{x * 2, x * 3, x - 1};
                                                 }}};
  const auto full = Draw(4).normal({1, 2, 6, 4});
  for (const auto& [what, make] : makes) {
    const auto regular = full.clone().requires_grad_();
    const auto wanted = both(regular, by_formula(make(regular)));
    for (const auto strategy : {AttentionStrategy::ring, AttentionStrategy::gather, AttentionStrategy::ulysses}) {
      on_mesh({2}, [&, what = what, make = make](const DeviceMesh& mesh) {
        const AttentionStrategyScope scope(strategy);
        const auto x = distribute_tensor(full, mesh, {Shard(2)}).detach().requires_grad_();
        const auto in = make(x);
        const auto found = both(x, attention(in[0], in[1], in[2]));
        for (std::size_t i = 0; i < 2; ++i) {
          expect_close(found[i], wanted[i], c10::str(what, ", ", to_string(strategy), ", derivative ", i + 1));
        }
      });
    }
  }
}

}  // namespace
}  // namespace dtensor::test
