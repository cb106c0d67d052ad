// What libraries ask that do not know DTensors: which elements a rank holds.
#include "bind.h"
#include "dtensor/shards.h"

namespace dtensor::python {
namespace {

using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;  // offset, length

// By dimension; None outside of the mesh.
std::optional<std::vector<Pairs>> local_segments(const at::Tensor& tensor) {
  const DTensor placed(tensor);
  const auto coordinate = placed.mesh().coordinate();
  if (!coordinate) return std::nullopt;
  std::vector<Pairs> dims;
  for (std::int64_t d = 0; d < placed.dim(); ++d) {
    Pairs& pairs = dims.emplace_back();
    for (const Segment& s :
         shard_segments(placed.size(d), d, placed.placements(), placed.mesh().shape(), *coordinate)) {
      pairs.emplace_back(s.offset, s.length);
    }
  }
  return dims;
}

}  // namespace

void bind_interop(py::module_& module) {
  module.def("local_segments", &local_segments);
}

}  // namespace dtensor::python
