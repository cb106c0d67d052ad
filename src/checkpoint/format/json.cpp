// Limits of the parser, and readable errors.
#include "checkpoint/format/json.h"

#include <c10/util/Exception.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace dtensor::files {
namespace {

constexpr int kMaxDepth = 127;

}  // namespace

// nlohmann's parser does not recurse, so only the depth of the result must be limited. It treats NUL as the end and
// skips a byte order mark, both of which files must not contain.
nlohmann::json parse_json(const std::string& text, const std::string& path, const UniqueKeyCheck& once) {
  TORCH_CHECK(text.find('\0') == std::string::npos && !text.starts_with("\xEF\xBB\xBF"), path,
              " is damaged: its JSON contains a NUL byte or a byte order mark");
  std::array<std::set<std::string>, 2> seen;  // keys of the open objects
  const auto look = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    const bool begins = event == Event::object_start || event == Event::array_start;
    TORCH_CHECK(!begins || depth < kMaxDepth, path, " is damaged: its JSON is nested deeper than ", kMaxDepth);
    if (!once || depth > 2) return true;
    if (event == Event::object_start && depth < 2) seen.at(static_cast<std::size_t>(depth)).clear();
    if (event == Event::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      const bool again = once(depth, name) && !seen.at(static_cast<std::size_t>(depth) - 1).insert(name).second;
      TORCH_CHECK(!again, path, " is damaged: '", name, "' is a duplicate key");
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, look);
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK(false, path, " is damaged: ", error.what());
  }
}

std::string excerpt(const nlohmann::json& json) {
  constexpr std::size_t kMost = 80;
  if (json.is_structured() && json.size() > kMost) return json.is_array() ? "a long list" : "a large object";
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

const nlohmann::json& member(const nlohmann::json& json, const char* name, const std::string& path,
                             const std::string& what) {
  TORCH_CHECK(json.is_object() && json.contains(name), path, " is damaged: ", what, " has no '", name, "'");
  return json.at(name);
}

std::int64_t non_negative_integer(const nlohmann::json& json, const std::string& path, const std::string& what) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  TORCH_CHECK(json.is_number_unsigned() && json.get<std::uint64_t>() <= kMost, path, " is damaged: ", what, " is ",
              excerpt(json), "; expected an integer of at least 0 and at most ", kMost);
  return json.get<std::int64_t>();
}

const std::string& string_value(const nlohmann::json& json, const std::string& path, const std::string& what) {
  TORCH_CHECK(json.is_string(), path, " is damaged: ", what, " is ", excerpt(json), "; expected a string");
  return json.get_ref<const std::string&>();
}

}  // namespace dtensor::files
