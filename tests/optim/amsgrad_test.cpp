// AMSGrad, which divides by the largest second moment so far: state that a checkpoint needs. elementwise_test.cpp
// compares layouts.
#include <torch/optim/adamw.h>

#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

TEST(Amsgrad, EqualsTorch) {
  for (const bool fused : {false, true}) {
    const at::Tensor start = Draw(1).normal({5, 3});
    const at::Tensor p = start.clone().requires_grad_(), q = start.clone().requires_grad_();
    AdamW ours({p}, {.lr = 0.1, .beta2 = 0.5, .fused = fused, .amsgrad = true});
    torch::optim::AdamW torch_adamw(std::vector<at::Tensor>{q},
                                    torch::optim::AdamWOptions(0.1).betas({0.9, 0.5}).amsgrad(true));
    for (const double factor : {4., 1., -0.5, 0.25}) {
      p.mutable_grad() = start * factor;
      q.mutable_grad() = start * factor;
      ours.step();
      torch_adamw.step();
      expect_close(p.detach(), q.detach(), "amsgrad", 1e-12);
    }
    ASSERT_EQ(ours.state(p).size(), 3u);
    EXPECT_TRUE((ours.state(p)[2].second > ours.state(p)[1].second).all().item<bool>());
  }
}

TEST(Amsgrad, StateWithoutTheLargestMomentIsRefused) {
  const at::Tensor p = Draw(1).normal({5, 3}).requires_grad_();
  p.mutable_grad() = p.detach();
  AdamW adamw({p}, {.amsgrad = true});
  adamw.step();
  OptimizerState state = adamw.state_dict();
  state.tensors.pop_back();
  EXPECT_NE(error_of([&] { adamw.load_state_dict(state); }).find("max_exp_avg_sq"), std::string::npos);
}

}  // namespace
}  // namespace dtensor::test
