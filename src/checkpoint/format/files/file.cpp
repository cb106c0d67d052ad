// Byte ranges of files with pread and pwrite.
#include "checkpoint/format/files/file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace dtensor::files {
namespace {

int checked_open(const std::string& path, int flags, const char* what) {
  int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno == EPERM && (flags & O_NOATIME) != 0) {  // O_NOATIME is allowed for the owner only
    descriptor = ::open(path.c_str(), (flags & ~O_NOATIME) | O_CLOEXEC);
  }
  TORCH_CHECK(descriptor >= 0, "cannot ", what, " ", path, ": ", std::strerror(errno));
  return descriptor;
}

}  // namespace

File::File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File File::create(const std::string& path, std::int64_t size) {
  rlimit limit{};
  ::getrlimit(RLIMIT_FSIZE, &limit);  // exceeding it raises SIGXFSZ
  TORCH_CHECK(static_cast<std::uint64_t>(size) <= limit.rlim_cur, "cannot resize ", path, " to ", size,
              " bytes: files are limited to ", limit.rlim_cur, " (ulimit -f)");
  File file(path, checked_open(path, O_RDWR | O_CREAT | O_TRUNC, "create"));
  TORCH_CHECK(::ftruncate(file.descriptor_, size) == 0, "cannot resize ", path, " to ", size,
              " bytes: ", std::strerror(errno));
  const bool full = size > 0 && ::fallocate(file.descriptor_, 0, 0, size) != 0 &&
                    (errno == ENOSPC || errno == EDQUOT || errno == EFBIG);
  TORCH_CHECK(!full, "cannot resize ", path, " to ", size, " bytes: ", std::strerror(errno));
  return file;
}

File File::open_to_write(const std::string& path) { return {path, checked_open(path, O_WRONLY, "write")}; }

// O_NONBLOCK: does not wait for a writer if the path is a pipe. O_NOATIME: does not update access times, which would
// cost a quarter of a short read.
File File::open_to_read(const std::string& path) {
  File file(path, checked_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOATIME, "read"));
  file.size();
  return file;
}

void File::write(const void* data, std::int64_t bytes, std::int64_t offset) const {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pwrite(descriptor_, from, static_cast<std::size_t>(bytes), offset);
    if (done < 0 && errno == EINTR) continue;
    TORCH_CHECK(done > 0, "cannot write ", bytes, " bytes at ", offset, " of ", path_, ": ",
                done == 0 ? "no bytes were written" : std::strerror(errno));
    from += done, offset += done, bytes -= done;
  }
}

void File::read(void* data, std::int64_t bytes, std::int64_t offset) const {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), offset);
    if (done < 0 && errno == EINTR) continue;
    TORCH_CHECK(done >= 0, "cannot read ", path_, ": ", std::strerror(errno));
    TORCH_CHECK(done > 0, path_, " is truncated: it ends at byte ", offset, ", ", bytes, " short");
    to += done, offset += done, bytes -= done;
  }
}

std::int64_t File::size() const {
  struct stat status {};
  TORCH_CHECK(::fstat(descriptor_, &status) == 0, "cannot stat ", path_, ": ", std::strerror(errno));
  TORCH_CHECK(S_ISREG(status.st_mode), path_, " is not a regular file");
  return status.st_size;
}

void File::sync() const {
  TORCH_CHECK(::fsync(descriptor_) == 0, "cannot write ", path_, " to the disk: ", std::strerror(errno));
}

std::string read_text(const std::string& path) {
  constexpr std::int64_t kMost = 1'000'000'000;
  const File file = File::open_to_read(path);
  TORCH_CHECK(file.size() <= kMost, path, " has ", file.size(),
              " bytes, more than a JSON file of a checkpoint can have");
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(text.data(), static_cast<std::int64_t>(text.size()), 0);
  return text;
}

void write_text(const std::string& path, const std::string& text, bool sync) {
  const File file = File::create(path, static_cast<std::int64_t>(text.size()));
  file.write(text.data(), static_cast<std::int64_t>(text.size()), 0);
  if (sync) file.sync();
}

}  // namespace dtensor::files
