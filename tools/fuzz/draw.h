// Invalid calls: a recorded call of an operator in which one tensor gets another number of dimensions, size, dtype or
// device.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "aten_cases/case_file.h"

namespace dtensor::fuzz {

using Random = std::mt19937_64;
inline std::int64_t draw(Random& random, std::int64_t low, std::int64_t high) {  // Inclusive.
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

// Operators whose calls would not terminate, or would affect later calls.
bool is_excluded(const std::string& name);

// One call on regular tensors.
struct RegularCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> args;
  std::string str() const;  // Operator, sizes, dtypes, other arguments.
};

// The arguments with each defined tensor replaced by make(tensor): also entries of lists, but not scalar tensors.
std::vector<c10::IValue> replace_tensors(const std::vector<c10::IValue>& args, const cases::MakeTensor& make);
std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue>& args);

// Valid calls by overload: recorded ones, and for in-place and out= overloads without a record, those of a related
// overload.
class CallSource {
 public:
  explicit CallSource(const std::string& folder);
  std::size_t overloads() const { return calls_.size(); }
  const std::vector<RegularCall>& calls(std::size_t overload) const { return calls_[overload]; }
  void keep(const std::function<bool(const RegularCall&)>& wanted);
  const RegularCall& draw_valid(Random& random) const;

 private:
  std::vector<std::vector<RegularCall>> calls_;
};

// The call with one or more changed tensors. Other arguments are unchanged.
RegularCall with_mistake(const RegularCall& valid, Random& random);

}  // namespace dtensor::fuzz
