// A free list for the objects that every operator creates.
#pragma once

#include <c10/macros/Macros.h>

#include <cstddef>
#include <new>

namespace dtensor {

// A free list of blocks of one size for this thread, so that a result needs no call of malloc. It keeps at most
// kMaxFreeBlocks and frees them when the thread ends. With sanitizers it keeps none, so that they see each allocation.
class FreeListAllocator {
 public:
  static constexpr std::size_t kMaxFreeBlocks = 256;

  void* allocate(std::size_t size) {
    auto* block = first_;
    if (C10_UNLIKELY(block == nullptr)) return ::operator new(size);
    first_ = block->next;
    --count_;
    return block;
  }

  void deallocate(void* memory) {
    if (C10_UNLIKELY(count_ >= most_) && !begin()) return ::operator delete(memory);
    first_ = new (memory) Block{first_};
    ++count_;
  }

  std::size_t count() const { return count_; }

 private:
  struct Block {
    Block* next;
  };

  bool begin();
  void end();

  Block* first_ = nullptr;
  std::size_t count_ = 0;
  std::size_t most_ = 0;  // 0: nothing was freed yet, or the thread is ending
  bool begun_ = false;
};

}  // namespace dtensor
