// This process's part in a job of several: the transport, and the side channel over which ranks tell each other that
// they failed or left.
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

// Which messages meet: the sender's world rank, and the tag of communicator and message.
using MessageKey = std::pair<std::int64_t, std::int64_t>;

// A receive under way.
class PendingReceive {
 public:
  virtual ~PendingReceive() = default;
  virtual void progress() = 0;  // takes the message's data where its header has come
  virtual bool is_finished() const = 0;
  virtual MessageKey key() const = 0;
};

class Job {
 public:
  Job(std::unique_ptr<Transport> transport, RunOptions options);

  int rank() const { return rank_; }
  int size() const { return size_; }
  Transport& transport() const { return *transport_; }
  const RunOptions& options() const { return options_; }
  bool oversubscribed() const { return oversubscribed_; }  // more processes here than cores
  int next_payload_tag() { return static_cast<int>(payloads_sent_++ % static_cast<std::uint64_t>(max_tag())); }
  int max_tag() const { return transport_->max_tag(); }

  // The first failure, here or told by another rank, ends everything.
  void fail(const std::string& text);
  bool failed() const { return failed_.load(); }
  std::string failure();
  [[noreturn]] void throw_failure(const std::string& operation);

  void poll();   // hears what other ranks told
  void close();  // every rank has left: poll() hears nothing more
  bool closed() const { return closed_.load(); }
  bool ending() const { return peers_[rank_].failure_printed.load(); }
  bool left(std::int64_t rank) const { return peers_[rank].left.load(); }

  // Receives make progress while this rank waits for whatever else: a peer may wait until its message is taken.
  void add_receive(std::weak_ptr<PendingReceive> receive);
  void progress_receives() {
    if (has_receives_.load(std::memory_order_relaxed)) poll_receives();
  }

  // For reports: what this rank did last.
  void set_record(std::shared_ptr<RankRecord> record) { record_ = std::move(record); }
  std::string last() const;  // as messages end with it
  std::string last_error() const { return record_ == nullptr ? "" : record_->last_error(); }
  // What is known of another rank: "; rank 1 waits in ... for rank 0", or nothing.
  std::string describe_wait(std::int64_t rank);

  // This rank has been waiting in `operation` for ranks that have not come, or that do not take what it sends them
  // under `sent_tag` (-1: nothing); called again as long as it waits, after looks at what has come. True where that can
  // never end: those it waits for wait for it, directly or by way of others, and have told again since that they still
  // do. Nothing is told or found where several threads of a rank communicate, of which one may wait while others go on.
  bool post_wait(const std::string& operation, const std::vector<std::int64_t>& missing, std::int64_t sent_tag);
  void end_wait();

  // The beginning of a message about a request to end: whether all that this rank waits for were asked too.
  std::string ended_by_signal(const std::vector<std::int64_t>& missing);

  // Whether this rank should print its failure: not where a rank before it prints the same.
  bool is_first_to_print(const std::string& text);

  // After a rank's function returned: waits until all have, or throws the failure of one that did not.
  void leave();
  // After this rank printed its failure: gives the others a moment to print theirs, and ends the job.
  [[noreturn]] void end();

 private:
  enum Tag : int {
    kFailed = 1,
    kLeft = 2,
    kFailurePrinted = 3,
    kWaits = 4,
    kTerminationRequested = 5,
    kFailureText = 6
  };
  struct Wait {
    std::uint64_t number = 0;           // of this rank's waits; 0: it waits for nobody
    std::uint64_t refreshes = 0;        // how often it has told since that it still does
    std::int64_t sent_tag = -1;         // of a message that those may be taking; -1: none
    std::vector<std::int64_t> missing;  // for whom
    std::vector<MessageKey> taking;     // what it receives meanwhile
    std::string operation;
    std::string str() const;  // as it is sent
    static Wait read(const std::string& text);
  };
  struct Peer {
    std::atomic<bool> left{false}, failure_printed{false}, termination_requested{false}, failure_announced{false};
    Wait wait;
    std::uint64_t suspected_at = 0;  // the refreshes of `wait` when it was first seen on the cycle that is suspected
    std::string failure_text;
  };
  using Cycle = std::vector<std::pair<std::int64_t, std::uint64_t>>;  // ranks that wait for each other, and their waits
  Cycle cycle() const;
  bool may_receive(std::int64_t from, std::int64_t to) const;
  bool is_confirmed(const Cycle& found);
  bool several_threads();
  void send_control(Tag tag, const std::string& text);
  void handle_control(const ControlMessage& word);
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
  const std::thread::id thread_;  // the one that made this, and runs the rank's function
  std::thread::id first_waiting_thread_;
  bool several_threads_ = false;
};

}  // namespace dtensor::p2p
