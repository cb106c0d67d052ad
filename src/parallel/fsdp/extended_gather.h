// A parameter's part of a gather that carries other tensors than its shard (internal/gather_extension.h).
#pragma once

#include <optional>
#include <string>

#include "internal/gather_extension.h"

namespace dtensor::fsdp {

class ExtendedGather {
 public:
  // No extension: a wrapper subclass whose hooks are not known yet.
  std::optional<GatherExtension> extension;

  // Asks for this rank's contributions. The first call decides the sizes of all later ones.
  void prepare(const std::string& name, const at::Tensor& local);
  // The contributions of the active gather, and the memory for those of each rank: of contribution k and rank r,
  // pieces()[k][r].
  const std::vector<at::Tensor>& contributions() const { return contributions_; }
  std::vector<std::vector<at::Tensor>> pieces(std::size_t ranks);
  // The gathered tensors are complete.
  void finish(at::ScalarType dtype);
  // The unsharded parameter in a parameter's sizes, without the padding of uneven shards.
  bool is_ready() const { return unsharded_.defined() && !empty_; }
  at::Tensor unsharded(at::IntArrayRef sizes) const;
  // Bytes of the gathered contributions.
  std::int64_t bytes(std::size_t ranks) const;
  // Whether a tensor shares memory that reshard() frees.
  bool shares_memory(const at::Tensor& tensor) const;
  // Frees the memory: it stays with the tensors of graphs, which the next gather fills again, or it is left to them.
  void empty();
  void forget();

 private:
  struct Layout {
    std::vector<std::int64_t> sizes;
    at::ScalarType dtype;
    bool operator==(const Layout&) const = default;
  };

  void allocate(std::size_t ranks);
  std::vector<at::Tensor> with_own_memory(const std::vector<at::Tensor>& tensors) const;

  std::vector<Layout> layouts_;  // of the contributions
  std::vector<at::Tensor> contributions_;
  std::vector<at::Tensor> gathered_;  // by contribution: those of all ranks
  std::vector<at::Tensor> made_;      // by the extension, with memory of their own
  at::Tensor unsharded_;
  bool empty_ = false;
};

}  // namespace dtensor::fsdp
