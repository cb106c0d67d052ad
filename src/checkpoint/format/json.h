// Parses untrusted JSON: as strict as the format's reference (Rust's serde_json), and with a depth limit that prevents
// stack overflows.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dtensor::files {

// Throws an error with `path` if `text` is not JSON, contains a byte order mark or NUL, or is nested deeper than 127.
// Of duplicate keys the last one is used. Duplicates are an error where `once` returns true, for keys of the outermost
// object (depth 1) and of objects in it (depth 2).
using UniqueKeyCheck = std::function<bool(int depth, const std::string& name)>;
nlohmann::json parse_json(const std::string& text, const std::string& path, const UniqueKeyCheck& once = {});

// The member with this name; throws an error with `path` and `what` if it is missing.
const nlohmann::json& member(const nlohmann::json& json, const char* name, const std::string& path,
                             const std::string& what);
// An integer in [0, 2^63 - 1].
std::int64_t non_negative_integer(const nlohmann::json& json, const std::string& path, const std::string& what);
const std::string& string_value(const nlohmann::json& json, const std::string& path, const std::string& what);
// The JSON text, truncated to 80 characters for error messages.
std::string excerpt(const nlohmann::json& json);

}  // namespace dtensor::files
