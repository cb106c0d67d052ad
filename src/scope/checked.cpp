// Checked, and its default from the environment variable DTENSOR_CHECKED.
#include "scope/checked.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string_view>

#include "dtensor/inspect.h"
#include "internal/checked_from_environment.h"
#include "scope/scope_frames.h"

namespace dtensor {

Checked::Checked(Checks checks) : scope_(open_scope(Mode{checks}, Recompute::unchanged, OperatorScope::yes)) {}

bool checked_calls() { return any_operator_scope() && ScopedValue<Checked::Mode>::current() != nullptr; }
bool checked_values() {
  if (!any_operator_scope()) return false;
  bool found = false;
  ScopedValue<Checked::Mode>::for_each([&](const auto& mode) { found = found || mode.checks == Checks::values; });
  return found;
}

std::optional<Checks> checks_from_environment() {
  const char* const value = std::getenv("DTENSOR_CHECKED");
  if (value == nullptr || std::string_view(value).empty()) return std::nullopt;
  if (value == std::string_view("calls")) return Checks::calls;
  TORCH_CHECK_VALUE(value == std::string_view("values"), "DTENSOR_CHECKED: expected calls or values, got ", value);
  return Checks::values;
}

}  // namespace dtensor
