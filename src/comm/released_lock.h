// Around a wait for other ranks: gives up the lock of the language that called, where it set wait hooks.
// Exported for the CUDA library.
#pragma once

#include "dtensor/export.h"

namespace dtensor {

class DTENSOR_API ReleasedLock {
 public:
  ReleasedLock();
  ~ReleasedLock();
  ReleasedLock(const ReleasedLock&) = delete;
  ReleasedLock& operator=(const ReleasedLock&) = delete;

 private:
  void* held_ = nullptr;
};

}  // namespace dtensor
