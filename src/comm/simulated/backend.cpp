// Decides what a rank without peers receives: what it sends itself, zeros, or no values.
#include "comm/simulated/backend.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "comm/p2p/staging.h"
#include "comm/simulated/world.h"
#include "internal/aten_scopes.h"
#include "internal/simulated.h"

namespace dtensor {
namespace {

// `to` receives `from` of a peer, which may have other sizes than this rank's.
void receive(const at::Tensor& to, const at::Tensor& from) {
  if (is_simulated(to) || to.is_same(from)) return;
  if (is_simulated(from)) return forget_values(to);
  const LocalBelowAutogradGuard regular;
  to.sizes().equals(from.sizes()) ? void(to.copy_(from)) : void(to.zero_());
}

void receive_zeros(const at::Tensor& to) {
  const LocalBelowAutogradGuard regular;
  if (!is_simulated(to)) to.zero_();
}

}  // namespace

void SimulatedBackend::stage(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) const {
  if (staging_) p2p::allocate_staging(call, rank(), size(), outputs, inputs);
}

// `tensor` becomes the sum of as many equal tensors as there are members.
void SimulatedBackend::sum_equal(const CollectiveCall& call, const at::Tensor& tensor) const {
  if (call.op != ReduceOp::sum || is_simulated(tensor) || tensor.scalar_type() == at::kBool) return;
  const LocalBelowAutogradGuard regular;
  tensor.mul_(size());
}

Work SimulatedBackend::all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) {
  stage(call, outputs, input);
  if (threads_) return threads_->all_gather(call, outputs, input);
  for (const auto& output : outputs) receive(output, input);
  return {};
}

Work SimulatedBackend::reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) {
  return reduce_scatter_list(call, output, inputs);
}

Work SimulatedBackend::all_reduce(const CollectiveCall& call, const at::Tensor& tensor) {
  stage(call, tensor, {});
  if (threads_) return threads_->all_reduce(call, tensor);
  sum_equal(call, tensor);
  return {};
}

Work SimulatedBackend::all_reduce(const CollectiveCall& call, const at::Tensor& output, const at::Tensor& input) {
  if (threads_) {
    stage(call, output, {});
    return threads_->all_reduce(call, output, input);
  }
  receive(output, input);
  return all_reduce(call, output);
}

Work SimulatedBackend::all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  stage(call, outputs, inputs);
  if (threads_) return threads_->all_to_all(call, outputs, inputs);
  for (const auto& output : outputs) receive(output, inputs[static_cast<std::size_t>(rank())]);
  return {};
}

Work SimulatedBackend::all_gather_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  stage(call, outputs, inputs);
  if (threads_) return threads_->all_gather_list(call, outputs, inputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) receive(outputs[i], inputs[i % inputs.size()]);
  return {};
}

Work SimulatedBackend::reduce_scatter_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  stage(call, outputs, inputs);
  if (threads_) return threads_->reduce_scatter_list(call, outputs, inputs);
  const auto own = inputs.slice(static_cast<std::size_t>(rank()) * outputs.size(), outputs.size());
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    receive(outputs[k], own[k]);
    sum_equal(call, outputs[k]);
  }
  return {};
}

Work SimulatedBackend::all_reduce_list(const CollectiveCall& call, at::TensorList tensors) {
  stage(call, tensors, {});
  if (threads_) return threads_->all_reduce_list(call, tensors);
  for (const auto& tensor : tensors) sum_equal(call, tensor);
  return {};
}

Work SimulatedBackend::broadcast(const CollectiveCall& call, const at::Tensor& tensor) {
  stage(call, tensor, {});
  if (threads_) return threads_->broadcast(call, tensor);
  if (call.peer != rank()) receive_zeros(tensor);
  return {};
}

Work SimulatedBackend::send(const CollectiveCall& call, const at::Tensor& tensor) {
  stage(call, {}, tensor);
  return threads_ ? threads_->send(call, tensor) : Work();
}

Work SimulatedBackend::recv(const CollectiveCall& call, const at::Tensor& tensor) {
  stage(call, tensor, {});
  if (threads_) return threads_->recv(call, tensor);
  receive_zeros(tensor);
  return {};
}

void SimulatedBackend::barrier(const CollectiveCall& call) {
  if (threads_) threads_->barrier(call);
}

std::shared_ptr<CommBackend> SimulatedBackend::subgroup(at::IntArrayRef members, const std::string& label) {
  if (threads_) return threads_->subgroup(members, label);
  std::vector<std::int64_t> world;
  world.reserve(members.size());
  for (const auto member : members) world.push_back(ranks()[static_cast<std::size_t>(member)]);
  const auto own = std::find(members.begin(), members.end(), rank());
  auto group = std::make_shared<SimulatedBackend>(static_cast<int>(own - members.begin()), std::move(world), world_);
  group->set_record(shared_record());
  group->set_asynchronous(asynchronous_);
  group->set_staging(staging_);
  return group;
}

void SimulatedBackend::run_all_members() {
  if (threads_ || size() == 1) return;
  world_->start(ranks());
  threads_ = world_->connect(rank(), ranks());
  threads_->set_record(shared_record());
}

}  // namespace dtensor
