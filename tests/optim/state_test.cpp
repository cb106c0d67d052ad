// load_state_dict() accepts only complete state of the same optimizer. It refuses state of another optimizer,
// incomplete state and a name of two parameters. Changed options do not change saved state.
#include <cmath>

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

TEST(State, DuplicateNamesAreRefused) {
  const at::Tensor a = trained({2}), b = trained({2});
  const auto error = [&](const std::vector<AdamW::Group>& groups) {
    return error_of([&] { AdamW optimizer(groups); });
  };
  EXPECT_NE(error({{{a}, {}, {"w"}}, {{b}, {}, {"w"}}}).find("the name w"), std::string::npos);
  EXPECT_NE(error({{{a}, {}, {"1"}}, {{b}, {}, {}}}).find("the name 1"),
            std::string::npos);  // The index is the default.
  EXPECT_EQ(error({{{a}, {}, {"w"}}, {{b}, {}, {"v"}}}), "no error");
}

TEST(State, StateOfAnotherOptimizerOrIncompleteStateIsRefused) {
  const at::Tensor p = trained({3, 2});
  SGD sgd({p}, {.momentum = 0.9});
  AdamW adamw({p});
  Adagrad adagrad({p});
  Muon muon({p});
  Shampoo shampoo({p});
  const std::vector<Optimizer*> all{&sgd, &adamw, &adagrad, &muon, &shampoo};
  for (Optimizer* optimizer : all) optimizer->step();
  EXPECT_TRUE(refuses(adamw, sgd.state_dict(), "0.exp_avg is missing"));
  EXPECT_TRUE(refuses(adagrad, adamw.state_dict(), "0.sum is missing"));
  EXPECT_TRUE(refuses(muon, adamw.state_dict(), "0.momentum_buffer is missing"));
  EXPECT_TRUE(refuses(shampoo, adamw.state_dict(), "0.graft_exp_avg_sq is missing"));
  for (Optimizer* optimizer : all) {
    OptimizerState state = optimizer->state_dict();
    EXPECT_EQ(error_of([&] { optimizer->load_state_dict(state); }), "no error");
    if (optimizer == &sgd) continue;  // SGD may have run without momentum.
    const std::string name = state.tensors.front().first;
    state.tensors.erase(state.tensors.begin());
    EXPECT_TRUE(refuses(*optimizer, state, name + " is missing")) << name;
  }
}

// Bias correction would treat the moments as those of a first step.
TEST(State, StateWithoutStepCountIsRefused) {
  const at::Tensor p = trained({3, 2});
  AdamW adamw({p});
  Adagrad adagrad({p});
  Muon muon({p});
  Shampoo shampoo({p});
  for (Optimizer* optimizer : std::vector<Optimizer*>{&adamw, &adagrad, &muon, &shampoo}) {
    optimizer->step();
    OptimizerState state = optimizer->state_dict();
    std::erase_if(state.scalars, [](const auto& scalar) { return scalar.first == "0.step"; });
    EXPECT_TRUE(refuses(*optimizer, state, "0.step is missing"));
    for (const double steps : {-1.0, 0.5, std::nan(""), std::numeric_limits<double>::infinity()}) {
      OptimizerState other = state;
      other.scalars.emplace_back("0.step", steps);
      EXPECT_TRUE(refuses(*optimizer, other, "expected an integer >= 0")) << steps;
    }
    state.tensors.emplace_back("0.step", at::scalar_tensor(1000.0));  // As torch.optim stores it.
    EXPECT_TRUE(refuses(*optimizer, state, "0.step is missing"));
  }
}

TEST(State, UnknownTensorsAreRefused) {
  const at::Tensor p = trained({3, 2});
  AdamW adamw({p});
  SGD sgd({p}, {.momentum = 0.9});
  adamw.step();
  EXPECT_TRUE(refuses(sgd, adamw.state_dict(), "the state has 0.exp_avg, 0.exp_avg_sq, which"));
  OptimizerState more = adamw.state_dict();
  more.tensors.emplace_back("0.third_moment", at::ones({3, 2}));
  EXPECT_TRUE(refuses(adamw, more, "0.third_moment"));
}

// State that the options of the saving or of the loading optimizer do not have is not missing.
TEST(State, StateWithoutMomentumOrGraftingIsComplete) {
  const at::Tensor p = trained({3, 2});
  const ShampooOptions bare{.beta1 = 0, .grafting = Grafting::none};
  Shampoo shampoo({p}, bare), again({p}, bare);
  SGD regular({p}), with_momentum({p}, {.momentum = 0.9});
  shampoo.step(), regular.step();
  EXPECT_EQ(error_of([&] { again.load_state_dict(shampoo.state_dict()); }), "no error");
  EXPECT_EQ(error_of([&] { with_momentum.load_state_dict(regular.state_dict()); }), "no error");
}

// torch::optim::SGD has no step count.
TEST(State, MomentumWithoutStepCountIsSavedAgain) {
  const at::Tensor p = trained({3}), momentum = Draw(3).normal({3});
  SGD sgd({p}, {.momentum = 0.9}), again({p}, {.momentum = 0.9});
  sgd.load_state_dict({.tensors = {{"0.momentum_buffer", momentum}}, .scalars = {}});
  again.load_state_dict(sgd.state_dict());
  ASSERT_EQ(again.state(p).size(), 1U);
  expect_close(again.state(p)[0].second, momentum, "momentum");
}

TEST(State, StateOfOneOptimizerIsRefusedByCombined) {
  const at::Tensor w = trained({3, 2}), b = trained({3});
  const auto combined = muon_with_adamw({w}, {}, {b}, {});
  AdamW one({{{w, b}, {}, {"w", "b"}}});
  combined->step(), one.step();
  EXPECT_TRUE(refuses(*combined, one.state_dict(), "group0.lr, w.step, b.step"));
  EXPECT_FALSE(combined->state(w).empty());
  OptimizerState three = combined->state_dict();
  three.scalars.emplace_back("2.group0.lr", 0.1);
  EXPECT_TRUE(refuses(*combined, three, "2.group0.lr"));
}

// `start` is lowered between two steps: until the next computation, the roots are identity matrices and are saved as
// such.
TEST(State, RootsNotComputedYetAreSavedAsIdentity) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const bool placed : {true, false}) {
      const auto put = [&](std::uint64_t seed) -> at::Tensor {
        const at::Tensor full = Draw(seed).normal({4, 3});
        return placed ? at::Tensor(distribute_tensor(full, mesh, {Shard(0)})) : full;
      };
      const auto step = [&](Optimizer& optimizer, const at::Tensor& p, std::uint64_t number) {
        p.mutable_grad() = put(10 + number);
        optimizer.step();
      };
      const at::Tensor p = put(1).requires_grad_();
      Shampoo optimizer({p}, {.frequency = 100, .start = 10});
      for (int i = 0; i < 4; ++i) step(optimizer, p, i);
      optimizer.options().start = 3;
      step(optimizer, p, 4);
      const at::Tensor q = p.detach().clone().requires_grad_();
      Shampoo again({q}, {.frequency = 100, .start = 3});
      again.load_state_dict(optimizer.state_dict());
      step(optimizer, p, 5), step(again, q, 5);
      expect_close(full_of(q), full_of(p), placed ? "DTensor" : "regular");
    }
  });
}

}  // namespace
}  // namespace dtensor::test
