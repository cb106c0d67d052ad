// Releases the caller's language lock (the GIL) during a wait for other ranks, if a binding has set hooks. Exported
// for the CUDA library.
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
