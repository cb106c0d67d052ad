// Mixed precision: casts in the place of parameters while a forward pass runs. A cast keeps its shards, so what is
// gathered is the narrow dtype, and autograd brings the gradient back to the parameter's own.
#include "parallel/fsdp/precision.h"

#include <ATen/ATen.h>

#include <map>

namespace dtensor {
namespace fsdp {

bool matches(const std::string& pattern, const std::string& name) {
  std::size_t p = 0, n = 0, star = std::string::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

at::ScalarType compute_dtype(const MixedPrecision& precision, const std::string& name, at::ScalarType own) {
  if (!at::isFloatingType(own)) return own;
  for (const auto& [pattern, dtype] : precision.param_dtype_of) {
    if (matches(pattern, name)) return dtype;
  }
  return precision.param_dtype.value_or(own);
}

}  // namespace fsdp

ComputeScope::ComputeScope(const NamedTensors& parameters) {
  std::map<const c10::TensorImpl*, at::Tensor> casts;  // tied ones stay tied
  for (const auto& [name, slot] : parameters) {
    std::size_t k = 0;
    const auto* unit = fsdp::unit_of(*slot, k);
    if (unit == nullptr) continue;
    if (unit->options.precision.output_dtype) output_dtype_ = unit->options.precision.output_dtype;
    const auto dtype = unit->parameters[k].gather_dtype;
    if (dtype == slot->scalar_type()) continue;
    auto& cast = casts[slot->unsafeGetTensorImpl()];
    if (!cast.defined()) cast = slot->to(dtype);
    kept_.emplace_back(slot, *slot);
    *slot = cast;
  }
}

ComputeScope::~ComputeScope() {
  for (auto& [slot, parameter] : kept_) *slot = std::move(parameter);
}

at::Tensor ComputeScope::output(const at::Tensor& result) const {
  return output_dtype_ ? result.to(*output_dtype_) : result;
}

}  // namespace dtensor
