// The network, its training steps and its reports.
#include "inside.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "dtensor/dtensor.h"

namespace inside {
namespace {

namespace nn = dtensor::nn;
using dtensor::Replicate;
using dtensor::Shard;

constexpr std::int64_t kWidth = 64, kBatch = 32;

class Net final : public nn::Callable<Net> {
 public:
  explicit Net(at::TensorOptions options)
      : up_(kWidth, 4 * kWidth, true, options), down_(4 * kWidth, 1, true, options) {
    register_module("up", up_);
    register_module("down", down_);
  }
  at::Tensor forward(const at::Tensor& x) const { return down_(at::gelu(up_(x))); }

 private:
  nn::Linear up_, down_;
};

dtensor::DeviceMesh make_mesh(const dtensor::Communicator& world, c10::DeviceType device) {
  const std::int64_t tp = world.size() % 2 == 0 && world.size() > 2 ? 2 : 1;
  return dtensor::init_device_mesh(world, device, {world.size() / tp, tp}, {"shard", "tp"});
}

dtensor::FsdpOptions sharding(const Flags& flags) {
  dtensor::FsdpOptions options;
  options.cpu_offload = flags.cpu_offload;
  if (flags.loss_scale == 0) return options;
  options.precision.param_dtype = at::kHalf;
  options.precision.output_dtype = at::kFloat;
  return options;
}

}  // namespace

Report train(const dtensor::Communicator& world, c10::DeviceType device, const Flags& flags) {
  const auto mesh = make_mesh(world, device);
  Net net(at::TensorOptions(at::kFloat).device(at::kMeta));
  parallelize(
      net, mesh,
      {{"up", dtensor::ColwiseParallel{.in = {}, .out = {}}}, {"down", dtensor::RowwiseParallel{.in = {}, .out = {}}}});
  fully_shard(net, mesh, sharding(flags));
  dtensor::manual_seed(mesh, 1);
  net.reset();
  const at::Tensor x = dtensor::randn({kBatch, kWidth}, mesh, {Shard(0), Replicate()});
  const at::Tensor goal = at::sin(x.sum(1, /*keepdim=*/true));
  const auto loss_of = [&] { return at::mse_loss(net(x), goal); };

  Report report;
  {
    const at::NoGradGuard no_grad;
    report.explanation = dtensor::explain([&] { loss_of(); }, dtensor::Explain::decisions);
  }
  dtensor::AdamW optimizer(net.parameters(), {.lr = 1e-2});
  const bool scales = flags.loss_scale > 0;
  dtensor::GradScaler scaler({.init_scale = scales ? flags.loss_scale : 1, .enabled = scales});
  for (std::int64_t step = 0; step < flags.steps; ++step) {
    const dtensor::CommDebugMode comms(net.named_parameters());
    const at::Tensor loss = loss_of();
    scaler.scale(loss).backward();
    report.skipped += scaler.step(net.parameters(), [&] { optimizer.step(); }) ? 0 : 1;
    scaler.update();
    optimizer.zero_grad();
    report.losses.push_back(dtensor::DTensor(loss.detach()).full_tensor().item<double>());
    report.comm_table = comms.table();
  }
  report.scale = scaler.get_scale();
  return report;
}

}  // namespace inside
