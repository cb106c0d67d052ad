// Sharding rules written in Python: for each call a function returns the factors of each dimension.
#include <torch/csrc/jit/python/pybind_utils.h>

#include "bind.h"
#include "dtensor/rule.h"

namespace dtensor::python {
namespace {

using Term = std::vector<std::vector<int>>;  // factors of each dimension

// Non-tensor arguments by name.
py::dict non_tensor_arguments(const OpArgs& op, const std::vector<std::string>& names) {
  py::dict result;
  for (const auto& name : names) {
    if (op.operand(name) < 0 && op.has_arg(name)) result[py::str(name)] = torch::jit::toPyObject(op.arg(name));
  }
  return result;
}

// (argument, sizes, dtype) of each tensor; sizes and dtype are None if it was not given.
py::list operands(const OpArgs& op) {
  py::list result;
  for (int i = 0; i < op.operand_count(); ++i) {
    const bool given = op.defined(i);
    result.append(py::make_tuple(std::string(op.operand_arg(i)),
                                 given ? py::object(py::tuple(py::cast(op.sizes(i).vec()))) : py::none(),
                                 given ? py::cast(op.dtype(i)) : py::none()));
  }
  return result;
}

// Number of dimensions of each result.
std::vector<std::size_t> ranks_of_results(const OpArgs& op) {
  std::vector<std::size_t> result;
  for (int i = 0; i < op.result_count(); ++i) result.push_back(op.result(i).sizes.size());
  return result;
}

Rule::Term term_of(const Term& dims) {
  Rule::Term term;
  for (const auto& factors : dims) term.emplace_back(factors.begin(), factors.end());
  return term;
}

// (number of factors, terms of operands, terms of results, groups of operands that may be Partial together)
using Parts = std::tuple<int, std::vector<Term>, std::vector<Term>, std::vector<Rule::Operands>>;

Rule rule_of(const Parts& parts) {
  const auto& [factors, ins, outs, linear] = parts;
  Rule rule;
  for (int i = 0; i < factors; ++i) rule.factor("f" + std::to_string(i));
  for (const auto& term : ins) rule.operand(term_of(term));
  for (const auto& term : outs) rule.result(term_of(term));
  for (const auto& together : linear) rule.linear(together);
  return rule;
}

// (sizes, strides, dtype) of each result, as one device would return it.
using Described = std::vector<std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, at::ScalarType>>;

std::vector<OutputMeta> outputs_of(const Described& described) {
  std::vector<OutputMeta> outputs;
  for (const auto& [sizes, strides, dtype] : described) {
    OutputMeta& output = outputs.emplace_back();
    output.sizes = at::IntArrayRef(sizes);
    output.strides = at::IntArrayRef(strides);
    output.dtype = dtype;
  }
  return outputs;
}

void register_sharding(const std::string& op, const std::vector<std::string>& names, const py::function& fn,
                       const py::function& describe) {
  // Never destroyed: the rules outlive the interpreter.
  const py::handle function = py::object(fn).release(), sizes = py::object(describe).release();
  const auto rule = [names, function](const OpArgs& call) {
    const py::gil_scoped_acquire lock;
    return rule_of(function(operands(call), non_tensor_arguments(call, names), ranks_of_results(call)).cast<Parts>());
  };
  const auto outputs = [names, sizes](const OpArgs& call) {
    const py::gil_scoped_acquire lock;
    return outputs_of(sizes(operands(call), non_tensor_arguments(call, names)).cast<Described>());
  };
  RuleBook::get().rule(op, rule, "registered in Python").reads_scalars().outputs(outputs);
}

}  // namespace

void bind_register_sharding(py::module_& module) {
  module.def("register_sharding", &register_sharding, py::arg("op"), py::arg("arguments"), py::arg("rule"),
             py::arg("outputs"));
}

}  // namespace dtensor::python
