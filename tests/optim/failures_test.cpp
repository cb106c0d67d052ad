// A step that threw: nothing has changed, and the next one is the first of its number.
#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

using List = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<Optimizer>(const at::Tensor& good, const at::Tensor& bad)>;

// `good` and `bad` belong to different calls of ATen: one fused, one by lists.
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

TEST(Failures, AStepThatThrewChangedNothingAndDoesNotCount) {
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
      EXPECT_NE(error_of([&] { optimizer->step(); }).find("a plain parameter"), std::string::npos) << name;
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

// Options are looked at when a step takes them, as when an optimizer is made of them.
TEST(Failures, OptionsThatChangedToNonsenseAreAnError) {
  const at::Tensor p = Draw(1).normal({3, 2}).requires_grad_();
  p.mutable_grad() = Draw(2).normal({3, 2});
  Shampoo shampoo({p}, {.start = 1});
  shampoo.step();
  shampoo.options().frequency = 0;
  EXPECT_NE(error_of([&] { shampoo.step(); }).find("must be at least 1"), std::string::npos);
  SGD sgd({p}, {.momentum = 0.5});
  sgd.options().nesterov = true;
  sgd.options().dampening = 0.5;
  EXPECT_NE(error_of([&] { sgd.step(); }).find("Nesterov's momentum"), std::string::npos);
}

}  // namespace
}  // namespace dtensor::test
