// Whether this thread is under Checked.
#pragma once

namespace dtensor {

bool checked_calls();   // any Checked
bool checked_values();  // one that compares values too

}  // namespace dtensor
