// Storages of a dry run.
#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include "internal/simulated.h"

namespace dtensor {
namespace {

constexpr std::int64_t kRealBytes = 4096;
constexpr std::int64_t kRealIntegerBytes = std::int64_t{16} << 20;

// The context of a storage's DataPtr.
struct SimulatedBlock {
  std::int64_t bytes = 0;  // as reported
  c10::DataPtr former;     // memory whose values exist no longer, to which the program may have pointers
};

void report(SimulatedBlock* block, std::int64_t change) {
  if (c10::memoryProfilingEnabled()) c10::reportMemoryUsageToProfiler(block, change, 0, 0, c10::Device(c10::kCPU));
}

class SimulatedAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    auto* block = new SimulatedBlock{static_cast<std::int64_t>(bytes), {}};
    if (bytes > 0) report(block, block->bytes);
    return {nullptr, block, &release_simulated_block, at::kCPU};
  }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}
};

SimulatedAllocator* allocator() {
  static auto* the_allocator = new SimulatedAllocator;
  return the_allocator;
}

void refuse_reads(c10::StorageImpl& storage) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "a dry run computes sizes, not values, and the program reads the values of a tensor (data_ptr, accessors, "
      "printing). Skip this where dtensor::is_dry_run() is true, or use a tensor of at most 4096 bytes (integers other "
      "than uint8: 16 MiB), which stays real");
}

}  // namespace

void release_simulated_block(void* context) {
  auto* block = static_cast<SimulatedBlock*>(context);
  if (block->bytes > 0) report(block, -block->bytes);
  delete block;
}

const void* reported_address(const at::Tensor& tensor) {
  const auto& memory = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (!is_simulated(tensor)) return memory.get();
  const auto* block = static_cast<const SimulatedBlock*>(memory.get_context());
  return block->former ? block->former.get() : block;
}

bool should_simulate(at::ScalarType dtype, std::int64_t bytes) {
  const bool readable = at::isIntegralType(dtype, /*includeBool=*/true) && dtype != at::kByte;
  return bytes > (readable ? kRealIntegerBytes : kRealBytes);
}

at::Tensor simulated_empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  const auto bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocator()->allocate(bytes), allocator(), /*resizable=*/true);
  refuse_reads(*storage);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void forget_values(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || is_simulated(tensor)) return;
  auto& storage = *tensor.storage().unsafeGetStorageImpl();
  auto* block = new SimulatedBlock{0, std::move(storage._mutable_data_ptr_no_checks())};
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, block, &release_simulated_block, at::kCPU));
  refuse_reads(storage);
}

void grow_simulated_storage(c10::StorageImpl& storage, std::size_t bytes) {
  if (bytes <= storage.nbytes()) return;
  storage.set_data_ptr_noswap(allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
}

}  // namespace dtensor
