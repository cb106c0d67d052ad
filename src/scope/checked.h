// Whether a Checked scope is open on this thread.
#pragma once

namespace dtensor {

bool checked_calls();   // any level
bool checked_values();  // level Checks::values

}  // namespace dtensor
