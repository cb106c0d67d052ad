// Placements. One value type; Shard, Replicate and Partial are predicates and factories in placement_types.py.
#include <map>

#include "bind.h"

namespace dtensor::python {
namespace {

const std::map<std::string, ReduceOp>& reduce_ops() {
  static const std::map<std::string, ReduceOp> ops{{"sum", ReduceOp::sum},
                                                   {"avg", ReduceOp::avg},
                                                   {"max", ReduceOp::max},
                                                   {"min", ReduceOp::min},
                                                   {"product", ReduceOp::product}};
  return ops;
}

ReduceOp reduce_op(const std::string& name) {
  const auto found = reduce_ops().find(name);
  TORCH_CHECK_VALUE(found != reduce_ops().end(), "Partial(\"", name,
                    "\"): expected one of sum, avg, max, min, product");
  return found->second;
}

std::string python_repr(const Placement& p) {
  const std::string dim = std::to_string(p.dim()), factor = std::to_string(p.split_factor());
  const std::string end = p.is_storage() ? ").as_storage()" : ")";
  switch (p.kind()) {
    case Placement::Kind::replicate:
      return "Replicate(" + end;
    case Placement::Kind::shard:
      return "Shard(dim=" + dim + end;
    case Placement::Kind::strided_shard:
      return "StridedShard(dim=" + dim + ", split_factor=" + factor + end;
    case Placement::Kind::zigzag_shard:
      return "ZigzagShard(dim=" + dim + ", split_factor=" + factor + end;
    case Placement::Kind::partial:
      return std::string("Partial(") + to_string(p.reduce_op()) + end;
    case Placement::Kind::ragged_shard:
      break;
  }
  std::string sizes;
  for (auto size : p.ragged_sizes()) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return "RaggedShard(dim=" + dim + ", sizes=[" + sizes + "]" + end;
}

// The module of PyTorch's placement classes, the bases of those in torch.distributed.tensor; never destroyed.
py::handle torch_placement_classes;

// Whether `value` is an instance of PyTorch's class of that name.
bool is_torch_placement(py::handle value, const char* name) {
  return py::isinstance(value, torch_placement_classes.attr(name));
}

// Converts a placement of torch.distributed.tensor; nullopt for any other value.
std::optional<Placement> from_torch(py::handle value) {
  if (is_torch_placement(value, "Replicate")) return Replicate();
  if (is_torch_placement(value, "Partial")) return Partial(reduce_op(value.attr("reduce_op").cast<std::string>()));
  const auto integer = [&](const char* name) { return value.attr(name).cast<std::int64_t>(); };
  if (is_torch_placement(value, "StridedShard")) return StridedShard(integer("dim"), integer("split_factor"));
  if (is_torch_placement(value, "Shard")) return Shard(integer("dim"));
  return std::nullopt;
}

std::optional<Placement> as_placement(py::handle value) {
  return py::isinstance<Placement>(value) ? value.cast<Placement>() : from_torch(value);
}

Placement placement_of(const py::object& value) {
  const auto placement = as_placement(value);
  TORCH_CHECK_TYPE(placement, "expected a placement, got ", py::repr(value).cast<std::string>(),
                   ": use Shard(dim), Replicate() or Partial(op)");
  return *placement;
}

using PlacementClass = py::class_<Placement>;

void bind_makers(PlacementClass& type) {
  type.def_static("replicate", &Placement::replicate)
      .def_static("shard", &Placement::shard, py::arg("dim"))
      .def_static("strided_shard", &Placement::strided_shard, py::arg("dim"), py::arg("split_factor"))
      .def_static(
          "ragged_shard",
          [](std::int64_t dim, const std::vector<std::int64_t>& sizes) { return Placement::ragged_shard(dim, sizes); },
          py::arg("dim"), py::arg("sizes"))
      .def_static("zigzag_shard", &Placement::zigzag_shard, py::arg("dim"), py::arg("split_factor") = 1)
      .def_static("block_shard", &BlockShard, py::arg("dim"), py::arg("size"), py::arg("block"), py::arg("ranks"))
      .def_static(
          "partial", [](const std::string& op) { return Placement::partial(reduce_op(op)); },
          py::arg("reduce_op") = "sum")
      .def_static(
          "parse", [](const std::string& text) { return parse_placement(text); }, py::arg("text"),
          "Inverse of str(): S(0), R, P(sum), ...");
}

void bind_predicates(PlacementClass& type) {
  type.def("is_replicate", &Placement::is_replicate)
      .def(
          "is_shard",
          [](const Placement& p, std::optional<std::int64_t> dim) { return p.is_shard() && (!dim || p.dim() == *dim); },
          py::arg("dim") = py::none(), "Whether it shards a dimension (or `dim`), evenly or not.")
      .def(
          "is_partial",
          [](const Placement& p, std::optional<std::string> op) {
            return p.is_partial() && (!op || p.reduce_op() == reduce_op(*op));
          },
          py::arg("reduce_op") = py::none())
      .def("is_strided", &Placement::is_strided)
      .def("is_ragged", &Placement::is_ragged)
      .def("is_zigzag", &Placement::is_zigzag);
}

void bind_properties(PlacementClass& type) {
  type.def_property_readonly("dim", &Placement::dim, "The sharded tensor dimension; -1 unless is_shard().")
      .def_property_readonly("split_factor", &Placement::split_factor)
      .def_property_readonly("ragged_sizes", [](const Placement& p) { return p.ragged_sizes().vec(); })
      .def_property_readonly("reduce_op", [](const Placement& p) { return std::string(to_string(p.reduce_op())); })
      .def_property_readonly("is_storage", &Placement::is_storage)
      .def("as_storage", &Placement::as_storage, py::arg("storage") = true,
           "A copy that is stored sharded and gathered where operators compute with it (fully sharded parameters).");
}

// Value semantics in Python: comparison, hash, printing and pickling. As in PyTorch, equality compares where elements
// are stored; is_storage does not take part.
void bind_value(PlacementClass& type) {
  type.def("__eq__",
           [](const Placement& a, const py::object& b) {
             const auto other = as_placement(b);
             return other && a.as_storage(false) == other->as_storage(false);
           })
      .def("__hash__", [](const Placement& p) { return p.as_storage(false).hash(); })
      .def("__str__", &Placement::str)
      .def("__repr__", &python_repr)
      .def(py::pickle([](const Placement& p) { return p.str(); },
                      [](const std::string& text) { return parse_placement(text); }));
}

}  // namespace

void bind_placement(py::module_& module) {
  torch_placement_classes = py::object(py::module_::import("torch._C").attr("_distributed")).release();
  PlacementClass type(module, "Placement",
                      "How one mesh dimension distributes a tensor. A value: comparable, hashable.");
  type.def(py::init(&placement_of), py::arg("placement"),
           "A copy, or the equivalent of a placement of torch.distributed.tensor.");
  accept_as<Placement>([](py::handle value) { return from_torch(value).has_value(); });
  bind_makers(type);
  bind_predicates(type);
  bind_properties(type);
  bind_value(type);
}

}  // namespace dtensor::python
