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

std::int64_t aligned(std::int64_t bytes, std::int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

void copy_part(const at::Tensor& to, const at::Tensor& from) {
  if (to.numel() == 0) return;
  to.is_cpu() ? copy_tensor(to, from) : static_cast<void>(to.copy_(from));
}

at::Tensor buffer_for(std::int64_t numel, const at::Tensor& like, at::ScalarType dtype) {
  if (like.is_cpu()) return pooled_empty({numel}, dtype);
  return at::empty({numel}, at::TensorOptions(dtype).device(like.device()));
}

// Tensors of a list one after the other in one flat tensor: of bytes, where their dtypes may differ, or of numbers that
// can be reduced. What lies in one block is copied without a tensor that stands for its place: a list has dozens of
// entries, and a view costs as much as copying a few kilobytes.
struct Packed {
  at::Tensor flat;
  std::vector<std::int64_t> offsets;  // in bytes

  static Packed bytes(at::TensorList list) { return make(list, at::kByte, kAlignment); }
  static Packed numbers(at::TensorList list) { return make(list, list[0].scalar_type(), 1); }

  void fill(at::TensorList list) const {
    for (std::size_t k = 0; k < list.size(); ++k) {
      is_block(list[k]) ? copy_bytes(place(k), list[k].const_data_ptr(), list[k].nbytes())
                        : copy_part(part(k, list[k]), list[k]);
    }
  }

  void unpack(at::TensorList list) const {
    for (std::size_t k = 0; k < list.size(); ++k) {
      is_block(list[k]) ? copy_bytes(list[k].data_ptr(), place(k), list[k].nbytes())
                        : copy_part(list[k], part(k, list[k]));
    }
  }

 private:
  static Packed make(at::TensorList list, at::ScalarType dtype, std::int64_t alignment) {
    Packed packed;
    std::int64_t total = 0;
    for (const auto& t : list) {
      packed.offsets.push_back(total);
      total += aligned(static_cast<std::int64_t>(t.nbytes()), alignment);
    }
    packed.flat = buffer_for(total / static_cast<std::int64_t>(c10::elementSize(dtype)), list[0], dtype);
    return packed;
  }

  bool is_block(const at::Tensor& t) const {
    const bool same = flat.scalar_type() == at::kByte || t.scalar_type() == flat.scalar_type();
    return same && t.is_cpu() && t.numel() > 0 && t.is_contiguous() && !t.is_conj() && !t.is_neg();
  }

  char* place(std::size_t k) const { return static_cast<char*>(flat.data_ptr()) + offsets[k]; }

  at::Tensor part(std::size_t k, const at::Tensor& like) const {
    const auto element = static_cast<std::int64_t>(flat.element_size());
    const auto bytes = static_cast<std::int64_t>(like.nbytes());
    const at::Tensor own = flat.narrow(0, offsets[k] / element, bytes / element);
    return (flat.scalar_type() == at::kByte ? own.view(like.scalar_type()) : own).view(like.sizes());
  }
};

// What has to be copied once the collective is over.
struct Unpacking {
  std::vector<at::Tensor> to;
  Packed from;
};

class UnpackingWork final : public Work::Impl {
 public:
  UnpackingWork(Work work, std::vector<Unpacking> rest) : work_(std::move(work)), rest_(std::move(rest)) {}
  void wait() override {
    work_.wait();
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const auto& [to, from] : std::exchange(rest_, {})) from.unpack(to);
  }
  bool done() override { return rest_.empty() && work_.done(); }

 private:
  Work work_;
  std::vector<Unpacking> rest_;
};

// Unpacks at once where the collective is over.
Work unpacking(bool later, Work work, std::vector<Unpacking> rest) {
  auto impl = std::make_shared<UnpackingWork>(std::move(work), std::move(rest));
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
  std::vector<at::Tensor> flats;
  std::vector<Unpacking> rest;
  for (int i = 0; i < size(); ++i) {
    const auto theirs = outputs.slice(static_cast<std::size_t>(i) * n, n);
    if (i == rank()) {
      for (std::size_t k = 0; k < n; ++k) copy_part(theirs[k], inputs[k]);
      flats.push_back(mine.flat);  // already in place
      continue;
    }
    rest.push_back({theirs.vec(), Packed::bytes(theirs)});
    flats.push_back(rest.back().from.flat);
  }
  return unpacking(asynchronous(), all_gather(flat_call, flats, mine.flat), std::move(rest));
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
  return unpacking(asynchronous(), reduce_scatter(call, mine.flat, flats), {{outputs.vec(), mine}});
}

Work CommBackend::all_reduce_list(const CollectiveCall& call, at::TensorList tensors) {
  if (tensors.size() == 1) return all_reduce(call, tensors[0]);
  const Scope scope;
  const auto packed = Packed::numbers(tensors);
  packed.fill(tensors);
  return unpacking(asynchronous(), all_reduce(call, packed.flat), {{tensors.vec(), packed}});
}

}  // namespace dtensor
