// Creation, state and end of the simulated NCCL's communicators. A creation is complete when all members have called
// it, and so is the end, except for aborts: they drop the operations that have not run, and wait for no other rank.
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "fake_cuda/device/threads.h"
#include "fake_cuda/nccl/errors.h"
#include "fake_cuda/nccl/state.h"

namespace dtensor::test::fake_cuda {
namespace {

thread_local std::string last_error;
int ids = 0;  // of cliques
std::map<std::string, std::shared_ptr<Clique>> by_unique_id;

bool is_blocking(const ncclConfig_t* config) {
  return config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT || config->blocking != 0;
}

ncclComm* new_communicator(ncclComm comm) {
  static auto& all = *new std::vector<std::unique_ptr<ncclComm>>;
  return all.emplace_back(std::make_unique<ncclComm>(std::move(comm))).get();
}

std::shared_ptr<Clique> new_clique(std::size_t size) {
  auto clique = std::make_shared<Clique>();
  clique->id = ids++;
  clique->members.resize(size);
  clique->devices.resize(size, -1);
  return clique;
}

void join_clique(ncclComm& comm, const std::shared_ptr<Clique>& clique, int rank) {
  comm.clique = clique;
  comm.rank = rank;
  clique->members[static_cast<std::size_t>(rank)] = &comm;
  clique->devices[static_cast<std::size_t>(rank)] = comm.device;
  ++clique->joined;
  Simulator::instance().note_activity();
}

ncclResult_t result_of(Outcome outcome) {
  if (outcome == Outcome::failed) return refuse(ncclRemoteError, Simulator::instance().failure());
  return outcome == Outcome::done ? ncclSuccess : ncclInProgress;
}

// Waits for the members, unless the communicator is nonblocking.
ncclResult_t created(Simulator::Lock& lock, ncclComm& comm, const char* call) {
  if (!comm.blocking) return ncclInProgress;
  return result_of(Simulator::instance().wait_until(lock, call, [&] { return comm.ready() || comm.gone; }));
}

// Makes the communicators of a split that all members have called.
void complete_split(const Clique& parent, std::vector<Clique::Member>& calls) {
  std::map<int, std::vector<std::size_t>> by_color;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].color != NCCL_SPLIT_NOCOLOR) by_color[calls[i].color].push_back(i);
  }
  for (auto& [color, list] : by_color) {
    std::stable_sort(list.begin(), list.end(), [&](auto a, auto b) { return calls[a].key < calls[b].key; });
    const auto clique = new_clique(list.size());
    for (std::size_t rank = 0; rank < list.size(); ++rank) {
      calls[list[rank]].result->device = parent.devices[list[rank]];
      join_clique(*calls[list[rank]].result, clique, static_cast<int>(rank));
    }
  }
}

// Whether the communicator has nothing in progress.
bool settled(ncclComm& comm) {
  if (!comm.ready()) return false;
  const bool connected =
      std::all_of(comm.deferred.begin(), comm.deferred.end(), [](const auto& l) { return is_connected(*l); });
  if (connected && Simulator::instance().one_in(2)) {
    for (const auto& launch : std::exchange(comm.deferred, {})) submit(launch);
  }
  if (!comm.finalized) return comm.deferred.empty();
  return comm.deferred.empty() && comm.launches.empty() && comm.clique->leaving == comm.clique->members.size();
}

void leave(ncclComm& comm) {
  if (!std::exchange(comm.finalized, true)) ++comm.clique->leaving;
  Simulator::instance().note_activity();
}

}  // namespace

ncclResult_t refuse(ncclResult_t result, const std::string& text) { return last_error = text, result; }

ncclResult_t check_usable(ncclComm_t comm, const std::string& call) {
  if (comm == nullptr || comm->gone)
    return refuse(ncclInvalidArgument, call + ": expected a communicator, got a destroyed one");
  if (comm->finalized) return refuse(ncclInvalidUsage, call + ": expected a communicator before ncclCommFinalize");
  if (comm->ready() && comm->deferred.empty()) return ncclSuccess;
  return refuse(ncclInvalidUsage, call +
                                      ": expected a communicator whose state is ncclSuccess, got ncclInProgress; call "
                                      "ncclCommGetAsyncError first");
}

extern "C" {

ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  return result < ncclNumResults ? kTexts[result] : "unknown result code";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  const auto lock = Simulator::instance().lock();
  *id = {};
  const auto text = "fake " + std::to_string(made++);
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  auto lock = Simulator::instance().lock();
  if (rank < 0 || rank >= nranks)
    return refuse(ncclInvalidArgument, c10::str("expected a rank in [0, ", nranks, "), got ", rank));
  auto& clique = by_unique_id[id.internal];
  if (clique == nullptr) clique = new_clique(static_cast<std::size_t>(nranks));
  auto& member = clique->members.at(static_cast<std::size_t>(rank));
  if (clique->members.size() != static_cast<std::size_t>(nranks) || member != nullptr)
    return refuse(ncclInvalidUsage,
                  c10::str("expected ", clique->members.size(), " different ranks, got rank ", rank, " of ", nranks));
  const bool duplicate = std::count(clique->devices.begin(), clique->devices.end(), current_device()) > 0;
  if (duplicate && std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") == nullptr)
    return refuse(ncclInvalidUsage,
                  c10::str("duplicate GPU: two ranks of a communicator use device ", current_device()));
  *comm = new_communicator({.device = current_device(), .blocking = is_blocking(config)});
  join_clique(**comm, clique, rank);
  const ncclComm& made = **comm;
  if (made.ready()) by_unique_id.erase(id.internal);
  return created(lock, **comm, "ncclCommInitRank");
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  auto lock = Simulator::instance().lock();
  if (const auto bad = check_usable(comm, "ncclCommSplit"); bad != ncclSuccess) return bad;
  const auto number = comm->splits++;
  auto& calls = comm->clique->splits[number];
  calls.resize(comm->clique->members.size());
  const bool blocking = config == nullptr ? comm->blocking : is_blocking(config);
  *newcomm = color == NCCL_SPLIT_NOCOLOR ? nullptr : new_communicator({.blocking = blocking});
  calls[static_cast<std::size_t>(comm->rank)] = {color, key, *newcomm, true};
  if (std::all_of(calls.begin(), calls.end(), [](const auto& m) { return m.called; })) {
    complete_split(*comm->clique, calls);
    comm->clique->splits.erase(number);
  }
  return *newcomm == nullptr ? ncclSuccess : created(lock, **newcomm, "ncclCommSplit");
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  auto& simulator = Simulator::instance();
  auto lock = simulator.lock();
  if (const auto bad = check_usable(comm, "ncclCommFinalize"); bad != ncclSuccess) return bad;
  leave(*comm);
  if (!comm->blocking) return ncclInProgress;
  return result_of(simulator.wait_until(lock, "ncclCommFinalize", [&] { return settled(*comm) || comm->gone; }));
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  auto& simulator = Simulator::instance();
  auto lock = simulator.lock();
  if (!comm->finalized) {
    if (const auto bad = check_usable(comm, "ncclCommDestroy"); bad != ncclSuccess) return bad;
  }
  leave(*comm);
  const auto outcome = simulator.wait_until(lock, "ncclCommDestroy", [&] { return settled(*comm) || comm->gone; });
  comm->gone = true;
  return result_of(outcome);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const auto lock = Simulator::instance().lock();
  if (comm == nullptr || comm->gone)
    return refuse(ncclInvalidArgument, "ncclCommAbort: expected a communicator, got a destroyed one");
  comm->gone = true;
  if (comm->clique == nullptr) return ncclSuccess;
  leave(*comm);
  comm->clique->members[static_cast<std::size_t>(comm->rank)] = nullptr;
  comm->deferred.clear();
  while (!comm->launches.empty()) finish(*comm->launches.front());
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  auto& simulator = Simulator::instance();
  const auto lock = simulator.lock();
  if (comm == nullptr || comm->gone)
    return refuse(ncclInvalidArgument, "ncclCommGetAsyncError: expected a communicator, got a destroyed one");
  *state = result_of(simulator.poll("ncclCommGetAsyncError", [&] { return settled(*comm); }));
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  const auto lock = Simulator::instance().lock();
  return *count = static_cast<int>(comm->clique->members.size()), ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) { return *device = comm->device, ncclSuccess; }
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) { return *rank = comm->rank, ncclSuccess; }

}  // extern "C"
}  // namespace dtensor::test::fake_cuda
