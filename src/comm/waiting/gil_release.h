// Around a wait for other ranks: gives up the lock of the language that called, where it set wait hooks.
// Exported for the CUDA library.
#pragma once

#include "dtensor/export.h"

namespace dtensor {

class DTENSOR_API GilRelease {
 public:
  GilRelease();
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  void* held_ = nullptr;
};

}  // namespace dtensor
