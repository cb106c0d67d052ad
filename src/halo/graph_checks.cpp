// Checks of graphs that are passed as lists of edges.
#include "halo/graph_checks.h"

#include <ATen/ATen.h>

namespace dtensor::halo {

void check_numbers(const char* function, const char* what, const at::Tensor& values, const char* shape) {
  TORCH_CHECK(values.defined(), function, ": expected ", what, " int64 ", shape, ", got an undefined tensor");
  TORCH_CHECK(values.dim() == 1 && values.scalar_type() == at::kLong && values.is_cpu(), function, ": expected ", what,
              " int64 ", shape, " on the CPU, got ", values.scalar_type(), " ", values.sizes(), " on ",
              values.device());
}

void check_range(const char* function, const char* what, const at::Tensor& values, std::int64_t end) {
  if (values.numel() == 0) return;
  const auto low = values.min().item<std::int64_t>(), high = values.max().item<std::int64_t>();
  TORCH_CHECK(low >= 0 && high < end, function, ": expected ", what, " in [0, ", end, "), got ", low < 0 ? low : high);
}

void check_edges(const char* function, const at::Tensor& source, const at::Tensor& target, std::int64_t nodes) {
  TORCH_CHECK(nodes >= 0, function, ": expected a number of nodes of at least 0, got ", nodes);
  check_numbers(function, "source", source, "[edges]");
  check_numbers(function, "target", target, "[edges]");
  TORCH_CHECK(source.numel() == target.numel(), function, ": expected one target for each source, got ", source.numel(),
              " sources and ", target.numel(), " targets");
  check_range(function, "nodes of source", source, nodes);
  check_range(function, "nodes of target", target, nodes);
}

}  // namespace dtensor::halo
