// Texts between ranks.
#pragma once

#include <string>
#include <vector>

#include "dtensor/comm.h"

namespace dtensor {

// Collective. Of each rank; of rank `root`, whose own `text` alone counts.
std::vector<std::string> all_gather_strings(const Communicator& ranks, const std::string& text);
std::string broadcast_string(const Communicator& ranks, const std::string& text, int root);

}  // namespace dtensor
