// Recorded calls of ATen operators (tests/data/aten_cases/FORMAT.md): arguments, results and mutated arguments of one
// device, as values that a boxed call takes. Knows nothing of DTensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace dtensor::cases {

// What becomes of each tensor of a case on its way into the call.
using MakeTensor = std::function<at::Tensor(const at::Tensor&)>;

class Case {
 public:
  struct Data;
  explicit Case(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

  int id() const;
  const std::string& op() const;  // aten::add.Tensor; the empty overload is .default
  std::string text() const;       // operator and shapes, for messages
  bool exists() const;            // whether this LibTorch has the operator
  c10::OperatorHandle handle() const;
  // One value per schema argument; `make` gets each tensor once, fresh and plain (wrapped numbers stay as they are).
  std::vector<c10::IValue> arguments(const MakeTensor& make) const;
  // One value per return, plain.
  std::vector<c10::IValue> results() const;
  // Arguments that the call writes, by name, as they are afterwards.
  std::vector<std::pair<std::string, c10::IValue>> mutated() const;

 private:
  std::shared_ptr<const Data> data_;
};

// All cases of a folder with cases.json, tensors.json and tensors.bin.
std::vector<Case> load_cases(const std::string& folder);

}  // namespace dtensor::cases
