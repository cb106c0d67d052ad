// Saved state is that of the optimizer that takes it, whole: what another one saved, what lacks a part and what two
// parameters would share is refused; options that changed on the way change nothing that was saved.
#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

using List = std::vector<at::Tensor>;

at::Tensor trained(const Shape& sizes) {
  at::Tensor p = Draw(1).normal(sizes).requires_grad_();
  p.mutable_grad() = Draw(2).normal(sizes);
  return p;
}

bool refuses(Optimizer& optimizer, const OptimizerState& state, const std::string& what) {
  return error_of([&] { optimizer.load_state_dict(state); }).find(what) != std::string::npos;
}

TEST(State, ANameBelongsToOneParameter) {
  const at::Tensor a = trained({2}), b = trained({2});
  const auto error = [&](const std::vector<AdamW::Group>& groups) {
    return error_of([&] { AdamW optimizer(groups); });
  };
  EXPECT_NE(error({{{a}, {}, {"w"}}, {{b}, {}, {"w"}}}).find("the name w"), std::string::npos);
  EXPECT_NE(error({{{a}, {}, {"1"}}, {{b}, {}, {}}}).find("the name 1"), std::string::npos);  // by default its index
  EXPECT_EQ(error({{{a}, {}, {"w"}}, {{b}, {}, {"v"}}}), "no error");
}

}  // namespace
}  // namespace dtensor::test
