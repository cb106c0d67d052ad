// The wait hooks: set once by a language binding, null in C++ programs.
#include "comm/waiting/gil_release.h"

#include "internal/ranks/gil_hooks.h"

namespace dtensor {
namespace {

GilReleaseHooks hooks;

}  // namespace

void set_gil_release_hooks(GilReleaseHooks wanted) { hooks = wanted; }

GilRelease::GilRelease() {
  if (hooks.release != nullptr) held_ = hooks.release();
}

GilRelease::~GilRelease() {
  if (held_ != nullptr) hooks.reacquire(held_);
}

}  // namespace dtensor
