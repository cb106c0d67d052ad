// Functions on lists of tensors, and background saves. In a dry run, which has no values, they do nothing.
#include <exception>
#include <future>
#include <system_error>
#include <utility>

#include "checkpoint/collective_errors.h"
#include "checkpoint/format/files/file.h"
#include "checkpoint/format/files/saved_folder.h"
#include "checkpoint/load/load.h"
#include "checkpoint/save/save.h"
#include "dtensor/comm.h"
#include "internal/ranks/heartbeat_scope.h"
#include "internal/simulated.h"

namespace dtensor {

void save_state(const std::string& directory, const Communicator& ranks, const StateTensors& tensors,
                const CheckpointValues& values, const SaveOptions& options) {
  if (is_simulating()) return;
  files::Saver saver(directory, ranks, tensors, values, options);
  const HeartbeatScope heartbeats(ranks);  // all ranks are here; reductions may wait for other ranks' writes
  saver.write();
  saver.finish();
}

CheckpointValues load_state(const std::string& path, const Communicator& ranks, const StateTensors& targets,
                            const LoadOptions& options) {
  if (is_simulating()) return {};
  files::Loader loader(path, ranks, options);
  loader.read(targets);
  return loader.values();
}

void check_can_save(const std::string& directory, const SaveOptions& options) {
  const std::string folder = files::resolve(directory);
  files::check_may_replace(folder, options.keep_foreign);
  files::make_parent(folder);
  const std::string trial = files::make_temporary(folder);
  const std::string error =
      error_of([&] { files::write_text(trial + "/" + files::kValuesFile, std::string(1 << 16, ' '), true); });
  files::remove_folder(trial);
  TORCH_CHECK(error.empty(), error);
}

struct PendingSave::Impl {
  std::unique_ptr<files::Saver> saver;
  std::future<void> writing;
  std::exception_ptr failed = nullptr;  // what wait() threw; then `saver` is null
};

PendingSave::PendingSave(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PendingSave::PendingSave(PendingSave&&) noexcept = default;
PendingSave& PendingSave::operator=(PendingSave&& other) noexcept {
  std::swap(impl_, other.impl_);  // `other` then destroys the previous save
  return *this;
}

PendingSave::~PendingSave() {
  if (impl_ == nullptr) return;
  if (impl_->writing.valid()) impl_->writing.wait();
  if (impl_->saver) impl_->saver->drop();
}

bool PendingSave::done() const {
  return impl_ == nullptr || impl_->writing.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void PendingSave::wait() {
  if (impl_ == nullptr) return;
  if (impl_->failed) std::rethrow_exception(impl_->failed);
  try {
    impl_->saver->finish([&] { impl_->writing.wait(); });
  } catch (...) {
    impl_->failed = std::current_exception();
    impl_->saver.reset();  // releases the copies
    throw;
  }
  impl_.reset();
}

namespace {

// If no thread can be started, writes this rank's part synchronously. Other ranks, whose threads have started, meet
// this rank in wait(), so the save is slower but does not fail.
std::future<void> begin_writing(files::Saver& saver) {
  try {
    return std::async(std::launch::async, [&saver] { saver.write(); });
  } catch (const std::system_error&) {
    saver.write();
    std::promise<void> written;
    written.set_value();
    return written.get_future();
  }
}

}  // namespace

PendingSave save_state_async(const std::string& directory, const Communicator& ranks, const StateTensors& tensors,
                             const CheckpointValues& values, const SaveOptions& options) {
  if (is_simulating()) return PendingSave(nullptr);
  auto impl = std::make_unique<PendingSave::Impl>();
  impl->saver = std::make_unique<files::Saver>(directory, ranks, tensors, values, options);
  impl->saver->copy_parts();
  impl->writing = begin_writing(*impl->saver);
  return PendingSave(std::move(impl));
}

}  // namespace dtensor
