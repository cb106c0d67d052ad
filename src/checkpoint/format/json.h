// JSON from files that anybody may have written: as strict as the format's reference (Rust's serde_json), and never
// deeper than its limit, so that no input overflows a stack.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dtensor::files {

// Throws with `path` in the message where `text` is no JSON, has a byte order mark or a NUL, or is nested deeper than
// 127. Of equal names in an object the last counts; where `once` says so of one in the outermost object (depth 1) or in
// one that this holds (depth 2), a second one is an error.
using UniqueKeyCheck = std::function<bool(int depth, const std::string& name)>;
nlohmann::json parse_json(const std::string& text, const std::string& path, const UniqueKeyCheck& once = {});

// The member of that name; throws a sentence with `path` and `what` where there is none.
const nlohmann::json& member(const nlohmann::json& json, const char* name, const std::string& path,
                             const std::string& what);
// A whole number from 0 to 2^63 - 1, written as one.
std::int64_t non_negative_integer(const nlohmann::json& json, const std::string& path, const std::string& what);
const std::string& string_value(const nlohmann::json& json, const std::string& path, const std::string& what);
// At most 80 characters of it, for messages.
std::string excerpt(const nlohmann::json& json);

}  // namespace dtensor::files
