// Checks of graphs that are passed as lists of edges.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dtensor::halo {

// Each throws c10::Error; `function` is the public function that the caller called.
// `values` is an int64 tensor on the CPU with one dimension, called `shape` in the message.
void check_numbers(const char* function, const char* what, const at::Tensor& values, const char* shape);
// All values are in [0, end).
void check_range(const char* function, const char* what, const at::Tensor& values, std::int64_t end);
// `source` and `target` are valid ends of edges between `nodes` nodes.
void check_edges(const char* function, const at::Tensor& source, const at::Tensor& target, std::int64_t nodes);

}  // namespace dtensor::halo
