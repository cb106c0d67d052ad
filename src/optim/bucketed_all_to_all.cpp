// Packs, exchanges, unpacks.
#include "optim/bucketed_all_to_all.h"

#include <ATen/ATen.h>

namespace dtensor::optim {
namespace {

std::int64_t total(const std::vector<at::Tensor>& pieces) {
  std::int64_t count = 0;
  for (const at::Tensor& piece : pieces) count += piece.numel();
  return count;
}

at::Tensor packed(const std::vector<at::Tensor>& pieces, const at::TensorOptions& options) {
  if (pieces.empty()) return at::empty({0}, options);
  if (pieces.size() == 1) return pieces[0].reshape({-1});
  std::vector<at::Tensor> flat;
  for (const at::Tensor& piece : pieces) flat.push_back(piece.reshape({-1}));
  return at::cat(flat);
}

// A single target in one stretch is filled where it is.
at::Tensor buffer_for(const std::vector<at::Tensor>& targets, const at::TensorOptions& options) {
  if (targets.size() == 1 && targets[0].is_contiguous()) return targets[0].view({-1});
  return at::empty({total(targets)}, options);
}

void unpack(const at::Tensor& buffer, const std::vector<at::Tensor>& targets) {
  if (targets.size() == 1 && targets[0].is_contiguous()) return;
  std::int64_t offset = 0;
  for (const at::Tensor& target : targets) {
    target.copy_(buffer.narrow(0, offset, target.numel()).view(target.sizes()));
    offset += target.numel();
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

void BucketedAllToAll::send(std::size_t bucket, int peer, const at::Tensor& piece) {
  buckets_[bucket].out[static_cast<std::size_t>(peer)].push_back(piece);
}

void BucketedAllToAll::receive(std::size_t bucket, int peer, const at::Tensor& target) {
  buckets_[bucket].in[static_cast<std::size_t>(peer)].push_back(target);
}

void BucketedAllToAll::exchange(Bucket& bucket) {
  const auto self = static_cast<std::size_t>(bucket.members.rank());
  TORCH_CHECK(bucket.out[self].size() == bucket.in[self].size(), "a rank sends itself ", bucket.out[self].size(),
              " pieces and receives ", bucket.in[self].size());
  for (std::size_t k = 0; k < bucket.in[self].size(); ++k) bucket.in[self][k].copy_(bucket.out[self][k]);
  if (!bucket.remote || bucket.members.size() == 1) return;
  bucket.in[self].clear();
  bucket.out[self].clear();
  auto options = at::TensorOptions(bucket.dtype);
  for (const auto* side : {&bucket.in, &bucket.out}) {
    for (const auto& pieces : *side) {
      if (!pieces.empty()) options = pieces[0].options();
    }
  }
  std::vector<at::Tensor> inputs, outputs;
  for (const auto& pieces : bucket.out) inputs.push_back(packed(pieces, options));
  for (const auto& targets : bucket.in) outputs.push_back(buffer_for(targets, options));
  bucket.members.all_to_all(outputs, inputs).wait();
  for (std::size_t peer = 0; peer < outputs.size(); ++peer) unpack(outputs[peer], bucket.in[peer]);
}

void BucketedAllToAll::run() {
  for (Bucket& bucket : buckets_) exchange(bucket);
  buckets_.clear();
}

}  // namespace dtensor::optim
