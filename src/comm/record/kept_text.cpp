// A set that is never destroyed: records may be written while statics are torn down.
#include "comm/record/kept_text.h"

#include <mutex>
#include <unordered_set>

namespace dtensor {
namespace {

constexpr std::size_t kMostTexts = 8192;

struct Table {
  std::mutex mutex;
  std::unordered_set<std::string> texts;
};

Table& table() {
  static auto* the_table = new Table;
  return *the_table;
}

}  // namespace

const std::string& kept_text(const std::string& text) {
  static const auto& other = *new std::string("(one of many)");
  auto& [mutex, texts] = table();
  const std::lock_guard lock(mutex);
  if (const auto it = texts.find(text); it != texts.end()) return *it;
  return texts.size() < kMostTexts ? *texts.insert(text).first : other;
}

std::size_t kept_texts() {
  auto& [mutex, texts] = table();
  const std::lock_guard lock(mutex);
  return texts.size();
}

}  // namespace dtensor
