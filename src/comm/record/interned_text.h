// Texts that records point to: names of mesh axes, modules, calls. Each is stored once and stays for the program, so
// that a record is a pointer that any thread may read at any time; the table is bounded.
#pragma once

#include <cstddef>
#include <string>

namespace dtensor {

// The one copy of `text`; where the table is full, a text that says so. Thread-safe.
const std::string& interned_string(const std::string& text);
std::size_t interned_string_count();  // how many there are

}  // namespace dtensor
