// A pre-hook on the node that produced the operand. Autograd's graph has global tensors and no redistribution. Without
// the hook, the gradient's shards would cause redistribution of larger gradients upstream (a state's gradients over the
// full sequence).
#include "autograd/gradients/gradient_resharding.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include "dtensor/tensor.h"
#include "placement/shard_map.h"

namespace dtensor {

bool shards_differently(const TensorSpec& from, const TensorSpec& to) {
  const auto otherwise = [](const Placement& a, const Placement& b) {
    return a.is_shard() && b.is_shard() && a.as_storage(false) != b.as_storage(false);
  };
  return differing_axes(from, to, otherwise) != 0;
}

namespace {

class GradientResharding final : public torch::autograd::FunctionPreHook {
 public:
  GradientResharding(SpecPtr target, std::size_t output) : target_(std::move(target)), output_(output) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    auto all = grads;
    auto& gradient = all.at(output_);
    if (is_dtensor(gradient)) gradient = reshard_gradient(DTensor(gradient));
    return all;
  }

 private:
  at::Tensor reshard_gradient(const DTensor& gradient) const {
    auto placements = gradient.placements();
    const auto& spec = *dtensor_or_null(gradient)->spec();
    if (spec.mesh != target_->mesh || !shards_differently(spec, *target_)) return gradient;
    for (std::size_t a = 0; a < placements.size(); ++a) {
      if (placements[a].is_shard() && target_->placements[a].is_shard()) {
        placements[a] = target_->placements[a].as_storage(false);
      }
    }
    return at_most_one_ragged(placements) ? gradient.redistribute(placements) : gradient;
  }

  SpecPtr target_;
  std::size_t output_;
};

}  // namespace

void reshard_gradient_to_operand(const at::Tensor& operand) {
  if (!at::GradMode::is_enabled() || !operand.defined() || !operand.requires_grad()) return;
  const auto* tensor = dtensor_or_null(operand);
  const auto& node = operand.grad_fn();
  if (tensor == nullptr || node == nullptr) return;
  node->add_tensor_pre_hook(std::make_unique<GradientResharding>(tensor->spec(), operand.output_nr()));
}

}  // namespace dtensor
