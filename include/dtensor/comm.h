// Communicators: groups of ranks that run collectives. A Communicator is a cheap handle. The backends (threads, MPI,
// sockets, NCCL) implement CommBackend (dtensor/comm_backend.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/placement.h"

namespace dtensor {

class CallHistory;
class CommBackend;
struct CollectiveCall;
enum class CollectiveKind : std::uint8_t;

// A collective in progress. Owns its tensors until it is finished; the destructor waits.
class DTENSOR_API Work {
 public:
  struct Impl {
    virtual ~Impl() = default;
    virtual void wait() = 0;
    virtual bool done() = 0;
  };
  Work() = default;  // already finished
  explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  // Blocks until the outputs are usable by this thread (on CUDA: by the current stream). Throws CommError.
  void wait();
  // Whether wait() would return or throw without blocking. True after a failure, so that polling ends.
  bool done() const;

 private:
  std::shared_ptr<Impl> impl_;
};

// Thrown when a collective could not finish: a peer failed, left, made a different call or timed out.
class DTENSOR_API CommError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reports an exception of another rank to this one, so that all ranks leave the same call (for instance a pipeline
// step). The ranks can continue. If this exception ends a rank, run_local reports the original exception.
class DTENSOR_API PeerError : public c10::Error {
  using c10::Error::Error;
};

// A group of ranks that communicate. A cheap handle; calls are collective unless stated otherwise.
class DTENSOR_API Communicator {
 public:
  // Number of message tags (send, recv); valid tags are [0, kMessageTags).
  static constexpr int kMessageTags = 1024;

  Communicator() = default;  // no communicator: converts to false, and any use throws c10::Error
  explicit Communicator(std::shared_ptr<CommBackend> backend);

  explicit operator bool() const { return backend_ != nullptr; }
  // This rank in the group, in [0, size()), and the number of ranks.
  int rank() const;
  int size() const;
  const char* backend_name() const;                // "local", "mpi", "socket", "nccl"
  const std::vector<std::int64_t>& ranks() const;  // world rank of each member

  // Tensors may be views with any strides, also conjugated ones. All members pass equal dtypes, and sizes that match
  // pairwise. Outputs share no memory with each other or with inputs. Exception: the input of a gather may be this
  // rank's own output. Every member makes the same calls in the same order. A call that throws c10::Error for its
  // arguments does not count as a collective on any rank. `outputs[i]` is filled from member i.
  Work all_gather(at::TensorList outputs, const at::Tensor& input) const;
  // `inputs[i]` goes to member i; `output` has the sizes of inputs[rank()].
  Work reduce_scatter(const at::Tensor& output, at::TensorList inputs, ReduceOp op) const;
  Work all_reduce(const at::Tensor& tensor, ReduceOp op) const;  // in place
  // The same, but does not modify `input`. Copies it only if the backend cannot reduce out of place.
  Work all_reduce(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const;
  // `inputs[i]` goes to member i and arrives in its outputs[rank()]. Sizes may differ per pair and be empty.
  Work all_to_all(at::TensorList outputs, at::TensorList inputs) const;
  // The same for lists of n tensors in one collective: outputs[i * n + k] is filled from member i's inputs[k];
  // inputs[i * n + k] goes to member i and is reduced into its outputs[k]. Tensors of a gathered list may have
  // different dtypes; those of a reduced list have one dtype.
  Work all_gather_list(at::TensorList outputs, at::TensorList inputs) const;
  Work reduce_scatter_list(at::TensorList outputs, at::TensorList inputs, ReduceOp op) const;
  Work all_reduce_list(at::TensorList tensors, ReduceOp op) const;
  Work broadcast(const at::Tensor& tensor, int root) const;  // in place
  // Messages between two members match in the order of the calls, for each tag separately. A tag outside
  // [0, kMessageTags) is an error on every backend.
  Work send(const at::Tensor& tensor, int peer, int tag = 0) const;
  Work recv(const at::Tensor& tensor, int peer, int tag = 0) const;
  void barrier() const;

  // Members with the same color form a communicator, ordered by (key, rank); color < 0: no communicator. Collective.
  Communicator split(int color, int key) const;
  // The communicator of these members (ranks within this one). Exactly those members call it, in the same order.
  // `label` (a mesh axis) names it in events and messages.
  Communicator subgroup(at::IntArrayRef members, std::string label = {}) const;
  // Uninitialized contiguous memory for outputs of collectives. Large blocks come from a pool: the page faults of a
  // fresh block cost more than filling it.
  at::Tensor empty(at::IntArrayRef sizes, at::TensorOptions options) const;
  // Whether collectives run in the background. If false, they are complete when the call returns.
  bool asynchronous() const;

  // The same communicator under another name in events and messages.
  Communicator with_label(std::string label) const;
  const std::string& label() const;
  // Makes every wait of every rank of the run throw a CommError with `reason` and this rank: current and later waits,
  // on any communicator.
  void abort(const std::string& reason) const;

  friend bool operator==(const Communicator& a, const Communicator& b) { return a.backend_ == b.backend_; }

 private:
  // The same communicator for the calls of one mesh. Under Checked, its collectives compare the operator calls.
  friend Communicator with_call_history(Communicator comm, std::shared_ptr<const CallHistory> history) {
    comm.history_ = std::move(history);
    return comm;
  }
  // The backend, for other backends and for state that lives as long as this rank's communicator. Store it as a weak
  // pointer: subgroups must not keep the backend that made them alive.
  friend const std::shared_ptr<CommBackend>& backend_of(const Communicator& comm) { return comm.backend_; }

  CommBackend& backend() const;
  // `like` is a tensor of the dtype to move, or undefined.
  CollectiveCall start_call(CollectiveKind kind, const at::Tensor& like) const;
  void number(CollectiveCall& call) const;

  std::shared_ptr<CommBackend> backend_;
  std::shared_ptr<const std::string> label_;
  const std::string* recorded_label_ = nullptr;  // the label for records; null: none
  std::shared_ptr<const CallHistory> history_;
};

// How ranks are run.
struct RunOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};  // of one wait in a collective; max(): no timeout
  bool set_threads = true;  // give each rank cores/ranks intra-op threads; false: as many as the caller has
  // Compare the members' calls (kind, dtype, sizes, operation) before their data is used. Affects MPI and sockets,
  // where the comparison costs bytes in the messages that carry the data. Thread ranks always compare.
  bool check_calls = true;
};

// Runs fn on `ranks` threads of this process with one communicator over all of them. Rethrows the first exception with
// its rank in the message (for a PeerError, the original exception); waits of the other ranks end. May be nested.
// Threads are pooled between calls.
DTENSOR_API void run_local(int ranks, const std::function<void(Communicator)>& fn, RunOptions options = {});

// While an instance lives anywhere in this process, waits for other ranks do not time out (threads and MPI; the
// watchdog of NCCL is not affected).
class DTENSOR_API NoTimeout {
 public:
  NoTimeout();
  ~NoTimeout();
  NoTimeout(const NoTimeout&) = delete;
  NoTimeout& operator=(const NoTimeout&) = delete;
};

// Host memory for the results of collectives. The process keeps freed blocks and reuses them: the page faults of a
// fresh block of 64 MB cost several times as much as filling it.

// Counters of this process, all of its thread ranks together.
struct MemoryPoolStats {
  std::size_t cached_bytes = 0;  // free memory in the pool
  std::size_t limit_bytes = 0;   // maximum of cached_bytes
  std::size_t hits = 0;          // requests of 64 KiB and more that the pool served
  std::size_t misses = 0;        // requests of 64 KiB and more that went to the system
};
DTENSOR_API MemoryPoolStats memory_pool_stats();  // current values

// Sets how many unused bytes the pool keeps at most; 0: none. The default is 1/8 of the memory available to this
// process, at most 4 GiB. Processes of one job on one host get equal shares of the host's memory, or of the container's
// (cgroup) limit if that is lower.
DTENSOR_API void set_memory_pool_limit(std::size_t bytes);
// Returns free blocks to the system, for instance before another library needs the memory. Blocks in use stay.
DTENSOR_API void empty_memory_pool();

}  // namespace dtensor
