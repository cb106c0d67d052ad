// Tensors of several dtypes and placements, values of each kind, one tensor under two names.
#include "faults/state.h"

#include <ATen/ATen.h>

#include "dtensor/tensor.h"

namespace dtensor::faults {
namespace {

std::string note_of(std::int64_t step) { return "after step " + std::to_string(step); }
double rate_of(std::int64_t step) { return 1 / (1 + static_cast<double>(step)); }

// Every element differs from its neighbors, and from itself at any other step below 2^20.
at::Tensor content(const std::string& name, at::IntArrayRef sizes, at::ScalarType dtype, std::int64_t step) {
  const std::int64_t count = std::max<std::int64_t>(at::empty(sizes, at::kMeta).numel(), 1);
  const at::Tensor numbers = at::arange(count, at::kLong) * 7919 + step * 104729 + std::ssize(name);
  return numbers.remainder(dtype == at::kHalf ? 2039 : 1 << 24)
      .narrow(0, 0, count)
      .to(dtype)
      .reshape(sizes.empty() ? at::IntArrayRef{} : sizes);
}

}  // namespace

KnownState::KnownState(const DeviceMesh& mesh, std::int64_t rows) : rows_(rows), note_(note_of(0)) {
  const auto place = [&](const char* name, at::IntArrayRef sizes, at::ScalarType dtype, const Placement& placement) {
    const Placements placements(static_cast<std::size_t>(mesh.ndim()), placement);
    tensors_.emplace_back(name, zeros(sizes, mesh, placements, at::TensorOptions(dtype)));
  };
  place("weight", {rows_, 64}, at::kFloat, Shard(0));
  place("half", {33, 6}, at::kHalf, Shard(1));
  place("counts", {11}, at::kLong, Replicate());
  tensors_.emplace_back("regular", at::zeros({5}, at::kDouble));
  tensors_.emplace_back("tied", tensors_[1].second);
  checkpoint_.add("", StateTensors(tensors_.begin(), tensors_.end()));
  checkpoint_.add("step", step_).add("rate", rate_).add("note", note_);
  go_to(0);
}

void KnownState::go_to(std::int64_t step) {
  step_ = step, rate_ = rate_of(step), note_ = note_of(step);
  for (auto& [name, t] : tensors_) {
    if (name == "tied") continue;
    const at::Tensor full = content(name, t.sizes(), t.scalar_type(), step);
    t.copy_(is_dtensor(t) ? at::Tensor(distribute_tensor(full, DTensor(t).mesh(), DTensor(t).placements())) : full);
  }
}

std::string KnownState::problem() const {
  if (rate_ != rate_of(step_)) return "rate is " + std::to_string(rate_) + " at step " + std::to_string(step_);
  if (note_ != note_of(step_)) return "note is '" + note_ + "' at step " + std::to_string(step_);
  for (const auto& [name, t] : tensors_) {
    const at::Tensor got = is_dtensor(t) ? DTensor(t).full_tensor() : t;
    const std::string source = name == "tied" ? "half" : name;
    if (!at::equal(got, content(source, t.sizes(), t.scalar_type(), step_))) {
      return name + " differs from its value at step " + std::to_string(step_);
    }
  }
  return "";
}

}  // namespace dtensor::faults
