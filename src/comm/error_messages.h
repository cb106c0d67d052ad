// Texts for messages about collectives. Exported for the CUDA library.
#pragma once

#include <c10/util/DimVector.h>

#include <chrono>
#include <string>
#include <vector>

#include "dtensor/comm_backend.h"

namespace dtensor {

// Example: all_reduce #3 (sum, Float [4, 5]).
DTENSOR_API std::string describe(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);

// What describe() shows of a call. Keeps no tensors: the text may be needed after they are freed.
class DTENSOR_API CallDescription {
 public:
  CallDescription(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);
  const CollectiveCall& call() const { return call_; }
  std::string str() const;

 private:
  CollectiveCall call_;
  c10::SmallVector<c10::DimVector, 2> sizes_;  // of the tensors that the text lists
  std::size_t tensors_;
  c10::Device device_ = c10::kCPU;
};

// Defined here, so that communicators do not depend on the placement module.
DTENSOR_API const char* reduce_op_name(ReduceOp op);

// Example: tp {0, 2}: the label, if any, and the world ranks.
DTENSOR_API std::string describe_group(const std::string& label, const std::vector<std::int64_t>& ranks);

// The error of a call during a call of another thread of the rank.
std::string two_threads(std::int64_t rank, const std::string& call);

// Examples: rank 0; ranks 0, 2.
std::string ranks_text(const std::vector<std::int64_t>& ranks);

// Examples: 1500 ms; 2 s.
std::string duration_text(std::chrono::milliseconds time);

// Example: ; last of rank 1: aten::mm, all_reduce #3 on tp. Empty without a record or entries. Callable from any
// thread.
DTENSOR_API std::string describe_recent_calls(std::int64_t rank, const RankRecord* record);

// The message of the current exception, without a backtrace.
DTENSOR_API std::string current_exception_text();
// The backtrace of the current exception if it has one and TORCH_SHOW_CPP_STACKTRACES is 1 (several lines); else "".
DTENSOR_API std::string current_exception_trace();

}  // namespace dtensor
