// Tensors without memory, of which a dry run consists (docs/design/dry_run.md). They are CPU tensors whose storage
// knows its size only; reading their data is an error. Allocators report them as ATen's report memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

#include "dtensor/export.h"

namespace dtensor {

// A dry run includes this dispatch key on its threads, so that its fallback (dry_run/operators.cpp) receives every
// call. Tensors do not have the key. LibTorch defines it for fake tensors and registers no kernel for it.
inline constexpr auto kSimulatedKey = c10::DispatchKey::Fake;

// Whether this thread runs a dry run.
inline bool is_simulating() { return c10::impl::tls_local_dispatch_key_set().included_.has(kSimulatedKey); }

// The deleter of a simulated storage's DataPtr. Its address also identifies such a storage (is_simulated).
DTENSOR_API void release_simulated_block(void* block);

// Whether the tensor's values do not exist.
inline bool is_simulated(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  return storage->_mutable_data_ptr_no_checks().get_deleter() == &release_simulated_block;
}

// What identifies the memory of a tensor in reports: its address, or that of the block which stands for it.
const void* reported_address(const at::Tensor& tensor);

// Memory of a dry run. Small tensors are real, so that programs can fill and read numbers, sizes and indices; so are
// integers up to a larger size, such as the token ids of a batch.
bool should_simulate(at::ScalarType dtype, std::int64_t bytes);
at::Tensor simulated_empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

// The values of a real tensor, and of all that share its memory, exist no longer: an operator has written unknown ones.
void forget_values(const at::Tensor& tensor);

// The size of the storage changes if it is too small for `bytes`.
void grow_simulated_storage(c10::StorageImpl& storage, std::size_t bytes);

// a.is_alias_of(b), which reads data pointers.
inline bool shares_storage(const at::Tensor& a, const at::Tensor& b) {
  if (!is_simulated(a) && !is_simulated(b)) return a.is_alias_of(b);
  return a.has_storage() && b.has_storage() && a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// tensor.item<T>(), or `assumed` if the value does not exist. For decisions of the library that a dry run makes as a
// usual training step does.
template <class T>
T item_or(const at::Tensor& tensor, T assumed) {
  return is_simulated(tensor) ? assumed : tensor.item<T>();
}

}  // namespace dtensor
