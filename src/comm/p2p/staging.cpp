// Decides which tensors are packed or copied before they are sent, and when an all_reduce is one exchange.
#include "comm/p2p/staging.h"

#include "comm/memory/copy.h"
#include "comm/memory/pool/buffer_pool.h"
#include "comm/memory/reduce/reduce.h"
#include "internal/memory_kind.h"

namespace dtensor::p2p {
namespace {

// A tensor of at least this size is a message of its own, since copying it into a common message takes longer. Smaller
// ones are packed: in a benchmark with parts of up to 32 KiB, a step takes 1.06 times as long as hand-written SPMD with
// packing, and 1.10 times without.
constexpr std::size_t kLongTensor = 65536;
// Up to this size an all_reduce is one exchange of all data; above it, each member reduces a slice.
constexpr std::size_t kSmallReduce = 8192;

at::Tensor buffer(at::IntArrayRef sizes, at::ScalarType dtype) {
  const MemoryKindScope kind(MemoryKind::communication);
  return pooled_empty(sizes, dtype);
}

at::Tensor contiguous_buffer(const at::Tensor& t) {
  return t.is_contiguous() && !t.is_conj() && !t.is_neg() ? t : buffer(t.sizes(), t.scalar_type());
}

std::vector<at::Tensor> buffers_like(at::TensorList list) {
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& t : list) buffers.push_back(buffer(t.sizes(), t.scalar_type()));
  return buffers;
}

void copy_unless_same(const at::Tensor& to, const at::Tensor& from) {
  if (!from.is_same(to)) copy_tensor(to, from);
}

std::size_t bytes_of(at::TensorList list) {
  std::size_t bytes = 0;
  for (const at::Tensor& t : list) bytes += t.nbytes();
  return bytes;
}

}  // namespace

Coalesced::Coalesced(at::TensorList list, PackedAs as) {
  short_.reserve(list.size());
  tensors_.reserve(list.size());
  for (const at::Tensor& t : list) (list.size() > 1 && t.nbytes() < kLongTensor ? short_ : tensors_).push_back(t);
  if (short_.empty()) return;
  const MemoryKindScope kind(MemoryKind::communication);
  packed_ = as == PackedAs::bytes ? Packed::bytes(short_) : Packed::numbers(short_);
  tensors_.push_back(packed_.flat);
}

Messages::Messages(at::TensorList list, PackedAs as) : list_(list, as) {
  for (const at::Tensor& t : list_.tensors()) buffers_.push_back(contiguous_buffer(t));
}

void Messages::fill() const {
  list_.pack();
  for (std::size_t k = 0; k < buffers_.size(); ++k) copy_unless_same(buffers_[k], list_.tensors()[k]);
}

void Messages::unpack() const {
  for (std::size_t k = 0; k < buffers_.size(); ++k) copy_unless_same(list_.tensors()[k], buffers_[k]);
  list_.unpack();
}

GatherStaging::GatherStaging(int me, int members, at::TensorList outputs, at::TensorList inputs)
    : sent(inputs, PackedAs::bytes) {
  const std::size_t n = inputs.size();
  for (int i = 0; i < members; ++i) {
    if (i != me) received.emplace_back(outputs.slice(static_cast<std::size_t>(i) * n, n), PackedAs::bytes);
  }
}

ReduceScatterStaging::ReduceScatterStaging(int me, int members, at::TensorList outputs, at::TensorList inputs)
    : sums(outputs, PackedAs::numbers),
      own(inputs.slice(static_cast<std::size_t>(me) * outputs.size(), outputs.size()), PackedAs::numbers) {
  const std::size_t n = outputs.size();
  for (int i = 0; i < members; ++i) {
    if (i == me) continue;
    sent.emplace_back(inputs.slice(static_cast<std::size_t>(i) * n, n), PackedAs::numbers);
    received.push_back(buffers_like(sums.tensors()));
  }
}

AllReduceStaging::AllReduceStaging(int me, int members, at::TensorList tensors)
    : all(tensors, PackedAs::numbers), sliced(bytes_of(tensors) > kSmallReduce) {
  for (int i = 1; i < members; ++i) {
    auto& from = received.emplace_back();
    for (const at::Tensor& flat : all.buffers()) {
      const auto numel = sliced ? reduce_slice_of(flat.numel(), me, members).size() : flat.numel();
      from.push_back(buffer({numel}, flat.scalar_type()));
    }
  }
}

AllToAllStaging::AllToAllStaging(int me, at::TensorList outputs, at::TensorList inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (i == static_cast<std::size_t>(me)) continue;
    sent.emplace_back(inputs[i], PackedAs::bytes);
    received.emplace_back(outputs[i], PackedAs::bytes);
  }
}

void allocate_staging(const CollectiveCall& call, int me, int members, at::TensorList outputs, at::TensorList inputs) {
  switch (call.kind) {
    case CollectiveKind::all_gather:
      return void(GatherStaging(me, members, outputs, inputs));
    case CollectiveKind::reduce_scatter:
      return void(ReduceScatterStaging(me, members, outputs, inputs));
    case CollectiveKind::all_reduce:
      return void(AllReduceStaging(me, members, outputs));
    case CollectiveKind::all_to_all:
      return void(AllToAllStaging(me, outputs, inputs));
    case CollectiveKind::broadcast:
    case CollectiveKind::send:
    case CollectiveKind::recv:
      return void(Messages(outputs.empty() ? inputs : outputs, PackedAs::bytes));
    default:
      return;
  }
}

}  // namespace dtensor::p2p
