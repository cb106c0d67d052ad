// Which launcher started this process, and as which rank of how many: from the variables that launchers set.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/launch/launchers.h"

namespace dtensor {

using Variables = std::map<std::string, std::string>;

// The innermost launcher. `levels` are the variables of this process, then those with which it and each of its
// ancestors were started, as far as they can be read. Throws LaunchError if the variables are inconsistent, or if
// launchers name different numbers of processes and the levels do not show which one is inner, or if a rank started
// this process without a launcher.
LauncherEnvironment innermost_launcher(const std::vector<Variables>& levels);

// The launcher of this process.
LauncherEnvironment launcher_environment();

// Set in a process that has joined other ranks, to its process id. Processes that it starts inherit its launcher's
// variables, but are no ranks.
inline constexpr const char* kRankProcess = "DTENSOR_RANK_PROCESS";
void mark_rank_process();

}  // namespace dtensor
