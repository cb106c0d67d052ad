// What a communication backend implements. Communicator (dtensor/comm.h) checks the arguments, numbers the calls and
// reports them as events; a backend moves the bytes, agrees with its peers on what is being called, and turns a failure
// anywhere into a CommError everywhere.
#pragma once

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/comm.h"
#include "dtensor/export.h"

namespace dtensor {

class CallHistory;
class RankRecord;

// What a call is.
enum class CollectiveKind : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  send,
  recv,
  barrier
};

// As messages print it: "all_gather".
DTENSOR_API const char* to_string(CollectiveKind kind);

// Says that tensors of this device type lie in memory that this process reads and writes as its own (unified memory, a
// device that a test makes up): thread ranks then take them as they take the CPU's.
DTENSOR_API void declare_host_memory(c10::DeviceType device);

// One call as this rank makes it. Members of a collective agree on everything here but `peer` and `tag` of send and
// recv.
struct CollectiveCall {
  // What is called, and for reductions how values are combined.
  CollectiveKind kind = CollectiveKind::barrier;
  ReduceOp op = ReduceOp::sum;       // reductions only
  at::ScalarType dtype = at::kByte;  // kByte where there is no tensor
  int peer = -1;                     // broadcast: the root; send and recv: the other end
  int tag = 0;                       // send and recv
  std::uint64_t sequence = 0;        // 1 for the first on this communicator; send and recv are counted apart
  std::shared_ptr<const std::string> label = {};  // of the handle (a mesh axis), may be null
  // Under Checked: how many operators this rank has called on the communicator's mesh, a hash over them, and where they
  // can be looked up. A hash of 0: not under Checked, not compared.
  std::uint64_t operators = 0, signature = 0;
  std::shared_ptr<const CallHistory> history = {};
  // The operator that it is called for, and the module; null: none. They live for the program. Not compared.
  const std::string* caller = nullptr;
  const std::string* module = nullptr;
};

// `outputs` are written, `inputs` read; the lists have one tensor or size() of them, as in Communicator. Tensors are
// views of any strides without internal overlap, on one device, of `call.dtype`; the bits in their memory are their
// values (no conjugate or negative bit). What the caller passes lives until the call returns; an asynchronous backend
// keeps the tensors in its Work.
class DTENSOR_API CommBackend {
 public:
  // `ranks`: the world rank of each member.
  CommBackend(int rank, std::vector<std::int64_t> ranks) : rank_(rank), ranks_(std::move(ranks)) {}
  CommBackend(const CommBackend&) = delete;
  CommBackend& operator=(const CommBackend&) = delete;
  virtual ~CommBackend() = default;

  // This rank among the members, their number, and their world ranks.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<std::int64_t>& ranks() const { return ranks_; }
  // The number of the next call; messages (send, recv) and collectives are counted apart.
  std::uint64_t next_sequence(CollectiveKind kind);

  // What this rank did last; one for all communicators of a rank. Set before the backend is first used, by whoever
  // starts the rank, else by the first Communicator.
  RankRecord& record() const { return *record_; }
  const std::shared_ptr<RankRecord>& shared_record() const { return record_; }
  void set_record(std::shared_ptr<RankRecord> record) { record_ = std::move(record); }

  // As `--backend` and messages name it; which devices' tensors it moves; whether calls return before they are done.
  virtual const char* name() const = 0;
  virtual bool supports(c10::DeviceType device) const = 0;
  virtual bool asynchronous() const { return false; }

  // As the functions of Communicator of the same names.
  virtual Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) = 0;
  virtual Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) = 0;
  virtual Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) = 0;
  // By default copies and reduces in place.
  virtual Work all_reduce(const CollectiveCall& call, const at::Tensor& output, const at::Tensor& input);
  virtual Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) = 0;
  // Lists as in Communicator. By default packed into one tensor a member.
  virtual Work all_gather_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);
  virtual Work reduce_scatter_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);
  virtual Work all_reduce_list(const CollectiveCall& call, at::TensorList tensors);
  virtual Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) = 0;
  virtual Work send(const CollectiveCall& call, const at::Tensor& tensor) = 0;
  virtual Work recv(const CollectiveCall& call, const at::Tensor& tensor) = 0;
  virtual void barrier(const CollectiveCall& call) = 0;

  // The communicator of these members (ranks within this one, this rank among them). Made by those members alone, and
  // not kept alive by, nor keeping alive, this one. `label` names it in messages.
  virtual std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) = 0;
  virtual void abort(const std::string& reason) = 0;
  // Why communication ended: the reason of an abort, here or on a peer; empty while it has not. Callable from any
  // thread.
  virtual std::string failure() = 0;

 private:
  int rank_;
  std::vector<std::int64_t> ranks_;
  std::uint64_t collectives_ = 0;
  std::uint64_t messages_ = 0;
  std::shared_ptr<RankRecord> record_;
};

}  // namespace dtensor
