// Interface of communication backends. Communicator (dtensor/comm.h) checks the arguments, numbers the calls and
// reports events. A backend moves the bytes. Where it can, it compares the call with its peers and turns a failure of
// any rank into a CommError on every rank.
#pragma once

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

// The kind of a call.
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

// The name in messages: "all_gather".
DTENSOR_API const char* to_string(CollectiveKind kind);

// One call of this rank. Backends compare the fields up to `sequence`, except `peer` and `tag` of send and recv.
struct CollectiveCall {
  // What is called, and how reductions combine values.
  CollectiveKind kind = CollectiveKind::barrier;
  ReduceOp op = ReduceOp::sum;       // reductions only
  at::ScalarType dtype = at::kByte;  // kByte where there is no tensor
  int peer = -1;                     // broadcast: the root; send and recv: the other rank
  int tag = 0;                       // send and recv
  std::uint64_t sequence = 0;        // 1 for the first call on this communicator; send and recv have their own count
  std::shared_ptr<const std::string> label = {};  // label of the handle (a mesh axis), may be null
  // Under Checked: the number of operators that this rank called on the communicator's mesh, their hash, and their
  // records. A hash of 0 means that Checked is off; then nothing is compared.
  std::uint64_t operators = 0, signature = 0;
  std::shared_ptr<const CallHistory> history = {};
  // The operator and the module that make this call; null: none. The strings live as long as the program. Not compared.
  const std::string* caller = nullptr;
  const std::string* module = nullptr;
};

// `outputs` are written, `inputs` read; the lists have one tensor or size() of them, as in Communicator. Tensors are
// strided views without internal overlap, on one device, of `call.dtype`, without conjugate or negative bit. Arguments
// live until the call returns; an asynchronous backend keeps the tensors in its Work.
class DTENSOR_API CommBackend {
 public:
  // `ranks` holds the world rank of each member.
  CommBackend(int rank, std::vector<std::int64_t> ranks) : rank_(rank), ranks_(std::move(ranks)) {}
  CommBackend(const CommBackend&) = delete;
  CommBackend& operator=(const CommBackend&) = delete;
  virtual ~CommBackend() = default;

  // This rank among the members, their number, and their world ranks.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<std::int64_t>& ranks() const { return ranks_; }
  // The number of the next call; messages (send, recv) and collectives are counted separately.
  std::uint64_t next_sequence(CollectiveKind kind);

  // Counts a call that this rank ends with `error` before it communicates. If other members do not end as many calls
  // so, their next collective is a CommError on every member, instead of a match of different calls.
  void skip_call(const std::string& error);
  // The same for all communicators of the rank's run or job, where the backend can; else for this one. Members that
  // wait for this rank get the CommError at once.
  virtual void report_failed_call(const std::string& error) { skip_call(error); }

  // The recent calls of this rank, shared by all communicators of a rank. Set before the backend is first used: by the
  // code that starts the rank, else by the first Communicator.
  RankRecord& record() const { return *record_; }
  const std::shared_ptr<RankRecord>& shared_record() const { return record_; }
  void set_record(std::shared_ptr<RankRecord> record) { record_ = std::move(record); }

  // The name for `--backend` and messages; the supported devices; whether calls return before they complete.
  virtual const char* name() const = 0;
  virtual bool supports(c10::DeviceType device) const = 0;
  virtual bool asynchronous() const { return false; }

  // These implement the functions of Communicator with the same names.
  virtual Work all_gather(const CollectiveCall& call, at::TensorList outputs, const at::Tensor& input) = 0;
  virtual Work reduce_scatter(const CollectiveCall& call, const at::Tensor& output, at::TensorList inputs) = 0;
  virtual Work all_reduce(const CollectiveCall& call, const at::Tensor& tensor) = 0;
  // The default copies `input` and reduces in place.
  virtual Work all_reduce(const CollectiveCall& call, const at::Tensor& output, const at::Tensor& input);
  virtual Work all_to_all(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) = 0;
  // Lists as in Communicator. The default packs them into one tensor for each member.
  virtual Work all_gather_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);
  virtual Work reduce_scatter_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);
  virtual Work all_reduce_list(const CollectiveCall& call, at::TensorList tensors);
  virtual Work broadcast(const CollectiveCall& call, const at::Tensor& tensor) = 0;
  virtual Work send(const CollectiveCall& call, const at::Tensor& tensor) = 0;
  virtual Work recv(const CollectiveCall& call, const at::Tensor& tensor) = 0;
  virtual void barrier(const CollectiveCall& call) = 0;

  // The communicator of these members (ranks within this one, this rank among them). Only those members call it.
  // Neither communicator keeps the other alive. `label` names it in messages.
  virtual std::shared_ptr<CommBackend> subgroup(at::IntArrayRef members, const std::string& label) = 0;
  virtual void abort(const std::string& reason) = 0;
  // The reason of an abort, on this rank or a peer; empty if there was none. Callable from any thread.
  virtual std::string failure() = 0;
  // While the result lives, waits time out when an awaited process has sent no heartbeat for the timeout, and this
  // process sends them. The default suspends timeouts: if ranks are threads, all are stopped together.
  virtual std::shared_ptr<void> send_heartbeats();

 private:
  int rank_;
  std::vector<std::int64_t> ranks_;
  std::uint64_t collectives_ = 0;
  std::uint64_t messages_ = 0;
  std::shared_ptr<RankRecord> record_;
};

}  // namespace dtensor
