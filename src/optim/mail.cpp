// Packs, exchanges, unpacks.
#include "optim/mail.h"

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

std::size_t Mail::open(const Communicator& members, at::ScalarType dtype, bool remote) {
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    if (!(boxes_[i].members == members) || boxes_[i].dtype != dtype) continue;
    boxes_[i].remote = boxes_[i].remote || remote;
    return i;
  }
  const auto size = static_cast<std::size_t>(members.size());
  boxes_.push_back({members, dtype, remote, std::vector<std::vector<at::Tensor>>(size), {}});
  boxes_.back().in.resize(size);
  return boxes_.size() - 1;
}

void Mail::post(std::size_t box, int peer, const at::Tensor& piece) {
  boxes_[box].out[static_cast<std::size_t>(peer)].push_back(piece);
}

void Mail::expect(std::size_t box, int peer, const at::Tensor& target) {
  boxes_[box].in[static_cast<std::size_t>(peer)].push_back(target);
}

void Mail::exchange(Box& box) {
  const auto self = static_cast<std::size_t>(box.members.rank());
  TORCH_CHECK(box.out[self].size() == box.in[self].size(), "a rank posts itself ", box.out[self].size(),
              " pieces and expects ", box.in[self].size());
  for (std::size_t k = 0; k < box.in[self].size(); ++k) box.in[self][k].copy_(box.out[self][k]);
  if (!box.remote || box.members.size() == 1) return;
  box.in[self].clear();
  box.out[self].clear();
  auto options = at::TensorOptions(box.dtype);
  for (const auto* side : {&box.in, &box.out}) {
    for (const auto& pieces : *side) {
      if (!pieces.empty()) options = pieces[0].options();
    }
  }
  std::vector<at::Tensor> inputs, outputs;
  for (const auto& pieces : box.out) inputs.push_back(packed(pieces, options));
  for (const auto& targets : box.in) outputs.push_back(buffer_for(targets, options));
  box.members.all_to_all(outputs, inputs).wait();
  for (std::size_t peer = 0; peer < outputs.size(); ++peer) unpack(outputs[peer], box.in[peer]);
}

void Mail::deliver() {
  for (Box& box : boxes_) exchange(box);
  boxes_.clear();
}

}  // namespace dtensor::optim
