// Optimizers of torch::optim in a Checkpoint. Five steps on one mesh and five on another equal ten on one device. State
// is saved under the names of parameters, as for this library's optimizers.
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "dtensor/checkpoint.h"
#include "dtensor/torch_optimizer.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace dtensor::test {
namespace {

// An uneven matrix and a vector as a model.
struct Net {
  at::Tensor weight, bias;
  NamedTensors named_parameters() { return {{"fc.weight", &weight}, {"fc.bias", &bias}}; }
};

at::Tensor values(const Shape& sizes) { return Draw(9).normal(sizes); }

Net net_on(const DeviceMesh& mesh, std::int64_t dim) {
  return {
      distribute_tensor(values({5, 6}), mesh, {Shard(dim)}).requires_grad_(),
      distribute_tensor(values({5}), mesh, {dim == 0 ? Placement(Shard(0)) : Placement(Replicate())}).requires_grad_()};
}

at::Tensor full(const at::Tensor& t) { return is_dtensor(t) ? DTensor(t.detach()).full_tensor() : t.detach(); }

// The gradient is the parameter's value plus a term that depends on the step.
template <class Optim>
void train(Net& net, Optim& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    for (auto* p : {&net.weight, &net.bias}) p->mutable_grad() = p->detach() * 0.5 + 0.1 * (step + 1);
    optimizer.step();
  }
}

template <class Optim, class Options>
void expect_goes_on_elsewhere(const Options& options, const std::vector<std::string>& slots) {
  const Folder folder;
  Net regular{values({5, 6}).requires_grad_(), values({5}).requires_grad_()};
  Optim uninterrupted({regular.weight, regular.bias}, options);
  train(regular, uninterrupted, 0, 10);
  run_local(3, [&](Communicator world) {
    Net net = net_on(init_device_mesh(world, at::kCPU, {3}), 0);
    Optim optimizer({net.weight, net.bias}, options);
    train(net, optimizer, 0, 5);
    optimizer.param_groups()[0].options().set_lr(0.02);
    TorchOptimizer saved(optimizer, net);
    Checkpoint().add("model", net.named_parameters()).add("optimizer", saved).save(folder / "saved", world);
  });
  for (const auto& slot : slots) {
    const auto entries = read_checkpoint_index(folder / "saved").entries;
    const auto name = "optimizer.fc.weight." + slot;
    EXPECT_EQ(std::count_if(entries.begin(), entries.end(), [&](const auto& e) { return e.name == name; }), 1) << name;
  }
  run_local(2, [&](Communicator world) {
    Net net = net_on(init_device_mesh(world, at::kCPU, {2}), 1);
    at::NoGradGuard no_grad;
    net.weight.zero_(), net.bias.zero_();
    Optim optimizer({net.weight, net.bias}, options);
    TorchOptimizer saved(optimizer, net);
    Checkpoint state;
    state.add("model", net.named_parameters()).add("optimizer", saved).load(folder / "saved", world);
    EXPECT_EQ(saved.lr(), 0.02);
    saved.set_lr(uninterrupted.param_groups()[0].options().get_lr());
    train(net, optimizer, 5, 10);
    expect_close(full(net.weight), regular.weight.detach(), "weight", 1e-12);
    expect_close(full(net.bias), regular.bias.detach(), "bias", 1e-12);
    for (const auto& [name, tensor] : saved.state(net.weight)) {
      EXPECT_EQ(DTensor(tensor).placements(), DTensor(net.weight).placements()) << name;
    }
  });
}

TEST(TorchOptimizer, ResumesOnAnotherMesh) {
  expect_goes_on_elsewhere<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true),
                                               {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"});
  expect_goes_on_elsewhere<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01), {"exp_avg", "exp_avg_sq"});
  expect_goes_on_elsewhere<torch::optim::SGD>(torch::optim::SGDOptions(0.01).momentum(0.9), {"momentum_buffer"});
  expect_goes_on_elsewhere<torch::optim::SGD>(torch::optim::SGDOptions(0.01), {});
  expect_goes_on_elsewhere<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.01), {"sum"});
  expect_goes_on_elsewhere<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true),
                                                  {"square_avg", "momentum_buffer", "grad_avg"});
}

// This library's AdamW, which saves under the same names, resumes a run of torch::optim::AdamW.
TEST(TorchOptimizer, AndTheLibrarysOptimizersResumeEachOther) {
  const Folder folder;
  run_local(2, [&](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    Net net = net_on(mesh, 0);
    torch::optim::AdamW optimizer({net.weight, net.bias}, torch::optim::AdamWOptions(0.01));
    train(net, optimizer, 0, 3);
    TorchOptimizer saved(optimizer, net);
    Checkpoint().add("optimizer", saved).add("model", net.named_parameters()).save(folder / "saved", world);

    Net other = net_on(mesh, 1);
    AdamW ours({{.parameters = {other.weight, other.bias},
                 .options = {.lr = 0.5, .fused = false},
                 .names = {"fc.weight", "fc.bias"}}});
    Checkpoint().add("optimizer", ours).add("model", other.named_parameters()).load(folder / "saved", world);
    EXPECT_EQ(ours.lr(), 0.01);
    train(net, optimizer, 3, 6);
    train(other, ours, 3, 6);
    expect_close(full(other.weight), full(net.weight), "weight", 1e-12);
  });
}

TEST(TorchOptimizer, RefusesMismatchedNames) {
  run_local(2, [](Communicator world) {
    const DeviceMesh mesh = init_device_mesh(world, at::kCPU, {2});
    Net net = net_on(mesh, 0), other = net_on(mesh, 0);
    torch::optim::Adam optimizer({net.weight, net.bias});
    EXPECT_THROW(TorchOptimizer(optimizer, other), c10::Error);  // Names of other tensors.
    TorchOptimizer saved(optimizer, net);
    EXPECT_TRUE(saved.state(net.weight).empty());
    EXPECT_THROW(saved.load_state_dict({{}, {{"fc.wieght.step", 3}}}), c10::Error);
    EXPECT_TRUE(optimizer.state().empty());
  });
}

// A checkpoint from before the first step has no state of a parameter, and loading it removes the state.
TEST(TorchOptimizer, LoadsStateFromBeforeTheFirstStep) {
  const at::Tensor start = values({5}), p = start.clone().requires_grad_();
  torch::optim::AdamW optimizer(std::vector<at::Tensor>{p}, torch::optim::AdamWOptions(0.1));
  TorchOptimizer saved(optimizer, StateTensors{{"p", p}});
  const OptimizerState fresh = saved.state_dict();
  const auto step = [&] {
    p.data().copy_(start);
    p.mutable_grad() = start * 0.1;
    optimizer.step();
    return p.detach().clone();
  };
  const at::Tensor first = step();
  saved.load_state_dict(fresh);
  EXPECT_TRUE(saved.state(p).empty());
  EXPECT_TRUE(at::equal(step(), first));
}

TEST(TorchOptimizer, RefusesStepsWithoutMoments) {
  const at::Tensor p = values({5}).requires_grad_();
  p.mutable_grad() = at::ones_like(p);
  SGD regular({{{p}, {}, {"p"}}});
  regular.step();
  torch::optim::AdamW adamw(std::vector<at::Tensor>{p});
  torch::optim::SGD sgd(std::vector<at::Tensor>{p}, torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_THROW(TorchOptimizer(adamw, StateTensors{{"p", p}}).load_state_dict(regular.state_dict()), c10::Error);
  EXPECT_TRUE(adamw.state().empty());
  TorchOptimizer(sgd, StateTensors{{"p", p}})
      .load_state_dict(regular.state_dict());  // Without momentum: it starts now.
  sgd.step();
}

TEST(TorchOptimizer, RefusesMomentsWithoutSteps) {
  const at::Tensor p = values({5}).requires_grad_();
  p.mutable_grad() = at::ones_like(p);
  AdamW ours({{{p}, {}, {"p"}}});
  ours.step();
  OptimizerState state = ours.state_dict();
  std::erase_if(state.scalars, [](const auto& scalar) { return scalar.first == "p.step"; });
  torch::optim::AdamW adamw(std::vector<at::Tensor>{p});
  EXPECT_THROW(TorchOptimizer(adamw, StateTensors{{"p", p}}).load_state_dict(state), c10::Error);
  EXPECT_TRUE(adamw.state().empty());
}

// A module of torch::nn names its parameters itself.
TEST(TorchOptimizer, AcceptsTheNamesOfATorchModule) {
  run_local(2, [](Communicator world) {
    const MeshScope scope(init_device_mesh(world, at::kCPU, {2}));
    torch::nn::Sequential model(torch::nn::Linear(4, 2));
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    model->forward(at::ones({3, 4})).sum().backward();
    TorchOptimizer saved(optimizer, *model);
    saved.step();
    const auto state = saved.state_dict();
    EXPECT_EQ(state.tensors.at(0).first, "0.weight.momentum_buffer");
    EXPECT_EQ(state.scalars, (OptimizerState::Scalars{{"group0.lr", 0.1}}));
  });
}

}  // namespace
}  // namespace dtensor::test
