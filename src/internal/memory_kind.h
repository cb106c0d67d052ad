// Declares what memory is used for, for MemoryTimeline.
#pragma once

#include <ATen/core/Tensor.h>

#include "dtensor/debug.h"

namespace dtensor {

// During its lifetime, memory that this thread allocates is of this kind.
class DTENSOR_API MemoryKindScope {
 public:
  explicit MemoryKindScope(MemoryKind kind);
  ~MemoryKindScope();
  MemoryKindScope(const MemoryKindScope&) = delete;
  MemoryKindScope& operator=(const MemoryKindScope&) = delete;

  static MemoryKind current();  // activation outside of any scope

 private:
  MemoryKind outer_;
};

// Memory reports of a thread that distinguish kinds. A block is identified as in reports.
class DTENSOR_API MemoryKindListener {
 public:
  virtual ~MemoryKindListener() = default;
  virtual void set_kind(const void* block, MemoryKind kind) = 0;
};

// The memory of a local tensor is of this kind from now on, whatever the scope of its allocation. Costs one test
// without a listener.
DTENSOR_API void set_memory_kind(const at::Tensor& local, MemoryKind kind);

}  // namespace dtensor
