// Runs the call on thread ranks and counts received bytes.
#include "verify/traffic.h"

#include <ATen/ATen.h>

#include <iostream>

#include "dtensor/comm.h"
#include "dtensor/events.h"
#include "dtensor/mesh.h"
#include "dtensor/tensor.h"

namespace dtensor::verify {
namespace {

std::int64_t received_on(const Communicator& world, const Sample& sample, const std::vector<at::Tensor>& operands,
                         const std::vector<Placements>& inputs) {
  const auto mesh = init_device_mesh(world, at::kCPU, {world.size()});
  std::vector<at::Tensor> placed;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    placed.push_back(inputs[i].empty() ? operands[i] : distribute_tensor(operands[i].clone(), mesh, inputs[i]));
  }
  torch::jit::Stack stack = with_tensors(sample, placed);
  std::int64_t bytes = 0;
  const EventListener listener([&](const Event& event) { bytes += event.bytes; }, {Event::Kind::collective});
  sample.op.callBoxed(stack);
  return bytes;
}

}  // namespace

double kernel_traffic(const Sample& sample, std::int64_t ranks, const std::vector<Placements>& inputs) {
  const auto operands = sample_operands(sample);
  std::vector<std::int64_t> received(static_cast<std::size_t>(ranks));
  RunOptions options;
  options.set_threads = false;
  try {
    run_local(
        static_cast<int>(ranks),
        [&](const Communicator& world) {
          const at::NoGradGuard no_grad;
          received[static_cast<std::size_t>(world.rank())] = received_on(world, sample, operands, inputs);
        },
        options);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    std::cerr << "not counted: " << sample.op.operator_name() << ": " << text.substr(0, text.find('\n')) << "\n";
    return 0;
  }
  return static_cast<double>(*std::max_element(received.begin(), received.end()));
}

}  // namespace dtensor::verify
