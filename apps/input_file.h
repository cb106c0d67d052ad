// Input files of the examples. Reading a device or a pipe may never end, and each rank reads the file.
#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace input_file {

inline std::string type_text(std::filesystem::file_type type) {
  using Type = std::filesystem::file_type;
  if (type == Type::directory) return "a directory";
  if (type == Type::fifo) return "a pipe";
  if (type == Type::socket) return "a socket";
  return type == Type::character || type == Type::block ? "a device" : "another kind of file";
}

// Opens a regular file. Throws Error with `what`, the path and the reason if it cannot be read.
template <class Error>
std::ifstream open(const std::string& what, const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  const std::string text = what + (what.empty() ? "" : ": ") + "cannot read " + path.string() + ": ";
  if (!std::filesystem::exists(status)) throw Error(text + error.message());
  if (!std::filesystem::is_regular_file(status)) {
    throw Error(text + "expected a regular file, got " + type_text(status.type()));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(text + std::strerror(errno));
  return file;
}

}  // namespace input_file
