// Texts for messages about collectives. Exported for the CUDA library.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "dtensor/comm_backend.h"

namespace dtensor {

// all_reduce #3 (sum, Float [4, 5])
DTENSOR_API std::string describe(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);

// Without a call into the placement room, which the communicators do not need otherwise.
DTENSOR_API const char* reduce_op_name(ReduceOp op);

// tp {0, 2}: the label, if any, and the world ranks.
DTENSOR_API std::string describe_group(const std::string& label, const std::vector<std::int64_t>& ranks);

// rank 0; ranks 0, 2.
std::string ranks_text(const std::vector<std::int64_t>& ranks);

// 1500 ms; 2 s.
std::string duration_text(std::chrono::milliseconds time);

// ; last of rank 1: aten::mm, all_reduce #3 on tp. Empty where there is no record, or nothing in it. Of any thread.
DTENSOR_API std::string describe_recent_calls(std::int64_t rank, const RankRecord* record);

// The message of the exception in flight, without a backtrace.
DTENSOR_API std::string current_exception_text();
// Its backtrace, where it has one and TORCH_SHOW_CPP_STACKTRACES is 1: several lines; else "".
DTENSOR_API std::string current_exception_trace();

}  // namespace dtensor
