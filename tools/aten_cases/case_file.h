// Recorded calls of ATen operators (tools/aten_cases/FORMAT.md): arguments, results and written arguments on one
// device, as values of a boxed call. Independent of DTensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace dtensor::cases {

// Converts each tensor of a case before the call.
using MakeTensor = std::function<at::Tensor(const at::Tensor&)>;

class Case {
 public:
  struct Data;
  explicit Case(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

  int id() const;
  const std::string& op() const;  // aten::add.Tensor; the empty overload is .default
  std::string text() const;       // Operator and sizes, for messages.
  bool exists() const;            // Whether this LibTorch has the operator.
  c10::OperatorHandle handle() const;
  // One value for each schema argument. `make` is called once for each tensor, with a new regular tensor (wrapped
  // numbers are passed unchanged).
  std::vector<c10::IValue> arguments(const MakeTensor& make) const;
  // One value for each return, with regular tensors.
  std::vector<c10::IValue> results() const;
  // Arguments that the call writes, by name, with their final values.
  std::vector<std::pair<std::string, c10::IValue>> mutated() const;

 private:
  std::shared_ptr<const Data> data_;
};

// All cases of a folder with cases.json, tensors.json and tensors.bin.
std::vector<Case> load_cases(const std::string& folder);

}  // namespace dtensor::cases
