// Formats all mismatches as one error.
#include "checkpoint/mismatches.h"

#include <c10/util/Exception.h>

#include "checkpoint/collective_errors.h"
#include "name_patterns/name_patterns.h"

namespace dtensor::files {
namespace {

constexpr std::size_t kShown = 20;  // entries per list

std::string with_suggestions(const std::string& name, const std::vector<std::string>& names) {
  const auto nearest = closest_names(name, names, 1);
  return "'" + name + "'" + (nearest.empty() ? "" : " (nearest: '" + nearest[0] + "')");
}

std::string list(const char* title, const std::vector<std::string>& names, const std::vector<std::string>* others) {
  if (names.empty()) return "";
  std::string text = std::string("\n  ") + title + ": ";
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + (others != nullptr ? with_suggestions(names[i], *others) : names[i]);
  }
  if (names.size() > kShown) text += ", and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

}  // namespace

std::string LoadProblems::str() const {
  return list("missing in the checkpoint", missing, &available) +
         list("in the checkpoint but not requested", unexpected, &requested) + list("mismatched", mismatched, nullptr);
}

void LoadProblems::raise(const Communicator& ranks, const std::string& what) const {
  const std::string text = gather_errors(ranks, str());
  TORCH_CHECK_VALUE(text.empty(), what, ":", text.starts_with("\n") ? "" : " ", text);
}

}  // namespace dtensor::files
