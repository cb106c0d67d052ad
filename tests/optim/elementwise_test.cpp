// AdamW, SGD and Adagrad on regular parameters and parameters on several meshes in one step: bit-equal to one device
// and without collectives. State, restoring and skipped parameters.
#include "dtensor/fully_shard.h"
#include "optim/mixture.h"
#include "support/errors.h"

namespace dtensor::test {
namespace {

using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<at::Tensor>&)>;

const std::vector<std::pair<const char*, Make>>& optimizers() {
  static const std::vector<std::pair<const char*, Make>> all{
      {"adamw", [](auto& p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.1, .weight_decay = 0.1}); }},
      {"adamw_foreach", [](auto& p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.1, .fused = false}); }},
      {"adamw_amsgrad", [](auto& p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.1, .amsgrad = true}); }},
      {"adamw_amsgrad_foreach",
       [](auto& p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.1, .fused = false, .amsgrad = true}); }},
      {"sgd", [](auto& p) { return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1}); }},
      {"sgd_nesterov",
       [](auto& p) {
         return std::make_unique<SGD>(p,
                                      SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
       }},
      {"sgd_foreach",
       [](auto& p) {
         return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .fused = false});
       }},
      {"adagrad",
       [](auto& p) {
         return std::make_unique<Adagrad>(
             p, AdagradOptions{.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.01, .initial_sum = 0.5});
       }},
  };
  return all;
}

struct Case {
  std::vector<Item> items;
  std::vector<std::vector<at::Tensor>> gradients;  // Per step and item; undefined if absent.
};

Case any_case(Draw& draw, at::ScalarType dtype, int steps) {
  Case c;
  c.items = any_items(draw, dtype);
  for (int step = 0; step < steps; ++step) {
    auto& gradients = c.gradients.emplace_back();
    for (const Item& item : c.items) {
      gradients.push_back(draw.integer(0, 4) == 0 ? at::Tensor() : draw.normal(item.full.sizes().vec(), dtype));
    }
  }
  return c;
}

void set_gradients(const Case& c, std::size_t step, const std::vector<at::Tensor>& parameters,
                   const std::vector<DeviceMesh>* meshes) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& full = c.gradients[step][i];
    parameters[i].mutable_grad() = !full.defined()     ? at::Tensor()
                                   : meshes == nullptr ? full.clone()
                                                       : place(c.items[i], full, *meshes, false);
  }
}

std::vector<at::Tensor> one_device(const Case& c, const Make& make) {
  std::vector<at::Tensor> parameters;
  for (const Item& item : c.items) parameters.push_back(item.full.clone().requires_grad_());
  const auto optimizer = make(parameters);
  for (std::size_t step = 0; step < c.gradients.size(); ++step) {
    set_gradients(c, step, parameters, nullptr);
    optimizer->step();
  }
  return parameters;
}

int collectives_in(const std::function<void()>& fn) {
  int count = 0;
  const EventListener listener([&](const Event& e) { count += e.kind == Event::Kind::collective ? 1 : 0; });
  fn();
  return count;
}

bool same(const at::Tensor& a, const at::Tensor& b, bool exact) {
  const double tolerance = a.scalar_type() == at::kDouble ? 1e-13 : a.scalar_type() == at::kFloat ? 1e-5 : 5e-2;
  return exact ? at::equal(a, b) : at::allclose(a.to(at::kDouble), b.to(at::kDouble), tolerance, tolerance);
}

// Moves the state into a new optimizer after half of the steps.
void run_on_rank(const Case& c, const Make& make, const std::vector<at::Tensor>& expected, bool exact,
                 const Communicator& world) {
  const auto meshes = meshes_of(world);
  std::vector<at::Tensor> parameters;
  for (const Item& item : c.items) parameters.push_back(place(item, item.full, meshes).requires_grad_());
  auto optimizer = make(parameters);
  const bool regular = std::any_of(c.items.begin(), c.items.end(), [](const Item& i) { return i.mesh == kRegular; });
  for (std::size_t step = 0; step < c.gradients.size(); ++step) {
    if (step == c.gradients.size() / 2) {
      const OptimizerState state = optimizer->state_dict();
      optimizer = make(parameters);
      optimizer->load_state_dict(state);
    }
    set_gradients(c, step, parameters, &meshes);
    const int collectives = collectives_in([&] { optimizer->step(); });
    EXPECT_TRUE(collectives == 0 || regular);  // A new list with regular tensors is compared across ranks once.
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!is_local_member(parameters[i])) continue;
    EXPECT_TRUE(same(full_of(parameters[i]), expected[i].detach(), exact))
        << "item " << i << " " << (is_dtensor(parameters[i]) ? DTensor(parameters[i]).spec_str() : "regular") << "\n"
        << full_of(parameters[i]) << "\nexpected\n"
        << expected[i].detach();
  }
}

TEST(Elementwise, MatchesSingleDeviceOnThreeMeshesAndRegular) {
  EXPECT_TRUE(rc::check("steps equal those of one device", [] {
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    const auto dtype = *rc::gen::element(at::kDouble, at::kFloat, at::kBFloat16);
    const Case c = any_case(draw, dtype, 4);
    const auto& [name, make] = *rc::gen::elementOf(optimizers());
    SCOPED_TRACE(name);
    const auto expected = one_device(c, make);
    const std::string listed = name;  // In bfloat16, ATen's add with a factor rounds as its fused kernels do.
    const bool exact = listed == "adamw_foreach" || listed == "adamw_amsgrad_foreach" || listed == "adagrad" ||
                       (listed == "sgd_foreach" && dtype != at::kBFloat16);
    run_local(4, [&](Communicator world) { run_on_rank(c, make, expected, exact, world); });
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// Calls the operators that other optimizers use on lists over three meshes and regular tensors.
void check_list_operators(const std::vector<Item>& items, const Communicator& world) {
  const auto meshes = meshes_of(world);
  std::vector<at::Tensor> a, b, wa, wb;
  for (const Item& item : items) {
    wa.push_back(item.full.clone());
    wb.push_back(item.full.abs() + 1);
    a.push_back(place(item, wa.back(), meshes));
    b.push_back(place(item, wb.back(), meshes, false));
  }
  const auto same_as = [&](const std::vector<at::Tensor>& lists, const std::vector<at::Tensor>& expected,
                           const char* op) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (is_local_member(lists[i])) {
        EXPECT_TRUE(at::equal(full_of(lists[i]), expected[i])) << op << " " << i;
      }
    }
  };
  same_as(at::_foreach_maximum(a, b), at::_foreach_maximum(wa, wb), "maximum");
  same_as(at::_foreach_sign(a), at::_foreach_sign(wa), "sign");
  same_as(at::_foreach_pow(b, 2), at::_foreach_pow(wb, 2), "pow");
  std::vector<at::Scalar> factors;
  for (std::size_t i = 0; i < items.size(); ++i) factors.emplace_back(static_cast<double>(i) + 0.5);
  same_as(at::_foreach_mul(a, factors), at::_foreach_mul(wa, factors), "mul by a scalar for each position");
  at::_foreach_div_(a, b);
  at::_foreach_div_(wa, wb);
  at::_foreach_addcdiv_(a, b, b, factors);
  at::_foreach_addcdiv_(wa, wb, wb, factors);
  same_as(a, wa, "div_, addcdiv_");
}

TEST(Elementwise, ListOperatorsOnThreeMeshesAndRegular) {
  EXPECT_TRUE(rc::check("list operators equal those of one device", [] {
    Draw draw(*rc::gen::arbitrary<std::uint64_t>());
    const auto items = any_items(draw, at::kDouble);
    run_local(4, [&](Communicator world) { check_list_operators(items, world); });
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(Elementwise, FusedAndForeachAgree) {
  Draw draw(3);
  const Case c = any_case(draw, at::kDouble, 4);
  const auto a = one_device(c, optimizers()[0].second),
             b = one_device(c, [](auto&p) {
               return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.1, .weight_decay = 0.1, .fused = false});
             });
  for (std::size_t i = 0; i < a.size(); ++i) expect_close(b[i].detach(), a[i].detach(), "adamw", 1e-12);
}

// A gradient whose strides differ from its parameter's: fused kernels iterate in memory order.
TEST(Elementwise, TransposedGradientsEqualContiguousOnes) {
  for (const auto& [name, make] : optimizers()) {
    const at::Tensor start = Draw(1).normal({3, 5}), gradient = Draw(2).normal({5, 3}).t();
    const at::Tensor a = start.clone().requires_grad_(), b = start.clone().requires_grad_();
    a.mutable_grad() = gradient;
    b.mutable_grad() = gradient.contiguous();
    const std::vector<at::Tensor> pa{a}, pb{b};
    make(pa)->step();
    make(pb)->step();
    EXPECT_TRUE(same(a, b, false)) << name;
    // Also a parameter that is not dense.
    const at::Tensor gaps = at::zeros({3, 10}, at::kDouble).slice(1, 0, 10, 2).copy_(start).detach().requires_grad_();
    gaps.mutable_grad() = gradient;
    const std::vector<at::Tensor> pg{gaps};
    make(pg)->step();
    EXPECT_TRUE(at::allclose(gaps, b, 1e-12, 1e-12)) << name;
  }
}

TEST(Elementwise, StateHasThePlacementsOfTheParameter) {
  on_mesh({2, 2}, [](const DeviceMesh& mesh) {
    const Placements placements{Shard(0).as_storage(), Shard(1)};
    const at::Tensor p = distribute_tensor(Draw(1).normal({5, 3}), mesh, placements).requires_grad_();
    const at::Tensor q = at::zeros({2}, at::kDouble).requires_grad_();
    AdamW optimizer({p, q});
    EXPECT_TRUE(optimizer.state(p).empty());
    p.mutable_grad() = at::ones_like(p);
    optimizer.step();
    EXPECT_TRUE(optimizer.state(q).empty());
    ASSERT_EQ(optimizer.state(p).size(), 2u);
    for (const auto& [name, tensor] : optimizer.state(p))
      EXPECT_EQ(DTensor(tensor).placements(), (Placements{Shard(0), Shard(1)})) << name;  // The state is not gathered.
    optimizer.zero_grad(false);
    EXPECT_EQ(full_of(p.grad()).abs().sum().item<double>(), 0);
    optimizer.zero_grad();
    EXPECT_FALSE(p.grad().defined());
  });
}

TEST(Elementwise, GroupsHaveSeparateLearningRates) {
  const at::Tensor a = at::zeros({2}).requires_grad_(), b = at::zeros({2}).requires_grad_();
  SGD optimizer({{{a}, {.lr = 1}, {}}, {{b}, {.lr = 2}, {}}});
  optimizer.set_lr(1, 3);
  a.mutable_grad() = at::ones({2});
  b.mutable_grad() = at::ones({2});
  optimizer.step();
  EXPECT_EQ(a[0].item<double>(), -1);
  EXPECT_EQ(b[0].item<double>(), -3);
  optimizer.set_lr(0.5);
  EXPECT_EQ(optimizer.lr(0), 0.5);
  EXPECT_EQ(optimizer.lr(1), 0.5);
}

TEST(Elementwise, InvalidArgumentsAreErrors) {
  const at::Tensor p = at::zeros({2}).requires_grad_();
  EXPECT_THROW(SGD(std::vector<at::Tensor>{p, p}), c10::Error);
  EXPECT_THROW(SGD({at::zeros({2}, at::kLong)}), c10::Error);
  EXPECT_THROW(SGD({p}, {.nesterov = true}), c10::Error);
  SGD optimizer({p}, {.momentum = 0.5});
  EXPECT_THROW(optimizer.state(at::zeros({2})), c10::Error);
  OptimizerState state;
  state.scalars.emplace_back("other.step", 3);
  EXPECT_THROW(optimizer.load_state_dict(state), c10::Error);
  state.scalars = {{"0.step", 3}};
  state.tensors.emplace_back("0.momentum_buffer", at::zeros({3}));
  EXPECT_THROW(optimizer.load_state_dict(state), c10::Error);
}

// An optimizer that was created before the model was sharded would update tensors that the model no longer uses.
TEST(Elementwise, ReplacedParametersAreAnError) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2}, {"shard"});
    for (const bool plan : {false, true}) {
      at::Tensor w = at::ones({4, 3}).requires_grad_(), b = at::ones({3}).requires_grad_();
      SGD early({w, b});
      const NamedTensors list{{"w", &w}, {"b", &b}};
      if (plan) {
        parallelize(list, mesh, {{"w", ShardParameter{0}}}, {.axis = "shard"});
      } else {
        fully_shard(list, mesh);
      }
      SGD late({w, b}, {.lr = 1});
      (w.sum() + b.sum()).backward();
      EXPECT_NE(error_of([&] { early.step(); }).find("was replaced"), std::string::npos);
      late.step();
      expect_close(w.detach(), at::zeros({4, 3}), "trained");
    }
  });
}

struct Warnings final : c10::WarningHandler {
  std::vector<std::string> texts;
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
};

TEST(Elementwise, StepWithoutAnyGradientWarnsOnce) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const at::Tensor p = at::zeros({2}).requires_grad_(), q = at::zeros({2}).requires_grad_();
  AdamW optimizer({p, q});
  optimizer.step();
  optimizer.step();
  ASSERT_EQ(warnings.texts.size(), 1U);
  EXPECT_NE(warnings.texts[0].find("none of the 2 parameters has a gradient"), std::string::npos) << warnings.texts[0];
  AdamW half({p, q});
  p.sum().backward();
  half.step();
  EXPECT_EQ(warnings.texts.size(), 1U);
}

// The state is saved on one layout and restored on another.
TEST(Elementwise, StateMovesBetweenLayouts) {
  const at::Tensor start = Draw(1).normal({5, 3}), gradient = Draw(2).normal({5, 3});
  OptimizerState saved;
  at::Tensor middle, end;
  const auto step = [&](Optimizer& o, const at::Tensor& p, const at::Tensor& g) {
    p.mutable_grad() = g;
    o.step();
  };
  on_mesh({2, 2}, [&](const DeviceMesh& mesh) {
    const Placements placements{Shard(0), Shard(1)};
    const at::Tensor p = distribute_tensor(start, mesh, placements).requires_grad_();
    AdamW optimizer({p}, {.lr = 0.1});
    step(optimizer, p, distribute_tensor(gradient, mesh, placements));
    OptimizerState state = optimizer.state_dict();
    for (auto& [name, tensor] : state.tensors) tensor = DTensor(tensor).full_tensor();
    const at::Tensor here = full_of(p);
    step(optimizer, p, distribute_tensor(gradient, mesh, placements));
    const at::Tensor there = full_of(p);
    if (mesh.world().rank() == 0) saved = state, middle = here, end = there;
  });
  on_mesh({3}, [&](const DeviceMesh& mesh) {
    const at::Tensor p = distribute_tensor(middle, mesh, {Shard(1)}).requires_grad_();
    AdamW optimizer({p});
    optimizer.load_state_dict(saved);
    EXPECT_EQ(optimizer.lr(), 0.1);
    step(optimizer, p, distribute_tensor(gradient, mesh, {Shard(1)}));
    EXPECT_TRUE(same(full_of(p), end, false));
  });
}

TEST(Elementwise, SecondStepOnlyHitsTheCache) {
  run_local(4, [](Communicator world) {
    const auto meshes = meshes_of(world);
    Draw draw(5);
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 20; ++i) {
      const Item item = any_item(draw, at::kFloat, false);
      parameters.push_back(place(item, item.full, meshes).requires_grad_());
      parameters.back().mutable_grad() = place(item, item.full, meshes, false);
    }
    AdamW optimizer(parameters);
    for (int i = 0; i < 2; ++i) optimizer.step();
    const auto before = cache_stats().misses;
    optimizer.step();
    EXPECT_EQ(cache_stats().misses, before);
  });
}

}  // namespace
}  // namespace dtensor::test
