#include "comm/socket/environment.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

#include "comm/launch/launch_flags.h"
#include "comm/record/hash.h"

namespace dtensor::sockets {
namespace {

constexpr int kFirstSlurmPort = 20000, kSlurmPorts = 10000;
constexpr std::chrono::seconds kPatience{60};  // processes of one job do not start at one moment

int port(const std::string& text) {
  const auto value = number(text);
  if (value && *value > 0 && *value < 65526) return *value;
  throw LaunchError("MASTER_PORT=" + text + " is not a port from 1 to 65525");
}

// The first of a list of hosts as Slurm writes it: "rack[2-3]_node[07-09,12],gpu3" is rack2_node07.
std::string first_host(const std::string& list) {
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const auto end = list.find_first_of("-,]", at);
    host += list.substr(at + 1, end - at - 1);
    at = std::min(list.find(']', at), list.size());
  }
  return host;
}

}  // namespace

Place meeting_place(const LauncherEnvironment& e, std::chrono::milliseconds timeout) {
  Place place;
  place.rank = e.rank;
  place.size = e.size;
  place.timeout = std::max<std::chrono::milliseconds>(timeout, kPatience);
  if (e.size == 1) return place;
  const std::string slurm_job = text_of("SLURM_JOB_ID") + "." + text_of("SLURM_STEP_ID");
  std::string host = text_of("MASTER_ADDR"), number = text_of("MASTER_PORT");
  if (e.launcher == "srun") {
    if (host.empty()) {
      host = first_host(text_of(text_of("SLURM_STEP_NODELIST").empty() ? "SLURM_NODELIST" : "SLURM_STEP_NODELIST"));
    }
    if (number.empty()) number = std::to_string(kFirstSlurmPort + hash_of(slurm_job) % kSlurmPorts);
  }
  if (host.empty() || number.empty()) {
    throw LaunchError(e.launcher + " gives no MASTER_ADDR and MASTER_PORT, where the " + std::to_string(e.size) +
                      " processes can meet; set them");
  }
  place.host = host;
  place.port = port(number);
  place.job = hash_of(number + "|" + text_of("TORCHELASTIC_RUN_ID") + "|" + text_of("TORCHELASTIC_RESTART_COUNT") +
                      "|" + (e.launcher == "srun" ? slurm_job : ""));
  return place;
}

}  // namespace dtensor::sockets
