// Runs the call on thread ranks and listens.
#include "verify/traffic.h"

#include <ATen/ATen.h>

#include <iostream>

#include "dtensor/comm.h"
#include "dtensor/events.h"
#include "dtensor/mesh.h"
#include "dtensor/tensor.h"
#include "ops/op_entry.h"

namespace dtensor::verify {
namespace {

c10::IValue list_of(const c10::IValue& like, at::TensorList tensors) {
  if (like.isTensorList()) return c10::List<at::Tensor>(tensors);
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& t : tensors) list.push_back(t.defined() ? std::optional(t) : std::nullopt);
  return list;
}

// The sample's arguments with these operands in place of its own.
torch::jit::Stack with_operands(const Sample& sample, at::TensorList operands) {
  torch::jit::Stack stack;
  std::size_t next = 0;
  const auto& infos = entry_of(sample.op).args;
  for (std::size_t i = 0; i < sample.args.size(); ++i) {
    const auto& value = sample.args[i];
    if (infos[i].kind == ArgKind::tensor_list && value.isList()) {
      const auto count = value.toListRef().size();
      stack.push_back(list_of(value, operands.slice(next, count)));
      next += count;
    } else if (infos[i].kind == ArgKind::tensor) {
      const auto& tensor = operands[next++];
      stack.push_back(tensor.defined() ? c10::IValue(tensor) : value);
    } else {
      stack.push_back(value);
    }
  }
  return stack;
}

std::int64_t received_on(const Communicator& world, const Sample& sample, const std::vector<at::Tensor>& operands,
                         const std::vector<Placements>& inputs) {
  const auto mesh = init_device_mesh(world, at::kCPU, {world.size()});
  std::vector<at::Tensor> placed;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    placed.push_back(inputs[i].empty() ? operands[i] : distribute_tensor(operands[i].clone(), mesh, inputs[i]));
  }
  auto stack = with_operands(sample, placed);
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
    std::cerr << "NOT COUNTED " << sample.op.operator_name() << ": " << text.substr(0, text.find('\n')) << "\n";
    return 0;
  }
  return static_cast<double>(*std::max_element(received.begin(), received.end()));
}

}  // namespace dtensor::verify
