// Processes over sockets get the variables of torchrun; with MPI, only mpirun starts processes.
#include "faults/job.h"

#include <c10/util/Exception.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace dtensor::faults {
namespace {

using Words = std::vector<std::string>;

// The running processes of a session, without zombies.
std::vector<pid_t> processes_of(pid_t session) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const int process = std::atoi(entry.path().filename().c_str());
    if (process <= 0) continue;
    std::ifstream in(entry.path() / "stat");
    std::string all;
    std::getline(in, all);  // Unlike an iterator, getline does not throw if the process has ended.
    const auto name_end = all.rfind(')');
    char state = 'X';
    int parent = 0, group = 0, own_session = 0;
    if (name_end == std::string::npos) continue;  // The process has ended.
    std::sscanf(all.c_str() + name_end + 1, " %c %d %d %d", &state, &parent, &group, &own_session);
    if (own_session == session && state != 'Z' && state != 'X') found.push_back(process);
  }
  return found;
}

// A port on which no process listens.
int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const regular = reinterpret_cast<sockaddr*>(&address);
  const bool found = ::bind(descriptor, regular, length) == 0 && ::getsockname(descriptor, regular, &length) == 0;
  ::close(descriptor);
  TORCH_CHECK(found, "no free port");
  return ntohs(address.sin_port);
}

Words with(Words first, const Words& rest) {
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

Words under_mpirun(const Words& words, int ranks) {
  return with({"env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
               "OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_mpi_yield_when_idle=1",
               "OMPI_MCA_hwloc_base_binding_policy=none", "mpirun", "-n", std::to_string(ranks)},
              words);
}

Words as_rank(const Words& words, int rank, int ranks, int port) {
  return with({"env", "RANK=" + std::to_string(rank), "LOCAL_RANK=" + std::to_string(rank),
               "WORLD_SIZE=" + std::to_string(ranks), "LOCAL_WORLD_SIZE=" + std::to_string(ranks),
               "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port)},
              words);
}

}  // namespace

Backend backend_of_name(const std::string& name) {
  for (const Backend backend : {Backend::threads, Backend::sockets, Backend::mpi}) {
    if (name == to_string(backend)) return backend;
  }
  TORCH_CHECK(false, "expected threads, sockets or mpi, got ", name);
}

const char* to_string(Backend backend) {
  return backend == Backend::threads ? "threads" : backend == Backend::sockets ? "sockets" : "mpi";
}

StartedJob::StartedJob(const Words& words, Backend backend, int ranks, std::string output)
    : output_(std::move(output)) {
  const int port = backend == Backend::sockets ? free_port() : 0;
  const int processes = backend == Backend::sockets ? ranks : 1;
  for (int p = 0; p < processes; ++p) {
    children_.push_back(std::make_unique<Child>(backend == Backend::sockets ? as_rank(words, p, ranks, port)
                                                : backend == Backend::mpi   ? under_mpirun(words, ranks)
                                                                            : words,
                                                p == 0 ? output_ : output_ + "." + std::to_string(p)));
  }
}

bool StartedJob::any_ended() {
  for (const auto& child : children_) {
    if (child->ended()) return true;
  }
  return false;
}

std::optional<double> StartedJob::all_gone(double most) {
  using Clock = std::chrono::steady_clock;
  double seconds = 0;
  auto last = Clock::now();
  for (const auto& child : children_) {
    while (!child->ended() || !processes_of(child->session()).empty()) {
      if (seconds > most) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const auto now = Clock::now();
      seconds += std::min(std::chrono::duration<double>(now - last).count(), 0.2);
      last = now;
    }
  }
  return seconds;
}

void StartedJob::kill_launcher() const { children_.front()->kill(SIGKILL); }

void StartedJob::kill_all() const {
  for (const auto& child : children_) {
    child->kill(SIGKILL);
    for (const pid_t process : processes_of(child->session())) ::kill(process, SIGKILL);
  }
}

std::string StartedJob::output() const {
  std::string all;
  for (std::size_t p = 0; p < children_.size(); ++p) {
    std::ifstream in(p == 0 ? output_ : output_ + "." + std::to_string(p));
    all.append(std::istreambuf_iterator<char>(in), {});
  }
  return all;
}

}  // namespace dtensor::faults
