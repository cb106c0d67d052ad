// Decides which of the variables give the address and the secret.
#include "comm/socket/rendezvous/environment.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

#include "comm/launch/launch_flags.h"
#include "comm/record/hash.h"
#include "comm/socket/rendezvous/secret.h"

namespace dtensor::sockets {
namespace {

constexpr int kFirstSlurmPort = 20000, kSlurmPorts = 10000;
constexpr std::chrono::seconds kMinTimeout{60};  // processes of one job do not start simultaneously

int port(const std::string& text) {
  const auto value = number(text);
  if (value && *value > 0 && *value < 65526) return *value;
  throw LaunchError("MASTER_PORT: expected a port in [1, 65525], got " + text);
}

// The first host of a list in Slurm's format: "rack[2-3]_node[07-09,12],gpu3" gives rack2_node07.
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

RendezvousOptions rendezvous_options(const LauncherEnvironment& e, std::chrono::milliseconds timeout) {
  RendezvousOptions options;
  options.rank = e.rank;
  options.size = e.size;
  options.timeout = std::max<std::chrono::milliseconds>(timeout, kMinTimeout);
  if (e.size == 1) return options;
  const std::string slurm_job = environment_variable("SLURM_JOB_ID") + "." + environment_variable("SLURM_STEP_ID");
  std::string host = environment_variable("MASTER_ADDR"), number = environment_variable("MASTER_PORT");
  if (e.launcher == "srun") {
    if (host.empty()) {
      host = first_host(environment_variable(
          environment_variable("SLURM_STEP_NODELIST").empty() ? "SLURM_NODELIST" : "SLURM_STEP_NODELIST"));
    }
    if (number.empty()) number = std::to_string(kFirstSlurmPort + hash_of(slurm_job) % kSlurmPorts);
  }
  if (host.empty() || number.empty()) {
    throw LaunchError(e.launcher + " sets no MASTER_ADDR and MASTER_PORT; set both so that the " +
                      std::to_string(e.size) + " processes can connect");
  }
  options.host = host;
  options.port = port(number);
  options.secret = job_secret();
  options.job =
      hash_of(number + "|" + environment_variable("TORCHELASTIC_RUN_ID") + "|" +
              environment_variable("TORCHELASTIC_RESTART_COUNT") + "|" + (e.launcher == "srun" ? slurm_job : ""));
  return options;
}

}  // namespace dtensor::sockets
