// Counts calls, arithmetic and bytes of the operators of a dry run.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

#include "dtensor/dry_run.h"

namespace dtensor::dry {

class OperatorCounter {
 public:
  OperatorCounter(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);
  // Call it when the results are on the stack.
  void count(const torch::jit::Stack& stack) const;

 private:
  const c10::OperatorHandle& op_;
  StepTrace::Event event_;
  std::function<std::int64_t(const at::Tensor& result)> flops_;  // null: none
};

}  // namespace dtensor::dry
