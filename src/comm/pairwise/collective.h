// One collective of this process with each of its peers.
#pragma once

#include <c10/util/SmallVector.h>

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

// Bytes to and from one peer in one message each; null: none.
struct Part {
  const void* give = nullptr;
  std::int64_t give_bytes = 0;
  void* take = nullptr;
  std::int64_t take_bytes = 0;
};

using Parts = c10::SmallVector<Part, 1>;

inline Part giving(const at::Tensor& dense) {
  return {dense.const_data_ptr(), static_cast<std::int64_t>(dense.nbytes()), nullptr, 0};
}
inline Part taking(const at::Tensor& dense) {
  return {nullptr, 0, dense.data_ptr(), static_cast<std::int64_t>(dense.nbytes())};
}

class Collective {
 public:
  Collective(Members& members, const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs);

  // Sends what parts_of(i) gives to and receives what it takes from each other member i, in the order of the parts,
  // headers first where calls are compared.
  template <class PartsOf>
  void run(PartsOf&& parts_of) {
    std::vector<Parts> parts(members_.size());
    for (int i = 0; i < members_.size(); ++i) {
      if (i != members_.me) parts[i] = parts_of(i);
    }
    run_parts(parts);
  }
  // `tensor` owns memory that is used until the collective is over.
  void keep(const at::Tensor& tensor) { kept_.push_back(tensor); }

  // `t` itself if its bytes lie in row-major order, else a copy where they do, which is kept.
  at::Tensor dense(const at::Tensor& t);
  // `t` itself in that case, else memory of its size to receive into, from where copy_landed takes it.
  at::Tensor landing(const at::Tensor& t);

 private:
  void run_parts(const std::vector<Parts>& parts);
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

void copy_landed(const at::Tensor& to, const at::Tensor& landing);

}  // namespace dtensor::pairwise
