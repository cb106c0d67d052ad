// BucketedAllToAll: packs pieces, exchanges them in one all_to_all per bucket, and unpacks them.
#include "internal/bucketed_all_to_all.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "comm/resolved_values.h"
#include "internal/aten_scopes.h"

namespace dtensor {
namespace {

// Sorts pieces by descending element size, so that each begins at a multiple of its element size.
void sort_for_bytes(std::vector<at::Tensor>& pieces) {
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const at::Tensor& a, const at::Tensor& b) { return a.element_size() > b.element_size(); });
}

at::Tensor flat(const at::Tensor& piece, at::ScalarType dtype) {
  return piece.scalar_type() == dtype ? piece.reshape({-1}) : resolved(piece).contiguous().view({-1}).view(dtype);
}

// Counts as a write and is not recorded by autograd, like writes of communicators.
void put(const at::Tensor& target, const at::Tensor& values) {
  target.copy_(values);
  mark_outputs_written(target);
}

// A single piece of the bucket's dtype is sent without packing.
bool is_sent_separately(const std::vector<at::Tensor>& pieces, at::ScalarType dtype) {
  return pieces.size() == 1 && pieces[0].scalar_type() == dtype;
}

const void* storage_of(const at::Tensor& t) { return t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr; }

// Clones pieces whose storage is in `written` (the sorted target storages of all buckets), so that every piece is read
// before any target is filled.
void read_before_writing(std::vector<std::vector<at::Tensor>>& out, const std::vector<const void*>& written) {
  for (auto& pieces : out) {
    for (at::Tensor& piece : pieces) {
      if (std::binary_search(written.begin(), written.end(), storage_of(piece))) piece = resolved(piece).clone();
    }
  }
}

// Checks the pieces from this rank to itself, and that a bucket without `remote` has no others.
void check(const std::vector<std::vector<at::Tensor>>& out, const std::vector<std::vector<at::Tensor>>& in,
           std::size_t self, bool remote) {
  TORCH_CHECK(out[self].size() == in[self].size(), "BucketedAllToAll: this rank sends itself ", out[self].size(),
              " pieces but receives ", in[self].size());
  for (std::size_t k = 0; k < in[self].size(); ++k) {
    TORCH_CHECK(out[self][k].numel() == in[self][k].numel(), "BucketedAllToAll: this rank sends itself a piece of ",
                out[self][k].sizes(), " but receives it as ", in[self][k].sizes());
  }
  for (std::size_t peer = 0; peer < out.size() && !remote; ++peer) {
    TORCH_CHECK(peer == self || (out[peer].empty() && in[peer].empty()),
                "BucketedAllToAll: got a piece for or from rank ", peer,
                " in a bucket that was opened with remote = false");
  }
}

at::Tensor packed(const std::vector<at::Tensor>& pieces, const at::TensorOptions& options) {
  const auto dtype = options.dtype().toScalarType();
  if (is_sent_separately(pieces, dtype)) return pieces[0];
  std::vector<at::Tensor> parts;
  for (const at::Tensor& piece : pieces) parts.push_back(flat(piece, dtype));
  return parts.empty() ? at::empty({0}, options) : at::cat(parts);
}

at::Tensor buffer_for(const Communicator& members, const std::vector<at::Tensor>& targets,
                      const at::TensorOptions& options) {
  const auto dtype = options.dtype().toScalarType();
  if (is_sent_separately(targets, dtype)) return targets[0];
  std::int64_t bytes = 0;
  for (const at::Tensor& target : targets) bytes += static_cast<std::int64_t>(target.nbytes());
  return members.empty({bytes / static_cast<std::int64_t>(c10::elementSize(dtype))}, options);
}

void unpack(const at::Tensor& buffer, const std::vector<at::Tensor>& targets, at::ScalarType dtype) {
  if (is_sent_separately(targets, dtype)) return;
  const auto unit = static_cast<std::int64_t>(c10::elementSize(dtype));
  std::int64_t offset = 0;
  for (const at::Tensor& target : targets) {
    const auto count = static_cast<std::int64_t>(target.nbytes()) / unit;
    put(target, buffer.narrow(0, offset, count).view(target.scalar_type()).view(target.sizes()));
    offset += count;
  }
}

}  // namespace

std::size_t BucketedAllToAll::bucket(const Communicator& members, at::ScalarType dtype, bool remote) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (!(buckets_[i].members == members) || buckets_[i].dtype != dtype) continue;
    buckets_[i].remote = buckets_[i].remote || remote;
    return i;
  }
  const auto size = static_cast<std::size_t>(members.size());
  buckets_.push_back({members, dtype, remote, std::vector<std::vector<at::Tensor>>(size), {}});
  buckets_.back().in.resize(size);
  return buckets_.size() - 1;
}

BucketedAllToAll::Bucket& BucketedAllToAll::opened(std::size_t bucket, int peer) {
  TORCH_CHECK(bucket < buckets_.size(), "BucketedAllToAll: expected a bucket in [0, ", buckets_.size(), "), got ",
              bucket, "; open buckets again after each run");
  const int members = buckets_[bucket].members.size();
  TORCH_CHECK(peer >= 0 && peer < members, "BucketedAllToAll: expected a rank in [0, ", members, "), got ", peer);
  return buckets_[bucket];
}

void BucketedAllToAll::send(std::size_t bucket, int peer, const at::Tensor& piece) {
  opened(bucket, peer).out[static_cast<std::size_t>(peer)].push_back(piece);
}

void BucketedAllToAll::receive(std::size_t bucket, int peer, const at::Tensor& target) {
  opened(bucket, peer).in[static_cast<std::size_t>(peer)].push_back(target);
}

std::function<void()> BucketedAllToAll::begin(Bucket bucket) {
  const auto self = static_cast<std::size_t>(bucket.members.rank());
  for (std::size_t k = 0; k < bucket.in[self].size(); ++k) put(bucket.in[self][k], bucket.out[self][k]);
  if (!bucket.remote || bucket.members.size() == 1) return [] {};
  bucket.in[self].clear();
  bucket.out[self].clear();
  auto options = at::TensorOptions(bucket.dtype);
  for (auto* side : {&bucket.in, &bucket.out}) {
    for (auto& pieces : *side) {
      if (!pieces.empty()) options = options.device(pieces[0].device());
      if (bucket.dtype == at::kByte) sort_for_bytes(pieces);
    }
  }
  std::vector<at::Tensor> inputs, outputs;
  for (const auto& pieces : bucket.out) inputs.push_back(packed(pieces, options));
  for (const auto& targets : bucket.in) outputs.push_back(buffer_for(bucket.members, targets, options));
  auto work = bucket.members.all_to_all(outputs, inputs);
  return [bucket = std::move(bucket), outputs, work]() mutable {
    work.wait();
    const LocalBelowAutogradGuard below;
    for (std::size_t peer = 0; peer < outputs.size(); ++peer) unpack(outputs[peer], bucket.in[peer], bucket.dtype);
  };
}

std::function<void()> BucketedAllToAll::start() {
  const LocalBelowAutogradGuard scope;
  auto buckets = std::exchange(buckets_, {});
  std::vector<const void*> written;
  for (const Bucket& bucket : buckets) {
    check(bucket.out, bucket.in, static_cast<std::size_t>(bucket.members.rank()), bucket.remote);
    for (const auto& targets : bucket.in) {
      for (const at::Tensor& target : targets) written.push_back(storage_of(target));
    }
  }
  std::sort(written.begin(), written.end());
  for (Bucket& bucket : buckets) read_before_writing(bucket.out, written);
  std::vector<std::function<void()>> under_way;
  for (Bucket& bucket : buckets) under_way.push_back(begin(std::move(bucket)));
  return [under_way = std::move(under_way)] {
    for (const auto& finish : under_way) finish();
  };
}

}  // namespace dtensor
