// Lists of tensors in one collective, for backends that move one tensor a member: packed into one, and unpacked when
// the work is waited for.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "comm/buffer_pool.h"
#include "comm/copy.h"
#include "dtensor/comm_backend.h"

namespace dtensor {
namespace {

constexpr std::int64_t kAlignment = 16;  // of each tensor in the packed bytes: any dtype may live there

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void copy_part(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0) return;
  to.is_cpu() ? copy_tensor(to, from) : static_cast<void>(to.copy_(from));
}

at::Tensor buffer_for(std::int64_t numel, const at::Tensor& like, at::ScalarType dtype) {
  if (like.is_cpu()) return pooled_empty({numel}, dtype);
  return at::empty({numel}, at::TensorOptions(dtype).device(like.device()));
}

// One flat tensor and, for each of `list`, the part of it that stands for that.
struct Packed {
  at::Tensor flat;
  std::vector<at::Tensor> parts;

  // As bytes, so that dtypes may differ.
  static Packed bytes(at::TensorList list) {
    std::int64_t total = 0;
    for (const auto& t : list) total += aligned(static_cast<std::int64_t>(t.nbytes()));
    Packed packed{buffer_for(total, list[0], at::kByte), {}};
    std::int64_t offset = 0;
    for (const auto& t : list) {
      const auto size = static_cast<std::int64_t>(t.nbytes());
      packed.parts.push_back(packed.flat.narrow(0, offset, size).view(t.scalar_type()).view(t.sizes()));
      offset += aligned(size);
    }
    return packed;
  }

  // As numbers that can be reduced.
  static Packed numbers(at::TensorList list) {
    std::int64_t total = 0;
    for (const auto& t : list) total += t.numel();
    Packed packed{buffer_for(total, list[0], list[0].scalar_type()), {}};
    std::int64_t offset = 0;
    for (const auto& t : list) {
      packed.parts.push_back(packed.flat.narrow(0, offset, t.numel()).view(t.sizes()));
      offset += t.numel();
    }
    return packed;
  }

  void fill(at::TensorList list) const {
    for (std::size_t k = 0; k < list.size(); ++k) copy_part(parts[k], list[k]);
  }
};

class UnpackingWork final : public Work::Impl {
 public:
  UnpackingWork(Work work, std::vector<at::Tensor> to, std::vector<at::Tensor> from)
      : work_(std::move(work)), to_(std::move(to)), from_(std::move(from)) {}
  void wait() override {
    work_.wait();
    const at::AutoDispatchBelowADInplaceOrView below;
    for (std::size_t i = 0; i < to_.size(); ++i) copy_part(to_[i], from_[i]);
    to_.clear();
    from_.clear();
  }
  bool done() override { return to_.empty() && work_.done(); }

 private:
  Work work_;
  std::vector<at::Tensor> to_, from_;
};

// Unpacks at once where the collective is over.
Work unpacking(bool later, Work work, std::vector<at::Tensor> to, std::vector<at::Tensor> from) {
  auto impl = std::make_shared<UnpackingWork>(std::move(work), std::move(to), std::move(from));
  if (later) return Work(std::move(impl));
  impl->wait();
  return {};
}

struct Scope {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_mesh_scope{c10::DispatchKey::DeferredInit};
};

}  // namespace

Work CommBackend::all_gather_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  const auto n = inputs.size();
  if (n == 1) return all_gather(call, outputs, inputs[0]);
  const Scope scope;
  const auto mine = Packed::bytes(inputs);
  mine.fill(inputs);
  CollectiveCall flat_call = call;
  flat_call.dtype = at::kByte;
  std::vector<at::Tensor> flats, to, from;
  for (int i = 0; i < size(); ++i) {
    const auto theirs = outputs.slice(static_cast<std::size_t>(i) * n, n);
    if (i == rank()) {
      for (std::size_t k = 0; k < n; ++k) copy_part(theirs[k], inputs[k]);
      flats.push_back(mine.flat);  // already in place
      continue;
    }
    auto packed = Packed::bytes(theirs);
    flats.push_back(packed.flat);
    to.insert(to.end(), theirs.begin(), theirs.end());
    from.insert(from.end(), packed.parts.begin(), packed.parts.end());
  }
  return unpacking(asynchronous(), all_gather(flat_call, flats, mine.flat), std::move(to), std::move(from));
}

Work CommBackend::reduce_scatter_list(const CollectiveCall& call, at::TensorList outputs, at::TensorList inputs) {
  const auto n = outputs.size();
  if (n == 1) return reduce_scatter(call, outputs[0], inputs);
  const Scope scope;
  std::vector<at::Tensor> flats;
  for (int i = 0; i < size(); ++i) {
    const auto theirs = inputs.slice(static_cast<std::size_t>(i) * n, n);
    const auto packed = Packed::numbers(theirs);
    packed.fill(theirs);
    flats.push_back(packed.flat);
  }
  const auto mine = Packed::numbers(outputs);
  return unpacking(asynchronous(), reduce_scatter(call, mine.flat, flats), outputs.vec(), mine.parts);
}

Work CommBackend::all_reduce_list(const CollectiveCall& call, at::TensorList tensors) {
  if (tensors.size() == 1) return all_reduce(call, tensors[0]);
  const Scope scope;
  const auto packed = Packed::numbers(tensors);
  packed.fill(tensors);
  return unpacking(asynchronous(), all_reduce(call, packed.flat), tensors.vec(), packed.parts);
}

}  // namespace dtensor
