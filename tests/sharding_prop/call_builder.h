// Calls of operators without a communicator: operands as specs on a mesh, other arguments as values.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "placement/spec.h"
#include "sharding_prop/propagate.h"

namespace dtensor::testing {

inline MeshRef make_mesh(std::vector<std::int64_t> shape, std::int64_t rank = 0) {
  MeshLayout layout;
  std::int64_t n = 1;
  for (const auto s : shape) n *= s;
  for (std::int64_t i = 0; i < n; ++i) layout.ranks.push_back(i);
  layout.shape = std::move(shape);
  return c10::make_intrusive<MeshInfo>(layout, rank, at::kCPU);
}

inline c10::OperatorHandle find_op(const std::string& full_name) {
  const auto dot = full_name.find('.', full_name.find("::"));
  const std::string name = full_name.substr(0, dot);
  const std::string overload = dot == std::string::npos ? "" : full_name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
}

// Owns what an OpCall refers to. Arguments are tensors (meta or real) with the text of their placements, or other
// values.
class CallBuilder {
 public:
  CallBuilder(const std::string& op, MeshRef mesh) : op_(find_op(op)), info_(op_), mesh_(std::move(mesh)) {}

  CallBuilder& tensor(at::IntArrayRef sizes, const std::string& placements, at::ScalarType dtype = at::kFloat) {
    return tensor(at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta)), placements);
  }
  CallBuilder& tensor(const at::Tensor& t, const std::string& placements) {
    add(t, placements.empty() ? SpecPtr() : spec(t, parse_placements(placements)), -1);
    args_.emplace_back(t);
    return *this;
  }
  CallBuilder& list(const std::vector<at::Tensor>& tensors, const std::string& placements) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      add(tensors[i], spec(tensors[i], parse_placements(placements)), static_cast<int>(i));
    }
    args_.emplace_back(tensors);
    return *this;
  }
  CallBuilder& none_tensor() {
    Operand operand;
    operand.arg = static_cast<int>(args_.size());
    call_.operands.push_back(operand);
    args_.emplace_back();
    return *this;
  }
  CallBuilder& value(c10::IValue v) {
    args_.push_back(std::move(v));
    return *this;
  }

  OpCall& call() {
    while (args_.size() < op_.schema().arguments().size()) {
      args_.push_back(*op_.schema().arguments()[args_.size()].default_value());
    }
    call_.info = &info_;
    call_.args = args_;
    call_.mesh = mesh_;
    return call_;
  }
  Decision decide() {
    infer_outputs(call());
    return propagate(call_);
  }
  std::string explain() {
    infer_outputs(call());
    return explain_decision(call_);
  }
  // "[S(0)], [R] -> [S(0)]"
  std::string text() {
    const Decision d = decide();
    std::string out;
    for (const auto& p : d.inputs) out += (out.empty() ? "" : ", ") + (p.empty() ? std::string("-") : to_string(p));
    out += " ->";
    for (const auto& o : d.outputs) out += " " + (o.mesh ? to_string(o.placements) : std::string("-"));
    return out;
  }
  const c10::OperatorHandle& op() const { return op_; }

 private:
  SpecPtr spec(const at::Tensor& t, const Placements& p) const {
    return intern_spec(mesh_, p, t.sizes(), t.strides(), t.scalar_type());
  }
  void add(const at::Tensor& t, SpecPtr s, int list_index) {
    Operand operand;
    operand.arg = static_cast<int>(args_.size());
    operand.list_index = list_index;
    operand.defined = true;
    operand.wrapped_number = t.unsafeGetTensorImpl()->is_wrapped_number();
    operand.spec = std::move(s);
    operand.sizes = t.sizes();
    operand.strides = t.strides();
    operand.dtype = t.scalar_type();
    call_.operands.push_back(std::move(operand));
  }

  c10::OperatorHandle op_;
  OpInfo info_;
  MeshRef mesh_;
  std::vector<c10::IValue> args_;
  OpCall call_;
};

}  // namespace dtensor::testing
