// The side channel: small messages beside all others, sent to everybody when a rank fails or returns, and
// heard by whoever waits. With them an error anywhere is an error everywhere within moments, and a rank that has left
// is known.
#include "comm/pairwise/job.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

namespace dtensor::pairwise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestText = 3500;  // sent at once, without the receiver's help
constexpr std::chrono::seconds kGrace{2};   // for the others to print their line

}  // namespace

Job::Job(std::unique_ptr<Transport> transport, RunOptions options)
    : transport_(std::move(transport)), options_(options), rank_(transport_->rank()), size_(transport_->size()) {
  const int here = transport_->local_size() > 0 ? transport_->local_size() : size_;
  crowded_ = here > static_cast<int>(std::thread::hardware_concurrency());
  peers_ = std::vector<Peer>(size_);
}

void Job::tell(Tag tag, const std::string& text) {
  for (int to = 0; to < size_; ++to) {
    if (to != rank_) transport_->tell(to, tag, text.substr(0, kLongestText));
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

void Job::hear(const Word& word) {
  Peer& peer = peers_[word.from];
  if (word.tag == kLeft) peer.left = true;
  if (word.tag == kPrinted) peer.printed = true;
  if (word.tag == kFailed && !failed_) {
    failure_ = word.text;
    failed_ = true;
  }
}

void Job::poll() {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  while (const auto word = transport_->hear()) hear(*word);
  for (int from = 0; from < size_ && !failed_; ++from) {
    // A rank that left or printed why it failed may go.
    if (from == rank_ || peers_[from].left || peers_[from].printed) continue;
    const std::string why = transport_->lost(from);
    if (!why.empty()) fail("rank " + std::to_string(from) + " has died: " + why);
  }
}

void Job::close() {
  std::lock_guard lock(mutex_);
  if (!closed_.exchange(true)) transport_->finish();
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
  transport_->abort();
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

}  // namespace dtensor::pairwise
