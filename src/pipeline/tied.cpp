// Copies have equal placements, so their local parts are summed where they lie.
#include "pipeline/tied.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "dtensor/tensor.h"

namespace dtensor::pipeline {
namespace {

at::Tensor local_part(const at::Tensor& tensor) { return is_dtensor(tensor) ? DTensor(tensor).to_local() : tensor; }

// Gradients come in their parameter's placements.
at::Tensor gradient_of(const at::Tensor& parameter) {
  return parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter);
}

}  // namespace

TiedParameter::TiedParameter(const std::string& name, Communicator line, std::vector<at::Tensor> copies)
    : copies_(std::move(copies)), before_(copies_.size()) {
  std::vector<at::Tensor> counts;
  for (int i = 0; i < line.size(); ++i) counts.push_back(at::empty({1}, at::kLong));
  line.all_gather(counts, at::full({1}, static_cast<std::int64_t>(copies_.size()), at::kLong)).wait();
  std::vector<std::int64_t> members;
  for (int i = 0; i < line.size(); ++i) {
    if (counts[static_cast<std::size_t>(i)].item<std::int64_t>() > 0) members.push_back(i);
  }
  TORCH_CHECK(!members.empty(), "pipeline: no rank has a copy of the tied parameter ", name);
  if (!copies_.empty() && members.size() > 1) holders_ = line.subgroup(members, "tied");
}

void TiedParameter::begin_step() {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    before_[i] = copies_[i].grad();
    copies_[i].mutable_grad().reset();
  }
}

void TiedParameter::end_step() {
  if (copies_.empty()) return;
  const at::NoGradGuard no_grad;
  at::Tensor sum = gradient_of(copies_[0]);
  for (std::size_t i = 1; i < copies_.size(); ++i) {
    if (!copies_[i].is_same(copies_[0])) sum = sum + gradient_of(copies_[i]);
  }
  sum = sum.clone();
  if (holders_) holders_.all_reduce(local_part(sum), ReduceOp::sum).wait();
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (i > 0 && copies_[i].is_same(copies_[0])) continue;
    copies_[i].mutable_grad() = before_[i].defined() ? before_[i] + sum : sum.clone();
    before_[i].reset();
  }
}

bool TiedParameter::is_copy(const at::Tensor& tensor) const {
  return std::any_of(copies_.begin(), copies_.end(), [&](const at::Tensor& copy) { return copy.is_same(tensor); });
}

}  // namespace dtensor::pipeline
