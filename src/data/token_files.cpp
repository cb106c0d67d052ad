// Reads token files by position. They are not memory-mapped, because truncation of a mapped file ends the process with
// SIGBUS. The operating system caches reads in both cases.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "dtensor/data.h"

namespace dtensor {
namespace {

std::int64_t bytes_of(TokenFiles::Dtype dtype) { return dtype == TokenFiles::Dtype::uint16 ? 2 : 4; }

// One file, with the tokens [first, first + count) of the stream.
struct File {
  std::string path;
  int descriptor = -1;
  std::int64_t first = 0, count = 0;
};

File open_file(const std::string& path, TokenFiles::Dtype dtype, std::int64_t first) {
  // O_NONBLOCK: opening a pipe would block until it has a writer. The check below then refuses the pipe.
  File file{path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), first, 0};
  TORCH_CHECK(file.descriptor >= 0, "TokenFiles: ", path, ": ", std::strerror(errno));
  struct stat status {};
  const bool regular = ::fstat(file.descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const std::int64_t bytes = regular ? status.st_size : 0;
  if (!regular || bytes % bytes_of(dtype) != 0) ::close(file.descriptor);
  TORCH_CHECK(regular, "TokenFiles: ", path, " is not a regular file");
  TORCH_CHECK(bytes % bytes_of(dtype) == 0, "TokenFiles: expected a multiple of ", bytes_of(dtype), " bytes in ", path,
              ", got ", bytes, " bytes");
  file.count = bytes / bytes_of(dtype);
  return file;
}

template <class Stored>
void widen(const std::vector<char>& bytes, std::int64_t count, std::int64_t* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    Stored token;
    std::memcpy(&token, bytes.data() + i * static_cast<std::int64_t>(sizeof(Stored)), sizeof(Stored));
    to[i] = static_cast<std::int64_t>(token);
  }
}

// A name that is unique among the writers of the file: threads, processes and hosts.
std::string temporary_beside(const std::string& path) {
  static std::atomic<unsigned> written{0};
  std::random_device random;
  return path + "." + std::to_string(::getpid()) + "." + std::to_string(++written) + "." + std::to_string(random()) +
         ".part";
}

}  // namespace

struct TokenFiles::State {
  TokenFiles::Dtype dtype = TokenFiles::Dtype::uint16;
  std::vector<File> files;
  std::int64_t size = 0;
  std::atomic<std::int64_t> tokens_read{0};

  ~State() {
    for (const File& file : files) ::close(file.descriptor);
  }

  void read(const File& file, std::int64_t first, std::int64_t count, std::int64_t* to) const {
    std::vector<char> bytes(static_cast<std::size_t>(count * bytes_of(dtype)));
    for (std::size_t at = 0; at < bytes.size();) {
      const auto offset = static_cast<off_t>((first - file.first) * bytes_of(dtype)) + static_cast<off_t>(at);
      const ssize_t n = ::pread(file.descriptor, bytes.data() + at, bytes.size() - at, offset);
      if (n < 0 && errno == EINTR) continue;
      TORCH_CHECK(n >= 0, "TokenFiles: ", file.path, ": ", std::strerror(errno));
      TORCH_CHECK(n > 0, "TokenFiles: ", file.path, " ends at byte ", offset, ": it was truncated after it was opened");
      at += static_cast<std::size_t>(n);
    }
    dtype == TokenFiles::Dtype::uint16 ? widen<std::uint16_t>(bytes, count, to)
                                       : widen<std::uint32_t>(bytes, count, to);
  }
};

TokenFiles::TokenFiles(const std::vector<std::string>& paths, TokenFiles::Dtype dtype)
    : state_(std::make_shared<State>()) {
  state_->dtype = dtype;
  for (const auto& path : paths) {
    state_->files.push_back(open_file(path, dtype, state_->size));
    state_->size += state_->files.back().count;
  }
}

TokenFiles::State& TokenFiles::state() const {
  TORCH_CHECK(state_ != nullptr, "TokenFiles: used after it was moved from");
  return *state_;
}

std::int64_t TokenFiles::size() const { return state().size; }
std::int64_t TokenFiles::tokens_read() const { return state().tokens_read; }

void TokenFiles::read(std::int64_t first, std::int64_t count, std::int64_t* to) const {
  TORCH_CHECK(first >= 0 && count >= 0 && first <= size() - count, "TokenFiles: expected a range within [0, ", size(),
              "), got [", first, ", ", first + count, ")");
  state().tokens_read += count;
  for (const File& file : state().files) {
    const std::int64_t from = std::max(first, file.first), end = std::min(first + count, file.first + file.count);
    if (from < end) state().read(file, from, end - from, to + (from - first));
  }
}

void write_token_file(const std::string& path, c10::IntArrayRef tokens, TokenFiles::Dtype dtype) {
  const std::int64_t most = dtype == TokenFiles::Dtype::uint16 ? std::numeric_limits<std::uint16_t>::max()
                                                               : std::numeric_limits<std::uint32_t>::max();
  for (const std::int64_t token : tokens) {
    TORCH_CHECK(token >= 0 && token <= most, "write_token_file: token ", token, " is not in [0, ", most, "]");
  }
  // Writes a temporary file and renames it, so an existing file stays unchanged on failure. Devices and pipes are
  // written directly.
  std::error_code unknown;
  const bool direct = std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown);
  const std::string temporary = direct ? path : temporary_beside(path);
  std::ofstream out(temporary, std::ios::binary);
  for (const std::int64_t token : tokens) {
    const auto word = static_cast<std::uint32_t>(token);
    const auto half = static_cast<std::uint16_t>(token);
    if (dtype == TokenFiles::Dtype::uint16) {
      out.write(reinterpret_cast<const char*>(&half), sizeof half);
    } else {
      out.write(reinterpret_cast<const char*>(&word), sizeof word);
    }
  }
  out.close();
  const bool written = out && (direct || std::rename(temporary.c_str(), path.c_str()) == 0);
  if (!written && !direct) ::unlink(temporary.c_str());
  TORCH_CHECK(written, "write_token_file: cannot write ", path);
}

}  // namespace dtensor
