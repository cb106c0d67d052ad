// The table is never destroyed: records may be written during static destruction.
#include "comm/record/interned_text.h"

#include <mutex>
#include <unordered_set>

namespace dtensor {
namespace {

constexpr std::size_t kMaxStrings = 8192;

struct Table {
  std::mutex mutex;
  std::unordered_set<std::string> texts;
};

Table& table() {
  static auto* the_table = new Table;
  return *the_table;
}

}  // namespace

const std::string& interned_string(const std::string& text) {
  static const auto& other = *new std::string("(string table full)");
  auto& [mutex, texts] = table();
  const std::lock_guard lock(mutex);
  if (const auto it = texts.find(text); it != texts.end()) return *it;
  return texts.size() < kMaxStrings ? *texts.insert(text).first : other;
}

std::size_t interned_string_count() {
  auto& [mutex, texts] = table();
  const std::lock_guard lock(mutex);
  return texts.size();
}

}  // namespace dtensor
