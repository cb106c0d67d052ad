// Operators on tensors by name.
#include <ATen/ATen.h>

#include "c/handles.h"
#include "c/status.h"

namespace dtensor::c {
namespace {

struct NamedOperator {
  const char* name;
  int least, most;  // number of operands
  at::Tensor (*apply)(const TensorVector& operands);
};

constexpr NamedOperator kOperators[] = {{"add", 2, 2, [](const TensorVector& x) { return at::add(x[0], x[1]); }},
                                        {"sub", 2, 2, [](const TensorVector& x) { return at::sub(x[0], x[1]); }},
                                        {"mul", 2, 2, [](const TensorVector& x) { return at::mul(x[0], x[1]); }},
                                        {"div", 2, 2, [](const TensorVector& x) { return at::div(x[0], x[1]); }},
                                        {"pow", 2, 2, [](const TensorVector& x) { return at::pow(x[0], x[1]); }},
                                        {"neg", 1, 1, [](const TensorVector& x) { return at::neg(x[0]); }},
                                        {"abs", 1, 1, [](const TensorVector& x) { return at::abs(x[0]); }},
                                        {"exp", 1, 1, [](const TensorVector& x) { return at::exp(x[0]); }},
                                        {"log", 1, 1, [](const TensorVector& x) { return at::log(x[0]); }},
                                        {"sqrt", 1, 1, [](const TensorVector& x) { return at::sqrt(x[0]); }},
                                        {"sin", 1, 1, [](const TensorVector& x) { return at::sin(x[0]); }},
                                        {"cos", 1, 1, [](const TensorVector& x) { return at::cos(x[0]); }},
                                        {"tanh", 1, 1, [](const TensorVector& x) { return at::tanh(x[0]); }},
                                        {"sigmoid", 1, 1, [](const TensorVector& x) { return at::sigmoid(x[0]); }},
                                        {"relu", 1, 1, [](const TensorVector& x) { return at::relu(x[0]); }},
                                        {"gelu", 1, 1, [](const TensorVector& x) { return at::gelu(x[0]); }},
                                        {"silu", 1, 1, [](const TensorVector& x) { return at::silu(x[0]); }},
                                        {"sum", 1, 1, [](const TensorVector& x) { return at::sum(x[0]); }},
                                        {"mean", 1, 1, [](const TensorVector& x) { return at::mean(x[0]); }},
                                        {"cat", 1, kMaxTensors, [](const TensorVector& x) { return at::cat(x, -1); }}};

const NamedOperator& operator_of(const std::string& name) {
  std::string known;
  for (const auto& op : kOperators) {
    if (name == op.name) return op;
    known += (known.empty() ? "" : ", ") + std::string(op.name);
  }
  TORCH_CHECK_VALUE(false, "expected an operator (", known, "), got '", name, "'");
}

}  // namespace
}  // namespace dtensor::c

using namespace dtensor::c;

dtensor_status dtensor_tensor_compute(const char* name, int count, const dtensor_tensor* const* operands,
                                      dtensor_tensor** result) {
  const void* first = count > 0 && operands != nullptr ? operands[0] : nullptr;
  return guarded_on_all(__func__, {first}, [&] {
    const TensorVector tensors = tensors_of(count, operands, "operand");
    const NamedOperator* op = nullptr;
    agree(object(operands[0]).mesh.communicator(), [&] {
      required(result, "pointer for the tensor");
      op = &operator_of(&required(name, "name of an operator"));
      TORCH_CHECK_VALUE(count >= op->least && count <= op->most, "expected ", op->least, " to ", op->most,
                        " operands of ", op->name, ", got ", count);
      return c10::str("operator ", op->name, " of ", count, " tensors");
    });
    *result = new_tensor(op->apply(tensors));
  });
}
