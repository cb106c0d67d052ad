// The table of local kernels by name. Filled once by explicit calls (ops/handlers/all.cpp), read afterwards; a rule
// that names a kernel which nobody registered is an error that lists the name.
#include "ops/local_call.h"

#include <map>
#include <mutex>
#include <string>

namespace dtensor {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, LocalKernel, std::less<>> kernels;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

void register_local_kernel(std::string_view name, LocalKernel kernel) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto [entry, fresh] = registry().kernels.emplace(std::string(name), kernel);
  TORCH_CHECK(fresh || entry->second == kernel, "local kernel '", name, "' is registered twice");
}

LocalKernel find_local_kernel(std::string_view name) {
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto entry = registry().kernels.find(name);
  TORCH_CHECK(entry != registry().kernels.end(), "no local kernel is named '", name, "'");
  return entry->second;
}

}  // namespace dtensor
