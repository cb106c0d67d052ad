// The rules of the book as text, for listings.
#pragma once

#include <string>
#include <vector>

#include "dtensor/export.h"

namespace dtensor {

// Lines such as "aten::mm: mk, kn -> mn  [linear {0}; linear {1}]", sorted, without refused operators.
DTENSOR_API std::vector<std::string> rule_strings();

}  // namespace dtensor
