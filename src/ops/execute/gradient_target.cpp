// Finds the leaves behind the edges of the current autograd node.
#include "ops/execute/gradient_target.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "tensor/impl/dtensor_impl.h"

namespace dtensor {
namespace {

constexpr int kMaxVisitedNodes = 3;

// Whether a node passes the gradient on unchanged, cast or transposed. Formulas of matrix products compute the gradient
// of a transposed weight in the layout of the weight and then transpose it.
bool passes_on(const torch::autograd::Node& node) {
  const auto name = node.name();
  return node.num_outputs() == 1 &&
         (name == "ToCopyBackward0" || name == "AliasBackward0" || name == "TransposeBackward0");
}

SpecPtr leaf_of_edge(const torch::autograd::Edge& edge) {
  auto* node = edge.function.get();
  for (int i = 0; i < kMaxVisitedNodes && node != nullptr && passes_on(*node); ++i)
    node = node->next_edge(0).function.get();
  auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
  auto* impl = leaf == nullptr ? nullptr : dtensor_or_null(leaf->variable);
  return impl == nullptr ? SpecPtr() : impl->spec();
}

}  // namespace

c10::SmallVector<SpecPtr, 2> gradient_leaf_specs() {
  c10::SmallVector<SpecPtr, 2> leaves;
  const auto running = torch::autograd::get_current_node();
  if (!running) return leaves;
  for (const auto& edge : running->next_edges()) {
    if (auto leaf = leaf_of_edge(edge)) leaves.push_back(std::move(leaf));
  }
  return leaves;
}

}  // namespace dtensor
