// An allocator of blocks [header, guard, tensor, guard].
#include "fuzz/guard.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

namespace dtensor::fuzz {
namespace {

constexpr std::size_t kSpace = 4096;

struct Header {
  std::size_t bytes;  // Of the tensor.
  unsigned char fill;
};
constexpr std::size_t kFront = 64 + kSpace;
static_assert(sizeof(Header) <= 64);

std::atomic<unsigned char> fill{0};
std::atomic<bool> damaged{false};
std::mutex mutex;
std::set<char*>& live() {  // Blocks that were not checked yet.
  static auto& blocks = *new std::set<char*>();
  return blocks;
}

bool holds_only(const char* space, unsigned char byte) {
  return static_cast<unsigned char>(space[0]) == byte && std::memcmp(space, space + 1, kSpace - 1) == 0;
}

void look_at(const char* block) {
  const auto& header = *reinterpret_cast<const Header*>(block);
  const char* front = block + kFront - kSpace;
  if (!holds_only(front, header.fill) || !holds_only(block + kFront + header.bytes, header.fill)) damaged = true;
}

void release(void* data) {
  char* block = static_cast<char*>(data) - kFront;
  look_at(block);
  {
    const std::lock_guard lock(mutex);
    live().erase(block);
  }
  std::free(block);
}

struct GuardedAllocator : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const std::size_t all = (kFront + bytes + kSpace + 63) / 64 * 64;
    auto* block = static_cast<char*>(std::aligned_alloc(64, all));
    TORCH_CHECK(block != nullptr, "cannot allocate ", bytes, " bytes");
    std::memset(block, fill, all);
    new (block) Header{bytes, fill};
    const std::lock_guard lock(mutex);
    live().insert(block);
    return {block + kFront, block + kFront, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void guard_memory() {
  static GuardedAllocator allocator;
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, 100);
}

void fill_memory_with(unsigned char byte) { fill = byte; }

bool wrote_out_of_bounds() {
  const std::lock_guard lock(mutex);
  for (const char* block : live()) look_at(block);
  live().clear();
  return damaged.exchange(false);
}

}  // namespace dtensor::fuzz
