// The side channel: small messages to all ranks when a rank fails or returns, polled by each waiting rank. So an error
// on one rank ends all ranks quickly, and each rank knows which ranks have left.
#include "comm/p2p/job/job.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "comm/error_messages.h"
#include "comm/memory/pool/buffer_pool.h"
#include "comm/p2p/job/termination.h"

namespace dtensor::p2p {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kGrace{2};              // for the other ranks to print their message
constexpr std::chrono::milliseconds kOthersText{300};  // for them to announce what they will print

}  // namespace

Job::Job(std::unique_ptr<Transport> transport, RunOptions options)
    : transport_(std::move(transport)),
      options_(options),
      rank_(transport_->rank()),
      size_(transport_->size()),
      thread_(std::this_thread::get_id()) {
  const int here = transport_->local_size() > 0 ? transport_->local_size() : size_;
  share_pool_limit(here);
  oversubscribed_ = here > static_cast<int>(std::thread::hardware_concurrency());
  peers_ = std::vector<Peer>(size_);
  watch_for_termination(true);
}

void Job::send_control(Tag tag, const std::string& text) {
  for (int to = 0; to < size_; ++to) {
    if (to != rank_) transport_->send_control(to, tag, text.substr(0, kLongestControl));
  }
}

void Job::fail(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (failed_) return;
  failure_ = text;
  failed_ = true;
  send_control(kFailed, text);
}

std::string Job::failure() {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Job::throw_failure(const std::string& operation) {
  throw CommError(failure() + " [rank " + std::to_string(rank_) + " was in " + operation + last() + "]");
}

std::string Job::last() const { return describe_recent_calls(rank_, record_.get()); }

void Job::report_failed_call(const std::string& error) {
  std::lock_guard lock(mutex_);
  if (failed_ || closed_) return;
  ++peers_[rank_].failed_calls;
  peers_[rank_].failed_call = error;
  send_control(kCallFailed, error);
  // Calls that fail one after the other without a wait would leave the others' messages in the transport.
  while (const auto word = transport_->poll_control()) handle_control(*word);
}

std::string Job::absence(std::int64_t rank) {
  std::lock_guard lock(mutex_);
  const Peer& peer = peers_[rank];
  const std::string name = "rank " + std::to_string(rank);
  if (peer.failed_calls > failed_calls()) {
    return name + " returned from a call with an error while others wait for it: " + peer.failed_call;
  }
  return peer.left ? name + " returned from its function while others wait for it" : "";
}

std::string Job::last_error() {
  const std::string error = record_ == nullptr ? "" : record_->last_error();
  std::lock_guard lock(mutex_);
  return error.empty() ? peers_[rank_].failed_call : error;
}

void Job::handle_control(const ControlMessage& word) {
  Peer& peer = peers_[word.from];
  peer.heard_at = Clock::now();
  if (word.tag == kLeft) peer.left = true;
  if (word.tag == kFailurePrinted) peer.failure_printed = true;
  if (word.tag == kWaits) handle_wait(word.from, Wait::read(word.text));
  if (word.tag == kTerminationRequested) peer.termination_requested = true;
  if (word.tag == kCallFailed) ++peer.failed_calls, peer.failed_call = word.text;
  if (word.tag == kFailureText) peer.failure_text = word.text, peer.failure_announced = true;
  if (word.tag == kFailed && !failed_) {
    failure_ = word.text;
    failed_ = true;
  }
}

void Job::handle_wait(int from, Wait wait) {
  const auto outside = [&](std::int64_t rank) { return rank < 0 || rank >= size_; };
  const auto bad = std::find_if(wait.missing.begin(), wait.missing.end(), outside);
  if (bad == wait.missing.end()) {
    peers_[from].wait = std::move(wait);
  } else {
    fail("rank " + std::to_string(from) + " sent a report that it waits for rank " + std::to_string(*bad) + " of " +
         std::to_string(size_));
  }
}

void Job::poll() {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  while (const auto word = transport_->poll_control()) handle_control(*word);
  for (int from = 0; from < size_ && !failed_; ++from) {
    // A rank that has left or printed its failure may disconnect.
    if (from == rank_ || peers_[from].left || peers_[from].failure_printed) continue;
    const std::string why = transport_->disconnect_reason(from);
    if (!why.empty()) fail("rank " + std::to_string(from) + ' ' + why);
  }
}

void Job::add_receive(std::weak_ptr<PendingReceive> receive) {
  const std::lock_guard lock(receives_mutex_);
  std::erase_if(receives_, [](const auto& known) { return known.expired(); });
  receives_.push_back(std::move(receive));
  has_receives_ = true;
}

void Job::poll_receives() {
  std::vector<std::shared_ptr<PendingReceive>> open;
  {
    const std::lock_guard lock(receives_mutex_);
    for (const auto& known : receives_) {
      if (auto receive = known.lock(); receive && !receive->is_finished()) open.push_back(std::move(receive));
    }
    receives_.assign(open.begin(), open.end());
    has_receives_ = !open.empty();
  }
  for (const auto& receive : open) receive->progress();
}

std::vector<MessageKey> Job::receiving() {
  const std::lock_guard lock(receives_mutex_);
  std::vector<MessageKey> keys;
  for (const auto& known : receives_) {
    if (const auto receive = known.lock(); receive && !receive->is_finished()) keys.push_back(receive->key());
  }
  return keys;
}

void Job::close() {
  std::lock_guard lock(mutex_);
  if (closed_.exchange(true)) return;
  watch_for_termination(false);
  transport_->finish();
}

bool Job::is_first_to_print(const std::string& text) {
  std::unique_lock lock(mutex_);
  send_control(kFailureText, text);
  lock.unlock();
  const auto deadline = Clock::now() + kOthersText;
  for (;;) {
    poll();
    bool all_known = true;
    lock.lock();
    for (int r = 0; r < rank_; ++r) {
      if (peers_[r].failure_announced && peers_[r].failure_text == text.substr(0, kLongestControl)) return false;
      all_known = all_known && peers_[r].failure_announced;
    }
    lock.unlock();
    if (all_known || Clock::now() > deadline) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool Job::all(std::atomic<bool> Peer::*flag) const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& p) { return (p.*flag).load(); });
}

void Job::leave() {
  {
    std::lock_guard lock(mutex_);
    peers_[rank_].left = true;
    send_control(kLeft, "");
  }
  for (;;) {
    poll();
    if (failed()) throw CommError(failure());
    if (all(&Peer::left)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Job::end() {
  peers_[rank_].failure_printed = true;
  send_control(kFailurePrinted, "");
  const auto deadline = Clock::now() + kGrace;
  while (!all(&Peer::failure_printed) && Clock::now() < deadline) {
    poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  transport_->abort();
  std::abort();  // GCC does not see that a virtual function never returns
}

}  // namespace dtensor::p2p
