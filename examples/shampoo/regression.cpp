// Model, data and training loop. Only place() and the mesh depend on distribution.
#include "regression.h"

#include <ATen/ATen.h>

#include "dtensor/nn.h"
#include "dtensor/tensor.h"
#include "train/layouts/larger.h"

namespace shampoo {

using dtensor::DeviceMesh;
using dtensor::DTensor;
using dtensor::Placements;

dtensor::ShampooOptions rare_roots() { return {.lr = 0.05, .eps = 1e-12, .frequency = 20, .start = 20}; }
dtensor::ShampooOptions frequent_roots() { return {.lr = 0.05, .eps = 1e-8, .frequency = 1, .start = 5}; }
dtensor::ShampooOptions no_grafting() {
  return {.lr = 0.1, .eps = 1e-4, .grafting = dtensor::Grafting::none, .frequency = 1, .start = 1};
}

namespace {

constexpr std::int64_t kSamples = 16, kIn = 12, kHidden = 16, kOut = 8;

// splitmix64 of the seed and the element's index, as a float in [-1, 1).
at::Tensor fill(at::IntArrayRef sizes, std::uint64_t seed, double scale) {
  at::Tensor result = at::empty(sizes, at::TensorOptions(at::kFloat).device(at::kCPU));
  float* out = result.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < result.numel(); ++i) {
    std::uint64_t z = ((seed << 32) + static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    out[i] = static_cast<float>(scale * (static_cast<double>((z ^ (z >> 31)) >> 40) / 8388608.0 - 1.0));
  }
  return result;
}

// y = W2 tanh(W1 x + b1) + b2.
class Network final : public dtensor::nn::Callable<Network> {
 public:
  explicit Network(at::TensorOptions options) : fc1(kIn, kHidden, true, options), fc2(kHidden, kOut, true, options) {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  at::Tensor forward(const at::Tensor& x) const { return fc2(at::tanh(fc1(x))); }

  // Sets the values of the recorded experiment, for parameters with any placements.
  void set_values(std::uint64_t seed, double first, double second) {
    const at::NoGradGuard no_grad;
    fc1.weight.copy_(fill({kHidden, kIn}, seed, first));
    fc1.bias.copy_(fill({kHidden}, seed + 1, 0.1));
    fc2.weight.copy_(fill({kOut, kHidden}, seed + 2, second));
    fc2.bias.copy_(fill({kOut}, seed + 3, 0.1));
  }

  dtensor::nn::Linear fc1, fc2;
};

struct Data {
  at::Tensor x, y;
};

Data data(const Experiment& e) {
  const at::NoGradGuard no_grad;
  Network teacher(at::TensorOptions(at::kFloat));
  teacher.set_values(221, 1, 1);
  const at::Tensor x = fill({kSamples, kIn}, 210, 1);
  const auto options = at::TensorOptions(e.dtype).device(e.device);
  return {x.to(options), teacher(x).to(options)};
}

// Storage shards on `shard` (gathered where used), column-wise and row-wise on `tp`, replicated on `replicate`.
Placements place(const std::string& name) {
  using namespace dtensor;
  const bool first = name.starts_with("fc1"), bias = name.ends_with("bias");
  return {Replicate(), Shard(0).as_storage(), first ? Shard(0) : bias ? Replicate() : Shard(1)};
}

std::unique_ptr<Network> make_network(const DeviceMesh& mesh, const Experiment& e) {
  const auto options = at::TensorOptions(e.dtype).device(e.device);
  std::unique_ptr<Network> network;
  if (e.initialization == Initialization::meta) {
    network = std::make_unique<Network>(options.device(at::kMeta));
  } else {
    const dtensor::MeshScope scope(mesh, {dtensor::Replicate(), dtensor::Shard(0).as_storage(), dtensor::Replicate()});
    network = std::make_unique<Network>(options);
  }
  network->distribute(mesh, [](const std::string& name, const at::Tensor&) { return place(name); });
  network->set_values(201, 0.5, 0.4);
  return network;
}

double value(const at::Tensor& loss) {
  return dtensor::is_dtensor(loss) ? DTensor(loss.detach()).full_tensor().item<double>() : loss.item<double>();
}

at::Tensor loss_of(const Network& network, const Data& d) { return (network(d.x) - d.y).square().mean(); }

// Forward and backward of the batch in equal parts; returns the mean loss.
double accumulate_gradients(const Network& network, const Data& d, std::int64_t pieces) {
  if (pieces == 1) {
    const at::Tensor loss = loss_of(network, d);
    loss.backward();
    return value(loss);
  }
  double sum = 0;
  const auto xs = d.x.chunk(pieces), ys = d.y.chunk(pieces);
  for (std::size_t i = 0; i < xs.size(); ++i) {
    const at::Tensor loss = loss_of(network, {xs[i], ys[i]}) / pieces;
    loss.backward();
    sum += value(loss);
  }
  return sum;
}

// Local tensors as separate parameters that share memory with the DTensors.
std::vector<at::Tensor> own_parts(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& p : parameters) parts.push_back(DTensor(p).to_local().detach().requires_grad_());
  return parts;
}

void give_gradients(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].mutable_grad() = DTensor(parameters[i].grad()).to_local().detach();
  }
}

void keep_first_shard(dtensor::Optimizer& optimizer, const std::vector<at::Tensor>& parts, bool first) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> before;
  for (const at::Tensor& part : parts) before.push_back(part.clone());
  optimizer.step();
  for (std::size_t i = 0; i < parts.size() && !first; ++i) parts[i].copy_(before[i]);
}

std::vector<double> run(Network& network, const Data& d, const Experiment& e, bool first_rank,
                        std::int64_t pieces = 1) {
  const auto parameters = network.parameters();
  std::vector<at::Tensor> parts;
  if (e.method != Method::full_blocks) {
    const at::NoGradGuard no_grad;
    parts = own_parts(parameters);
  }
  dtensor::Shampoo optimizer(e.method == Method::shard_blocks ? parts : parameters, e.options);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < e.steps; ++step) {
    losses.push_back(accumulate_gradients(network, d, pieces));
    if (e.method == Method::shard_blocks) give_gradients(parameters, parts);
    e.method == Method::first_shard_only ? keep_first_shard(optimizer, parts, first_rank) : optimizer.step();
    for (const at::Tensor& p : parameters) p.mutable_grad().reset();
  }
  losses.push_back(value(loss_of(network, d)));
  return losses;
}

}  // namespace

std::vector<MeshLayout> layouts(std::int64_t ranks) {
  std::vector<MeshLayout> result{{"DP", ranks, 1, 1}, {"SHARD", 1, ranks, 1}};
  if (ranks % 2 != 0) return result;
  result.push_back({"HSDP", 2, ranks / 2, 1});
  result.push_back({"DP+TP", ranks / 2, 1, 2});
  result.push_back({"SHARD+TP", 1, ranks / 2, 2});
  return result;
}

std::vector<double> train(const dtensor::Communicator& world, const MeshLayout& layout, const Experiment& e) {
  const DeviceMesh mesh = dtensor::init_device_mesh(world, e.device, {layout.replicate, layout.shard, layout.tp},
                                                    {"replicate", "shard", "tp"});
  const auto network = make_network(mesh, e);
  Data d = data(e);
  for (at::Tensor* t : {&d.x, &d.y}) {
    *t = dtensor::distribute_tensor(*t, mesh, {dtensor::Shard(0), dtensor::Shard(0), dtensor::Replicate()});
  }
  return run(*network, d, e, world.rank() == 0);
}

std::vector<double> train_on_one_device(const Experiment& e, std::int64_t pieces) {
  Network network{at::TensorOptions(e.dtype).device(e.device)};
  network.set_values(201, 0.5, 0.4);
  return run(network, data(e), e, true, pieces);
}

double deviation(const std::vector<double>& curve, const std::vector<double>& reference) {
  double largest = 0;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    largest = train::max_propagate_nan(largest, std::abs(curve[i] - reference[i]) / std::abs(reference[i]));
  }
  return largest;
}

}  // namespace shampoo
