// This process's part in a job of several: the transport, and the side channel over which ranks tell each other that
// they failed or left.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/pairwise/transport.h"
#include "dtensor/comm.h"

namespace dtensor::pairwise {

class Job {
 public:
  Job(std::unique_ptr<Transport> transport, RunOptions options);

  int rank() const { return rank_; }
  int size() const { return size_; }
  Transport& transport() const { return *transport_; }
  const RunOptions& options() const { return options_; }
  bool crowded() const { return crowded_; }  // more processes here than cores
  int next_payload_tag() { return static_cast<int>(payloads_sent_++ % static_cast<std::uint64_t>(largest_tag())); }
  int largest_tag() const { return transport_->largest_tag(); }

  // The first failure, here or told by another rank, ends everything.
  void fail(const std::string& text);
  bool failed() const { return failed_.load(); }
  std::string failure();
  [[noreturn]] void throw_failure(const std::string& place);

  void poll();   // hears what other ranks told
  void close();  // every rank has left: poll() hears nothing more
  bool closed() const { return closed_.load(); }
  bool ending() const { return peers_[rank_].printed.load(); }
  bool left(std::int64_t rank) const { return peers_[rank].left.load(); }

  // After a rank's function returned: waits until all have, or throws the failure of one that did not.
  void leave();
  // After this rank printed its failure: gives the others a moment to print theirs, and ends the job.
  [[noreturn]] void end();

 private:
  enum Tag : int { kFailed = 1, kLeft = 2, kPrinted = 3 };
  struct Peer {
    std::atomic<bool> left{false}, printed{false};
  };
  void tell(Tag tag, const std::string& text);
  void hear(const Word& word);
  bool all(std::atomic<bool> Peer::*flag) const;

  std::unique_ptr<Transport> transport_;
  RunOptions options_;
  int rank_ = 0, size_ = 1;
  bool crowded_ = false;
  std::atomic<std::uint64_t> payloads_sent_{0};
  std::vector<Peer> peers_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> closed_{false};
  std::recursive_mutex mutex_;
  std::string failure_;
};

// While it lives, the launcher's request to end (it killed the job because another rank died) is noted instead of
// obeyed at once, so that a wait can say where it was.
class TerminationWatch {
 public:
  TerminationWatch();
  ~TerminationWatch();
  TerminationWatch(const TerminationWatch&) = delete;
  TerminationWatch& operator=(const TerminationWatch&) = delete;
  static bool requested();
};

}  // namespace dtensor::pairwise
