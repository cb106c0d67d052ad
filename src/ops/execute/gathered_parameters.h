// Gathered parameters for unboxed calls with operands in storage shards.
#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include "ops/cache/cached_call.h"

namespace dtensor::unboxed {

using Operands = c10::ArrayRef<c10::TensorImpl*>;

// The gathered local tensors of the operands that a call gathers. The constructor runs the schedules' hooks.
class GatheredOperands {
 public:
  GatheredOperands(const CachedCall& call, Operands operands);

  bool complete() const { return complete_; }  // false: the boxed kernel gathers

  // The gathered tensor of an argument, or the argument itself. `operand` is its operand index.
  const at::Tensor& in_place_of(std::size_t operand, const at::Tensor& value) const {
    const auto* local = find(operand);
    return local == nullptr ? value : **local;
  }
  const std::optional<at::Tensor>& in_place_of(std::size_t operand, const std::optional<at::Tensor>& value) const {
    const auto* local = find(operand);
    return local == nullptr ? value : *local;
  }
  template <class T>
  T& in_place_of(std::size_t /*operand*/, T& value) const {
    return value;  // not an operand, or a written one
  }

 private:
  const std::optional<at::Tensor>* find(std::size_t operand) const {
    for (const auto& [index, local] : locals_) {
      if (index == operand) return &local;
    }
    return nullptr;
  }

  c10::SmallVector<std::pair<std::size_t, std::optional<at::Tensor>>, 2> locals_;
  bool complete_ = true;
};

// The operand index of argument `I`, for arguments without lists.
template <std::size_t I, class... Args>
constexpr std::size_t operand_index() {
  const bool operand[] = {(std::is_same_v<std::remove_cvref_t<Args>, at::Tensor> ||
                           std::is_same_v<std::remove_cvref_t<Args>, std::optional<at::Tensor>>)...};
  std::size_t index = 0;
  for (std::size_t i = 0; i < I; ++i) index += operand[i] ? 1 : 0;
  return index;
}

}  // namespace dtensor::unboxed
