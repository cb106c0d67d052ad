// Sends long messages in pieces that MPI can count, and decides when a waiting rank sleeps.
#include "comm/mpi/transport.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <mutex>
#include <thread>

#include "comm/mpi/host_cores.h"
#include "comm/mpi/thread_level.h"
#include "dtensor/comm.h"

namespace dtensor::mpi {

using p2p::Batch;
using p2p::Channel;
using p2p::ControlMessage;

std::int64_t max_message_bytes = std::int64_t{1} << 30;

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  api().error_string(code, text, &length);
  throw CommError(std::string(what) + ": " + std::string(text, length));
}

namespace {

constexpr std::chrono::milliseconds kSpinTime{5};  // then this rank sleeps between tests
constexpr std::chrono::microseconds kSleep{50};

class MpiBatch final : public Batch {
 public:
  MpiBatch(MPI_Comm comm, int tag) : comm_(comm), tag_(tag) {}

  void send(const void* data, std::int64_t bytes, int peer) override {
    const auto turn = level_.lock();
    for (std::int64_t at = 0; at < bytes; at += max_message_bytes) {
      check(api().isend(static_cast<const char*>(data) + at, count(bytes - at), api().constants.byte, peer, tag_, comm_,
                        next(peer)),
            "MPI_Isend");
    }
  }

  void recv(void* data, std::int64_t bytes, int peer) override {
    const auto turn = level_.lock();
    for (std::int64_t at = 0; at < bytes; at += max_message_bytes) {
      check(api().irecv(static_cast<char*>(data) + at, count(bytes - at), api().constants.byte, peer, tag_, comm_,
                        next(peer)),
            "MPI_Irecv");
    }
  }

  bool test() override {
    if (open_ == 0) return true;
    level_.check();
    const auto turn = level_.lock();
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
    return open_ == 0;
  }

  std::vector<std::int64_t> missing() const override {
    std::vector<std::int64_t> ranks;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != api().constants.no_request) ranks.push_back(peers_[i]);
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

 private:
  static int count(std::int64_t left) { return static_cast<int>(std::min(max_message_bytes, left)); }
  MPI_Request* next(int peer) {
    requests_.push_back(api().constants.no_request);
    peers_.push_back(peer);
    ++open_;
    return &requests_.back();
  }

  const ThreadLevel& level_ = ThreadLevel::get();
  MPI_Comm comm_;
  int tag_;
  std::vector<MPI_Request> requests_;
  std::vector<std::int64_t> peers_;  // peer of each request
  int open_ = 0;
};

class MpiTransport final : public p2p::Transport {
 public:
  MpiTransport(MPI_Comm program, bool finalize) : finalize_(finalize) {
    api().comm_rank(program, &rank_);
    api().comm_size(program, &size_);
    for (MPI_Comm* comm : {&control_, &channels_[0], &channels_[1], &channels_[2], &channels_[3]}) {
      check(api().comm_dup(program, comm), "MPI_Comm_dup");
      api().comm_set_errhandler(*comm, api().constants.errors_return);
    }
    const HostCores host = cores_of_host(control_);
    local_size_ = host.ranks;
    cores_ = host.cores_per_rank;
    void* bound = nullptr;
    int found = 0;
    api().comm_get_attr(api().constants.world, MPI_TAG_UB, &bound, &found);
    max_tag_ = found != 0 ? *static_cast<int*>(bound) : 32767;
    const int restricted = level_.permits_all_threads() ? 0 : 1;
    check(api().allreduce(&restricted, &any_restricted_, 1, api().constants.integer, api().constants.max, control_),
          "MPI_Allreduce");
  }

  // Frees the duplicates. Collective, unless MPI has ended.
  ~MpiTransport() override {
    if (has_ended()) return;
    forget_sent();
    static auto& unsent = *new std::deque<std::pair<std::string, MPI_Request>>;  // MPI may still read them
    std::move(sending_.begin(), sending_.end(), std::back_inserter(unsent));
    for (MPI_Comm* comm : {&control_, &channels_[0], &channels_[1], &channels_[2], &channels_[3]})
      api().comm_free(comm);
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  const char* name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_size() const override { return local_size_; }
  int cores() const override { return cores_; }
  int max_tag() const override { return max_tag_; }
  bool sends_from_any_thread() const override { return any_restricted_ == 0; }

  std::unique_ptr<Batch> batch(Channel channel, int tag) override {
    level_.check();
    return std::make_unique<MpiBatch>(channels_[static_cast<std::size_t>(channel)], tag);
  }

  // A thread that may not call MPI leaves the message to one that may.
  void send_control(int peer, int tag, const std::string& text) override {
    const auto turn = turn_if_permitted();
    const std::lock_guard lock(mutex_);
    waiting_.push_back({peer, tag, text});
    if (may_call()) send_waiting();
  }

  std::optional<ControlMessage> poll_control() override {
    if (!may_call()) return std::nullopt;
    const auto turn = turn_if_permitted();
    const std::lock_guard lock(mutex_);  // keeps the probe and the receive together
    send_waiting();
    int there = 0, length = 0;
    MPI_Status status;
    check(api().iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, control_, &there, &status), "MPI_Iprobe");
    if (there == 0) return std::nullopt;
    api().get_count(&status, api().constants.byte, &length);
    ControlMessage word{status.MPI_SOURCE, status.MPI_TAG, std::string(length, '\0')};
    api().recv(word.text.data(), length, api().constants.byte, word.from, word.tag, control_, MPI_STATUS_IGNORE);
    return word;
  }

  void pause(std::chrono::nanoseconds waited, bool oversubscribed) override {
    if (oversubscribed) std::this_thread::yield();
    if (waited > kSpinTime) std::this_thread::sleep_for(kSleep);
  }

  void finish() override {
    if (finalize_) api().finalize();
  }

  [[noreturn]] void abort() override {
    api().abort(api().constants.world, 1);
    std::_Exit(1);
  }
  bool abort_ends_all() const override { return true; }

 private:
  bool may_call() const { return level_.permits_this_thread() && !has_ended(); }

  // Always taken before mutex_: two threads that take them in different orders would wait for each other.
  std::unique_lock<std::recursive_mutex> turn_if_permitted() const {
    return may_call() ? level_.lock() : std::unique_lock<std::recursive_mutex>();
  }

  void send_waiting() {
    forget_sent();
    for (auto& [peer, tag, text] : waiting_) {
      auto& [kept, request] = sending_.emplace_back(std::move(text), api().constants.no_request);
      api().isend(kept.data(), static_cast<int>(kept.size()), api().constants.byte, peer, tag, control_, &request);
    }
    waiting_.clear();
  }

  void forget_sent() {
    for (int done = 1; done != 0 && !sending_.empty();) {
      int which = 0;
      MPI_Status status;
      api().testsome(1, &sending_.front().second, &done, &which, &status);
      if (done != 0) sending_.pop_front();
    }
  }

  const ThreadLevel& level_ = ThreadLevel::get();
  bool finalize_;
  int rank_ = 0, size_ = 1, max_tag_ = 0, local_size_ = 1, cores_ = 1;
  int any_restricted_ = 0;  // on some rank, not all threads may call MPI at any time
  MPI_Comm control_{};
  MPI_Comm channels_[4] = {};  // by Channel
  std::mutex mutex_;
  std::vector<ControlMessage> waiting_;                      // not sent yet; `from` is the receiver
  std::deque<std::pair<std::string, MPI_Request>> sending_;  // kept until they are sent
};

}  // namespace

std::unique_ptr<p2p::Transport> make_transport(MPI_Comm comm, bool finalize) {
  return std::make_unique<MpiTransport>(comm, finalize);
}

}  // namespace dtensor::mpi
