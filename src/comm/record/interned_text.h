// Interned strings for records: names of mesh axes, modules, calls. Each is stored once and lives as long as the
// program, so that a record holds a pointer that any thread may read at any time. The table is bounded.
#pragma once

#include <cstddef>
#include <string>

namespace dtensor {

// The stored copy of `text`; if the table is full, a placeholder. Thread-safe.
const std::string& interned_string(const std::string& text);
std::size_t interned_string_count();  // number of stored strings

}  // namespace dtensor
