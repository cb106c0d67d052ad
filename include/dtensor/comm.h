// Communicators: who talks to whom. A Communicator is a cheap handle; the backends (threads, MPI, sockets, NCCL)
// implement CommBackend (dtensor/comm_backend.h).
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

// A collective under way. Owns its tensors until it is finished; the destructor waits.
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
  // Whether wait() would not block: also where it would throw, so that who polls hears of a failure.
  bool done() const;

 private:
  std::shared_ptr<Impl> impl_;
};

// A collective that could not finish: a peer failed, left, called something else or did not come in time.
class DTENSOR_API CommError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Another rank's exception, told to this one, so that all end the same call (a step of a pipeline, say). The ranks can
// go on; where they do not, run_local reports the exception itself.
class DTENSOR_API PeerError : public c10::Error {
  using c10::Error::Error;
};

// So many tags do the messages of a communicator have (Communicator::send and recv), from 0.
inline constexpr int kMessageTags = 1024;

// A group of ranks that communicate. A cheap handle; calls are collective unless they say otherwise.
class DTENSOR_API Communicator {
 public:
  Communicator() = default;  // no communicator: false, and a c10::Error where it is used
  explicit Communicator(std::shared_ptr<CommBackend> backend);

  explicit operator bool() const { return backend_ != nullptr; }
  // This rank in the group, from 0; and the number of its ranks.
  int rank() const;
  int size() const;
  const char* backend_name() const;                // "local", "mpi", "socket", "nccl"
  const std::vector<std::int64_t>& ranks() const;  // world rank of each member

  // Tensors may be views of any strides, conjugated ones too; all members give equal dtypes, and sizes that match
  // pairwise. Outputs have no memory in common, with each other or with inputs (but for the input that is this rank's
  // own output of a gather). Every call is collective over the members and must come in the same order on each; one
  // whose arguments are refused (c10::Error) is none, on this rank as on the others. `outputs[i]` is filled from
  // member i.
  Work all_gather(at::TensorList outputs, const at::Tensor& input) const;
  // `inputs[i]` goes to member i; `output` has the sizes of inputs[rank()].
  Work reduce_scatter(const at::Tensor& output, at::TensorList inputs, ReduceOp op) const;
  Work all_reduce(const at::Tensor& tensor, ReduceOp op) const;  // in place
  // The same without touching `input`, and without a copy of it where the backend can do so.
  Work all_reduce(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const;
  // `inputs[i]` goes to member i and arrives in its outputs[rank()]. Sizes may differ per pair and be empty.
  Work all_to_all(at::TensorList outputs, at::TensorList inputs) const;
  // The same for lists of n tensors in one collective: outputs[i * n + k] is filled from member i's inputs[k];
  // inputs[i * n + k] goes to member i and is summed up in its outputs[k]. Dtypes may differ within a list that is
  // gathered, not within one that is reduced.
  Work all_gather_list(at::TensorList outputs, at::TensorList inputs) const;
  Work reduce_scatter_list(at::TensorList outputs, at::TensorList inputs, ReduceOp op) const;
  Work all_reduce_list(at::TensorList tensors, ReduceOp op) const;
  Work broadcast(const at::Tensor& tensor, int root) const;  // in place
  // Messages between two members meet in the order of their calls, those of each tag apart. On every backend a tag is
  // at least 0 and less than kMessageTags, else an error. NCCL, which has none, takes all of a pair in the order of
  // calls.
  Work send(const at::Tensor& tensor, int peer, int tag = 0) const;
  Work recv(const at::Tensor& tensor, int peer, int tag = 0) const;
  void barrier() const;

  // Members that give the same color form a communicator, ordered by (key, rank); color < 0: none. Collective.
  Communicator split(int color, int key) const;
  // The communicator of these members (ranks within this one). Called by exactly those members, in the same order.
  // `label` (a mesh axis) names it in events and messages.
  Communicator subgroup(at::IntArrayRef members, std::string label = {}) const;
  // Uninitialised contiguous memory for what collectives put out: large blocks are kept for reuse, since the page
  // faults of a fresh one cost more than filling it does.
  at::Tensor empty(at::IntArrayRef sizes, at::TensorOptions options) const;
  // Whether collectives run while this thread goes on: else they are done when the call returns.
  bool asynchronous() const;

  // The same communicator under another name in events and messages.
  Communicator with_label(std::string label) const;
  const std::string& label() const;
  // The same communicator for the calls of one mesh: under Checked, its collectives compare them.
  Communicator with_history(std::shared_ptr<const CallHistory> history) const;
  // Wakes every rank of the run that waits, now and later and in whatever communicator, with a CommError that carries
  // `reason` and this rank.
  void abort(const std::string& reason) const;

  friend bool operator==(const Communicator& a, const Communicator& b) { return a.backend_ == b.backend_; }

 private:
  // Who moves the bytes, for backends and for state that lives as long as this rank's communicator (held weakly: a
  // backend must not be kept alive by the subgroups made from it).
  friend const std::shared_ptr<CommBackend>& backend_of(const Communicator& comm) { return comm.backend_; }

  CommBackend& backend() const;
  // `like`: a tensor of the dtype that moves, or undefined.
  CollectiveCall start_call(CollectiveKind kind, const at::Tensor& like) const;
  void number(CollectiveCall& call) const;

  std::shared_ptr<CommBackend> backend_;
  std::shared_ptr<const std::string> label_;
  const std::string* recorded_label_ = nullptr;  // the label, for records; null: none
  std::shared_ptr<const CallHistory> history_;
};

// How ranks are run.
struct RunOptions {
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};  // of one wait in a collective; max(): none
  bool set_threads = true;  // give each rank cores/ranks intra-op threads; else thread ranks have as many as the caller
  // Compare the members' calls (kind, dtype, sizes, operation) before their data is used, in the backends where that
  // costs messages (MPI, sockets; they travel with the data). Thread ranks always compare.
  bool check_calls = true;
};

// Runs fn on `ranks` threads of this process, one communicator over them all. The first exception is rethrown with its
// rank in the message (of a PeerError, the exception that it told of); the other ranks are woken. May be nested.
// Threads are pooled between calls.
DTENSOR_API void run_local(int ranks, const std::function<void(Communicator)>& fn, RunOptions options = {});

// Host memory for the results of collectives, which a process keeps when it is freed and hands out again: the page
// faults of a fresh block of 64 MB cost several times what filling it does.

// Of this process, all of its thread ranks together.
struct MemoryPoolStats {
  std::size_t cached_bytes = 0;  // free, in the pool
  std::size_t limit_bytes = 0;   // of those, at most
  std::size_t hits = 0;          // requests of 64 KiB and more that it served
  std::size_t misses = 0;        // those that went to the system
};
DTENSOR_API MemoryPoolStats memory_pool_stats();  // as it is now

// How many bytes the pool keeps at most while nobody uses them; 0: none. Before it is called: 1/8 of what this process
// may have, at most 4 GiB, where processes of one job on one host share the host's memory alike and the limit of a
// container (cgroup) counts where it is lower.
DTENSOR_API void set_memory_pool_limit(std::size_t bytes);
// Gives what is free back to the system: before another library needs the memory, or after a phase that will not come
// again. What is in use stays.
DTENSOR_API void empty_memory_pool();

}  // namespace dtensor
