// A step that throws changes nothing and does not count as a step.
#include <cmath>

#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

using List = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<Optimizer>(const at::Tensor& good, const at::Tensor& bad)>;

// `good` and `bad` belong to different calls of ATen: one fused, one of list operators.
const std::vector<std::pair<const char*, Make>>& optimizers() {
  static const std::vector<std::pair<const char*, Make>> all{
      {"adamw",
       [](auto& good, auto& bad) {
         using Group = AdamW::Group;
         return std::make_unique<AdamW>(std::vector<Group>{{{good}, {}}, {{bad}, {.fused = false}}});
       }},
      {"sgd",
       [](auto& good, auto& bad) {
         using Group = SGD::Group;
         return std::make_unique<SGD>(std::vector<Group>{{{good}, {}}, {{bad}, {.momentum = 0.5, .fused = false}}});
       }},
      {"adagrad",
       [](auto& good, auto& bad) {
         return std::make_unique<Adagrad>(List{good, bad});
       }},
      {"muon",
       [](auto& good, auto& bad) {
         return std::make_unique<Muon>(List{good, bad});
       }},
      {"shampoo",
       [](auto& good, auto& bad) {
         return std::make_unique<Shampoo>(List{good, bad});
       }},
  };
  return all;
}

TEST(Failures, FailedStepChangesNothingAndDoesNotCount) {
  on_mesh({2}, [](const DeviceMesh& mesh) {
    const at::Tensor start = Draw(1).normal({4, 3}), gradient = Draw(2).normal({4, 3});
    for (const auto& [name, make] : optimizers()) {
      List once, again;
      for (List* list : {&once, &again}) {
        list->push_back(start.clone().requires_grad_());
        list->push_back(at::zeros({4, 6}, at::kDouble).slice(1, 0, 6, 2).copy_(start).detach().requires_grad_());
      }
      const auto expected = make(once[0], once[1]), optimizer = make(again[0], again[1]);
      again[0].mutable_grad() = gradient.clone();
      again[1].mutable_grad() = distribute_tensor(gradient, mesh, {Shard(0)});
      EXPECT_NE(error_of([&] { optimizer->step(); }).find("a regular parameter"), std::string::npos) << name;
      for (const at::Tensor& p : again) EXPECT_TRUE(at::equal(p, start)) << name;
      EXPECT_EQ(optimizer->state_dict().tensors.size(), 0U) << name;
      for (const List& list : {once, again}) {
        for (const at::Tensor& p : list) p.mutable_grad() = gradient.clone();
      }
      expected->step(), optimizer->step();
      for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(once[i], again[i])) << name << " " << i;
    }
  });
}

// A step checks options as the constructor does.
TEST(Failures, InvalidChangedOptionsAreAnError) {
  const at::Tensor p = Draw(1).normal({3, 2}).requires_grad_();
  p.mutable_grad() = Draw(2).normal({3, 2});
  Shampoo shampoo({p}, {.start = 1});
  shampoo.step();
  shampoo.options().frequency = 0;
  EXPECT_NE(error_of([&] { shampoo.step(); }).find("must be at least 1"), std::string::npos);
  SGD sgd({p}, {.momentum = 0.5});
  sgd.options().nesterov = true;
  sgd.options().dampening = 0.5;
  EXPECT_NE(error_of([&] { sgd.step(); }).find("Nesterov momentum"), std::string::npos);
}

// As in torch.optim: such a step would increase the loss or divide by zero. A schedule may go below zero by rounding.
TEST(Failures, OptionsOutOfRangeAreAnError) {
  const at::Tensor p = Draw(1).normal({3, 2}).requires_grad_();
  p.mutable_grad() = Draw(2).normal({3, 2});
  const double nan = std::nan("");
  const auto refused = [](const auto& make) { return error_of(make).find("must") != std::string::npos; };
  for (const double bad : {-1.0, nan}) {
    EXPECT_TRUE(refused([&] { AdamW({p}, {.lr = bad}); }) && refused([&] { AdamW({p}, {.eps = bad}); }));
    EXPECT_TRUE(refused([&] { SGD({p}, {.lr = bad}); }) && refused([&] { SGD({p}, {.momentum = bad}); }));
    EXPECT_TRUE(refused([&] { Adagrad({p}, {.lr_decay = bad}); }) && refused([&] { Adagrad({p}, {.eps = bad}); }));
    EXPECT_TRUE(refused([&] { Muon({p}, {.lr = bad}); }) && refused([&] { Muon({p}, {.weight_decay = bad}); }));
    EXPECT_TRUE(refused([&] { Shampoo({p}, {.lr = bad}); }) && refused([&] { Shampoo({p}, {.graft_eps = bad}); }));
  }
  for (const double bad : {-0.1, 1.0, nan}) {
    EXPECT_TRUE(refused([&] { AdamW({p}, {.beta1 = bad}); }) && refused([&] { AdamW({p}, {.beta2 = bad}); }));
    EXPECT_TRUE(refused([&] { Muon({p}, {.momentum = bad}); }));
    EXPECT_TRUE(refused([&] { Shampoo({p}, {.beta1 = bad}); }) && refused([&] { Shampoo({p}, {.graft_beta2 = bad}); }));
  }
  AdamW adamw({p}, {});
  adamw.options().beta2 = 1;
  EXPECT_TRUE(refused([&] { adamw.step(); }));
  SGD sgd({p}, {});
  sgd.set_lr(-1e-20);
  EXPECT_EQ(error_of([&] { sgd.step(); }), "no error");
}

// Only the owner of a block computes its roots; the error is raised on all ranks.
TEST(Failures, RootsOfNonFiniteGradientsAreErrorOnAllRanks) {
  for (const bool later : {false, true}) {
    on_mesh({3}, [&](const DeviceMesh& mesh) {
      List parameters;
      for (const std::int64_t rows : {2, 7, 1}) {
        parameters.push_back(distribute_tensor(Draw(rows).normal({rows, 4}), mesh, {Shard(0)}).requires_grad_());
      }
      Shampoo optimizer({{parameters, {.frequency = 2, .start = 2, .block_size = 3}, {"a", "b", "c"}}});
      const auto step = [&](std::uint64_t number, double factor) {
        for (const at::Tensor& p : parameters) p.mutable_grad() = p.detach() * static_cast<double>(number);
        if (factor != 1) parameters[1].mutable_grad() = parameters[1].grad() * factor;
        optimizer.step();
      };
      step(1, 1);
      if (later) step(2, 1), step(3, INFINITY);
      for (int again = 0; again < 2; ++again) {
        const std::string error = error_of([&] { step(4, NAN); });
        EXPECT_NE(error.find("parameter b of sizes [7, 4] have no inverse roots"), std::string::npos) << error;
      }
    });
  }
}

}  // namespace
}  // namespace dtensor::test
