// Element-wise losses with a mean, forward and backward, against the ATen operators.
#include "local_kernels/local_kernel_fixture.h"

namespace dtensor::testing {
namespace {

struct Form {
  std::string name;
  std::vector<c10::IValue> extra;  // after `reduction`
  bool weighted = false;           // has a weight before `reduction`
  bool probabilities = false;
};

Form any_form() {
  const std::vector<Form> forms{{"mse_loss", {}},
                                {"smooth_l1_loss", {0.7}},
                                {"huber_loss", {0.6}},
                                {"soft_margin_loss", {}},
                                {"binary_cross_entropy", {}, true, true}};
  return forms[pick(0, static_cast<std::int64_t>(forms.size()) - 1)];
}

struct Case {
  Form form = any_form();
  std::vector<std::int64_t> mesh = any_mesh();
  std::vector<std::int64_t> sizes = any_sizes(0, 3);
  std::int64_t ndim = static_cast<std::int64_t>(sizes.size());
  Placements placements = any_shards(mesh, all_dims(ndim));
  std::int64_t reduction = pick(0, 2);
  at::ScalarType type = any_float();
  bool has_weight = form.weighted && flip();

  at::Tensor values() const { return (form.probabilities ? at::rand(sizes) * 0.9 + 0.05 : at::randn(sizes)).to(type); }
  std::vector<c10::IValue> args(std::vector<c10::IValue> before) const {
    before.emplace_back(values());
    before.emplace_back(form.probabilities ? at::rand(sizes).to(type) : values());
    if (form.weighted) before.emplace_back(has_weight ? c10::IValue(at::rand(sizes).to(type)) : c10::IValue());
    before.emplace_back(reduction);
    before.insert(before.end(), form.extra.begin(), form.extra.end());
    return before;
  }
  std::vector<Placements> inputs(std::vector<Placements> before) const {
    before.insert(before.end(), 2, placements);
    if (form.weighted) before.push_back(has_weight ? placements : Placements());
    return before;
  }
};

RC_GTEST_PROP(Losses, ForwardEqualsAten, ()) {
  const Case c;
  const auto out = c.reduction == 0 ? c.placements : reduced(c.placements, all_dims(c.ndim), false, flip());
  check_case({c.form.name, "", "loss_mean_global", c.args({}), c.inputs({}), {out}, c.mesh});
}

RC_GTEST_PROP(Losses, BackwardEqualsAten, ()) {
  const Case c;
  const auto grad = (c.reduction == 0 ? at::randn(c.sizes) : at::randn({})).to(c.type);
  const auto grad_placements = c.reduction == 0 ? c.placements : replicated(c.mesh);
  check_case({c.form.name + "_backward",
              "",
              "loss_backward_global",
              c.args({grad}),
              c.inputs({grad_placements}),
              {c.placements},
              c.mesh});
}

RC_GTEST_PROP(Losses, LossesOfLogitsEqualAten, ()) {
  const Case c;
  const auto out = c.reduction == 0 ? c.placements : reduced(c.placements, all_dims(c.ndim), false, flip());
  check_case({"binary_cross_entropy_with_logits",
              "",
              "loss_mean_global",
              {at::randn(c.sizes), at::rand(c.sizes), c10::IValue(), c10::IValue(), c.reduction},
              {c.placements, c.placements, {}, {}},
              {out},
              c.mesh});
}

}  // namespace
}  // namespace dtensor::testing
