// Copies have equal placements, so their local tensors can be summed once their gradients have these
// placements. Before that, the gradients' placements may differ.
#include "pipeline/tied_parameters.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "dtensor/fully_shard.h"
#include "dtensor/hooks.h"
#include "dtensor/tensor.h"
#include "internal/aten_scopes.h"
#include "internal/parameter_swap.h"

namespace dtensor::pipeline {
namespace {

at::Tensor local_part(const at::Tensor& tensor) { return is_dtensor(tensor) ? DTensor(tensor).to_local() : tensor; }

bool gradients_wait() { return NoGradientSync::current() || NoReplicaSync::current(); }

}  // namespace

TiedParameter::TiedParameter(std::string name, Communicator line, const std::vector<at::Tensor>& copies)
    : name_(std::move(name)), copies_(unique_tensors(copies)), before_(copies_.size()) {
  const LocalNoGradGuard scope;
  std::vector<at::Tensor> counts;
  for (int i = 0; i < line.size(); ++i) counts.push_back(at::empty({1}, at::kLong));
  line.all_gather(counts, at::full({1}, static_cast<std::int64_t>(copies_.size()), at::kLong)).wait();
  std::vector<std::int64_t> members;
  for (int i = 0; i < line.size(); ++i) {
    if (counts[static_cast<std::size_t>(i)].item<std::int64_t>() > 0) members.push_back(i);
  }
  TORCH_CHECK(!members.empty(), "pipeline: expected a copy of the tied parameter ", name_,
              " on at least one rank, got none");
  first_ = members.front() == line.rank();
  if (!copies_.empty() && members.size() > 1) holders_ = line.subgroup(members, "tied");
}

void TiedParameter::begin_step() {
  stashed_ = !waits_;
  for (std::size_t i = 0; stashed_ && i < copies_.size(); ++i) {
    before_[i] = copies_[i].grad();
    copies_[i].mutable_grad().reset();
  }
}

void TiedParameter::abandon_step() {
  for (std::size_t i = 0; stashed_ && i < copies_.size(); ++i) copies_[i].mutable_grad() = std::move(before_[i]);
  stashed_ = false;
}

void TiedParameter::end_step() {
  if (copies_.empty()) return;
  const LocalNoGradGuard scope;
  if (!gradients_wait()) return sum_up();
  // Adds the earlier sum to one copy, so that the next sum includes it once.
  at::Tensor& part = copies_[0].mutable_grad();
  if (first_ && before_[0].defined()) part = part.defined() ? before_[0] + part : before_[0];
  before_.assign(copies_.size(), at::Tensor());
  stashed_ = false;
  waits_ = true;
}

// If no step reaches any copy, their gradients stay undefined, as on one device.
void TiedParameter::sum_up() {
  reduce_gradients(copies_);
  at::Tensor sum;
  for (const at::Tensor& copy : copies_) {
    if (copy.grad().defined()) sum = sum.defined() ? sum + copy.grad() : copy.grad().clone();
  }
  const bool any = sum.defined();
  if (!any) sum = at::zeros_like(copies_[0]);
  const at::Tensor local = local_part(sum);
  const at::Tensor found = at::full({1}, any ? 1 : 0, local.options());
  if (holders_) holders_.all_reduce_list({local, found}, ReduceOp::sum).wait();
  const bool reached = at::real(found).item<double>() > 0;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    at::Tensor& gradient = copies_[i].mutable_grad();
    gradient = std::move(before_[i]);
    if (reached) gradient = gradient.defined() ? gradient + sum : sum.clone();
  }
  stashed_ = waits_ = false;
}

bool TiedParameter::is_copy(const at::Tensor& tensor) const {
  return std::any_of(copies_.begin(), copies_.end(), [&](const at::Tensor& copy) { return copy.is_same(tensor); });
}

}  // namespace dtensor::pipeline
