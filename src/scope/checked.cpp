// Checked, and the one that the environment asks for.
#include "scope/checked.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string_view>

#include "dtensor/inspect.h"
#include "scope/scoped_value.h"

namespace dtensor {

Checked::Checked(Checks checks) : scope_({checks}, true) {}

bool checked_calls() { return scopes_watched() && ScopedValue<Checked::Mode>::current() != nullptr; }
bool checked_values() {
  if (!scopes_watched()) return false;
  bool found = false;
  ScopedValue<Checked::Mode>::for_each([&](const auto& mode) { found = found || mode.checks == Checks::values; });
  return found;
}

std::optional<Checks> checks_of_environment() {
  const char* const value = std::getenv("DTENSOR_CHECKED");
  if (value == nullptr || std::string_view(value).empty()) return std::nullopt;
  if (value == std::string_view("calls")) return Checks::calls;
  TORCH_CHECK_VALUE(value == std::string_view("values"), "DTENSOR_CHECKED=", value, ": expected calls or values");
  return Checks::values;
}

}  // namespace dtensor
