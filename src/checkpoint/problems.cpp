// One error for all that does not fit.
#include "checkpoint/problems.h"

#include <c10/util/Exception.h>

#include "checkpoint/collective_errors.h"
#include "names/names.h"

namespace dtensor::files {
namespace {

constexpr std::size_t kShown = 20;  // of each kind

std::string with_nearest(const std::string& name, const std::vector<std::string>& names) {
  const auto nearest = nearest_names(name, names, 1);
  return "'" + name + "'" + (nearest.empty() ? "" : " (nearest: '" + nearest[0] + "')");
}

std::string list(const char* title, const std::vector<std::string>& names, const std::vector<std::string>* others) {
  if (names.empty()) return "";
  std::string text = std::string("\n  ") + title + ": ";
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + (others != nullptr ? with_nearest(names[i], *others) : names[i]);
  }
  if (names.size() > kShown) text += ", and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

}  // namespace

std::string Problems::str() const {
  return list("missing in the checkpoint", missing, &there) +
         list("in the checkpoint but not asked for", unexpected, &here) + list("of another kind", mismatched, nullptr);
}

void Problems::raise(const Communicator& ranks, const std::string& what) const {
  const std::string text = errors_of_all(ranks, str());
  TORCH_CHECK_VALUE(text.empty(), what, ":", text.starts_with("\n") ? "" : " ", text);
}

}  // namespace dtensor::files
