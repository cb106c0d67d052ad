// Finds the overload whose arguments are those of the out= overload before the first out.
#include "ops/dispatch/functional_overload.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace dtensor {
namespace {

c10::OperatorHandle find_functional_overload(const c10::FunctionSchema& out_schema) {
  const auto& wanted = out_schema.arguments();
  const auto first_out = std::find_if(wanted.begin(), wanted.end(), [](const c10::Argument& a) { return a.is_out(); });
  const auto alike = [](const c10::Argument& a, const c10::Argument& b) {
    return a.name() == b.name() && *a.type() == *b.type();
  };
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name != out_schema.name()) continue;
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
    const auto& given = op.schema().arguments();
    if (std::equal(given.begin(), given.end(), wanted.begin(), first_out, alike)) return op;
  }
  TORCH_INTERNAL_ASSERT(false, out_schema.operator_name(), " has no overload without out=");
}

}  // namespace

c10::OperatorHandle functional_overload(const c10::OperatorHandle& out) {
  static std::mutex mutex;
  static auto& found = *new std::unordered_map<c10::OperatorName, c10::OperatorHandle>();  // never destroyed
  const std::lock_guard lock(mutex);
  const auto it = found.find(out.operator_name());
  if (it != found.end()) return it->second;
  return found.emplace(out.operator_name(), find_functional_overload(out.schema())).first->second;
}

}  // namespace dtensor
