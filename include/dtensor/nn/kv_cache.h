// What attention keeps of the tokens before: keys and values, in memory made once for all tokens that may come.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/export.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"

namespace dtensor::nn {

// Belongs to one rank: holds its sequences and its heads. What attention does with it is local, so that a token costs
// no decision and no collective but those of the layers around it, and, where tokens are shared out, one all_gather a
// layer.
//
// A copy has memory of its own for as many tokens, so that a text can be gone on with in several ways. A cache that has
// tokens takes further ones for the same sequences, placed as those were; one without any (truncate(0)) takes all.
class DTENSOR_API KVCache {
 public:
  // `capacity`: tokens a sequence at most. Memory is made when a layer first appends. `sequence_axis`: of the mesh;
  // its ranks hold every n-th token each, token p the rank p % n, so that a sequence may be n times as long. The axis
  // must split neither the batch nor heads, which is an error; "": each rank holds all tokens.
  KVCache(std::int64_t layers, std::int64_t capacity, std::string sequence_axis = "");
  KVCache(const KVCache& other);
  KVCache(KVCache&&) noexcept = default;
  KVCache& operator=(const KVCache& other) { return *this = KVCache(other); }
  KVCache& operator=(KVCache&&) noexcept = default;
  ~KVCache() = default;

  // As given.
  std::int64_t layers() const { return static_cast<std::int64_t>(entries_.size()); }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t length() const { return length_; }  // tokens that every layer has
  std::int64_t bytes() const;                      // on this rank

  // Local keys [batch, heads, n, E] and values [batch, heads, n, F] of the tokens from length() on; returns views of
  // all up to and with these, or of this rank's among them. An error beyond the capacity, and where they are not of the
  // sizes of those before.
  std::pair<at::Tensor, at::Tensor> append(std::int64_t layer, const at::Tensor& keys, const at::Tensor& values);
  void advance(std::int64_t count) { length_ += count; }  // once all layers have appended
  // Forgets what comes after the first `length` tokens.
  void truncate(std::int64_t length);

  // Of all tokens: [batch, heads, length, E]. DTensors where attention ran on a mesh. Collective where tokens are
  // shared out.
  at::Tensor keys(std::int64_t layer) const;
  at::Tensor values(std::int64_t layer) const;

  // Told by attention that runs on a mesh: where what this rank appends stands in the whole. An error, the same on all
  // ranks, where tokens that are kept stand otherwise.
  void set_layout(std::int64_t layer, const DeviceMesh& mesh, Placements placements, std::int64_t batch,
                  std::int64_t heads);
  // Told by attention of plain tokens: this rank has all of them. An error where tokens of a mesh are kept.
  void set_layout(std::int64_t layer);
  // Among whom the layer's tokens are shared out; none: each rank has all.
  const Communicator& sharers(std::int64_t layer) const;

 private:
  struct Entry {
    at::Tensor keys, values;  // [batch, heads, capacity, E or F]
    DeviceMesh mesh;
    Placements placements;
    std::int64_t batch = 0, heads = 0;
    Communicator sharers;
  };
  at::Tensor whole(const Entry& entry, const at::Tensor& kept) const;
  std::size_t position(std::int64_t layer) const;
  // Whether the entry has memory for them.
  static bool is_kept(const Entry& entry, const at::Tensor& keys, const at::Tensor& values);

  std::vector<Entry> entries_;
  std::int64_t capacity_, length_ = 0;
  std::string sequence_axis_;
};

}  // namespace dtensor::nn
