// One collective of this process with each of its peers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/pairwise/exchange.h"
#include "comm/pairwise/header.h"

namespace dtensor::pairwise {

struct Members {
  Job& job;
  std::vector<std::int64_t> ranks;  // world ranks
  int me;                           // index in ranks
  std::uint64_t id;                 // the same on all members, different for other groups
  std::string label;

  int size() const { return static_cast<int>(ranks.size()); }
  std::string describe(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) const;
};

// Bytes to and from one peer; null: none.
struct Part {
  const void* give = nullptr;
  std::int64_t give_bytes = 0;
  void* take = nullptr;
  std::int64_t take_bytes = 0;
};

class Collective {
 public:
  Collective(Members& members, const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);

  // Sends give(i) to and receives take(i) from each other member i, headers first where calls are compared. `tensors`:
  // what owns the memory.
  template <class PartOf>
  void run(PartOf&& part_of) {
    std::vector<Part> parts(members_.size());
    for (int i = 0; i < members_.size(); ++i) {
      if (i != members_.me) parts[i] = part_of(i);
    }
    run_parts(parts);
  }
  void keep(const at::Tensor& tensor) { kept_.push_back(tensor); }

  // `t` itself if its bytes lie in row-major order, else a packed copy, which is kept.
  at::Tensor packed(const at::Tensor& t);
  // `t` itself in that case, else memory of its size to receive into.
  at::Tensor landing(const at::Tensor& t);

 private:
  void run_parts(const std::vector<Part>& parts);
  Sizes gives(int i) const;
  Sizes expects(int i) const;
  void compare(const std::vector<Header>& mine, const std::vector<Header>& theirs);
  std::string different_operators(const Header& mine, const std::vector<Header>& theirs);
  std::string place() const { return members_.describe(call_, outputs_, inputs_); }

  Members& members_;
  const CollectiveCall& call_;
  at::TensorList outputs_, inputs_;
  std::vector<at::Tensor> kept_;
  bool compared_ = false;
};

}  // namespace dtensor::pairwise
