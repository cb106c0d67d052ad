// The pool of free blocks by size class. It prefers the block of a class that this thread freed last, which is likely
// in its core's cache. If none of the latest few is from this thread, it takes the latest of any thread. Above the
// limit, the oldest blocks return to the system. Each power of two has eight classes, so at most 1/8 of a block is
// unused. Small requests use the C library, which caches them.
#include "comm/memory/pool/buffer_pool.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "comm/memory/pool/available_memory.h"
#include "internal/simulated.h"

namespace dtensor {
namespace {

constexpr std::size_t kSmall = std::size_t{1} << 16;     // smaller blocks use malloc
constexpr std::size_t kHugePage = std::size_t{2} << 20;  // larger blocks are aligned and advised for huge pages
constexpr std::size_t kAlignment = 64;

std::size_t class_size(std::size_t bytes) {
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

std::size_t default_limit(std::size_t processes) {
  return std::min<std::size_t>(available_memory() / 8, std::size_t{4} << 30) / processes;
}

// Returns null if there is no memory.
void* system_block(std::size_t size) {
  const std::size_t alignment = size >= kHugePage ? kHugePage : kAlignment;
  void* block = nullptr;
  if (posix_memalign(&block, alignment, size) != 0) return nullptr;
  if (size >= kHugePage) madvise(block, size, MADV_HUGEPAGE);
  return block;
}

struct Block {
  void* data;
  std::size_t size;
  std::thread::id freeing_thread;
};

class Pool {
 public:
  void* take(std::size_t size) {
    {
      std::lock_guard lock(mutex_);
      if (auto [first, last] = by_size_.equal_range(size); first != last) {
        ++stats_.hits;
        return forget(latest_of_this_thread(first, last));
      }
      ++stats_.misses;
    }
    void* block = system_block(size);
    if (block != nullptr) return block;
    trim();  // cached blocks may be the missing memory
    block = system_block(size);
    TORCH_CHECK(block != nullptr, "out of memory: could not allocate ", size, " bytes");
    return block;
  }

  void give(void* data, std::size_t size) {
    std::lock_guard lock(mutex_);
    blocks_.push_back({data, size, std::this_thread::get_id()});
    by_size_.emplace_hint(by_size_.lower_bound(size), size, std::prev(blocks_.end()));  // first of its size
    stats_.cached_bytes += size;
    shrink(limit_);
  }

  void set_limit(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
    chosen_ = true;
    shrink(limit_);
  }

  void share(std::size_t processes) {
    std::lock_guard lock(mutex_);
    if (chosen_) return;
    limit_ = default_limit(processes);
    shrink(limit_);
  }

  void trim() {
    std::lock_guard lock(mutex_);
    shrink(0);
  }

  MemoryPoolStats stats() {
    std::lock_guard lock(mutex_);
    MemoryPoolStats stats = stats_;
    stats.limit_bytes = limit_;
    return stats;
  }

 private:
  using Blocks = std::list<Block>;  // oldest first
  using Index = std::multimap<std::size_t, Blocks::iterator>;

  // Falls back to the latest block of any thread: the search is bounded, since one thread may free thousands of blocks
  // that others take.
  static Index::iterator latest_of_this_thread(Index::iterator first, Index::iterator last) {
    constexpr int kMaxSearched = 64;
    const auto me = std::this_thread::get_id();
    auto at = first;
    for (int i = 0; i < kMaxSearched && at != last; ++i, ++at) {
      if (at->second->freeing_thread == me) return at;
    }
    return first;
  }

  void* forget(Index::iterator where) {
    const Block block = *where->second;
    blocks_.erase(where->second);
    by_size_.erase(where);
    stats_.cached_bytes -= block.size;
    return block.data;
  }

  void shrink(std::size_t limit) {
    while (stats_.cached_bytes > limit) {
      // The oldest block of all is the oldest of its class.
      std::free(forget(std::prev(by_size_.upper_bound(blocks_.front().size))));
    }
  }

  std::mutex mutex_;
  Blocks blocks_;
  Index by_size_;
  std::size_t limit_ = default_limit(1);
  bool chosen_ = false;  // whether the program has set the limit
  MemoryPoolStats stats_;
};

// Never destroyed: tensors may be freed after main.
Pool& pool() {
  static auto* the_pool = new Pool;
  return *the_pool;
}

// Precedes each block, with the data for the deleter. Keeps the data aligned.
struct alignas(kAlignment) Header {
  std::size_t size, bytes;  // size of the block, and requested bytes
};

// Reports like ATen's own allocator.
void report_to_profiler(void* data, std::int64_t change) {
  if (c10::memoryProfilingEnabled()) c10::reportMemoryUsageToProfiler(data, change, 0, 0, c10::Device(c10::kCPU));
}

void* small_block(std::size_t size) {
  void* block = system_block(size);
  TORCH_CHECK(block != nullptr, "out of memory: could not allocate ", size, " bytes");
  return block;
}

void* allocate_block(std::size_t bytes) {
  const std::size_t needed = bytes + sizeof(Header);
  const std::size_t size = needed < kSmall ? needed : class_size(needed);
  void* block = size < kSmall ? small_block(size) : pool().take(size);
  *static_cast<Header*>(block) = {size, bytes};
  void* data = static_cast<char*>(block) + sizeof(Header);
  report_to_profiler(data, static_cast<std::int64_t>(bytes));
  return data;
}

void free_block(void* data) {
  if (data == nullptr) return;
  void* block = static_cast<char*>(data) - sizeof(Header);
  const auto [size, bytes] = *static_cast<Header*>(block);
  report_to_profiler(data, -static_cast<std::int64_t>(bytes));
  size < kSmall ? std::free(block) : pool().give(block, size);
}

class PoolAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_block, at::kCPU};
    void* data = allocate_block(bytes);
    return {data, data, &free_block, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

PoolAllocator* allocator() {
  static auto* the_allocator = new PoolAllocator;
  return the_allocator;
}

}  // namespace

at::Tensor pooled_empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  std::int64_t bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  for (auto size : sizes) {
    TORCH_CHECK(size >= 0, "pooled_empty: a negative size in ", sizes);
    TORCH_CHECK(!__builtin_mul_overflow(bytes, size, &bytes), "pooled_empty: too many bytes for sizes ", sizes);
  }
  if (is_simulating() && should_simulate(dtype, bytes)) {
    return simulated_empty_strided(sizes, c10::contiguous_strides(sizes), dtype);
  }
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocator()->allocate(static_cast<std::size_t>(bytes)),
                                                       allocator(), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

void share_pool_limit(int processes) { pool().share(static_cast<std::size_t>(std::max(processes, 1))); }

MemoryPoolStats memory_pool_stats() { return pool().stats(); }
void set_memory_pool_limit(std::size_t bytes) { pool().set_limit(bytes); }
void empty_memory_pool() { pool().trim(); }

}  // namespace dtensor
