// This process's part in an MPI job: the MPI communicators, and the side channel over which ranks tell each other that
// they failed or left.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "comm/mpi/api.h"
#include "dtensor/comm.h"

namespace dtensor::mpi {

// Throws CommError with MPI's own text where `code` is an error.
void check(int code, const char* what);

class Job {
 public:
  explicit Job(RunOptions options);  // MPI is initialised; collective over all processes

  int rank() const { return rank_; }
  int size() const { return size_; }
  const RunOptions& options() const { return options_; }
  bool crowded() const { return crowded_; }  // more processes here than cores
  MPI_Comm collectives() const { return collectives_; }
  MPI_Comm messages() const { return messages_; }  // headers of messages, or messages without headers
  MPI_Comm payloads() const { return payloads_; }  // what such a header announces
  int next_payload_tag() { return static_cast<int>(payloads_sent_++ % static_cast<std::uint64_t>(largest_tag_)); }
  int largest_tag() const { return largest_tag_; }

  // The first failure, here or told by another rank, ends everything.
  void fail(const std::string& text);
  bool failed() const { return failed_.load(); }
  std::string failure();
  [[noreturn]] void throw_failure(const std::string& place);

  void poll();   // hears what other ranks told
  void close();  // MPI is about to end: poll() hears nothing more
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
  void hear(const MPI_Status& status);
  bool all(std::atomic<bool> Peer::*flag) const;

  RunOptions options_;
  int rank_ = 0, size_ = 1, largest_tag_ = 0;
  bool crowded_ = false;
  MPI_Comm control_{}, collectives_{}, messages_{}, payloads_{};
  std::atomic<std::uint64_t> payloads_sent_{0};
  std::vector<Peer> peers_;
  std::atomic<bool> failed_{false};
  bool closed_ = false;
  std::recursive_mutex mutex_;
  std::string failure_;
  std::deque<std::pair<std::string, MPI_Request>> told_;  // kept until the process ends
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

}  // namespace dtensor::mpi
