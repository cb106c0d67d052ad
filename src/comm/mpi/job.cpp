// The side channel: small messages on a communicator of their own, sent to everybody when a rank fails or returns, and
// heard by whoever waits. With them an error anywhere is an error everywhere within moments, and a rank that has left
// is known.
#include "comm/mpi/job.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace dtensor::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestText = 3500;  // sent at once, without the receiver's help
constexpr std::chrono::seconds kGrace{2};   // for the others to print their line

int local_size(int size) {
  const char* text = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return text != nullptr ? std::max(1, std::atoi(text)) : size;
}

}  // namespace

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  api().error_string(code, text, &length);
  throw CommError(std::string(what) + ": " + std::string(text, length));
}

Job::Job(RunOptions options) : options_(options) {
  api().comm_rank(api().world, &rank_);
  api().comm_size(api().world, &size_);
  for (MPI_Comm* comm : {&control_, &collectives_, &messages_, &payloads_}) {
    check(api().comm_dup(api().world, comm), "MPI_Comm_dup");
    api().comm_set_errhandler(*comm, api().errors_return);
  }
  void* bound = nullptr;
  int found = 0;
  api().comm_get_attr(api().world, MPI_TAG_UB, &bound, &found);
  largest_tag_ = found != 0 ? *static_cast<int*>(bound) : 32767;
  crowded_ = local_size(size_) > static_cast<int>(std::thread::hardware_concurrency());
  peers_ = std::vector<Peer>(size_);
}

void Job::tell(Tag tag, const std::string& text) {
  for (int to = 0; to < size_; ++to) {
    if (to == rank_) continue;
    auto& [kept, request] = told_.emplace_back(text.substr(0, kLongestText), api().no_request);
    api().isend(kept.data(), static_cast<int>(kept.size()), api().byte, to, tag, control_, &request);
  }
}

void Job::fail(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (failed_) return;
  failure_ = text;
  failed_ = true;
  tell(kFailed, text);
}

std::string Job::failure() {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Job::throw_failure(const std::string& place) {
  throw CommError(failure() + " [rank " + std::to_string(rank_) + " was in " + place + "]");
}

void Job::hear(const MPI_Status& status) {
  int length = 0;
  api().get_count(&status, api().byte, &length);
  std::string text(length, '\0');
  api().recv(text.data(), length, api().byte, status.MPI_SOURCE, status.MPI_TAG, control_, MPI_STATUS_IGNORE);
  Peer& peer = peers_[status.MPI_SOURCE];
  if (status.MPI_TAG == kLeft) peer.left = true;
  if (status.MPI_TAG == kPrinted) peer.printed = true;
  if (status.MPI_TAG == kFailed && !failed_) {
    failure_ = text;
    failed_ = true;
  }
}

void Job::poll() {
  std::lock_guard lock(mutex_);
  while (!closed_) {
    int there = 0;
    MPI_Status status;
    check(api().iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, control_, &there, &status), "MPI_Iprobe");
    if (there == 0) return;
    hear(status);
  }
}

void Job::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

bool Job::all(std::atomic<bool> Peer::*flag) const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& p) { return (p.*flag).load(); });
}

void Job::leave() {
  {
    std::lock_guard lock(mutex_);
    peers_[rank_].left = true;
    tell(kLeft, "");
  }
  for (;;) {
    poll();
    if (failed()) throw CommError(failure());
    if (all(&Peer::left)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Job::end() {
  peers_[rank_].printed = true;
  tell(kPrinted, "");
  const auto deadline = Clock::now() + kGrace;
  while (!all(&Peer::printed) && Clock::now() < deadline) {
    poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  api().abort(api().world, 1);
  std::_Exit(1);
}

namespace {
volatile sig_atomic_t termination = 0;
thread_local struct sigaction previous;
void note_termination(int) { termination = 1; }
}  // namespace

TerminationWatch::TerminationWatch() {
  struct sigaction mine = {};
  mine.sa_handler = note_termination;
  sigaction(SIGTERM, &mine, &previous);
}

TerminationWatch::~TerminationWatch() { sigaction(SIGTERM, &previous, nullptr); }

bool TerminationWatch::requested() { return termination != 0; }

}  // namespace dtensor::mpi
