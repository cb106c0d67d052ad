// Module paths are interned when a collective starts, since other ranks may read them while this one continues.
#include "comm/record/caller.h"

#include "comm/record/interned_text.h"
#include "scope/module_scope.h"

namespace dtensor {

// Caches the last path, since most calls come from the same module as the call before.
const std::string* interned_module_path(const std::string& path) {
  static thread_local const std::string* last = nullptr;
  if (path.empty()) return nullptr;
  if (last == nullptr || *last != path) last = &interned_string(path);
  return last;
}

const std::string* backward_pass_of(const std::string& module) {
  static const std::string backward = "the backward pass";
  return module.empty() ? &backward : interned_module_path(backward + " of " + module);
}

const std::string* calling_module() {
  const ModuleAndPhase place = current_module_and_phase();
  return place.phase == Phase::forward ? interned_module_path(place.module) : backward_pass_of(place.module);
}

std::string caller_text(const CollectiveCall& call) {
  std::string text;
  if (call.caller != nullptr) text += " for " + *call.caller;
  if (call.module != nullptr) text += " in " + *call.module;
  return text;
}

}  // namespace dtensor
