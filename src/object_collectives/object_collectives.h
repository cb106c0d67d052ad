// Collectives on strings.
#pragma once

#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor {

// Collective. all_gather_strings returns the text of each rank, broadcast_string that of rank `root`.
std::vector<std::string> all_gather_strings(const Communicator& ranks, const std::string& text);
std::string broadcast_string(const Communicator& ranks, const std::string& text, int root);

}  // namespace dtensor
