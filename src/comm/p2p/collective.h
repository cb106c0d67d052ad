// One collective of this process: exchanges with each peer.
#pragma once

#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/p2p/call_header.h"
#include "comm/p2p/pending_messages.h"

namespace dtensor::p2p {

struct ProcessGroup {
  Job& job;
  std::vector<std::int64_t> ranks;  // world ranks
  int me;                           // index in ranks
  std::uint64_t id;                 // equal on all members, different between groups
  std::string label;
  std::shared_ptr<Job> owner = job.weak_from_this().lock();  // keeps the job if it is shared
  std::atomic<bool> in_collective{false};                    // a thread of this rank exchanges messages

  int size() const { return static_cast<int>(ranks.size()); }
  std::string describe(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) const;
};

// One message to and one from a peer; null: none.
struct Transfer {
  const void* send_data = nullptr;
  std::int64_t send_bytes = 0;
  void* recv_data = nullptr;
  std::int64_t recv_bytes = 0;
};

using Transfers = c10::SmallVector<Transfer, 1>;

inline Transfer to_send(const at::Tensor& dense) {
  return {dense.const_data_ptr(), static_cast<std::int64_t>(dense.nbytes()), nullptr, 0};
}
inline Transfer to_receive(const at::Tensor& dense) {
  return {nullptr, 0, dense.data_ptr(), static_cast<std::int64_t>(dense.nbytes())};
}

class Collective {
 public:
  Collective(ProcessGroup& members, const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);

  // Exchanges transfers_of(i) with each other member i, in the order of the transfers. Headers come first if calls are
  // compared.
  template <class PartsOf>
  void run(PartsOf&& transfers_of) {
    std::vector<Transfers> parts(group_.size());
    for (int i = 0; i < group_.size(); ++i) {
      if (i != group_.me) parts[i] = transfers_of(i);
    }
    run_transfers(parts);
  }
  // Keeps `tensor`, whose memory is in use, until the collective is complete.
  void keep(const at::Tensor& tensor) { kept_.push_back(tensor); }

 private:
  void run_transfers(const std::vector<Transfers>& parts);
  Sizes gives(int i) const;
  Sizes expects(int i) const;
  void compare(const std::vector<CallHeader>& mine, const std::vector<CallHeader>& theirs);
  std::string different_operators(const CallHeader& mine, const std::vector<CallHeader>& theirs);
  std::string operation() const { return group_.describe(call_, outputs_, inputs_); }

  ProcessGroup& group_;
  const CollectiveCall& call_;
  at::TensorList outputs_, inputs_;
  std::vector<at::Tensor> kept_;
  bool compared_ = false;
};

}  // namespace dtensor::p2p
