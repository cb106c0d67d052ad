// Third-party optimizers with parameters on three meshes and a regular one in one group: LibTorch's
// torch::optim, and PyTorch's foreach and fused formulas as list operators. They equal one device.
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "support/ranks.h"
#include "third_party/foreach_formulas.h"

namespace dtensor::test {
namespace {

constexpr int kSteps = 6;

struct Parameter {
  Shape sizes;
  int mesh;  // 0: replicate x shard, 1: expert replicas x experts, 2: one line, -1: regular.
  Placements placements;
};

std::vector<Parameter> mixture() {
  return {{{6, 5}, 0, {Replicate(), Shard(0)}},
          {{7}, 0, {Shard(0), Shard(0)}},
          {{4, 3, 2}, 1, {Replicate(), Shard(0)}},
          {{3, 9}, 1, {Shard(1), Shard(0)}},
          {{10, 3}, 2, {Shard(0)}},
          {{}, 2, {Replicate()}},
          {{3, 5}, 2, {Shard(1)}},
          {{5, 2}, -1, {}},
          {{2}, 1, {Shard(0), Replicate()}}};
}

// The mixture on this rank, and the same on one device.
struct Both {
  Tensors regular, placed;
  Both(const Communicator& world, const std::vector<Parameter>& list, at::ScalarType type) {
    const auto square = init_device_mesh(world, at::kCPU, {2, 2}, {"replicate", "shard"});
    const std::vector<DeviceMesh> meshes{square, square.view({2, 2}, {"edp", "ep"}), square.flatten()};
    Draw draw(4);
    for (const auto& p : list) {
      regular.push_back(draw.normal(p.sizes, type));
      const auto copy = regular.back().clone();
      placed.push_back(p.mesh < 0 ? copy
                                  : distribute_tensor(copy, meshes[static_cast<std::size_t>(p.mesh)], p.placements));
    }
  }
};

// Exact elementwise functions of the parameters: the same bits everywhere.
Tensors gradients(const Tensors& params, int step) {
  Tensors grads;
  for (const auto& p : params) grads.push_back(p.detach() * (step % 2 == 0 ? 0.5 : -0.25) + 0.125 * (step + 1));
  return grads;
}

at::Tensor full(const at::Tensor& t) { return is_dtensor(t) ? DTensor(t.detach()).full_tensor() : t.detach(); }

void expect_equal(const Both& both, double tolerance, const std::string& what) {
  for (std::size_t i = 0; i < both.regular.size(); ++i) {
    const auto actual = full(both.placed[i]), expected = both.regular[i].detach();
    if (tolerance == 0) {
      EXPECT_TRUE(at::equal(actual, expected)) << what << " parameter " << i << (actual - expected).abs().max();
    } else {
      EXPECT_TRUE(at::allclose(actual, expected, tolerance, tolerance)) << what << " parameter " << i;
    }
  }
}

using Make = std::function<std::unique_ptr<ListOptimizer>(const Tensors&)>;

template <class T>
Make formula() {
  return [](const Tensors& params) { return std::make_unique<T>(params); };
}

Make fused(Fused::Kind kind) {
  return [kind](const Tensors& params) { return std::make_unique<Fused>(params, kind); };
}

struct Named {
  const char* name;
  Make make;
  bool exact = true;  // Bit-equal in fp32; fused kernels round the last elements of a tensor differently.
};

std::vector<Named> formulas() {
  return {{"RMSprop", formula<RmsProp>()},
          {"Adadelta", formula<Adadelta>()},
          {"Adamax", formula<Adamax>()},
          {"NAdam", formula<NAdam>()},
          {"RAdam", formula<RAdam>()},
          {"ASGD", formula<Asgd>()},
          {"Rprop", formula<Rprop>()},
          {"fused Adam", fused(Fused::Kind::adam), false},
          {"fused AdamW", fused(Fused::Kind::adamw), false},
          {"fused SGD", fused(Fused::Kind::sgd), false},
          {"fused Adagrad", fused(Fused::Kind::adagrad), false}};
}

TEST(TorchOptim, ForeachAndFusedOverThreeMeshes) {
  for (const auto& [name, make, exact] : formulas()) {
    for (const auto type : {at::kDouble, at::kFloat}) {
      run_local(4, [&, &name = name, &make = make, exact = exact](const Communicator& world) {
        const at::NoGradGuard no_grad;
        const Both both(world, mixture(), type);
        const auto one = make(both.regular), many = make(both.placed);
        for (int step = 0; step < kSteps; ++step) {
          one->step(gradients(both.regular, step));
          many->step(gradients(both.placed, step));
        }
        expect_equal(both, type == at::kDouble ? 1e-12 : exact ? 0 : 1e-6, c10::str(name, " in ", type));
      });
    }
  }
}

using MakeTorch = std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)>;

template <class Optimizer, class Options>
MakeTorch torch_optimizer(Options options) {
  return [options](const Tensors& params) { return std::make_unique<Optimizer>(params, options); };
}

std::vector<std::pair<const char*, MakeTorch>> torch_optimizers() {
  namespace shipped = torch::optim;
  return {
      {"Adam", torch_optimizer<shipped::Adam>(shipped::AdamOptions(0.01).weight_decay(0.01).amsgrad(true))},
      {"AdamW", torch_optimizer<shipped::AdamW>(shipped::AdamWOptions(0.01))},
      {"SGD", torch_optimizer<shipped::SGD>(shipped::SGDOptions(0.01).momentum(0.9).nesterov(true).weight_decay(0.01))},
      {"Adagrad", torch_optimizer<shipped::Adagrad>(shipped::AdagradOptions(0.01).lr_decay(0.01))},
      {"RMSprop", torch_optimizer<shipped::RMSprop>(shipped::RMSpropOptions(0.01).centered(true).momentum(0.9))}};
}

void set_gradients(const Tensors& params, int step) {
  const auto grads = gradients(params, step);
  for (std::size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = grads[i];
}

TEST(TorchOptim, TorchOptimOverThreeMeshes) {
  for (const auto& [name, make] : torch_optimizers()) {
    run_local(4, [&, &name = name, &make = make](const Communicator& world) {
      const Both both(world, mixture(), at::kDouble);
      for (const auto* list : {&both.regular, &both.placed}) {
        for (const auto& p : *list) at::Tensor(p).requires_grad_();
      }
      const auto one = make(both.regular), many = make(both.placed);
      for (int step = 0; step < kSteps; ++step) {
        set_gradients(both.regular, step);
        set_gradients(both.placed, step);
        one->step();
        many->step();
      }
      expect_equal(both, 1e-12, name);
    });
  }
}

// L-BFGS packs all parameters into one vector, so a group must be on one mesh, with any placements.
TEST(TorchOptim, LbfgsOnOneMesh) {
  std::vector<Parameter> list;
  for (const auto& p : mixture()) {
    if (p.mesh == 0) list.push_back(p);
  }
  run_local(4, [&](const Communicator& world) {
    const Both both(world, list, at::kDouble);
    const auto minimize = [](const Tensors& params) {
      for (const auto& p : params) at::Tensor(p).requires_grad_();
      torch::optim::LBFGS optimizer(params, torch::optim::LBFGSOptions(0.5).max_iter(4));
      for (int step = 0; step < 3; ++step) {
        optimizer.step([&] {
          optimizer.zero_grad();
          at::Tensor loss;
          for (const auto& p : params) {
            const auto part = (p - 1).square().sum() + (p * 3).cos().sum();
            loss = loss.defined() ? loss + part : part;
          }
          loss.backward();
          return loss;
        });
      }
    };
    minimize(both.regular);
    minimize(both.placed);
    expect_equal(both, 1e-9, "LBFGS");
  });
}

}  // namespace
}  // namespace dtensor::test
