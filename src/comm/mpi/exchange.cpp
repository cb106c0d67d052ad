// Posts messages and waits for them by testing, so that a wait can also hear of failures, give way to other processes
// and run into its timeout. MPI moves non-blocking messages only while it is being called.
#include "comm/mpi/exchange.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "comm/no_timeout.h"

namespace dtensor::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWatchEvery = 64;                    // tests between two looks at the side channel
constexpr std::chrono::milliseconds kPatience{5};  // then this rank sleeps between tests
constexpr std::chrono::microseconds kNap{50};
constexpr std::chrono::milliseconds kLeaving{300};  // for data of a rank that has left to arrive

std::string seconds(std::chrono::milliseconds time) {
  const auto ms = time.count();
  return ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

}  // namespace

std::int64_t largest_message = std::int64_t{1} << 30;

Exchange::~Exchange() {
  if (done()) return;
  static auto* abandoned = new std::vector<Kept>;  // MPI may still write there
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  abandoned->push_back(std::move(kept_));
}

void Exchange::send(const void* data, std::int64_t bytes, std::int64_t peer) {
  for (std::int64_t at = 0; at < bytes; at += largest_message) {
    const auto count = static_cast<int>(std::min(largest_message, bytes - at));
    requests_.push_back(api().no_request);
    peers_.push_back(peer);
    check(api().isend(static_cast<const char*>(data) + at, count, api().byte, static_cast<int>(peer), tag_, comm_,
                      &requests_.back()),
          "MPI_Isend");
    ++open_;
  }
}

void Exchange::recv(void* data, std::int64_t bytes, std::int64_t peer) {
  for (std::int64_t at = 0; at < bytes; at += largest_message) {
    const auto count = static_cast<int>(std::min(largest_message, bytes - at));
    requests_.push_back(api().no_request);
    peers_.push_back(peer);
    check(api().irecv(static_cast<char*>(data) + at, count, api().byte, static_cast<int>(peer), tag_, comm_,
                      &requests_.back()),
          "MPI_Irecv");
    ++open_;
  }
}

bool Exchange::test() {
  if (done()) return true;
  std::vector<int> finished(requests_.size());
  std::vector<MPI_Status> status(requests_.size());
  int count = 0;
  const int code =
      api().testsome(static_cast<int>(requests_.size()), requests_.data(), &count, finished.data(), status.data());
  if (count == MPI_UNDEFINED) count = open_;
  open_ -= count;
  if (code == MPI_ERR_IN_STATUS) {
    for (int i = 0; i < count; ++i) check(status[i].MPI_ERROR, "MPI_Testsome");
  }
  check(code, "MPI_Testsome");
  return done();
}

std::vector<std::int64_t> Exchange::missing() const {
  std::vector<std::int64_t> ranks;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != api().no_request) ranks.push_back(peers_[i]);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string Exchange::report(c10::function_ref<std::string()> place) const {
  const auto ranks = missing();
  std::string out =
      "rank " + std::to_string(job_.rank()) + " waits in " + place() + " for rank" + (ranks.size() > 1 ? "s" : "");
  for (std::size_t i = 0; i < ranks.size(); ++i) out += (i > 0 ? ", " : " ") + std::to_string(ranks[i]);
  return out;
}

void Exchange::watch(c10::function_ref<std::string()> place, Clock::time_point begin) {
  job_.poll();
  if (job_.failed()) job_.throw_failure(place());
  if (TerminationWatch::requested()) {
    throw CommError("ended by the launcher, which does so when another rank has died: " + report(place));
  }
  const auto now = Clock::now();
  if (now - begin > job_.options().timeout && !timeouts_suspended()) {
    job_.fail("timeout after " + seconds(job_.options().timeout) + ": " + report(place));
    job_.throw_failure(place());
  }
  for (auto rank : missing()) {
    if (!job_.left(rank)) continue;
    if (noticed_leaving_ == Clock::time_point{}) noticed_leaving_ = now;
    if (now - noticed_leaving_ < kLeaving) continue;
    job_.fail("rank " + std::to_string(rank) +
              " returned from its function while others wait for it: " + report(place));
    job_.throw_failure(place());
  }
}

void Exchange::wait(c10::function_ref<std::string()> place) {
  std::unique_ptr<TerminationWatch> termination;
  Clock::time_point begin{};
  for (int round = 1; !test(); ++round) {
    if (job_.crowded()) std::this_thread::yield();
    if (round % kWatchEvery != 0) continue;
    const auto now = Clock::now();
    if (begin == Clock::time_point{}) begin = now;
    if (!termination) termination = std::make_unique<TerminationWatch>();
    watch(place, begin);
    if (now - begin > kPatience) std::this_thread::sleep_for(kNap);
  }
}

}  // namespace dtensor::mpi
