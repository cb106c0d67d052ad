// The state of this process in a job of several: the transport, and the side channel on which ranks report that they
// failed or left.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/p2p/transport.h"
#include "comm/record/rank_record.h"
#include "dtensor/comm.h"

namespace dtensor::p2p {

// Identifies matching messages: the sender's world rank, and the tag of communicator and message.
using MessageKey = std::pair<std::int64_t, std::int64_t>;

// A receive in progress.
class PendingReceive {
 public:
  virtual ~PendingReceive() = default;
  virtual void progress() = 0;  // receives the message's data if its header has arrived
  virtual bool is_finished() const = 0;
  virtual MessageKey key() const = 0;
};

class Job : public std::enable_shared_from_this<Job> {
 public:
  Job(std::unique_ptr<Transport> transport, RunOptions options);

  int rank() const { return rank_; }
  int size() const { return size_; }
  Transport& transport() const { return *transport_; }
  const RunOptions& options() const { return options_; }
  bool oversubscribed() const { return oversubscribed_; }  // more processes on this host than cores
  int next_payload_tag() { return static_cast<int>(payloads_sent_++ % static_cast<std::uint64_t>(max_tag())); }
  int max_tag() const { return transport_->max_tag(); }

  // The first failure, of this or another rank, ends the run.
  void fail(const std::string& text);
  bool failed() const { return failed_.load(); }
  std::string failure();
  [[noreturn]] void throw_failure(const std::string& operation);

  void poll();   // handles control messages of other ranks
  void close();  // every rank has left: poll() does nothing from now on
  bool closed() const { return closed_.load(); }
  bool ending() const { return peers_[rank_].failure_printed.load(); }

  // This rank ends a call of the program with an error before it communicates. Collectives compare the numbers of such
  // calls, and a wait for a rank with more of them than this one fails with its text.
  void report_failed_call(const std::string& error);
  std::uint64_t failed_calls() const { return peers_[rank_].failed_calls.load(); }
  // Why this rank does not take part in what the caller waits for: it has left or has more failed calls; empty: it may.
  std::string absence(std::int64_t rank);

  bool left(std::int64_t rank) const { return peers_[rank].left.load(); }

  // Receives make progress during every wait of this rank, since a peer may wait until its message is received.
  void add_receive(std::weak_ptr<PendingReceive> receive);
  void progress_receives() {
    if (has_receives_.load(std::memory_order_relaxed)) poll_receives();
  }

  // The recent calls of this rank, for reports.
  void set_record(std::shared_ptr<RankRecord> record) { record_ = std::move(record); }
  std::string last() const;  // the end of messages
  // The last error of an operator, or else of a call of the program; empty: none.
  std::string last_error();
  // The known state of another rank: "; rank 1 waits in ... for rank 0", or empty.
  std::string describe_wait(std::int64_t rank);

  // This rank waits in `operation` for ranks that have not arrived, or that do not receive what it sends them with
  // `sent_tag` (-1: nothing). Called repeatedly during the wait, after polling. Returns true on a deadlock: the
  // awaited ranks wait for this rank, directly or through others, and have confirmed since that they still do.
  // Inactive if several threads of a rank communicate, since one may wait while others continue.
  bool post_wait(const std::string& operation, const std::vector<std::int64_t>& missing, std::int64_t sent_tag);
  void end_wait();

  // While the result lives, this process sends heartbeats, and silent() expects those of others. If a thread of this
  // process cannot send them, timeouts are suspended instead.
  std::shared_ptr<void> send_heartbeats();
  // The ranks of `awaited` whose wait, which began at `since`, has lasted for the timeout. While heartbeats are sent,
  // it counts from the last message of the rank. Called repeatedly during the wait, after polling.
  std::vector<std::int64_t> silent(std::vector<std::int64_t> awaited, std::chrono::steady_clock::time_point since);
  // The error of these ranks: "timeout after 5 s".
  std::string describe_silence(const std::vector<std::int64_t>& ranks);

  // The beginning of a message about SIGTERM: whether all awaited ranks received it too.
  std::string ended_by_signal(const std::vector<std::int64_t>& missing);

  // Whether this rank should print its failure: false if a lower rank prints the same.
  bool is_first_to_print(const std::string& text);

  // Called after the rank's function has returned: waits until all ranks have left. Throws if a rank failed.
  void leave();
  // Called after this rank has printed its failure: gives the others time to print theirs, and ends the job.
  [[noreturn]] void end();

 private:
  enum Tag : int {
    kFailed = 1,
    kLeft = 2,
    kFailurePrinted = 3,
    kWaits = 4,
    kTerminationRequested = 5,
    kFailureText = 6,
    kHeartbeat = 7,
    kCallFailed = 8
  };
  class Heartbeats;
  struct Wait {
    std::uint64_t number = 0;           // number of this wait of the rank; 0: it does not wait
    std::uint64_t refreshes = 0;        // number of reports since that it still waits
    std::int64_t sent_tag = -1;         // tag of a message that the awaited ranks may be receiving; -1: none
    std::vector<std::int64_t> missing;  // awaited ranks
    std::vector<MessageKey> taking;     // receives that are posted meanwhile
    std::string operation;
    std::string str() const;  // the format for sending
    static Wait read(const std::string& text);
  };
  struct Peer {
    std::atomic<bool> left{false}, failure_printed{false}, termination_requested{false}, failure_announced{false};
    Wait wait;
    std::uint64_t suspected_at = 0;  // refreshes of `wait` when the suspected cycle was first seen
    std::string failure_text;
    std::chrono::steady_clock::time_point heard_at{};  // when its latest message was handled
    std::atomic<std::uint64_t> failed_calls{0};
    std::string failed_call;  // the error of the last one
  };
  using Cycle = std::vector<std::pair<std::int64_t, std::uint64_t>>;  // ranks and numbers of their waits
  Cycle cycle() const;
  bool may_receive(std::int64_t from, std::int64_t to) const;
  bool is_confirmed(const Cycle& found);
  bool several_threads();
  void send_control(Tag tag, const std::string& text);
  void handle_control(const ControlMessage& word);
  void handle_wait(int from, Wait wait);
  bool all(std::atomic<bool> Peer::*flag) const;
  void poll_receives();
  std::vector<MessageKey> receiving();

  std::unique_ptr<Transport> transport_;
  RunOptions options_;
  int rank_ = 0, size_ = 1;
  bool oversubscribed_ = false;
  std::atomic<std::uint64_t> payloads_sent_{0};
  std::vector<Peer> peers_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> closed_{false};
  std::recursive_mutex mutex_;
  std::string failure_;
  std::atomic<bool> has_receives_{false};
  std::mutex receives_mutex_;
  std::vector<std::weak_ptr<PendingReceive>> receives_;
  std::shared_ptr<RankRecord> record_;
  std::uint64_t waits_ = 0;
  Cycle suspected_;
  std::chrono::steady_clock::time_point reported_at_{}, suspected_since_{};
  std::weak_ptr<void> heartbeats_;                                    // what send_heartbeats() returned
  std::chrono::steady_clock::time_point looked_at_{}, resumed_at_{};  // of silent()
  const std::thread::id thread_;  // the thread that created this and runs the rank's function
  std::thread::id first_waiting_thread_;
  bool several_threads_ = false;
};

}  // namespace dtensor::p2p
